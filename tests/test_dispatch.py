"""Selecting a backend: the table of the selector, with factories that are not real.

Every row of it, what this project adds to it, and what a factory may do wrong. Needs no
model; what `eliza.load` makes of a selection is at the end.
"""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
import sys
import threading
from importlib import metadata

import pytest
from hypothesis import given
from hypothesis import strategies as st

import eliza
import eliza.backends
from eliza import DEFAULT, ERROR, USE, Bundle, Registry, Selection, select
from eliza._dispatch import NEEDS
from eliza.backends import LLAMA
from eliza.errors import (
    BackendError,
    BundleError,
    InvalidArgument,
    InvalidType,
    NotSupported,
)
from eliza.testing import ScriptedBackend
from support import plain_vocab

ENV = "ELIZA_LLM_BACKEND"
ALL = frozenset(NEEDS)


class Fake:
    """A factory that does what it is told, and notes what it is asked."""

    def __init__(
        self,
        name="fake",
        *,
        rank=1,
        available=True,
        serves=True,
        provides=ALL,
        aliases=(),
        install="pip install fake",
        opened=None,
    ):
        self.name = name
        self.aliases = aliases
        self.provides = provides
        self.install = install
        self.asked = []
        self._answers = {"available": available, "can_serve": serves, "rank": rank}
        self._opened = opened

    def _answer(self, verb):
        self.asked.append(verb)
        answer = self._answers[verb]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def available(self):
        return self._answer("available")

    def can_serve(self, bundle):
        return self._answer("can_serve")

    def preference_rank(self):
        return self._answer("rank")

    def open(self, bundle, **options):
        self.asked.append(("open", bundle, options))
        if isinstance(self._opened, BaseException):
            raise self._opened
        return self._opened


def registry_of(*factories):
    registry = Registry()
    for factory in factories:
        registry.register(factory)
    return registry


def pick(*factories, name=None, need=(), bundle="bundle"):
    env = {} if name is None else {ENV: name}
    return select(bundle, registry_of(*factories), env, need)


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
    mlx = eliza.backends.registry.get("mlx-coreml")
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


class Silent(Exception):
    def __str__(self):
        raise ValueError("no text either")


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


# The registry


def test_names_do_not_regard_case_and_the_first_stays():
    first, second = Fake("Fast"), Fake("FAST")
    registry = Registry()
    assert registry.register(first)
    assert not registry.register(second)
    assert not registry.register(first)
    assert registry.names == ("Fast",)
    assert registry.get("fAsT") is first
    assert "fast" in registry
    assert "slow" not in registry
    assert registry.get("slow") is None


def test_aliases():
    registry = registry_of(Fake("one", aliases=("uno", "two")), Fake("two"))
    assert registry.names == ("one",)  # "two" was taken
    assert select("b", registry, {ENV: "UNO"}).unwrap().name == "one"


def without(member):
    kept = {k: v for k, v in vars(Fake).items() if k not in (member, "__init__")}
    factory = type("Part", (), kept)()
    if member != "name":
        factory.name = "part"
    return factory


@pytest.mark.parametrize(
    "member", ["name", "available", "can_serve", "preference_rank", "open"]
)
def test_a_factory_that_lacks_something_is_refused(member):
    with pytest.raises(InvalidType, match=f"lacks {member};"):
        Registry().register(without(member))


@pytest.mark.parametrize("name", ["", " x", "x\n", 3, None, b"x"])
def test_a_bad_name_is_refused(name):
    with pytest.raises(InvalidArgument, match="name of a backend"):
        Registry().register(Fake(name))
    with pytest.raises(InvalidArgument, match="an alias"):
        Registry().register(Fake(aliases=[name]))
    with pytest.raises(InvalidType, match="lacks name, available"):
        Registry().register(None)


def test_builtins_are_registered_once_and_after_what_is_there():
    calls = []

    def builtins():
        calls.append(1)
        return [Fake("a"), Fake("b")]

    mine = Fake("B")
    registry = Registry(builtins)
    registry.register(mine)
    for _ in range(3):
        select("b", registry, {})
        registry.register_builtins()
    assert calls == [1]
    assert registry.names == ("B", "a")
    assert registry.get("b") is mine


def test_the_registry_of_the_process():
    eliza.backends.registry.register_builtins()
    names = eliza.backends.registry.names
    assert names[:3] == ("llama.cpp", "litert-lm", "mlx-coreml")
    ranks = [f.preference_rank() for f in eliza.backends.builtins()]
    assert ranks == [0, 50, 100]


@pytest.mark.parametrize("name", ["litert-lm", "MLX-CoreML"])
def test_backends_that_are_not_here_say_so(name, tmp_path):
    for file in ("a.litertlm", "config.json", "model.safetensors"):
        (tmp_path / file).write_bytes(b"x")
    assert select(tmp_path, env={}) == DEFAULT(LLAMA)
    selection = select(tmp_path, env={ENV: name})
    with pytest.raises(NotSupported, match=f"{name} is not available.*not part of"):
        selection.unwrap()
    factory = eliza.backends.registry.get(name)
    assert factory.can_serve(Bundle.of(tmp_path))
    with pytest.raises(NotSupported, match="not part of this version"):
        factory.open(Bundle.of(tmp_path))


def test_threads_register_and_select_at_once():
    registry = Registry(lambda: [Fake("base", rank=1)])
    ready = threading.Barrier(8)
    won, faults = [], []

    def work(i):
        try:
            ready.wait()
            for j in range(200):
                if registry.register(Fake(f"F{j}", rank=2 + j, aliases=(f"alias{j}",))):
                    won.append(j)
                selection = select("b", registry, {})
                assert selection.unwrap().preference_rank() >= 2 + j
                assert select("b", registry, {ENV: "BASE"}).unwrap().name == "base"
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert sorted(won) == list(range(200))  # each name once, whoever came first
    assert len(registry.names) == 201


# Entry points


def points(monkeypatch, *entries):
    """Let there be entry points of a group."""

    def entry_points(*, group):
        assert group == "eliza.backends"
        return entries

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    return Registry(group="eliza.backends")


class Point:
    def __init__(self, name, result):
        self.name = name
        self.value = f"module:{name}"
        self._result = result

    def load(self):
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result


def test_entry_points_are_read_when_needed_and_in_the_order_of_names(monkeypatch):
    registry = points(
        monkeypatch,
        Point("zeta", Fake("zeta", rank=5)),
        Point("Alpha", Fake("the alpha", rank=5)),
        Point("made", lambda: None),
    )
    assert registry.names == ()
    assert select("b", registry, {}).unwrap().name == "the alpha"
    assert registry.names == ("the alpha", "zeta")
    assert select("b", registry, {ENV: "ALPHA"}).unwrap().name == "the alpha"


def test_a_class_is_made_into_a_factory(monkeypatch):
    class Made(Fake):
        def __init__(self):
            super().__init__("made")

    registry = points(monkeypatch, Point("made", Made))
    assert isinstance(select("b", registry, {}).unwrap(), Made)


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (ImportError("no libfoo.so"), "ImportError: no libfoo.so"),
        (SystemExit(3), "SystemExit: 3"),
        (Silent(), "Silent"),
        (None, "lacks name, available"),
        (Fake(""), "name of a backend"),
    ],
)
def test_a_broken_entry_point_is_logged_and_named(monkeypatch, caplog, result, reason):
    """FC-114, FC-115: the reason is there each time, and what works goes on."""
    registry = points(monkeypatch, Point("Broken", result), Point("good", Fake("good")))
    with caplog.at_level(logging.WARNING, "eliza"):
        assert select("b", registry, {}).unwrap().name == "good"
    assert "'module:Broken'" in caplog.text
    for _ in range(2):
        selection = select("b", registry, {ENV: "broken"})
        with pytest.raises(NotSupported) as caught:
            selection.unwrap()
        assert "ELIZA_LLM_BACKEND=broken is not a registered" in str(caught.value)
        assert "'module:Broken' cannot be loaded" in str(caught.value)
        assert reason in str(caught.value)
    assert caplog.text.count("module:Broken") == 1
    assert registry.register(Fake("broken"))  # a good one afterwards
    assert select("b", registry, {ENV: "broken"}).unwrap().name == "broken"


def test_an_entry_point_that_selects_while_it_is_imported(monkeypatch):
    class Selects(Point):
        def load(self):
            select("b", registry, {})
            return super().load()

    registry = points(monkeypatch, Selects("odd", Fake("odd")))
    assert select("b", registry, {}).unwrap().name == "odd"


def distribution(folder, name, entry_points, **modules):
    """Write what pip would have installed."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(entry_points)
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)


FACTORY = """
name = "{name}"
provides = frozenset()
def available(): return True
def can_serve(bundle): return True
def preference_rank(): return 5
def open(bundle, **options): raise AssertionError
"""


def test_installed_packages(tmp_path):
    """A module as a factory; one that cannot be imported; a damaged list."""
    distribution(
        tmp_path,
        "good",
        "[eliza.backends]\nfast = good_backend\n",
        good_backend=FACTORY.format(name="fast"),
    )
    distribution(
        tmp_path,
        "bad",
        "[eliza.backends]\nbad = bad_backend:factory\ngone = no_such_module\n",
        bad_backend="import no_such_library\n",
    )
    distribution(tmp_path, "ugly", "[eliza.backends]\nno equals sign here\n")
    code = """
import sys, eliza
assert "eliza.backends" not in sys.modules and "good_backend" not in sys.modules
print(eliza.select("bundle", env={}).unwrap().name)
for name in ("FAST", "bad", "gone"):
    print(eliza.select("bundle", env={"ELIZA_LLM_BACKEND": name}))
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "fast"
    assert lines[1].startswith("USE(")
    assert "no_such_library" in lines[2]
    assert "no_such_module" in lines[3]


# eliza.load


@pytest.fixture
def registry(monkeypatch):
    """The registry of the process, for one test."""
    made = Registry(eliza.backends.builtins)
    monkeypatch.setattr(eliza.backends, "_REGISTRY", made)
    monkeypatch.delenv(ENV, raising=False)
    return made


def scripted():
    return ScriptedBackend(plain_vocab(), lambda history: {7: 1.0})


def test_load_takes_what_is_selected(registry, tmp_path):
    backend = scripted()
    fake = Fake(rank=1, opened=backend)
    registry.register(fake)
    options = {"backend_options": {"speed": 9}, "n_ctx": 77}
    with eliza.load(tmp_path / "x", **options) as model:
        assert model.backend is backend
        assert model.model_id == "scripted"
        trie = eliza.Trie.from_tokens({"a": [7], "b": [8]}, n_vocab=64)
        assert model.choose([5], trie, method="greedy").value == "a"
    bundle = Bundle.of(tmp_path / "x")
    assert fake.asked[-1] == ("open", bundle, {"speed": 9, "n_ctx": 77})
    with eliza.load("x", model_id="mine") as model:
        assert model.model_id == "mine"
    with pytest.raises(InvalidType, match="model_id is 3"):
        eliza.load("x", model_id=3)


def test_load_by_name(registry, monkeypatch):
    fake = Fake(rank=0, opened=scripted())
    registry.register(fake)
    assert eliza.load("x", backend="FAKE").backend is fake._opened
    with pytest.raises(NotSupported, match="backend='other' is not a registered"):
        eliza.load("x", backend="other")
    monkeypatch.setenv(ENV, "fake")
    assert eliza.load("x").backend is fake._opened
    monkeypatch.setenv(ENV, "litert-lm")
    with pytest.raises(NotSupported, match="ELIZA_LLM_BACKEND=litert-lm is not avail"):
        eliza.load("x")


def test_load_refuses_a_backend_that_ignores_a_constraint(registry):
    """FC-118."""
    registry.register(Fake("deaf", rank=9, provides={"forced_run"}, opened=scripted()))
    with pytest.raises(NotSupported, match="deaf' does not provide mask"):
        eliza.load("x", backend="deaf")
    with pytest.raises(BundleError, match="No such file"):  # llama.cpp was selected
        eliza.load("no such file.gguf")


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit()])
def test_what_a_factory_raises_while_it_opens_passes_through(registry, error):
    """FC-116."""
    registry.register(Fake(opened=error))
    with pytest.raises(type(error)) as caught:
        eliza.load("x")
    assert caught.value is error


@pytest.mark.parametrize("opened", [None, "text", object()])
def test_what_a_factory_opens_is_a_backend(registry, opened):
    """FC-116."""
    registry.register(Fake(opened=opened))
    with pytest.raises(InvalidType, match=r"the factory fake opened .* lacks open"):
        eliza.load("x")


def test_a_backend_that_fails_at_once_is_closed(registry):
    class Failing(ScriptedBackend):
        closed = 0

        def close(self):
            self.closed += 1

        @property
        def chat_template(self):
            raise BackendError("its template is gone")

        @chat_template.setter
        def chat_template(self, value):
            pass

    backend = Failing(plain_vocab(), lambda history: {})
    registry.register(Fake(opened=backend))
    with pytest.raises(BackendError, match="gone"):
        eliza.load("x")
    assert backend.closed == 1


def test_a_live_llama_is_llama_cpps_alone(registry, monkeypatch):
    class Llama:
        pass

    Llama.__module__ = "llama_cpp.llama"

    class Mine(Llama):
        pass

    bundle = Bundle.of(Mine())
    assert bundle.live is not None
    assert select(bundle) == DEFAULT(LLAMA)
    monkeypatch.setenv(ENV, "mlx-coreml")
    assert isinstance(select(Llama()), ERROR)
    for wrong in (3, None, b"x", ["x"]):
        with pytest.raises(InvalidType):
            eliza.load(wrong)
