"""The registry of backends: names, threads, and packages that bring their own."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from importlib import metadata

import pytest

import eliza.backends
from eliza import DEFAULT, Bundle, Registry, select
from eliza.backends import LLAMA
from eliza.errors import InvalidArgument, InvalidType, NotSupported
from factories import ENV, Fake, Silent, registry_of

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
    assert registry.register(Fake("three", aliases=("ONE", "Uno", "tres")))
    for name, found in [("one", "one"), ("uno", "one"), ("TRES", "three")]:
        assert registry.get(name).name == found


def test_an_alias_does_not_take_the_name_of_a_built_in():
    stranger = Fake("stranger", aliases=("llama.cpp", "LITERT-LM", "odd"))
    registry = Registry(eliza.backends.builtins, None)
    assert registry.register(stranger)
    registry.register_builtins()
    assert registry.get("llama.cpp").name == "llama.cpp"
    assert registry.get("litert-lm").name == "litert-lm"
    assert registry.get("odd") is stranger
    assert sorted(registry.names) == sorted(
        ["stranger", *(factory.name for factory in eliza.backends.builtins())]
    )


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
    eliza.backends.REGISTRY.register_builtins()
    names = eliza.backends.REGISTRY.names
    assert names[:3] == ("llama.cpp", "litert-lm", "mlx-coreml")
    ranks = [f.preference_rank() for f in eliza.backends.builtins()]
    assert ranks == [0, 50, 100]


@pytest.mark.parametrize("name", ["litert-lm", "MLX-CoreML"])
def test_backends_that_are_not_installed_say_what_to_do(name, tmp_path, monkeypatch):
    for file in ("a.litertlm", "config.json", "model.safetensors"):
        (tmp_path / file).write_bytes(b"x")
    for factory in eliza.backends.builtins():
        if factory is not LLAMA:
            monkeypatch.setattr(type(factory), "available", lambda _: False)
    assert select(tmp_path, env={}) == DEFAULT(LLAMA)
    selection = select(tmp_path, env={ENV: name})
    with pytest.raises(NotSupported, match=f"{name} is not available.*pip install"):
        selection.unwrap()
    factory = eliza.backends.REGISTRY.get(name)
    assert factory.can_serve(Bundle.of(tmp_path))


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
        inner = ()

        def load(self):
            self.inner += (select("b", registry, {}),)
            return super().load()

    odd = Selects("odd", Fake("odd"))
    registry = points(monkeypatch, odd)
    assert select("b", registry, {}).unwrap().name == "odd"
    assert odd.inner == (DEFAULT(LLAMA),)  # it was not there yet


def test_threads_that_select_first_at_once_find_the_same(monkeypatch):
    ready, inside = threading.Barrier(6), threading.Event()

    class Slow(Point):
        def load(self):
            inside.wait(0.05)
            return Fake(self.name, rank=5)

    registry = points(monkeypatch, *(Slow(f"f{i}", None) for i in range(3)))
    found = []

    def work():
        ready.wait()
        found.append(select("b", registry, {}).unwrap())

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [registry.get("f0")] * 6
    assert registry.names == ("f0", "f1", "f2")


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
