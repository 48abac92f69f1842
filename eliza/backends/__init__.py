"""Runtimes that compute logits: the built-in ones, and how one is selected.

llama.cpp is the default. The others are known by name whether or not they are
installed, so that asking for them says what is missing; they are never selected by
themselves as long as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eliza import _dispatch
from eliza._dispatch import Registry, Selection
from eliza.errors import InvalidType

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from eliza.backends.base import Backend, Factory
    from eliza.files.bundle import Bundle

__all__ = ["LLAMA", "REGISTRY", "Registry", "Selection", "builtins", "select"]


def _check_options(backend: str, made_by: Any, options: dict[str, Any]) -> None:
    """Refuse options that a backend does not have; say which it has."""
    known = made_by.__kwdefaults__
    for name in options:
        if name not in known:
            raise InvalidType(
                f"{backend} has no option {name!r}; it has {', '.join(known)}"
            )


class _LlamaFactory:
    name = "llama.cpp"
    aliases = ("llamacpp", "llama")
    # Recurrent models have the first two; which kind a model is of, its file says.
    provides = frozenset(("mask", "forced_run", "rollback", "tree"))
    install = "pip install 'eliza[llama]'"

    def available(self) -> bool:
        from importlib.util import find_spec

        return find_spec("llama_cpp") is not None

    def can_serve(self, bundle: Bundle) -> bool:
        return bundle.live is not None or bundle.has("gguf")

    def preference_rank(self) -> int:
        return 0

    def open(self, bundle: Bundle, **options: Any) -> Backend:
        from eliza.backends.llama_cpp import LlamaBackend

        if bundle.live is not None:
            options.pop("progress", None)  # it is loaded already
            _check_options(self.name, LlamaBackend.from_llama, options)
            return LlamaBackend.from_llama(bundle.live, **options)
        _check_options(self.name, LlamaBackend.__init__, options)
        return LlamaBackend(bundle.gguf(options.get("n_ctx")), **options)


class _LitertFactory:
    name = "litert-lm"
    aliases = ("litert", "litertlm", "tflite")
    provides = frozenset(("mask", "forced_run", "rollback"))
    install = "pip install 'eliza[litert]'"

    def available(self) -> bool:
        from eliza.backends.litert_base import installed

        return installed() is not None

    def can_serve(self, bundle: Bundle) -> bool:
        return bundle.has("litertlm", "tflite")

    def preference_rank(self) -> int:
        return 50

    def open(self, bundle: Bundle, **options: Any) -> Backend:
        from eliza.backends.litert import LitertBackend

        _check_options(self.name, LitertBackend.__init__, options)
        return LitertBackend(bundle.only("litertlm", "tflite"), **options)


class _MlxFactory:
    name = "mlx-coreml"
    aliases = ("mlx",)
    # Which kind of cache a model has, its weights say.
    provides = frozenset(("mask", "forced_run", "rollback", "tree"))
    install = (
        "pip install 'eliza[mlx]' (on Linux that is mlx[cpu] with mlx-lm; mlx-cpu by "
        "itself has no mlx.core)"
    )

    def available(self) -> bool:
        from importlib.util import find_spec

        try:
            return find_spec("mlx.core") is not None and find_spec("mlx_lm") is not None
        except ModuleNotFoundError:  # not even `mlx`
            return False

    def can_serve(self, bundle: Bundle) -> bool:
        return bundle.has("mlx")

    def preference_rank(self) -> int:
        return 100

    def open(self, bundle: Bundle, **options: Any) -> Backend:
        from eliza.backends.mlx import MlxBackend

        _check_options(self.name, MlxBackend.__init__, options)
        return MlxBackend(bundle.only("mlx"), **options)


#: What `DEFAULT` stands for.
LLAMA: Factory = _LlamaFactory()


def builtins() -> tuple[Factory, ...]:
    """Return the factories that eliza comes with."""
    return (
        LLAMA,
        _LitertFactory(),
        _MlxFactory(),
    )


#: Where `select` looks unless it is told otherwise: the built-in factories, and the
#: entry points of installed packages.
REGISTRY = Registry(builtins, "eliza.backends")


def select(
    bundle: str | os.PathLike[str] | Bundle | Any,
    registry: Registry | None = None,
    env: Mapping[str, str] | None = None,
    need: Iterable[str] = (),
    *,
    backend: str | None = None,
) -> Selection:
    """Choose the backend that serves a bundle.

    Nothing is loaded, and nothing kept: the next call asks everything again.

    Parameters
    ----------
    bundle : path, Bundle or llama_cpp.Llama
        A model's file or folder.
    registry : Registry, optional
        Of backend factories; by default the one of the process.
    env : mapping, optional
        Where `ELIZA_LLM_BACKEND` is looked up: the name of a backend, without regard to
        case, which is then the only one that may serve. "llama.cpp", "llamacpp" and
        "llama" are the default backend; empty is as if it were not set. By default the
        environment of the process.
    need : iterable of str
        What the backend must provide: "mask", "forced_run", "rollback", "tree".
    backend : str, optional
        A name that comes before that of the environment.

    Returns
    -------
    USE, DEFAULT or ERROR
        `USE(factory)`: the named one, or else the one with the highest rank above 0
        of those that are available, provide what is needed and can serve the bundle;
        of equal ranks, the one registered first. `DEFAULT(factory)`: llama.cpp.
        `ERROR(message)`: the named one cannot. `unwrap()` gives the factory or raises
        the error; as a truth value a selection raises an error.

    Raises
    ------
    InvalidArgument, InvalidType
        Something about the arguments. What factories raise does not pass through: a
        named one makes an `ERROR`, others are logged, and not selected.
    """
    from eliza.files.bundle import Bundle

    return _dispatch.select(
        Bundle.of(bundle),
        REGISTRY if registry is None else registry,
        env,
        need,
        backend=backend,
        default=LLAMA,
    )
