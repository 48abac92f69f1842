"""What a model comes in: a file, a folder, or an object of a runtime.

A bundle is looked at when it is asked, every time: it keeps nothing but its path, so
that what was probed and what is opened cannot be two different things.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from eliza.errors import BundleError, InvalidArgument, InvalidType, shown

if TYPE_CHECKING:
    from eliza.files.manifest import Manifest, ManifestFile

__all__ = ["Artefact", "Bundle"]

#: Kinds of artefacts: what a message calls them.
KINDS = {
    "gguf": "GGUF",
    "litertlm": "LiteRT-LM",
    "tflite": "TFLite",
    "mlx": "MLX weights",
    "coreml": "CoreML: not available on this host",
}
_FILES = {".gguf": "gguf", ".litertlm": "litertlm", ".tflite": "tflite"}
_FOLDERS = {".mlpackage": "coreml", ".mlmodelc": "coreml"}

#: Modules whose live objects stand for a model that is loaded already.
_RUNTIMES = ("llama_cpp",)

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Artefact:
    """Something that a runtime can load.

    Attributes
    ----------
    kind : str
        "gguf", "litertlm", "tflite", "mlx" or "coreml".
    path : Path
        A file, or for the last two a folder.
    """

    kind: str
    path: Path


@dataclass(frozen=True, slots=True)
class Bundle:
    """A model's file or folder, or a live object of a runtime.

    The artefacts of a folder are in its subfolder `text`, or else in the folder itself.

    Attributes
    ----------
    path : Path or None
    live : object
        A `llama_cpp.Llama`; None where there is a path.
    """

    path: Path | None
    live: Any = None

    @classmethod
    def of(cls, source: str | os.PathLike[str] | Bundle | Any) -> Self:
        """Return the bundle at a path. Whether there is one, its methods say.

        Raises
        ------
        InvalidType
            It is neither a path nor a `llama_cpp.Llama`.
        InvalidArgument
            There is a NUL in the path, or the path is empty.
        """
        if isinstance(source, cls):
            return source
        if isinstance(source, (str, os.PathLike)):
            path = os.fspath(source)
            if not isinstance(path, str):
                raise InvalidType(f"{path!r} is a path of bytes; give a str")
            if not path or "\0" in path:
                what = "has a NUL in it" if path else "is empty"
                raise InvalidArgument(f"{shown(path)} is not a path: it {what}")
            return cls(Path(path))
        for kind in type(source).__mro__:
            if kind.__module__.partition(".")[0] in _RUNTIMES:
                return cls(None, source)
        raise InvalidType(
            f"{type(source).__name__} is no model; give the path of a file or a "
            "folder, or a llama_cpp.Llama"
        )

    def __str__(self) -> str:
        if self.path is not None:
            return str(self.path)
        return f"a live {type(self.live).__name__}"

    # What is there

    @property
    def folder(self) -> Path | None:
        """The folder of the text model's artefacts, if the bundle is a folder."""
        if self.path is None or not _is_dir(self.path):
            return None
        text = self.path / "text"
        return text if _is_dir(text) else self.path

    def artefacts(self) -> tuple[Artefact, ...]:
        """Return what is there for a runtime to load, in the order of names.

        Raises
        ------
        BundleError
            The folder cannot be read. One that is not there has no artefacts.
        """
        if self.path is None:
            return ()
        folder = self.folder
        if folder is None:
            kind = _FILES.get(self.path.suffix.lower())
            there = kind and _is_file(self.path)
            return (Artefact(kind, self.path),) if kind and there else ()
        if self.path.suffix.lower() in _FOLDERS:
            return (Artefact(_FOLDERS[self.path.suffix.lower()], self.path),)
        return tuple(_probe(folder))

    def has(self, *kinds: str) -> bool:
        """Whether there is an artefact of one of these kinds."""
        return any(artefact.kind in kinds for artefact in self.artefacts())

    def content(self) -> str:
        """Return what is there, for a message."""
        found = []
        for artefact in self.artefacts():
            path = artefact.path
            if path != self.path and self.path is not None:
                path = path.relative_to(self.path)
            found.append(f"{path} ({KINDS[artefact.kind]})")
        if len(found) > 8:
            found[7:] = [f"{len(found) - 7} more"]
        return ", ".join(found) or "nothing that eliza knows"

    # The manifest

    def manifest(self) -> Manifest | None:
        """Read the manifest, if the bundle is a folder with one.

        Raises
        ------
        BundleError
            It is not a manifest; the message says where it is wrong.
        """
        if self.path is None or not _is_dir(self.path):
            return None
        from eliza.files import manifest  # msgspec: a third of the time of the import

        found = manifest.find(self.path)
        return None if found is None else manifest.read(found)

    def verify(self) -> Manifest:
        """Read every file of the manifest, and compare its size and its SHA-256.

        Files without a SHA-256 in the manifest are compared by what it has.

        Raises
        ------
        BundleError
            There is no manifest, or files are missing or differ; the message lists
            them.
        """
        from eliza.files.manifest import digest_fault

        manifest = self.manifest()
        if manifest is None or self.path is None:
            raise BundleError(f"{self} has no manifest to verify it by")
        every = {f.path: f for files in manifest.files.values() for f in files}
        faults = [digest_fault(self.path, file) for file in every.values()]
        faults = [fault for fault in faults if fault]
        if faults:
            more = f"; and {len(faults) - 8} more" if len(faults) > 8 else ""
            raise BundleError(f"{self}: {'; '.join(faults[:8])}{more}")
        return manifest

    # For a runtime

    def only(self, *kinds: str) -> Path:
        """Return the one artefact of some kinds; of the first kind that is there.

        Where there are more of a kind, those are meant that the manifest lists under
        `files.text`.

        Raises
        ------
        BundleError
            There is none, or more than one; or a file of the text model is not as the
            manifest says.
        """
        manifest = self.manifest()
        listed = set()
        if manifest is not None and self.path is not None:
            from eliza.files.manifest import resolve

            text = manifest.files.get("text", ())
            listed = {resolve(self.path, file) for file in text}
        for kind in kinds:
            found = [a.path for a in self.artefacts() if a.kind == kind]
            found = [path for path in found if path in listed] or found
            if len(found) == 1:
                return found[0]
            if found:
                names = ", ".join(path.name for path in found[:8])
                raise BundleError(
                    f"{self} has {len(found)} times {KINDS[kind]}: {names}; give the "
                    "one that is meant"
                )
        wanted = " or ".join(KINDS[kind] for kind in kinds)
        raise BundleError(f"{self} has no {wanted}; it holds {self.content()}")

    def gguf(self, n_ctx: int | None = None) -> Path:
        """Return the one file that llama.cpp is to load.

        A bundle that is a file is that file. In a folder it is the `.gguf` file; of a
        model in several parts, the first. Where there are more, the manifest decides:
        those that it lists under `files.text` are meant, and of several that each have
        a `ctx`, the one with the lowest that is enough for `n_ctx`.

        Raises
        ------
        BundleError
            There is none, or more than one; parts are missing; or a file of the text
            model is not as the manifest says.
        """
        if self.path is None:
            raise BundleError(f"{self} is not a file")
        folder = self.folder
        if folder is None:
            return self._plain_file()
        manifest = self.manifest()
        if manifest is not None:
            from eliza.files.manifest import resolve

            text = manifest.files.get("text", ())
            placed = {file.path: resolve(self.path, file) for file in text}
            listed = [f for f in text if f.path.lower().endswith(".gguf")]
            if listed:
                return placed[self._decide(listed, n_ctx)]
        found = [a.path for a in self.artefacts() if a.kind == "gguf"]
        if not found:
            raise BundleError(
                f"{folder} has no .gguf file for llama.cpp; it holds "
                f"{self.content()}{self._served_by()}"
            )
        name = _the_one([path.name for path in found], str(folder))
        if name is None:
            names = ", ".join(path.name for path in found[:8])
            more = ", …" if len(found) > 8 else ""
            raise BundleError(
                f"{folder} has {len(found)} .gguf files: {names}{more}; give the one "
                "that is meant, or list it in a manifest.json"
            )
        return folder / name

    def _plain_file(self) -> Path:
        """Return the path itself, unless it is known to be for another runtime."""
        assert self.path is not None
        if self.artefacts() and not self.has("gguf"):
            raise BundleError(
                f"llama.cpp loads .gguf files; this is {self.content()}"
                f"{self._served_by()}"
            )
        return self.path

    def _served_by(self) -> str:
        """Return what to install for what is there, for a message."""
        for kinds, runtime, extra in (
            (("litertlm", "tflite"), "LiteRT", "litert"),
            (("mlx",), "MLX", "mlx"),
        ):
            if self.has(*kinds):
                return f", which {runtime} serves: pip install 'eliza[{extra}]'"
        return ""

    def _decide(self, listed: list[ManifestFile], n_ctx: int | None) -> str:
        """Return the path of the file that a manifest means."""
        only = _the_one([file.path for file in listed], f"{self}: the manifest")
        if only is not None:
            return only
        lengths = {file.ctx for file in listed}
        if 0 in lengths or len(lengths) < len(listed):
            names = ", ".join(file.path for file in listed[:8])
            raise BundleError(
                f"{self}: the manifest lists {len(listed)} .gguf files under "
                f"files.text, and no ctx that tells them apart: {names}; give the one "
                "that is meant"
            )
        enough = sorted(
            (file.ctx, file.path) for file in listed if file.ctx >= (n_ctx or 1)
        )
        if not enough:
            raise BundleError(
                f"{self}: no file of the manifest is made for n_ctx={n_ctx}; the most "
                f"is {max(lengths)}"
            )
        return enough[0][1]


def _probe(folder: Path) -> Iterator[Artefact]:
    """Give the artefacts in a folder."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(e.name for e in entries if not e.name.startswith("."))
    except FileNotFoundError:
        return
    except OSError as error:
        raise BundleError(f"{folder} cannot be read: {error.strerror}") from error
    if any(name.lower().endswith(".safetensors") for name in names):
        yield Artefact("mlx", folder)
    for name in names:
        path = folder / name
        suffix = path.suffix.lower()
        if suffix in _FILES and _is_file(path):
            yield Artefact(_FILES[suffix], path)
        elif suffix in _FOLDERS and _is_dir(path):
            yield Artefact(_FOLDERS[suffix], path)
        elif _is_weights(path, name):
            yield Artefact("mlx", path)


def _is_weights(path: Path, name: str) -> bool:
    """Whether a path is a folder of MLX weights."""
    if name.lower() != "mlx" and not _is_file(path / "config.json"):
        return False
    with suppress(OSError):
        return any(path.glob("*.safetensors"))
    return False


def _is_file(path: Path) -> bool:
    with suppress(OSError):
        return path.is_file()
    return False


def _is_dir(path: Path) -> bool:
    with suppress(OSError):
        return path.is_dir()
    return False


def _the_one(names: list[str], where: str) -> str | None:
    """Return the only name, or that of the first part if all are parts of one model."""
    parts = [_PART.fullmatch(name) for name in names]
    if len(names) == 1 and parts[0] is None:
        return names[0]
    models = {(part[1], int(part[3])) if part else None for part in parts}
    if len(models) > 1 or None in models:
        return None
    ((_, total),) = (model for model in models if model)
    found = {
        int(part[2]): name for part, name in zip(parts, names, strict=True) if part
    }
    missing = [i for i in range(1, total + 1) if i not in found]
    if missing or len(found) != total:
        raise BundleError(
            f"{where} has {len(found)} of the {total} parts of a model; the first that "
            f"is missing is number {missing[0] if missing else total}"
        )
    return found[1]
