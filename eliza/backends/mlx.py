"""The MLX backend: models of mlx-lm, in a loop of our own.

`mlx_load` makes the model, `mlx_model` takes it apart, `mlx_sequence`, `mlx_tree` and
`mlx_state` decode, branch and save.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eliza.backends.base import Capabilities, check_count
from eliza.backends.mlx_load import (
    import_mlx,
    load_model,
    loading,
    model_module,
    read_json,
)
from eliza.backends.mlx_model import MlxModel
from eliza.backends.mlx_sequence import MlxSequence, Shared
from eliza.backends.mlx_state import model_fingerprint
from eliza.errors import (
    BundleError,
    Closed,
    NotSupported,
)
from eliza.tokenizers import read_vocab

if TYPE_CHECKING:
    from typing import Self

    from eliza.vocab import Vocab

__all__ = ["MlxBackend"]

logger = logging.getLogger("eliza.mlx")

#: What n_ctx is when nobody says.
_DEFAULT_N_CTX = 4096


class MlxBackend:
    """A folder of MLX weights, or a live model of mlx-lm.

    A context manager; `close` lets go of the model. Each sequence has a cache of its
    own, which grows with its ids. One call at a time: a second thread waits.

    Parameters
    ----------
    folder : str or path
        With `config.json`, `model*.safetensors` and a tokenizer.
    n_ctx : int, optional
        The most ids that a sequence holds. By default what the model was trained with,
        at most 4,096; more than that is allowed, with a warning.
    n_batch : int, optional
        The most ids that are computed at one time, and the most rows of logits. A
        decode is cancelled between two batches. 16 by default on a CPU, where a batch
        costs by the id; 256 on a GPU.
    n_threads : int, optional
        Refused: MLX has no such setting.
    progress : callable, optional
        Called with the fraction of the weights that is loaded, in [0, 1]. What it
        raises stops the load and passes through.

    Raises
    ------
    NotSupported
        mlx or mlx-lm is not installed, or mlx-lm has no such model.
    BundleError
        Something is missing in the folder, damaged, or does not fit together.

    Notes
    -----
    Logits of float16 and bfloat16 become float32; rows of float32 are read where they
    are.
    """

    name = "mlx"

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        n_ctx: int | None = None,
        n_batch: int | None = None,
        n_threads: int | None = None,
        progress: Callable[[float], object] | None = None,
    ) -> None:
        if n_threads is not None:
            raise NotSupported(
                "MLX decides itself how many threads compute; leave n_threads out"
            )
        check_count("n_ctx", n_ctx)
        check_count("n_batch", n_batch)
        mx = import_mlx()
        path = Path(folder)
        vocab = read_vocab(path)
        model, config = load_model(mx, path, progress)
        self._folder: Path | None = path.absolute()
        self._fingerprint: bytes | None = None
        trained = _trained(config)
        if n_ctx is not None and trained is not None and n_ctx > trained:
            logger.warning(
                "n_ctx is %d, but the model was trained with %d: it may fail beyond it",
                n_ctx,
                trained,
            )
        n_ctx = n_ctx or min(trained or _DEFAULT_N_CTX, _DEFAULT_N_CTX)
        name = config.get("_name_or_path")
        self._model_id = name if isinstance(name, str) else ""
        self._chat_template = _template(path)
        self._start(mx, path, model, vocab, n_ctx, n_batch)

    @classmethod
    def from_model(
        cls,
        model: Any,
        vocab: Vocab,
        *,
        n_ctx: int = _DEFAULT_N_CTX,
        n_batch: int | None = None,
        chat_template: str | None = None,
        fingerprint: bytes = b"",
    ) -> Self:
        """Use a model that is in memory, such as `mlx_lm.load` gives.

        Parameters
        ----------
        model : mlx.nn.Module
            Called with ids of shape [1, n] and a cache, it gives logits.
        vocab : Vocab
            Its vocabulary, such as `eliza.tokenizers.read_vocab` gives.
        fingerprint : bytes
            Names the weights for saved state; without it no state is saved.
        """
        check_count("n_ctx", n_ctx)
        check_count("n_batch", n_batch)
        self = cls.__new__(cls)
        self._folder = None
        self._fingerprint = fingerprint
        self._model_id = ""
        self._chat_template = chat_template
        self._start(import_mlx(), "the model", model, vocab, n_ctx, n_batch)
        return self

    def _start(
        self,
        mx: Any,
        what: object,
        model: Any,
        vocab: Vocab,
        n_ctx: int,
        n_batch: int | None,
    ) -> None:
        on_gpu = mx.default_device() != mx.Device(mx.cpu)
        with loading(what):  # it computes for the first time
            apart = MlxModel(mx, model, model_module("cache"))
            if apart.n_rows < vocab.n_vocab:
                raise BundleError(
                    f"the model gives {apart.n_rows} logits, but the tokenizer has "
                    f"{vocab.n_vocab} ids; they do not belong together"
                )
            self._shared = Shared(
                apart,
                n_vocab=vocab.n_vocab,
                n_ctx=n_ctx,
                n_batch=n_batch or (256 if on_gpu else 16),
            )
        self._vocab: Vocab | None = vocab
        can_save = self._shared.can_save and self._fingerprint != b""
        self._shared.can_save = can_save
        self._capabilities = Capabilities(
            truncate=self._shared.can_trim,
            tree=self._shared.can_trim,
            search_delta=0.5,
            save=can_save,
            head_rows=apart.has_head,
        )

    @property
    def model_id(self) -> str:
        """What `config.json` calls the model, or ""."""
        return self._model_id

    @property
    def chat_template(self) -> str | None:
        """The folder's template for chat messages, if it has one."""
        return self._chat_template or None

    @property
    def fingerprint(self) -> bytes:
        """Names the files and mlx-lm, for saved state; see `mlx_state`."""
        if self._fingerprint is None:
            assert self._folder is not None
            self._fingerprint = model_fingerprint(self._folder)
        return self._fingerprint

    @property
    def n_ctx(self) -> int:
        """The most ids that a sequence can hold."""
        return self._shared.n_ctx

    @property
    def vocab(self) -> Vocab:
        """The model's vocabulary. Whoever holds it can use it after `close`."""
        if self._vocab is None:
            raise Closed("the MLX backend is closed; load the model again")
        return self._vocab

    @property
    def capabilities(self) -> Capabilities:
        """What its sequences can do: where a cache cannot be cut, neither branch."""
        return self._capabilities

    def open(self) -> MlxSequence:
        """Start an empty timeline.

        Raises
        ------
        Closed
            The backend is closed.
        """
        return MlxSequence(self._shared)

    def close(self) -> None:
        """Let go of the model. Sequences still open are closed with it.

        May be called twice, and from any thread: a decode that is being computed is
        waited for.
        """
        self._shared.close()
        self._vocab = None

    def __enter__(self) -> Self:
        """Return the backend itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close it."""
        self.close()


def _trained(config: dict[str, Any]) -> int | None:
    """Return how many ids the model was trained with at a time, if it says so."""
    text = config.get("text_config")
    for part in (config, text if isinstance(text, dict) else {}):
        found = part.get("max_position_embeddings")
        if isinstance(found, int) and found > 0:
            return found
    return None


def _template(folder: Path) -> str | None:
    """Return the template for chat messages of a folder."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8", "replace")
    config = folder / "tokenizer_config.json"
    found = read_json(config).get("chat_template") if config.is_file() else None
    if isinstance(found, list):  # several, by name
        named = {t.get("name"): t.get("template") for t in found if isinstance(t, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None
