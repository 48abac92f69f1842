"""The LiteRT backend: `.tflite` and `.litertlm` files, in process.

`litert_layout` finds out what a file's signatures mean, `litert_plan` divides ids among
them, `litert_sequence` decodes. `litert_runtime` opens one of the library's interfaces,
`litert_compiled` or `litert_interpreter`; `litert_weights` keeps packed weights,
`litert_head` computes single logits, `litert_log` routes what the library prints.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from eliza.backends.base import Capabilities, check_count
from eliza.backends.cores import physical_cores
from eliza.backends.litert_about import About
from eliza.backends.litert_base import Runtime
from eliza.backends.litert_head import SingleLogits
from eliza.backends.litert_runtime import open_runtime
from eliza.backends.litert_sequence import LitertSequence, Shared
from eliza.errors import (
    BundleError,
    Closed,
    InvalidArgument,
)
from eliza.files.fingerprint import fingerprint_file
from eliza.files.litertlm import LitertlmFile
from eliza.files.tflite import TfliteFile
from eliza.locking import ModelLock

if TYPE_CHECKING:
    from typing import Self

    from eliza.vocab import Vocab

__all__ = ["LitertBackend"]

_INTERFACES = ("compiled", "interpreter")


class LitertBackend:
    """A model in LiteRT, on the processor.

    A context manager; `close` frees the model. Each sequence has keys and values of its
    own, for the whole context. One call at a time: a second thread waits.

    Parameters
    ----------
    path : str or path
        A `.tflite` file whose signatures take ids and give logits, or a `.litertlm`
        file with one. What `eliza convert` writes, and what LiteRT's own exporters
        write for LiteRT-LM.
    n_ctx : int, optional
        The most ids of a sequence; by default what the file is made for, which is also
        the most.
    n_threads : int, optional
        By default one for each physical core that the process may use.
    tokenizer : str, path, bytes or Vocab, optional
        A `tokenizer.json` or a SentencePiece model, or a folder with one, or a
        vocabulary. By default what is in the file or beside a `.tflite` file.
    interface : {"compiled", "interpreter"}, optional
        Which of the library's interfaces; by default the first that can run the file.
    in_place : bool, optional
        Whether keys and values are written where they are read, which saves their
        memory once and the time to copy them. By default so for files that eliza wrote,
        which are made for it.
    progress : callable, optional
        Called with the fraction that is loaded, in [0, 1].

    Raises
    ------
    NotSupported
        ai-edge-litert is not installed; or the file needs more than ids, such as an
        embedder apart from the model; the message says what.
    BundleError
        The file is missing, cut short or damaged, or there is no tokenizer.
    OutOfMemory
        There is no memory for keys and values.
    """

    name = "litert-lm"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        n_ctx: int | None = None,
        n_threads: int | None = None,
        tokenizer: str | os.PathLike[str] | bytes | Vocab | None = None,
        interface: str | None = None,
        in_place: bool | None = None,
        progress: Callable[[float], object] | None = None,
    ) -> None:
        check_count("n_ctx", n_ctx)
        check_count("n_threads", n_threads)
        if interface is not None and interface not in _INTERFACES:
            raise InvalidArgument(
                f"interface is {interface!r}; it is one of {', '.join(_INTERFACES)}"
            )
        report = progress or (lambda _: None)
        report(0.0)
        self._path = os.fspath(path)
        model, about = _open(Path(path), tokenizer)
        self._about = about
        self._model = model
        in_place = about.by_eliza if in_place is None else in_place
        threads = n_threads or physical_cores()
        runtime = open_runtime(os.fspath(model), threads, interface, in_place)
        try:
            self._vocab: Vocab | None = about.vocab(runtime.layout.width)
            self._shared = self._start(runtime, n_ctx)
        except BaseException:
            runtime.close()
            raise
        self._sequences: weakref.WeakSet[LitertSequence] = weakref.WeakSet()
        self._fingerprint: bytes | None = None
        if model != Path(path):  # out of a container, and not kept for ever
            self._fingerprint = self.fingerprint
        report(1.0)

    def _start(self, runtime: Runtime, n_ctx: int | None) -> Shared:
        most = min(runtime.layout.n_ctx, self._about.max_tokens or 1 << 31)
        if n_ctx is not None and n_ctx > runtime.layout.n_ctx:
            raise InvalidArgument(
                f"n_ctx is {n_ctx}, but {self._path} is made for "
                f"{runtime.layout.n_ctx}; convert the model again with --n-ctx"
            )
        assert self._vocab is not None
        if self._vocab.n_vocab > runtime.layout.width:
            raise BundleError(
                f"the tokenizer of {self._path} has {self._vocab.n_vocab} ids, the "
                f"model {runtime.layout.width}: they do not belong together"
            )
        heads, single = runtime.layout.heads, None
        if heads:
            single = SingleLogits.of(os.fspath(self._model), heads[0], runtime)
        n_vocab = self._vocab.n_vocab
        return Shared(runtime, ModelLock(), n_ctx or most, n_vocab, single)

    @property
    def model_id(self) -> str:
        """What the file calls the model, or ""."""
        return self._about.name

    @property
    def chat_template(self) -> str | None:
        """The file's template for chat messages, if it has one."""
        return self._about.template

    @property
    def fingerprint(self) -> bytes:
        """Names the file, for saved state; it is read for it when first asked for."""
        if self._fingerprint is None:
            caches = self._shared.runtime.layout.caches.items()
            forms = [(name, i.shape, i.dtype, i.axis) for name, i in caches]
            self._fingerprint = fingerprint_file(self._model, f"litert {forms} ")
        return self._fingerprint

    @property
    def n_ctx(self) -> int:
        """The most ids that a sequence can hold."""
        return self._shared.n_ctx

    @property
    def vocab(self) -> Vocab:
        """The model's vocabulary. Whoever holds it can use it after `close`."""
        if self._vocab is None:
            raise Closed("the LiteRT backend is closed; load the model again")
        return self._vocab

    @property
    def capabilities(self) -> Capabilities:
        """What its sequences can do: everything but trees.

        Single logits they compute where the file has signatures that end before the
        head, as those have that eliza writes.
        """
        single = self._shared.single is not None
        return Capabilities(truncate=True, tree=False, save=True, head_rows=single)

    def open(self) -> LitertSequence:
        """Start an empty timeline.

        Raises
        ------
        OutOfMemory
            There is no memory for its keys and values.
        Closed
            The backend is closed.
        """
        sequence = LitertSequence(self._shared)
        self._sequences.add(sequence)
        return sequence

    def close(self) -> None:
        """Free the model. Sequences still open are closed with it.

        May be called twice, and from any thread: a decode that is being computed is
        waited for. In a forked child nothing is done: the model is the parent's.
        """
        shared = self._shared
        if shared.lock.foreign:
            return
        with shared.lock:
            if shared.closed:
                return
            for sequence in list(self._sequences):
                sequence.close()
            shared.closed = True
            shared.runtime.close()
            self._vocab = None

    def __enter__(self) -> Self:
        """Return the backend itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close it."""
        self.close()


def _open(
    path: Path, tokenizer: str | os.PathLike[str] | bytes | Vocab | None
) -> tuple[Path, About]:
    """Return the file for the runtime, and what is known about the model."""
    if path.is_dir():
        raise BundleError(f"{path} is a folder; give a .tflite or .litertlm file in it")
    if path.suffix.lower() == ".litertlm":
        with LitertlmFile(path) as container:
            model = container.extract(container.model())
            with TfliteFile(model) as file:
                return model, About.of_container(container, file, tokenizer)
    with TfliteFile(path) as file:
        return path, About.of_file(file, tokenizer)
