import pytest
from hypothesis import given
from hypothesis import strategies as st

from eliza import InvalidArgument, InvalidType
from eliza.textstream import TextStream


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    return [*pieces, data[at:]]


@given(st.text(), st.lists(st.integers(0, 5)))
def test_pieces_join_to_the_text_however_the_bytes_are_cut(text, sizes):
    stream = TextStream()
    pieces = [stream.free(piece) for piece in cut(text.encode(), sizes)]
    assert not any(stopped for _, stopped in pieces)
    assert "".join(piece for piece, _ in pieces) + stream.flush() == text


@given(
    st.text("ab", max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 4)),
)
def test_text_ends_before_the_first_stop_text(text, stops, sizes):
    stream = TextStream(stops)
    out = ""
    for piece in cut(text.encode(), sizes):
        shown, stopped = stream.free(piece)
        out += shown
        if stopped:
            break
    else:
        out += stream.flush()
        assert not any(stop in text for stop in stops)
        assert out == text
        return
    assert text.startswith(out)
    assert any(text.startswith(out + stop) for stop in stops)
    # Nothing that was shown held a stop text.
    assert not any(stop in out for stop in stops)


def test_fc070_stop_texts_do_not_apply_to_bound_text():
    stream = TextStream(["nan", "a"])
    assert stream.bound(b"banana") == "banana"
    assert stream.free(b"xay") == ("x", True)


def test_stop_texts_are_checked():
    with pytest.raises(InvalidArgument, match=r"stop\[1\] is empty"):
        TextStream(["x", ""])
    with pytest.raises(InvalidType, match="is a str"):
        TextStream("nan")
    with pytest.raises(InvalidType, match=r"stop\[0\] is 3"):
        TextStream([3])


def test_bytes_that_are_no_character_become_replacement_characters():
    assert TextStream().free(b"a\xffb") == ("a\ufffdb", False)
