"""The manifest of a bundle: which files it has, and what they must be.

``docs/bundles.md`` describes it. It comes with the model, from whoever made that, so
nothing in it is trusted: no path leads out of the bundle, and no size is believed.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path

import msgspec

from eliza.errors import BundleError, InvalidArgument
from eliza.strict_json import read_json, shorten

__all__ = ["MAX_BYTES", "NAMES", "Manifest", "ManifestFile", "find", "read", "resolve"]

#: What a manifest may be called.
NAMES = ("manifest.json", "eliza-1.manifest.json")

#: The longest manifest that is read; 27 files with all that is usual take 20 kB.
MAX_BYTES = 1 << 20

_SHA256 = re.compile(r"[0-9a-f]{64}")


class ManifestFile(msgspec.Struct, frozen=True, rename="camel"):
    """A file of a bundle.

    Attributes
    ----------
    path : str
        From the bundle's folder, with `/`.
    sha256 : str
        In lower case; empty if it is not known.
    size_bytes : int
        -1 if it is not known.
    ctx : int
        Of a text model, the context length that it is made for; 0 if it is not known.
    """

    path: str
    sha256: str = ""
    size_bytes: int = -1
    ctx: int = 0


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    """What a bundle says about itself.

    Attributes
    ----------
    id : str
        The model's.
    files : dict of str to tuple of ManifestFile
        By what they are for; those of the text model under "text".
    version, tier : str
        Empty if they are not given.
    """

    id: str
    files: dict[str, tuple[ManifestFile, ...]]
    version: str = ""
    tier: str = ""


def find(folder: Path) -> Path | None:
    """Return the manifest in a folder, if there is one.

    Raises
    ------
    BundleError
        There are two.
    """
    found = [folder / name for name in NAMES if os.path.lexists(folder / name)]
    if len(found) > 1:
        raise BundleError(f"{folder} has both {' and '.join(NAMES)}; remove one")
    return found[0] if found else None


def read(path: Path) -> Manifest:
    """Read a manifest, and check all that can be checked without its files.

    Raises
    ------
    BundleError
        It cannot be read, or is not one; the message says where it is wrong.
    """
    try:
        manifest = read_json(_content(path), Manifest, _always_check_keys)
        _check(manifest)
    except InvalidArgument as error:
        raise BundleError(f"{path}: {error}") from None
    return manifest


def resolve(folder: Path, file: ManifestFile) -> Path:
    """Return where a file of a bundle is, after checking that it is the bundle's own.

    Raises
    ------
    BundleError
        It is missing, lies outside of the folder by way of a link, is no ordinary file,
        or has another size.
    """
    path = folder / file.path
    name = shorten(file.path)
    try:
        inside = path.resolve(strict=True).is_relative_to(folder.resolve(strict=True))
        status = path.stat()
    except FileNotFoundError:
        raise BundleError(f"{folder}: the manifest's {name} is missing") from None
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        reason = getattr(error, "strerror", None) or error
        raise BundleError(f"{folder}: {name} cannot be read: {reason}") from error
    if not inside:
        raise BundleError(
            f"{folder}: {name} leads out of the bundle, by a link; copy what it points "
            "to in its place"
        )
    if not stat.S_ISREG(status.st_mode):
        raise BundleError(f"{folder}: {name} is no ordinary file")
    if file.size_bytes not in (-1, status.st_size):
        raise BundleError(
            f"{folder}: {name} has {status.st_size} bytes; the manifest says "
            f"{file.size_bytes}"
        )
    return path


def digest_fault(folder: Path, file: ManifestFile) -> str:
    """Return what is wrong with a file, its SHA-256 included, or ""."""
    try:
        path = resolve(folder, file)
        if not file.sha256:
            return ""
        with path.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
    except BundleError as error:
        return str(error).removeprefix(f"{folder}: ")
    except OSError as error:
        return f"{shorten(file.path)} cannot be read: {error.strerror}"
    if found != file.sha256:
        return (
            f"{shorten(file.path)} has the SHA-256 {found}; the manifest says "
            f"{file.sha256}"
        )
    return ""


def _always_check_keys(_manifest: Manifest) -> int:
    return -1  # fields may be left out, so their number says nothing


def _content(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would never end
            raise BundleError(f"{path} is no ordinary file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise BundleError(f"{path} is longer than {MAX_BYTES} bytes; no manifest is")
    return content


def _check(manifest: Manifest) -> None:
    for name in ("id", "version", "tier"):
        value = getattr(manifest, name)
        if len(value) > 256 or not value.isprintable() or value != value.strip():
            raise InvalidArgument(
                f"{name}: {shorten(value)} is no name; it has at most 256 printable "
                "characters, and no blanks around them"
            )
    if not manifest.id:
        raise InvalidArgument("id: it is empty; give the model's")
    seen: dict[str, tuple[str, str, ManifestFile]] = {}
    for kind, files in manifest.files.items():
        for i, file in enumerate(files):
            where = f"files.{kind[:60]}[{i}]"
            _check_file(file, where)
            of, first, same = seen.setdefault(file.path, (kind, where, file))
            if same is not file and (same != file or of == kind):
                raise InvalidArgument(
                    f"{where}.path: {shorten(file.path)} is at {first} already"
                )


def _check_file(file: ManifestFile, where: str) -> None:
    reason = _path_fault(file.path)
    if reason:
        raise InvalidArgument(f"{where}.path: {shorten(file.path)} {reason}")
    if file.sha256 and not _SHA256.fullmatch(file.sha256):
        raise InvalidArgument(
            f"{where}.sha256: {shorten(file.sha256)} is not 64 hexadecimal digits in "
            "lower case"
        )
    for name, value, least in (
        ("sizeBytes", file.size_bytes, -1),
        ("ctx", file.ctx, 0),
    ):
        if not least <= value < 1 << 63:
            raise InvalidArgument(f"{where}.{name}: {str(value)[:20]} is out of range")


def _path_fault(path: str) -> str:
    """Return what is wrong with a path, or ""."""
    if not path.isprintable() or len(path) > 1024:
        return "is too long, or has characters that are not printable"
    if "\\" in path or ":" in path:
        return "has a backslash or a colon; parts are separated by /"
    if path.startswith("/"):
        return "is absolute; it begins at the bundle's folder"
    if not all(part.strip(". ") for part in path.split("/")):
        return "has an empty part, or one of dots alone; it is written plainly"
    return ""
