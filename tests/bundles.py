"""Bundles that tests make."""

from __future__ import annotations

import hashlib
import json

from eliza import Bundle

SHA = hashlib.sha256(b"GGUF").hexdigest()


def make(folder, *names, content=b"GGUF"):
    """Put files into a folder; a name that ends in / is a folder."""
    for name in names:
        path = folder / name
        if name.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return Bundle.of(folder)


def state(folder, document, name="manifest.json"):
    """Write a manifest, given as JSON or as what is to be that."""
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()
    (folder / name).write_bytes(raw)


def text_of(*files, **fields):
    return {"id": "m", "files": {"text": list(files)}, **fields}


def kinds(bundle):
    return [
        (artefact.kind, artefact.path.relative_to(bundle.path).as_posix())
        for artefact in bundle.artefacts()
    ]
