"""The file of a saved generation.

Little-endian: the magic ``ELIZSLOT``, the version (u32), the length of the header (u32)
and of all that follows it (u64); the header, JSON; the ids, int32; the row of logits
after them, float32, where it is known; the runtime's own state; and SHA-256 of all of
that. Nothing in a file is trusted before the checksum holds, and no length beyond the
size of the file at any time.
"""

from __future__ import annotations

import os
import stat
import struct
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from eliza._atomic import write_atomically
from eliza.errors import BundleError, InvalidArgument

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Identity", "Slot", "pack_rng", "read_slot", "unpack_rng", "write_slot"]

_MAGIC = b"ELIZSLOT"
_VERSION = 1
_FIXED = struct.Struct("<8sIIQ")
_SUM = 32
_BUFFERS = {"MT19937": 624, "Philox": 4}
_WRONG = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    RecursionError,
    OverflowError,
)


class Identity(msgspec.Struct, frozen=True):
    """What a state was made with, and can be used with alone.

    Attributes
    ----------
    backend : str
        Name of the runtime.
    model : str
        Its fingerprint of the weights and options, in hexadecimal.
    vocabulary : str
        Fingerprint of the tokenizer.
    choices : str
        SHA-256 of the token trie that was set, or "".
    """

    backend: str
    model: str
    vocabulary: str
    choices: str

    def check(self, ours: Identity, path: str) -> None:
        """Raise InvalidArgument unless the state belongs here."""
        for name, what in (
            ("backend", "runtime"),
            ("model", "model (or its options)"),
            ("vocabulary", "tokenizer"),
        ):
            if getattr(self, name) != getattr(ours, name):
                raise InvalidArgument(
                    f"{path} was saved with another {what}: "
                    f"{shorten(getattr(self, name))}; "
                    f"this session has {shorten(getattr(ours, name))}"
                )
        if self.choices == ours.choices:
            return
        if not self.choices:
            raise InvalidArgument(
                f"{path} was saved without choices, and this session has some: "
                "clear_token_trie() first"
            )
        raise InvalidArgument(
            f"{path} was saved with {'other' if ours.choices else 'a set of'} choices "
            f"({shorten(self.choices)}): call set_token_trie with those it was saved "
            "with first"
        )


class Slot(msgspec.Struct, frozen=True):
    """A generation as it stood.

    Attributes
    ----------
    identity : Identity
        What it was made with.
    ids, pending, generated, path : tuple of int
        What the runtime holds; what belongs behind it and is not decoded; what was
        generated since the prompt; what the choices took.
    finish : str or None
        Why it had ended.
    text : tuple of (str, bytes)
        Text that waits for a stop text, and bytes that wait for their character.
    rng : str
        State of the generator, as `pack_rng` writes it.
    row : array, float32, or None
        The logits after `ids`.
    state : bytes
        The runtime's.
    """

    identity: Identity
    ids: tuple[int, ...]
    pending: tuple[int, ...]
    generated: tuple[int, ...]
    path: tuple[int, ...]
    finish: str | None
    text: tuple[str, bytes]
    rng: str
    row: Any
    state: bytes


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    identity: Identity
    n_ids: int
    n_row: int
    n_state: int
    pending: tuple[int, ...]
    generated: tuple[int, ...]
    path: tuple[int, ...]
    finish: str | None
    held: str
    unread: bytes
    rng: str


def write_slot(path: str | os.PathLike[str], slot: Slot) -> None:
    """Write a slot, readable by its owner alone: it holds what was said.

    Raises
    ------
    OSError
        It could not be written; what was there before is still there.
    """
    ids = np.asarray(slot.ids, "<i4").tobytes()
    row = b"" if slot.row is None else np.asarray(slot.row, "<f4").tobytes()
    header = msgspec.json.encode(
        _Header(
            identity=slot.identity,
            n_ids=len(slot.ids),
            n_row=len(row) // 4,
            n_state=len(slot.state),
            pending=slot.pending,
            generated=slot.generated,
            path=slot.path,
            finish=slot.finish,
            held=slot.text[0],
            unread=slot.text[1],
            rng=slot.rng,
        )
    )
    rest = len(ids) + len(row) + len(slot.state)
    fixed = _FIXED.pack(_MAGIC, _VERSION, len(header), rest)
    data = b"".join((fixed, header, ids, row, slot.state))
    write_atomically(path, data + _digest(data), 0o600)


def read_slot(path: str | os.PathLike[str]) -> Slot:
    """Read a slot.

    Raises
    ------
    BundleError
        It is not a slot, or damaged, or of another version; the message says which.
    OSError
        There is no such file, or it cannot be read.
    """
    name = os.fspath(path)
    if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would never end
        raise BundleError(f"{name} is no ordinary file")
    with open(path, "rb") as file:
        fixed = file.read(_FIXED.size)
        size = os.fstat(file.fileno()).st_size
        if not fixed.startswith(_MAGIC):
            raise BundleError(f"{name} is not a slot: it does not begin with its magic")
        if len(fixed) < _FIXED.size:
            raise BundleError(f"{name} is cut short: {size} bytes are no slot")
        _, version, n_header, n_rest = _FIXED.unpack(fixed)
        if version != _VERSION:
            raise BundleError(
                f"{name} is a slot of version {version}; this is version {_VERSION}"
            )
        expected = _FIXED.size + n_header + n_rest + _SUM
        if size != expected:
            raise BundleError(
                f"{name} is damaged: it has {size} bytes and should have {expected}"
            )
        data = fixed + file.read(size - _FIXED.size)
    body = memoryview(data)[: len(data) - _SUM]
    if len(data) != expected or _digest(body) != data[-_SUM:]:
        raise BundleError(f"{name} is damaged: its checksum differs")
    try:
        header = msgspec.json.decode(
            body[_FIXED.size : _FIXED.size + n_header], type=_Header
        )
    except (msgspec.DecodeError, RecursionError) as error:
        raise BundleError(f"{name} is damaged: its header is wrong: {error}") from None
    lengths = (4 * header.n_ids, 4 * header.n_row, header.n_state)
    if min(lengths) < 0 or sum(lengths) != n_rest:
        raise BundleError(f"{name} is damaged: its parts do not add up")
    at = _FIXED.size + n_header
    ids = np.frombuffer(body, "<i4", header.n_ids, at)
    row: NDArray[np.float32] | None = None
    if header.n_row:
        row = np.frombuffer(body, "<f4", header.n_row, at + lengths[0]).copy()
    return Slot(
        identity=header.identity,
        ids=tuple(ids.tolist()),
        pending=header.pending,
        generated=header.generated,
        path=header.path,
        finish=header.finish,
        text=(header.held, header.unread),
        rng=header.rng,
        row=row,
        state=bytes(body[at + lengths[0] + lengths[1] :]),
    )


def pack_rng(rng: np.random.Generator) -> str:
    """Write the state of a generator as text: its integers can have 128 bits."""
    import json

    def plain(value: Any) -> Any:
        return value.tolist() if hasattr(value, "tolist") else str(value)

    return json.dumps(rng.bit_generator.state, default=plain)


def unpack_rng(text: str, rng: np.random.Generator) -> np.random.Generator:
    """Return a generator like `rng` in a state that was written.

    Raises
    ------
    InvalidArgument
        It is the state of another kind of generator.
    """
    import json

    try:
        state = json.loads(text)
        kind = state["bit_generator"]
        bits = type(rng.bit_generator)()
        if kind == type(bits).__name__:
            if isinstance(state["state"].get("key"), list):
                state["state"]["key"] = np.array(state["state"]["key"], np.uint64)
            # NumPy does not look where in its buffer a state says that it is.
            at = state["state"].get("pos", state.get("buffer_pos", 0))
            if not 0 <= at <= _BUFFERS.get(kind, 0):
                raise ValueError(f"a {kind} is at {at} of its buffer")
            bits.state = state
            return np.random.Generator(bits)
    except _WRONG as error:
        raise BundleError(f"the slot's random state is wrong: {error}") from None
    raise InvalidArgument(
        f"the slot was saved with a {kind} generator, and this session draws with "
        f"{type(bits).__name__}: open it with that kind, or give restore_slot a seed"
    )


def shorten(fingerprint: str) -> str:
    """Return the beginning of a fingerprint, for messages."""
    return f"{fingerprint[:12]}..." if len(fingerprint) > 16 else fingerprint or "none"


def _digest(data: bytes | memoryview) -> bytes:
    import hashlib

    return hashlib.sha256(data).digest()
