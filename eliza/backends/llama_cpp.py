"""The llama.cpp backend, in process, by the low-level module of llama-cpp-python.

`llama_load` makes the model and the context, `llama_context` keeps the library's
limits, `llama_sequence` and `llama_tree` decode, `llama_log` routes its log.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from eliza.backends import llama_log
from eliza.backends.base import Capabilities
from eliza.backends.llama_load import (
    NativeModel,
    Options,
    import_llama,
    load_model,
    make_context,
)
from eliza.backends.llama_sequence import LlamaSequence
from eliza.backends.llama_state import model_fingerprint
from eliza.backends.llama_vocab import LlamaVocab
from eliza.errors import Closed, InvalidType, NotSupported

if TYPE_CHECKING:
    from typing import Self

__all__ = ["LlamaBackend"]


class LlamaBackend:
    """A GGUF model in llama.cpp.

    A context manager; `close` frees the model. All sequences share one context of
    `n_ctx` cells. One call at a time: a second thread waits.

    Parameters
    ----------
    path : str or path
        The GGUF file; of a model in several files, the first.
    n_ctx : int, optional
        The most ids that all sequences together hold. By default what the model was
        trained with, at most 4,096; more than that is allowed, with a warning.
    n_threads : int, optional
        By default one for each physical core that the process may use.
    n_gpu_layers : int
        How many layers to put on a GPU, if the library was built for one; -1 for all.
    n_batch : int, optional
        The most ids that are computed at one time, and the most rows of logits. A
        decode is cancelled between two batches. 128 by default, 512 on a GPU.
    flash_attn : bool, optional
        By default left to llama.cpp on a GPU, and off on a CPU, where it makes results
        depend on how ids are divided into batches.
    kv_type : str, optional
        Number type of the cache: "f16" (the default), "f32", "bf16", "q8_0", "q5_1",
        "q5_0", "q4_1", "q4_0". The quantised ones need `flash_attn=True`.
    progress : callable, optional
        Called with the fraction of the file that is loaded, in [0, 1]. What it raises
        stops the load and passes through.

    Raises
    ------
    NotSupported
        llama-cpp-python is not installed, or the model is of a kind that does not
        generate from left to right.
    BundleError
        The file is missing, cut short or damaged.
    OutOfMemory
        There is no memory for a context of this size.

    Notes
    -----
    With f32 weights and cache and without flash attention, logits depend on how ids
    are divided into decodes and trees by rounding alone (1e-5). With quantised weights
    they depend on it by up to 0.7: see `llama_context`.
    """

    name = "llama.cpp"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        n_ctx: int | None = None,
        n_threads: int | None = None,
        n_gpu_layers: int = 0,
        n_batch: int | None = None,
        flash_attn: bool | None = None,
        kv_type: str | None = None,
        progress: Callable[[float], object] | None = None,
    ) -> None:
        options = Options(n_ctx, n_threads, n_batch, flash_attn, kv_type)
        lib = import_llama()
        with ExitStack() as undo:
            llama_log.take(lib)
            undo.callback(llama_log.release, lib)
            lib.llama_backend_init()
            model = load_model(lib, path, n_gpu_layers, progress)
            self._path = os.path.abspath(path)
            on_gpu = n_gpu_layers != 0 and bool(lib.llama_supports_gpu_offload())
            self._start(model, options, None, on_gpu)
            undo.pop_all()

    @classmethod
    def from_llama(
        cls,
        llama: Any,
        *,
        n_ctx: int | None = None,
        n_threads: int | None = None,
        n_batch: int | None = None,
        flash_attn: bool | None = None,
        kv_type: str | None = None,
    ) -> Self:
        """Use the model of a live `llama_cpp.Llama`, in a context beside its own.

        The Llama stays usable and is kept alive; closing this backend does not close
        it, closing it closes this backend. What is not given is as in the Llama.

        Raises
        ------
        InvalidType
            It is not a `llama_cpp.Llama`.
        Closed
            It was closed.
        NotSupported
            It has a LoRA adapter, which belongs to its context alone, or has loaded
            only the vocabulary.
        """
        options = Options(n_ctx, n_threads, n_batch, flash_attn, kv_type)
        lib = import_llama()
        from llama_cpp import Llama

        if not isinstance(llama, Llama):
            raise InvalidType(f"{llama!r} is not a llama_cpp.Llama")
        if llama.model is None:
            raise Closed("the Llama is closed; make another")
        if llama.lora_path is not None:
            raise NotSupported(
                "the Llama has a LoRA adapter, which would not hold here; merge it "
                "into a model file and load that"
            )
        if llama.model_params.vocab_only:
            raise NotSupported("the Llama has loaded only the vocabulary")
        options.n_ctx = options.n_ctx or llama.n_ctx()
        self = cls.__new__(cls)
        with ExitStack() as undo:
            llama_log.take(lib)
            undo.callback(llama_log.release, lib)
            on_gpu = llama.model_params.n_gpu_layers != 0 and bool(
                lib.llama_supports_gpu_offload()
            )
            model = NativeModel(lib, llama.model, owner=llama)
            self._path = os.path.abspath(llama.model_path)
            self._start(model, options, llama.context_params, on_gpu)
            undo.pop_all()
        # Before the model goes, our context has to: the Llama's stack runs backwards.
        llama._stack.callback(_close_if_alive, weakref.ref(self))
        return self

    def _start(
        self, model: NativeModel, options: Options, base: Any, on_gpu: bool
    ) -> None:
        lib = model.lib
        self._options = options
        self._fingerprint: bytes | None = None
        self._context = make_context(model, options, base, on_gpu)
        template = lib.llama_model_chat_template(model.pointer, None)
        self._chat_template = template and template.decode("utf-8", "replace")
        self._model_id = _metadata(lib, model.pointer, b"general.name")
        kind = LlamaVocab if model.owner is None else _BorrowedVocab
        self._vocab: LlamaVocab | None = kind(
            lib.llama_model_get_vocab(model.pointer),
            keep_alive=model,
        )
        self._capabilities = Capabilities(
            truncate=self._context.can_cut,
            tree=self._context.can_cut,
            # On a CPU a batch costs by the token; a GPU computes 64 as fast as one.
            search_delta=3.0 if on_gpu else 0.5,
            save=True,
        )

    @property
    def model_id(self) -> str:
        """The file's `general.name`, or ""."""
        return self._model_id

    @property
    def chat_template(self) -> str | None:
        """The file's template for chat messages, if it has one."""
        return self._chat_template or None

    @property
    def fingerprint(self) -> bytes:
        """Names the file and the cache's options, for saved state; see `llama_state`.

        The file is read for it when it is first asked for (2 ms).
        """
        if self._fingerprint is None:
            self._fingerprint = model_fingerprint(self._path, self._options)
        return self._fingerprint

    @property
    def n_ctx(self) -> int:
        """The most ids that all open sequences together can hold."""
        return self._context.n_ctx

    @property
    def vocab(self) -> LlamaVocab:
        """The model's vocabulary. Whoever holds it can use it after `close`."""
        if self._vocab is None:
            raise Closed("the llama.cpp backend is closed; load the model again")
        return self._vocab

    @property
    def capabilities(self) -> Capabilities:
        """What its sequences can do: a recurrent model's cannot branch or be cut."""
        return self._capabilities

    def open(self) -> LlamaSequence:
        """Start an empty timeline.

        Raises
        ------
        BackendError
            All sequences of the context are in use.
        Closed
            The backend is closed.
        """
        return LlamaSequence(self._context)

    def close(self) -> None:
        """Free the context and the model. Sequences still open are closed with it.

        May be called twice, and from any thread: a decode that is being computed is
        waited for.
        """
        self._context.close()
        self._vocab = None

    def __enter__(self) -> Self:
        """Return the backend itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close it."""
        self.close()


class _BorrowedVocab(LlamaVocab):
    """The vocabulary of a model that a `llama_cpp.Llama` owns, and may close.

    The address is where all calls to the library begin, so the check is there.
    """

    @property
    def _pointer(self) -> int:
        model = self._keep_alive
        if isinstance(model, NativeModel) and model.owner.model is None:
            raise Closed("the Llama is closed, and with it this vocabulary")
        return self._address

    @_pointer.setter
    def _pointer(self, address: int) -> None:
        self._address = address


def _close_if_alive(ref: weakref.ref[LlamaBackend]) -> None:
    backend = ref()
    if backend is not None:
        backend.close()


def _metadata(lib: Any, model: int, key: bytes) -> str:
    """Return a text of the file's metadata, or ""."""
    size = lib.llama_model_meta_val_str(model, key, None, 0)
    if size < 0:
        return ""
    buffer = ctypes.create_string_buffer(size + 1)
    lib.llama_model_meta_val_str(model, key, buffer, size + 1)
    return buffer.value.decode("utf-8", "replace")
