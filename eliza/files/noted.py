"""What eliza notes in the files that it writes."""

from __future__ import annotations

import zlib
from mmap import mmap

__all__ = ["ABOUT", "LIST_SAFE", "SEAL", "TOKENIZER", "is_sealed", "seal"]

#: In the metadata of a `.tflite` file: JSON, and a `tokenizer.json` packed by zlib.
ABOUT = "eliza"
TOKENIZER = "eliza_tokenizer"

#: What stands in the JSON, under "tables", until it is known: the size of the tables of
#: the file, and their CRC-32 with eight zeros in its own place. LiteRT does not survive
#: all tables that were damaged.
SEAL = f"{0:012} {0:08x}"

#: Put before a chat template. LiteRT-LM hands the content of a message over as a list
#: of parts, where templates expect a text.
LIST_SAFE = (
    "{%- set ns = namespace(messages=[]) -%}{%- for m in messages -%}"
    "{%- if m.content is string -%}{%- set ns.text = m.content -%}{%- else -%}"
    "{%- set ns.text = '' -%}{%- for part in m.content -%}"
    "{%- set ns.text = ns.text ~ part.text -%}{%- endfor -%}{%- endif -%}"
    "{%- set ns.messages = ns.messages + [{'role': m.role, 'content': ns.text}] -%}"
    "{%- endfor -%}{%- set messages = ns.messages -%}"
)


def seal(tables: bytearray) -> None:
    """Complete the note within the tables of a file."""
    at = tables.index(SEAL.encode())
    tables[at : at + 12] = b"%012d" % len(tables)
    tables[at + 13 : at + 21] = b"%08x" % zlib.crc32(tables)


def is_sealed(data: bytes | mmap, noted: str) -> bool:
    """Whether the beginning of a file is as it was when the note was completed."""
    size = noted[:12]
    if len(noted) != 21 or not size.isdecimal() or int(size) > len(data):
        return False
    tables = bytearray(data[: int(size)])
    at = tables.find(noted.encode())
    tables[at + 13 : at + 21] = b"00000000"
    return at >= 0 and b"%08x" % zlib.crc32(tables) == noted[13:].encode()
