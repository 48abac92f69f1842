"""From a file, a folder or a live object to a `Model`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from eliza.errors import InvalidType
from eliza.model import Model

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from eliza.files.bundle import Bundle

__all__ = ["load"]

#: What `load` wants a backend to have; see `eliza.backends.base.Backend`.
BACKEND_MEMBERS = ("open", "close", "vocab", "capabilities", "n_ctx", "model_id")


def load(
    model: str | os.PathLike[str] | Bundle | Any,
    *,
    backend: str | None = None,
    n_ctx: int | None = None,
    n_threads: int | None = None,
    model_id: str | None = None,
    backend_options: dict[str, Any] | None = None,
    progress: Callable[[float], object] | None = None,
) -> Model:
    """Load a model.

    Parameters
    ----------
    model : path, Bundle or llama_cpp.Llama
        A `.gguf`, `.tflite` or `.litertlm` file, a folder of MLX weights, a bundle's
        folder, or a live `Llama`, whose weights are then shared.
    backend : str, optional
        The runtime, such as "llama.cpp". By default the one that the environment's
        `ELIZA_LLM_BACKEND` names, or else what `eliza.select` chooses for the model.
    n_ctx : int, optional
        Context length in ids. By default the model's own, at most 4096.
    n_threads : int, optional
        By default one for each core this process may use.
    model_id : str, optional
        What `Model.model_id` says. By default what the bundle's manifest says, or else
        the model itself.
    backend_options : dict, optional
        Passed on to the backend: `eliza.backends.llama_cpp.LlamaBackend`,
        `eliza.backends.mlx.MlxBackend` or `eliza.backends.litert.LitertBackend` says
        what it takes.
    progress : callable, optional
        Called with a fraction from 0 to 1 while the file loads.

    Returns
    -------
    Model
        A context manager; `close` it, or leave its `with` block, to free the memory.

    Raises
    ------
    BundleError
        The file is missing, cut short, or not a model; or the named backend does not
        serve it.
    NotSupported
        The runtime is not installed, not known, or cannot keep a constraint.
    """
    from eliza.backends import select
    from eliza.files.bundle import Bundle

    if model_id is not None and not isinstance(model_id, str):
        raise InvalidType(f"model_id is {model_id!r}; it is a text, or None")
    if backend_options is not None and not isinstance(backend_options, Mapping):
        raise InvalidType(
            f"backend_options is {backend_options!r}; it is a mapping from names of "
            "options to their values, or None"
        )
    bundle = Bundle.of(model)
    factory = select(bundle, need=("mask",), backend=backend).unwrap()
    options = dict(backend_options or {})
    options.update(
        (key, value)
        for key, value in (
            ("n_ctx", n_ctx),
            ("n_threads", n_threads),
            ("progress", progress),
        )
        if value is not None
    )
    if model_id is None:
        manifest = bundle.manifest()
        model_id = manifest.id if manifest is not None else None
    opened = factory.open(bundle, **options)
    try:
        lacking = [name for name in BACKEND_MEMBERS if not hasattr(opened, name)]
        if lacking:
            raise InvalidType(
                f"the factory {factory.name} opened {opened!r}, which is no backend: "
                f"it lacks {', '.join(lacking)}"
            )
        return Model(opened, model_id)
    except BaseException:
        if hasattr(opened, "close"):
            opened.close()
        raise
