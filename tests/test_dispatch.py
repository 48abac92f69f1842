"""Selecting a backend: the table of the selector, with factories that are not real.

Every row of it, what this project adds to it, and what a factory may do wrong.
"""

from __future__ import annotations

import itertools
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

import eliza
import eliza.backends
from eliza import DEFAULT, ERROR, USE, Bundle, Selection, select
from eliza._dispatch import NEEDS
from eliza.backends import LLAMA
from eliza.errors import BundleError, InvalidArgument, InvalidType, NotSupported
from factories import ALL, ENV, Fake, Silent, pick, registry_of

# The table, row by row


@pytest.mark.parametrize("name", [None, ""])
def test_unset_or_empty_is_automatic(name):
    fake = Fake()
    assert pick(fake, name=name) == USE(fake)
    assert pick(name=name) == DEFAULT(LLAMA)


@pytest.mark.parametrize(
    "name", ["llama.cpp", "llamacpp", "llama", "LLAMA.CPP", "LlamaCpp", "Llama"]
)
def test_the_default_by_name(name):
    fake = Fake(rank=1000)
    assert pick(fake, name=name) == DEFAULT(LLAMA)
    assert fake.asked == []  # and no gguf file is looked for
    assert pick(fake, name=name, bundle="/nowhere") == DEFAULT(LLAMA)


def test_not_registered():
    selection = pick(Fake("one"), Fake("two"), name="three")
    assert selection == ERROR(
        "ELIZA_LLM_BACKEND=three is not a registered backend: there are one, two"
    )
    with pytest.raises(NotSupported, match=r"^ELIZA_LLM_BACKEND=three is not a reg"):
        selection.unwrap()


def test_not_available_comes_before_the_bundle():
    fake = Fake(available=False, serves=False)
    selection = pick(fake, name="fake")
    assert selection == ERROR(
        "ELIZA_LLM_BACKEND=fake is not available in this build/host: pip install fake"
    )
    assert fake.asked == ["available"]


def test_cannot_serve(tmp_path):
    selection = pick(Fake(serves=False), name="fake", bundle=tmp_path)
    message = f"ELIZA_LLM_BACKEND=fake cannot serve the bundle at {tmp_path}: it holds "
    assert selection.message == message + "nothing that eliza knows"
    with pytest.raises(BundleError):
        selection.unwrap()


@pytest.mark.parametrize("rank", [7, 0, -3])
def test_a_named_one_is_used_whatever_its_rank(rank):
    fake, other = Fake(rank=rank), Fake("other", rank=1000)
    assert pick(other, fake, name="FAKE") == USE(fake)
    assert fake.asked == ["available", "can_serve"]
    assert other.asked == []


@pytest.mark.parametrize(
    ("ranks", "winner"),
    [
        ((1, 3, 2), 1),
        ((5, 5, 5), 0),
        ((0,), None),
        ((-1, 0), None),
        ((-1, 1), 1),
        ((2**70, 2**70 + 1), 1),
        ((), None),
    ],
)
def test_automatic_choice_by_rank(ranks, winner):
    fakes = [Fake(f"f{i}", rank=rank) for i, rank in enumerate(ranks)]
    expected = DEFAULT(LLAMA) if winner is None else USE(fakes[winner])
    assert pick(*fakes) == expected


flags = st.tuples(
    st.integers(-2, 3), st.booleans(), st.booleans(), st.sets(st.sampled_from(NEEDS))
)


@given(st.lists(flags, max_size=6), st.sets(st.sampled_from(NEEDS), max_size=2))
def test_automatic_choice_is_the_rule_in_a_sentence(rows, need):
    fakes = [
        Fake(f"f{i}", rank=rank, available=there, serves=serves, provides=provides)
        for i, (rank, there, serves, provides) in enumerate(rows)
    ]
    best = None
    for i, (rank, there, serves, provides) in enumerate(rows):
        fits = rank > 0 and there and serves and need <= provides
        if fits and (best is None or rank > rows[best][0]):
            best = i
    expected = DEFAULT(LLAMA) if best is None else USE(fakes[best])
    assert pick(*fakes, need=need) == expected


def test_a_bundle_of_gguf_files_alone_is_llama_cpps(tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "model.gguf").write_bytes(b"GGUF")
    assert select(tmp_path, env={}) == DEFAULT(LLAMA)
    mlx = eliza.backends.REGISTRY.get("mlx-coreml")
    assert not mlx.can_serve(Bundle.of(tmp_path))


@pytest.mark.parametrize("name", [" fake", "fake ", "fake\n", "\tfake", "  ", " llama"])
def test_blanks_around_the_name_are_an_error_that_shows_them(name):
    fake = Fake()
    selection = pick(fake, name=name)
    assert isinstance(selection, ERROR)
    assert repr(name) in selection.message
    assert "blanks" in selection.message
    assert fake.asked == []


def test_the_environment_is_read_at_each_call(monkeypatch):
    fake = Fake()
    registry = registry_of(fake)
    monkeypatch.delenv(ENV, raising=False)
    assert select("bundle", registry) == USE(fake)
    monkeypatch.setenv(ENV, "llama")
    assert select("bundle", registry) == DEFAULT(LLAMA)
    monkeypatch.setenv(ENV, "nothing")
    assert isinstance(select("bundle", registry), ERROR)
    assert select("bundle", registry, env={}) == USE(fake)  # that of the process unread


def test_a_name_in_the_call_comes_before_the_environment():
    one, two = Fake("one"), Fake("two", serves=False)
    registry = registry_of(one, two)
    assert select("b", registry, {ENV: "two"}, backend="one") == USE(one)
    selection = select("b", registry, {ENV: "one"}, backend="two")
    assert selection.message.startswith("backend='two' cannot serve the bundle at b")
    assert isinstance(select("b", registry, {}, backend=""), ERROR)
    with pytest.raises(InvalidType, match="backend is 3"):
        select("b", registry, backend=3)


def test_the_environment_is_a_mapping_of_texts():
    for env in (3, {ENV: 3}, {ENV: b"fake"}):
        with pytest.raises(InvalidType, match="env"):
            select("bundle", registry_of(), env)


# What is needed


@pytest.mark.parametrize("need", NEEDS)
def test_a_backend_that_lacks_a_need_is_not_selected(need):
    """FC-118."""
    without = Fake("without", rank=9, provides=ALL - {need})
    has = Fake("has", rank=1)
    assert pick(without, has) == USE(without)
    assert pick(without, has, need=[need]) == USE(has)
    assert pick(without, need=[need]) == DEFAULT(LLAMA)
    selection = pick(without, has, name="without", need=[need])
    assert selection == ERROR(
        f"ELIZA_LLM_BACKEND=without does not provide {need}, which is needed"
    )
    assert pick(has, name="has", need=NEEDS) == USE(has)


def test_the_default_may_lack_a_need_too():
    mine = Fake("llama.cpp", rank=0, provides={"mask"})
    assert pick(mine, need=["mask"]) == DEFAULT(mine)
    for name in (None, "llama"):
        selection = pick(mine, name=name, need=["mask", "tree"])
        assert isinstance(selection, ERROR)
        assert selection.message.endswith("does not provide tree, which is needed")


@pytest.mark.parametrize("need", ["mask", b"mask", 3])
def test_needs_are_a_list_of_texts(need):
    with pytest.raises(InvalidType, match="need is"):
        pick(Fake(), need=need)


def test_an_unknown_need_is_an_error():
    with pytest.raises(InvalidArgument, match=r"'speed'.*mask, forced_run, roll"):
        pick(Fake(), need=["mask", "speed"])


# Factories that fail

FAILURES = [
    ValueError("no"),
    MemoryError(),
    RecursionError("deep"),
    Silent(),
    OSError(5, "broken disk"),
    None,
    "yes",
    1.5,
]
PROBES = ["available", "serves", "rank", "provides"]


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("failure", FAILURES, ids=lambda f: type(f).__name__)
def test_a_failing_probe_does_not_end_a_selection(probe, failure, caplog):
    """FC-116: what a factory raises or gives is said, and nothing else stops."""
    if probe == "provides" and isinstance(failure, Exception):
        failure = 3
    bad = Fake("bad", **{"rank": 9, probe: failure})
    good = Fake("good", rank=1)
    with caplog.at_level(logging.WARNING, "eliza"):
        assert pick(bad, good, need=["mask"]) == USE(good)
    assert "backend bad is not selected: its " in caplog.text
    if probe == "rank":
        return  # which a named one is not asked for
    selection = pick(bad, good, name="bad", need=["mask"])
    assert isinstance(selection, ERROR)
    assert selection.message.startswith("ELIZA_LLM_BACKEND=bad: its ")
    if probe != "provides" and isinstance(failure, Exception):
        assert type(failure).__name__ in selection.message
        with pytest.raises((NotSupported, BundleError)) as caught:
            selection.unwrap()
        assert caught.value.__cause__ is failure


def test_what_a_probe_says_is_kept():
    bad = Fake(serves=BundleError("weights.bin is cut short"))
    with pytest.raises(BundleError, match=r"fake: its can_serve\(\) raised.*cut short"):
        pick(bad, name="fake").unwrap()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupts_pass_through(error):
    with pytest.raises(error):
        pick(Fake(available=error()))


def test_every_probe_may_be_missing_its_sense_at_once():
    fakes = [
        Fake(f"f{i}", rank=rank, available=there, serves=serves)
        for i, (rank, there, serves) in enumerate(
            itertools.product([9, None, ValueError()], [True, None], [True, OSError()])
        )
    ]
    assert pick(*reversed(fakes)) == USE(fakes[0])


# The value


def test_a_selection_cannot_be_taken_for_a_truth_value():
    for selection in (USE(Fake()), DEFAULT(), ERROR("no")):
        assert isinstance(selection, Selection)
        with pytest.raises(TypeError, match=r"match it with USE.*unwrap"):
            bool(selection)
        with pytest.raises(TypeError):
            _factory, _error = selection


def test_match():
    def name(selection):
        match selection:
            case USE(factory):
                return factory.name
            case DEFAULT():
                return "default"
            case ERROR(message):
                return message
        raise AssertionError

    assert name(USE(Fake("f"))) == "f"
    assert name(DEFAULT()) == "default"
    assert name(ERROR("no")) == "no"


@pytest.mark.parametrize("state", [USE, DEFAULT, ERROR])
def test_comparing_with_the_state_itself_is_an_error(state):
    with pytest.raises(TypeError, match=f"case {state.__name__}"):
        assert DEFAULT() == state


def test_equality_and_hash():
    one, two = Fake(), Fake()
    values = [USE(one), USE(two), DEFAULT(), DEFAULT(one), ERROR("a"), ERROR("b")]
    values.append(ERROR("a", BundleError))
    for (i, a), (j, b) in itertools.product(enumerate(values), repeat=2):
        assert (a == b) == (i == j)
        assert a != "text"
    assert len(set(values + values)) == len(values)
    assert USE(one) == USE(one)


def test_unwrap():
    fake = Fake()
    assert USE(fake).unwrap() is fake
    assert DEFAULT(fake).unwrap() is fake
    with pytest.raises(NotSupported, match="no such factory"):
        DEFAULT().unwrap()
    cause = ValueError()
    with pytest.raises(BundleError, match=r"^no$") as caught:
        ERROR("no", BundleError, cause).unwrap()
    assert caught.value.__cause__ is cause


def test_values_are_checked_and_do_not_change():
    with pytest.raises(InvalidType):
        USE(None)
    with pytest.raises(TypeError):
        ERROR(None)
    with pytest.raises(InvalidType, match="NotSupported or BundleError"):
        ERROR("no", ValueError)
    with pytest.raises(AttributeError):
        USE(Fake()).factory = None
    assert repr(ERROR("no")) == "ERROR('no')"
    assert repr(DEFAULT()) == "DEFAULT()"
