"""What signatures mean, and how ids are divided among them. Needs no runtime."""

import numpy as np
import pytest

from eliza.backends import litert_plan
from eliza.backends.litert_layout import Signature, TensorInfo, discover
from eliza.errors import BundleError, NotSupported
from litert_files import LM, PLAIN, signature

# Dividing ids among signatures


def test_divisions_cover_all_ids():
    """The last call gives logits, with all_rows each; only it is filled up."""
    rng = np.random.default_rng(3)
    for _ in range(2000):
        sizes = [(1, True)]
        sizes += [
            (int(n), bool(rows)) for n, rows in rng.integers([2, 0], [40, 2], (3, 2))
        ]
        n = int(rng.integers(1, 150))
        room = n + int(rng.integers(0, 50))
        all_rows = bool(rng.integers(2))
        chunks = litert_plan.divide(n, room, sizes, all_rows)
        assert sum(taken for _, taken in chunks) == n
        assert sizes[chunks[-1][0]][1]
        at = 0
        for i, (number, taken) in enumerate(chunks):
            size, rows = sizes[number]
            assert rows or not all_rows
            assert taken == size or (i == len(chunks) - 1 and taken < size)
            assert at + size <= room
            at += taken


def test_divisions_are_cheap():
    sizes = [(1, True), (8, False), (8, True), (64, False)]
    assert litert_plan.divide(1, 900, sizes, False) == ((0, 1),)
    assert litert_plan.divide(6, 900, sizes, False) == ((2, 6),)
    assert litert_plan.divide(70, 900, sizes, False) == ((3, 64), (2, 6))
    assert litert_plan.divide(65, 65, sizes, False) == ((3, 64), (0, 1))
    assert len(litert_plan.divide(1000, 1000, sizes, False)) <= 20


# Layouts


@pytest.mark.parametrize(
    ("cache", "mask", "axes"),
    [(LM, 64, (2, 3)), (LM, None, (2, 3)), (PLAIN, 64, (1, 1)), (PLAIN, None, (1, 1))],
)
def test_layouts_are_found(cache, mask, axes):
    found = discover(
        {
            "prefill_8": signature(8, cache, mask),
            "decode": signature(1, cache, mask, logits=1),
            "verify": signature(4, cache, mask, logits=4),
            "last_only": signature(16, cache, mask, logits=1),
        },
        "m",
    )
    assert (found.n_ctx, found.width) == (64, 500)
    assert tuple(info.axis for info in found.caches.values()) == axes
    steps = [(step.name, step.n, step.out is not None) for step in found.steps]
    assert steps == [
        ("decode", 1, True),
        ("verify", 4, True),
        ("prefill_8", 8, False),
        ("last_only", 16, False),
    ]


def test_square_heads_are_told_apart():
    """As many ids as dimensions: keys have ids before, values last."""
    cache = {"k": (1, 2, 64, 64), "v": (1, 2, 64, 64)}
    found = discover({"decode": signature(1, cache, logits=1)}, "m")
    assert [info.axis for info in found.caches.values()] == [2, 3]


def test_what_is_not_known_is_refused():
    embeds = {"embeddings": TensorInfo((1, 1, 64), "float32")}
    with pytest.raises(NotSupported, match=r"embedder .* Gemma.* LiteRT-LM itself"):
        discover({"decode": signature(1, logits=1, **embeds)}, "m")
    odd = {"conv_state": TensorInfo((1, 3), "float32")}
    with pytest.raises(NotSupported, match="'conv_state'"):
        discover({"decode": signature(1, logits=1, **odd)}, "m")
    other = {"mask_local": TensorInfo((1, 1, 1, 64), "float32")}
    with pytest.raises(NotSupported, match="'mask_local'"):
        discover({"decode": signature(1, logits=1, **other)}, "m")
    cache = {"k": (1, 2, 64, 16), "v": (1, 7)}
    with pytest.raises(NotSupported, match="cannot be cut back"):
        discover({"decode": signature(1, cache, logits=1)}, "m")
    for shape in ((), (64,), (2, 1, 1, 64), (1, 1, 2, 64)):
        bad = signature(1, logits=1, mask=TensorInfo(shape, "float32"))
        with pytest.raises(NotSupported, match="takes a mask of type"):
            discover({"decode": bad}, "m")
    with pytest.raises(BundleError, match="gives its logits; it has prefill_8"):
        discover({"prefill_8": signature(8)}, "m")
    with pytest.raises(BundleError, match="it has none"):
        discover({}, "m")
    with pytest.raises(NotSupported, match="other keys and values"):
        discover({"decode": signature(1, logits=1), "p": signature(8, PLAIN)}, "m")


def test_a_row_with_the_decode():
    """Where steps end before the head, what gives logits for one id is still known."""

    def ending(n, out):
        found = signature(n)
        shape = (1, n, 500 if out == "logits" else 24)
        outputs = {**found.outputs, out: TensorInfo(shape, "float32")}
        return Signature(found.inputs, outputs)

    head = Signature(
        {"hidden": TensorInfo((1, 1, 24), "float32")},
        {"logits": TensorInfo((1, 1, 500), "float32")},
    )
    signatures = {
        "prefill_8": signature(8),
        "hidden_1": ending(1, "hidden"),
        "hidden_4": ending(4, "hidden"),
        "head_1": head,
    }
    assert discover(signatures, "m").whole is None
    signatures["decode"] = ending(1, "logits")
    signatures["verify"] = ending(4, "logits")
    found = discover(signatures, "m")
    assert found.whole.name == "decode"
    assert [step.name for step in found.steps] == ["hidden_1", "hidden_4", "prefill_8"]
    assert [step.name for step in found.giving] == ["hidden_1", "hidden_4", "decode"]
    del signatures["head_1"]
    assert discover(signatures, "m").whole is None
    wrong = Signature(
        signatures["decode"].inputs,
        {**signature(1).outputs, "logits": TensorInfo((1, 1, 400), "float32")},
    )
    with pytest.raises(NotSupported, match="the width of logits"):
        discover({**signatures, "head_1": head, "decode": wrong}, "m")
