"""What tells tokenizers apart: what they do with one text, and what they hold.

The name of the rules by which a tokenizer splits texts is not the same in every file,
and in some there is none. So a tokenizer is known by what it makes of `SAMPLE`, as
llama.cpp's own converter knows them. Vocabularies of equal texts, attributes and ids
for the sample have one fingerprint, whichever runtime reads them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection

import numpy as np

from eliza.errors import InvalidArgument

__all__ = ["SAMPLE", "attributes", "sampled"]

#: Each line differs between two of the rules that are in use: contractions, digits in
#: ones, threes and rows, spaces before words and in rows, line breaks after signs,
#: scripts without spaces, marks that combine, signs that a normalizer rewrites.
SAMPLE = (
    "I'm we've they'LL don't 'Til o'clock HTTPServer camelCase snake_case x2y",
    "1 12 123 1234 12345678901 3.14 \u0967\u0968\u0969 \u00bd\u00b2 \u2167 7th",
    " a  b   c    d        e                \t\tf\u00a0g\u3000h",
    "}\n\n)\r\n;\n \n\n\n\n  x = (y[0]->z || !w) // ... ---- ==== #### ''''''",
    "\u4f60\u597d\uff0c\u4e16\u754c \u3053\u3093\u306b\u3061\u306f "
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u041f\u0440\u0438\u0432\u0435\u0442 "
    "\u0645\u0631\u062d\u0628\u0627 \uc548\ub155",
    "e\u0301 \u00e9 \ufb01 \u2460 A\u030a \u00c5 \u1e9b\u0323 "
    "\U0001f408\u200d\U0001f7e6 \U0001f1eb\U0001f1ee \U0001d54f \u200b\ufeff|",
)


def sampled(encode: Callable[[str], list[int]]) -> str:
    """Return a text that names the rules of a tokenizer by what it does."""
    digest = hashlib.sha256()
    for line in SAMPLE:
        try:
            digest.update(f"{encode(line)}\n".encode())
        except InvalidArgument:
            digest.update(b"cannot be written\n")
    return digest.hexdigest()


def attributes(
    n_vocab: int, special: Collection[int], user_defined: Collection[int]
) -> list[int]:
    """Return the attributes of all ids, as fingerprints know them.

    Special ids have 1, and 2 what a tokenizer cuts out of a text before anything else.
    """
    found = np.zeros(n_vocab, np.uint8)
    for ids, value in ((user_defined, 2), (special, 1)):
        found[np.fromiter(ids, np.int64, len(ids))] = value
    values: list[int] = found.tolist()
    return values
