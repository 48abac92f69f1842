import pytest
from hypothesis import given
from hypothesis import strategies as st

from eliza.ledger import Ledger, SyncPlan, common_prefix, plan_sync

ids = st.lists(st.integers(0, 3), max_size=12)


@given(ids, ids)
def test_common_prefix_is_what_a_loop_finds(a, b):
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    assert common_prefix(a, b) == n


@given(ids, ids.filter(bool), st.booleans(), st.booleans())
def test_plan_leads_to_the_prompt_with_a_row(live, prompt, has_row, can_truncate):
    plan = plan_sync(live, prompt, has_row=has_row, can_truncate=can_truncate)
    assert live[: plan.keep] + prompt[plan.keep :] == prompt
    # Logits after the last id: they are at hand, or that id is decoded.
    untouched = plan.keep == len(prompt) == len(live)
    assert plan.keep < len(prompt) or (untouched and has_row)
    assert can_truncate or plan.keep in (0, len(live))
    assert plan.rewind == (plan.keep < len(live))


@pytest.mark.parametrize(
    ("live", "prompt", "has_row", "keep"),
    [
        ([], [1, 2], False, 0),
        ([1, 2], [1, 2, 3], True, 2),
        ([1, 2], [1, 2], True, 2),
        ([1, 2], [1, 2], False, 1),
        ([1, 2, 3], [1, 2], True, 1),
        ([1, 9], [1, 2], True, 1),
    ],
)
def test_plan_examples(live, prompt, has_row, keep):
    expected = SyncPlan(keep, rewind=keep < len(live))
    assert plan_sync(live, prompt, has_row=has_row) == expected


def test_generation_moves_when_ids_are_dropped_only():
    ledger = Ledger()
    ledger.extend([1, 2, 3])
    assert (ledger.generation, ledger.position) == (1, 3)
    ledger.cut(3)
    assert ledger.generation == 1
    ledger.cut(1)
    assert (ledger.generation, ledger.ids) == (2, [1])
