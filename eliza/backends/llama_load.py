"""Loading: from a path and options to llama.cpp's model and context."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eliza.backends import llama_log
from eliza.backends.base import check_count
from eliza.backends.cores import physical_cores
from eliza.backends.llama_context import NativeContext, sequence_limit
from eliza.errors import (
    BackendError,
    BundleError,
    InvalidArgument,
    InvalidType,
    NotSupported,
    OutOfMemory,
)

__all__ = ["NativeModel", "Options", "import_llama", "load_model", "make_context"]

#: What n_ctx is when nobody says; a longer one costs memory from the start.
_DEFAULT_N_CTX = 4096

#: States of the recurrent kind are kept whole for each sequence: 100 MB and more.
_RECURRENT_SEQUENCES = 4

_CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")


class NativeModel:
    """A `llama_model` that lives as long as somebody holds this object.

    Parameters
    ----------
    lib : module
        `llama_cpp.llama_cpp`.
    pointer : int
        The model.
    owner : object, optional
        The `llama_cpp.Llama` that frees the model; without one, this object does.
    """

    def __init__(self, lib: Any, pointer: int, owner: Any = None) -> None:
        self.lib = lib
        self.pointer = pointer
        self.owner = owner
        if owner is None:
            weakref.finalize(self, lib.llama_model_free, pointer)


class Options:
    """What a context is made with, checked; see `LlamaBackend` for each."""

    def __init__(
        self,
        n_ctx: int | None,
        n_threads: int | None,
        n_batch: int | None,
        flash_attn: bool | None,
        kv_type: str | None,
    ) -> None:
        check_count("n_ctx", n_ctx)
        self.n_ctx = n_ctx
        check_count("n_threads", n_threads)
        self.n_threads = n_threads
        check_count("n_batch", n_batch)
        self.n_batch = n_batch
        if flash_attn is not None and type(flash_attn) is not bool:
            raise InvalidType(f"flash_attn is {flash_attn!r}; give True, False or None")
        if kv_type is not None and kv_type not in _CACHE_TYPES:
            raise InvalidArgument(
                f"kv_type is {kv_type!r}; it is one of {', '.join(_CACHE_TYPES)}"
            )
        self.flash_attn = flash_attn
        self.kv_type = kv_type


def import_llama() -> Any:
    """Return the low-level module of llama-cpp-python.

    Raises
    ------
    NotSupported
        It is not installed.
    """
    # Threads of GNU OpenMP spin while they wait. Where another process wants the
    # cores, that made a batch of 14 tokens take up to 2,950 ms instead of 65; with a
    # short spin it took 153 at most, and 77 instead of 71 on an idle machine. The
    # variable is read once, when the library is loaded, and is not left to others.
    ours = "GOMP_SPINCOUNT" not in os.environ and "OMP_WAIT_POLICY" not in os.environ
    if ours:
        os.environ["GOMP_SPINCOUNT"] = "1000"
    try:
        from llama_cpp import llama_cpp
    except ImportError as error:
        raise NotSupported(
            f"the llama.cpp backend needs llama-cpp-python ({error}): "
            "pip install 'eliza[llama]'"
        ) from error
    finally:
        if ours:
            del os.environ["GOMP_SPINCOUNT"]
    return llama_cpp


# The model


def load_model(
    lib: Any,
    path: str | os.PathLike[str],
    n_gpu_layers: int,
    progress: Callable[[float], object] | None,
) -> NativeModel:
    """Load a model file.

    Parameters
    ----------
    progress : callable or None
        Called with the fraction that is loaded, in [0, 1], in the calling thread.

    Raises
    ------
    BundleError
        There is no such file, or it is not a whole GGUF file of a known model.
    """
    if type(n_gpu_layers) is not int or n_gpu_layers >= 1 << 31:
        raise InvalidArgument(
            f"n_gpu_layers is {n_gpu_layers!r}; give a whole number, -1 for all layers"
        )
    _check_magic(path)
    params = lib.llama_model_default_params()
    params.n_gpu_layers = max(-1, n_gpu_layers)
    loading = _Loading(lib, path, params)
    loading.wait(progress)
    if not loading.pointer:
        reason = llama_log.reason(loading.lines)
        raise BundleError(f"{os.fspath(path)} cannot be loaded: {reason}")
    return NativeModel(lib, loading.pointer)


def _check_magic(path: str | os.PathLike[str]) -> None:
    name = os.fspath(path)
    try:
        if Path(path).is_dir():
            raise BundleError(f"{name} is a folder; give a .gguf file in it")
        with open(path, "rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise BundleError(f"{name} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BundleError(f"{name!r} is not a path: {error}") from error
    if magic != b"GGUF":
        raise BundleError(f"{name} is not a GGUF file: it begins with {magic!r}")


class _Loading:
    """A load in a thread of its own.

    The library calls back into Python while it loads. In the main thread Ctrl-C would
    be raised in there, where nothing can catch it before it is reported as ignored;
    so the calling thread waits outside, and tells the other one to stop.
    """

    def __init__(self, lib: Any, path: str | os.PathLike[str], params: Any) -> None:
        self.pointer: int | None = None
        self.lines: list[str] = []
        self._lib = lib
        self._path = os.fsencode(path)
        self._params = params
        self._fractions: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        self._stop = False
        self._thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        def report(fraction: float, _data: Any) -> bool:
            self._fractions.put(fraction)
            return not self._stop

        callback = self._lib.llama_progress_callback(report)
        self._params.progress_callback = callback
        with llama_log.collect() as self.lines:
            self.pointer = self._lib.llama_model_load_from_file(
                self._path, self._params
            )
        self._fractions.put(None)

    def wait(self, progress: Callable[[float], object] | None) -> None:
        """Wait for the end of the load; whatever is raised here stops it."""
        self._thread.start()
        try:
            while (fraction := self._fractions.get()) is not None:
                if progress is not None:
                    progress(fraction)
        except BaseException:
            self._stop = True
            self._thread.join()
            if self.pointer:
                self._lib.llama_model_free(self.pointer)
            raise
        self._thread.join()


# The context


def make_context(
    model: NativeModel, options: Options, base: Any = None, on_gpu: bool = False
) -> NativeContext:
    """Make a context for a model.

    Parameters
    ----------
    base : llama_context_params, optional
        What holds where the options say nothing.
    on_gpu : bool
        Whether layers of the model are on a GPU.

    Raises
    ------
    NotSupported
        The model does not generate text from left to right.
    OutOfMemory, BackendError
    """
    lib, pointer = model.lib, model.pointer
    vocab = lib.llama_model_get_vocab(pointer)
    n_vocab = lib.llama_vocab_n_tokens(vocab)
    if lib.llama_model_has_encoder(pointer) or not lib.llama_model_has_decoder(pointer):
        raise NotSupported(
            "this model has an encoder; eliza needs a decoder-only model"
        )
    if lib.llama_model_is_diffusion(pointer):
        raise NotSupported(
            "this is a diffusion model; eliza needs one that predicts the next token"
        )
    recurrent = lib.llama_model_is_recurrent(pointer) or lib.llama_model_is_hybrid(
        pointer
    )
    trained = lib.llama_model_n_ctx_train(pointer)
    n_ctx = options.n_ctx or min(trained or _DEFAULT_N_CTX, _DEFAULT_N_CTX)
    if trained and n_ctx > trained:
        llama_log.logger.warning(
            "n_ctx is %d, but the model was trained with %d: it may fail beyond that",
            n_ctx,
            trained,
        )
    n_batch = options.n_batch or (512 if on_gpu else 128)
    n_seq = _RECURRENT_SEQUENCES if recurrent else sequence_limit(n_vocab)
    params = _context_params(lib, options, base, on_gpu)
    params.n_ctx = n_ctx
    params.n_batch = params.n_ubatch = min(n_batch, n_ctx)
    params.n_seq_max = n_seq
    # Fewer outputs than sequences, and the library ends the process.
    params.n_outputs_max = params.n_outputs_max_per_seq = max(params.n_batch, n_seq)
    with llama_log.collect() as lines:
        context = lib.llama_init_from_model(pointer, params)
    if not context:
        no_memory = any("alloc" in line for line in lines)
        raise (OutOfMemory if no_memory else BackendError)(
            f"no context with n_ctx={n_ctx} can be made: {llama_log.reason(lines)}"
        )
    if not lib.llama_get_memory(context):
        lib.llama_free(context)
        raise NotSupported("this model keeps no past; eliza needs one that generates")
    return NativeContext(
        lib,
        context,
        model,
        n_vocab=n_vocab,
        n_ctx=n_ctx,
        can_cut=not recurrent,
    )


def _context_params(lib: Any, options: Options, base: Any, on_gpu: bool) -> Any:
    if base is None:
        params = lib.llama_context_default_params()
        flash = lib.LLAMA_FLASH_ATTN_TYPE_AUTO
        # Off on a CPU: on, a batch of 64 takes another path than one of 63, and a
        # single token another after 512 cells, with logits up to 1.7 apart on Q4_1.
        if not on_gpu:
            flash = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.flash_attn_type = flash
    else:
        params = type(base).from_buffer_copy(base)
    if options.flash_attn is not None:
        params.flash_attn_type = (
            lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
            if options.flash_attn
            else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
    if options.kv_type is not None:
        kind = getattr(lib, f"GGML_TYPE_{options.kv_type.upper()}")
        params.type_k = params.type_v = kind
    threads = options.n_threads or (physical_cores() if base is None else None)
    if threads is not None:
        params.n_threads = params.n_threads_batch = threads
    params.kv_unified = True  # branches share cells instead of copying them
    params.swa_full = True  # a sliding window could not be cut back
    params.embeddings = False
    params.no_perf = True
    return params
