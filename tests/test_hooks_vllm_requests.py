"""What vLLM's requests carry, and how the processor is found; without torch."""

import base64
import importlib
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings

import eliza
from eliza.errors import InvalidArgument, NotSupported
from support import END, choice_sets
from vllm_stand_in import INSTALLED, INTERFACE, imported, stand_in

V = 64
LEAVES = {"a": [10, 11, 12], "b": [10, 11], "c": [20, 21], "d": [20, 22, 23]}


@pytest.fixture(scope="module")
def hook():
    with imported() as module:
        yield module


@pytest.fixture(scope="module")
def trie():
    return eliza.Trie.from_tokens(LEAVES, n_vocab=V)


def test_extra_args_go_over_the_wire(hook, trie):
    """They are JSON, and are checked when a request comes in."""
    args = hook.extra_args(trie, eog=[END], exits=[3], allow=["a", "b"], after="end")
    again = json.loads(json.dumps(args))
    assert again == args
    validate = hook.TrieLogitsProcessor.validate_params
    validate(SimpleNamespace(extra_args=again))
    validate(SimpleNamespace(extra_args=None))
    validate(SimpleNamespace(extra_args={"other": 1}))
    good = args["eliza"]
    damaged = base64.b64encode(trie.to_bytes()[:-3]).decode()
    for wrong, error in (
        ({}, InvalidArgument),
        (5, InvalidArgument),
        (good | {"trie": "?"}, InvalidArgument),
        (good | {"trie": 7}, InvalidArgument),
        (good | {"trie": damaged}, InvalidArgument),
        (good | {"eog": []}, InvalidArgument),
        (good | {"eog": [V]}, InvalidArgument),
        (good | {"eog": [True]}, InvalidArgument),
        (good | {"after": "never"}, InvalidArgument),
        (good | {"allow": ["x"]}, InvalidArgument),
        (good | {"exits": []}, InvalidArgument),
        (good | {"more": 1}, InvalidArgument),
    ):
        with pytest.raises(error):
            validate(SimpleNamespace(extra_args={"eliza": wrong}))
    with pytest.raises(InvalidArgument):
        hook.extra_args(trie)
    with pytest.raises(InvalidArgument):
        hook.extra_args(trie, eog=[END], exits=[12])


def test_it_is_loaded_by_name(hook):
    """As vLLM does it, with the names that the documentation gives."""
    page = Path(__file__).parent.parent / "docs" / "hooks.md"
    texts = page.read_text(encoding="utf-8"), hook.__doc__
    names = [re.findall(r'logits_processors=\["([^"]+)"\]', text) for text in texts]
    assert [len(found) for found in names] == [1, 1]
    for (name,) in names:
        module, _, qualified = name.partition(":")
        found = importlib.import_module(module)
        for part in qualified.split("."):
            found = getattr(found, part)
        assert issubclass(found, sys.modules[INTERFACE].LogitsProcessor)
        assert found is hook.TrieLogitsProcessor
        made = found(None, "cpu", False)  # nothing of it is abstract
        assert (made.is_argmax_invariant(), made.needs_output_token_ids()) == (
            False,
            True,
        )


def test_free_rows_are_passed_through(hook):
    made = hook.TrieLogitsProcessor(None, "cpu", False)
    update = sys.modules[INTERFACE].BatchUpdate
    free = [
        (k, SimpleNamespace(extra_args=a), [1], []) for k, a in enumerate([None, {}])
    ]
    for change in (None, update(2, [], free, []), None):
        made.update_state(change)
        logits = object()
        assert made.apply(logits) is logits


def test_without_vllm_the_error_says_so(monkeypatch):
    if INSTALLED:
        pytest.skip("vLLM is installed")
    monkeypatch.delitem(sys.modules, "eliza.hooks.vllm", raising=False)
    for name in stand_in():
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(NotSupported, match="needs vLLM"):
        importlib.import_module("eliza.hooks.vllm")


@given(choice_sets())
@settings(max_examples=20, deadline=None)
def test_tries_of_former_requests_are_bounded(hook, leaves):
    for k in range(3):
        trie = eliza.Trie.from_tokens(leaves, n_vocab=V + k)
        hook.extra_args(trie, eog=[END])
        assert len(hook._tries) <= 128
