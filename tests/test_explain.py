"""What an answer tells of itself, and what a trace is given."""

import math
import sys

import pytest

from eliza import Closed, InvalidArgument, NotSupported, Trie
from support import END, hashed, model_of, plain_vocab, scripted
from t32 import t32

LEAVES = {
    "SEND": (10, 11, 12),
    "SEARCH": (10, 11, 13, 14),
    "REPLY": (20, 21),
    "RE": (20,),
}


def ask(seed=1, **request):
    model = model_of(hashed(seed, 64), plain_vocab())
    trie = Trie.from_tokens(LEAVES, n_vocab=64)
    return model.choose([4, 5], trie, **request), model


@pytest.mark.parametrize("method", ["exact", "greedy", "sample"])
@pytest.mark.parametrize("ranking", [None, "masked", "whole"])
@pytest.mark.parametrize("seed", range(12))
def test_links_spell_the_choice_and_their_product_is_its_masked_probability(
    method, ranking, seed
):
    request = {"rng": 3} if method == "sample" else {}
    answer, _ = ask(seed, method=method, ranking=ranking, **request)
    ids = tuple(i for link in answer.links for i in link.ids)
    assert ids == LEAVES[answer.value]
    decided = [link for link in answer.links if link.decided]
    assert len(decided) == answer.stats.decided
    forced = [link for link in answer.links if not link.decided]
    assert sum(len(link.ids) for link in forced) == answer.stats.forced
    masked, _ = ask(seed, method="greedy", ranking="masked")
    share = {r.value: r.probability for r in masked.ranking}[answer.value]
    assert math.prod(link.probability for link in decided) == pytest.approx(share)
    for link in decided:
        shown = [p for _, p in link.others]
        assert shown == sorted(shown, reverse=True)
        if link.n_others == len(link.others):
            assert link.probability + sum(shown) == pytest.approx(1)


def test_the_end_of_a_choice_that_others_continue_is_a_decision():
    model = model_of(scripted({(20,): {END: 9.0}, (): {20: 9.0}}, 2), plain_vocab())
    answer = model.choose([4, 5], Trie.from_tokens(LEAVES, n_vocab=64))
    assert answer.value == "RE"
    last = answer.links[-1]
    assert (last.ids, last.text, last.decided) == ((), "", True)
    assert last.probability > 0.9
    assert "(end)" in answer.explain()


def test_explain_reads_well():
    model = model_of(scripted({(): {9: 2.0}}, 2), t32(), width=40)
    text = model.choose("n", ["Yes", "No", "Maybe"], ranking="masked").explain(60)
    lines = text.splitlines()
    assert lines[0].startswith("'Yes', probability 78.7%, log-likelihood")
    assert any("decided" in line and "against 'No'" in line for line in lines)
    assert any(line.startswith("  Yes") and "█" in line for line in lines)
    assert max(map(len, lines)) <= 60
    assert lines[-2].startswith("  1 pass over 2 positions in ")
    assert lines[-1] == "  prompt of 2 tokens, 0 reused"


def test_explain_of_a_thousand_choices_is_bounded():
    model = model_of(hashed(2, 2000), plain_vocab(2000))
    pairs = [(f"name {i}", [i]) for i in range(500, 1500)]
    answer = model.choose([4], pairs, ranking="whole")
    assert len(answer.explain().splitlines()) < 40
    assert "in 980 more" in answer.explain()
    assert len(answer._repr_html_()) < 10_000


def test_abstaining_is_said():
    answer, _ = ask(threshold=1.0, default="nobody")
    assert answer.abstained
    assert "below the threshold: answered 'nobody'" in answer.explain()
    assert answer.choice in LEAVES


def test_html_is_escaped():
    model = model_of(scripted({}, 2), t32(), width=40)
    html = model.choose("n", ["<n>", "n<"], ranking="masked")._repr_html_()
    assert "<n>" not in html
    assert "&lt;n&gt;" in html


def test_plot_needs_its_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    answer, _ = ask()
    with pytest.raises(NotSupported, match=r"pip install 'eliza\[plot\]'"):
        answer.plot(tmp_path / "x.png")


@pytest.mark.parametrize("ranking", [None, "whole"])
def test_plot_draws_a_picture(tmp_path, ranking):
    answer, _ = ask(ranking=ranking)
    answer.plot(tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_a_trace_sees_each_batch_and_each_point():
    events = []
    answer, _ = ask(ranking="whole", trace=events.append)
    decoded = [event for event in events if event.kind == "decoded"]
    assert len(decoded) == answer.stats.forward_passes
    assert sum(event.positions for event in decoded) == answer.stats.positions
    points = {event.path: dict(event.options) for event in events if event.options}
    assert set(points) == {(), (10, 11), (20,)}
    assert set(points[()]) == {10, 20}
    for options in points.values():
        assert sum(options.values()) == pytest.approx(1)
    seconds = [event.seconds for event in events]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize("method", ["exact", "greedy"])
def test_nothing_of_the_model_may_be_called_inside_a_trace(method):
    """What it computed would stand where the choice is about to read its logits."""
    model = model_of(hashed(1, 64), plain_vocab())
    trie = Trie.from_tokens(LEAVES, n_vocab=64)
    other = model.open()
    other.prefill([4])
    expected = model.choose([4, 5], trie, method=method)
    refused = []

    def call(event):
        for verb in (
            lambda: model.choose([7, 8], trie),
            model.open,
            other.next,
            lambda: other.prefill([7]),
        ):
            with pytest.raises(InvalidArgument, match="inside trace"):
                verb()
            refused.append(verb)

    answer = model.choose([4, 5], trie, method=method, trace=call)
    assert refused
    assert answer.value == expected.value
    assert answer.logprob == expected.logprob
    assert model.choose([4, 5], trie, method=method).value == expected.value
    other.next()


def test_a_model_that_is_closed_inside_a_trace_ends_the_choice():
    model = model_of(hashed(1, 64), plain_vocab())
    trie = Trie.from_tokens(LEAVES, n_vocab=64)
    with pytest.raises(Closed):
        model.choose([4, 5], trie, ranking="whole", trace=lambda event: model.close())
    with pytest.raises(Closed):
        model.backend.open()


def test_fc116_what_a_trace_raises_reaches_the_caller():
    def refuse(event):
        raise KeyError(event.kind)

    model = model_of(hashed(1, 64), plain_vocab())
    trie = Trie.from_tokens(LEAVES, n_vocab=64)
    with pytest.raises(KeyError):
        model.choose([4, 5], trie, trace=refuse)
    assert model.choose([4, 5], trie).value == ask()[0].value
