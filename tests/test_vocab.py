"""`Vocab` over a list of pieces: ids, bytes, special ids, the fingerprint."""

from __future__ import annotations

import numpy as np
import pytest

from eliza.errors import InvalidArgument, InvalidType
from eliza.vocab import Vocab
from t32 import BOS, END, IM_END, PIECES, t32


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("AB", [6]),
        ("AC", [4, 7]),
        ("ABC", [6, 7]),
        ("Maybe", [13, 14]),
        ("Yes", [9]),  # 10 is written the same: the lowest id counts
        (" Yes", [11]),
        ("🐈", [16, 17, 18, 19]),
        ("<|im_end|>", [26, 27, 28, 27, 29]),
        ("</s>", None),  # T32 has no `s`
        ("", []),
    ],
)
def test_longest_match_lowest_id(text, ids):
    vocab = t32()
    if ids is None:
        with pytest.raises(InvalidArgument, match="no piece for 's'"):
            vocab.encode(text)
    else:
        assert vocab.encode(text) == ids
        assert vocab.decode(ids) == text.encode()


def test_special_texts_become_ids_only_when_asked():
    vocab = t32()
    assert vocab.encode("<s>A<|im_end|>", special=True) == [BOS, 4, IM_END]
    assert vocab.encode("A<|im_end|>") == [4, 26, 27, 28, 27, 29]


def test_fc072_bos_at_most_once():
    vocab = t32()
    assert vocab.adds_bos
    assert vocab.encode("Yes", bos=True) == [BOS, 9]
    assert vocab.encode("<s>Yes", special=True, bos=True) == [BOS, 9]
    assert vocab.encode("Yes") == [9]
    assert t32(bos=None).encode("Yes", bos=True) == [9]
    assert not t32(bos=None).adds_bos


def test_fc124_long_and_empty_pieces():
    vocab = Vocab.from_tokens(["</s>", "x" * 256, "", "x", " ", " " * 64, "A"], eog=[0])
    for text in ("x" * 256, "x" * 257, " " * 64 + "A", " " * 65, "Ax" * 40):
        assert vocab.decode(vocab.encode(text)).decode() == text
    assert vocab.piece(1) == b"x" * 256
    assert vocab.piece(2) == b""
    assert vocab.encode("x" * 256) == [1]
    assert t32().encode(" " * 64 + "A") == [22, 4]
    assert t32().encode(" " * 65) == [22, 21]


def test_fc067_special_ids_contribute_no_text():
    vocab = t32(eog=(END, IM_END))
    assert vocab.decode([BOS, 9, IM_END]) == b"Yes"
    assert vocab.piece(IM_END) == b"<|im_end|>"
    assert [i for i in range(32) if vocab.is_special(i)] == [0, 1, 2, 3]


def test_end_ids_are_special_and_sorted():
    vocab = Vocab.from_tokens(["b", "a", "e", "f"], eog=[3, 2])
    assert vocab.eog == (2, 3)
    assert vocab.is_special(2)
    assert not vocab.is_special(1)
    with pytest.raises(InvalidArgument, match="no piece for 'e'"):
        vocab.encode("e")


def test_fc010_unspellable_text_names_the_character():
    with pytest.raises(
        InvalidArgument, match=r"no piece for 'o' \(byte 0x6f\) in 'ok'"
    ):
        t32().encode("ok")


def test_bad_ids():
    vocab = t32()
    for bad in (-1, 32, 10**20):
        with pytest.raises(InvalidArgument, match=f"{bad} is outside 0 to 31"):
            vocab.piece(bad)
        with pytest.raises(InvalidArgument, match="outside"):
            vocab.is_special(bad)
        with pytest.raises(InvalidArgument, match="outside"):
            vocab.decode([9, bad])
    for wrong in ("9", 9.0, None, True):
        with pytest.raises(InvalidType, match="must be an integer"):
            vocab.piece(wrong)
    assert vocab.piece(np.int32(9)) == b"Yes"
    assert vocab.decode(np.array([9, 9])) == b"YesYes"
    with pytest.raises(InvalidArgument, match="eog id 32 is outside"):
        t32(eog=[32])


@pytest.mark.parametrize("text", [b"Yes", None, 1])
def test_bad_texts(text):
    with pytest.raises(InvalidType, match="must be a string"):
        t32().encode(text)


def test_lone_surrogate():
    with pytest.raises(InvalidArgument, match="lone surrogate at 1"):
        t32().encode("A\ud800")


def test_what_the_encoder_puts_before_a_text():
    assert t32().text_start == b""
    spaced = Vocab.from_tokens(
        ["</s>", " ", "a", " a"],
        encode=lambda text, special: [" a".index(c) + 1 for c in " " + text],
    )
    assert spaced.text_start == b" "
    assert Vocab.from_tokens(["b"]).text_start == b""


def test_fingerprint_tells_vocabularies_apart():
    pieces = ["</s>", "a", "b", "ab"]
    other = {
        "itself": Vocab.from_tokens(pieces, eog=[0]),
        "eog": Vocab.from_tokens(pieces),
        "control": Vocab.from_tokens(pieces, control=[3], eog=[0]),
        "bos": Vocab.from_tokens(pieces, eog=[0], bos=1),
        "piece": Vocab.from_tokens(["</s>", "a", "b", "ba"], eog=[0]),
        "borders": Vocab.from_tokens(["</s>", "a", "ba", "b"], eog=[0]),
        "size": Vocab.from_tokens([*pieces, ""], eog=[0]),
        "encoder": Vocab.from_tokens(pieces, eog=[0], encode=lambda text, special: [1]),
    }
    prints = {name: vocab.fingerprint for name, vocab in other.items()}
    assert all(len(digest) == 32 for digest in prints.values())
    assert len(set(prints.values())) == len(prints)
    assert Vocab.from_tokens(pieces, eog=[0]).fingerprint == prints["itself"]


def test_the_caller_s_list_is_not_kept():
    pieces = list(PIECES)
    vocab = Vocab.from_tokens(pieces)
    pieces[4] = "Z"
    assert vocab.piece(4) == b"A"


def test_what_encode_returns_is_the_caller_s():
    ids = [4]
    vocab = Vocab.from_tokens(PIECES, bos=BOS, encode=lambda text, special: ids)
    vocab.encode("A", bos=True).append(9)
    assert ids == [4]
