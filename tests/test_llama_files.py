"""Loading with llama.cpp: files, options, a live Llama, the runtime's log."""

import ctypes
import gc
import logging
import os
import random
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

from eliza.backends import cores, llama_load, llama_log
from eliza.backends.llama_cpp import LlamaBackend
from eliza.errors import (
    BundleError,
    Closed,
    InvalidArgument,
    InvalidType,
    NotSupported,
)
from tiny import tiny_gguf

llama_cpp = pytest.importorskip("llama_cpp")

EXACT = {"n_threads": 1, "kv_type": "f32"}
LOGGER = "eliza.llama_cpp"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


def current_callback():
    callback = llama_cpp.llama_log_callback()
    llama_cpp.llama_log_get(ctypes.byref(callback), ctypes.byref(ctypes.c_void_p()))
    return ctypes.cast(callback, ctypes.c_void_p).value


# Options


def test_what_it_says_of_itself(path):
    with LlamaBackend(path) as backend:
        assert backend.name == "llama.cpp"
        assert backend.model_id == "tiny-llama-bpe-0"
        assert backend.n_ctx == 4096
        assert backend.vocab.n_vocab == 372
        assert backend.capabilities.tree
        assert backend.capabilities.truncate
        assert backend.capabilities.search_delta == 0.5


def test_n_ctx_follows_the_model_unless_given(tmp_path, caplog):
    short = tiny_gguf(tmp_path / "short.gguf", n_ctx_train=100)
    with LlamaBackend(short, **EXACT) as backend:
        assert backend.n_ctx == 100
    with (
        caplog.at_level(logging.WARNING, LOGGER),
        LlamaBackend(short, n_ctx=300, **EXACT) as backend,
    ):
        assert backend.n_ctx == 300
        sequence = backend.open()
        sequence.decode([5] * 300)
        assert np.isfinite(sequence.logits()).all()
    assert "n_ctx is 300, but the model was trained with 100" in caplog.text


@pytest.mark.parametrize(
    "options",
    [
        {"n_ctx": 0},
        {"n_ctx": -5},
        {"n_ctx": 2**40},
        {"n_ctx": 1.5},
        {"n_threads": 0},
        {"n_batch": 0},
        {"n_batch": True},
        {"flash_attn": 1},
        {"kv_type": "f8"},
        {"n_gpu_layers": "all"},
        {"n_gpu_layers": 2**31},
    ],
    ids=repr,
)
def test_bad_options_are_named(path, options):
    (name,) = options
    before = current_callback()
    with pytest.raises(InvalidArgument, match=name):
        LlamaBackend(path, **options)
    assert current_callback() == before


@pytest.mark.parametrize(
    "options",
    [
        {"kv_type": "q8_0", "flash_attn": True},
        {"flash_attn": False},
        {"n_batch": 1},
        {"n_ctx": 1},
        {"n_gpu_layers": -1},
    ],
    ids=repr,
)
def test_options_that_work(path, options):
    with LlamaBackend(path, n_threads=1, **options) as backend:
        sequence = backend.open()
        sequence.decode([5])
        assert np.isfinite(sequence.logits()).all()


def test_a_quantised_cache_without_flash_attention(path):
    with pytest.raises(Exception, match="requires flash_attn") as caught:
        LlamaBackend(path, kv_type="q8_0")
    assert type(caught.value).__module__ == "eliza.errors"


def test_physical_cores():
    assert 1 <= cores.physical_cores() <= (os.cpu_count() or 1)


def test_siblings_and_quotas_count_once(tmp_path, monkeypatch):
    for cpu, core in enumerate([0, 1, 0, 1, 2, 3, 2, 3]):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "core_id").write_text(f"{core}\n")
        (topology / "physical_package_id").write_text("0\n")
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(cores, "_CPUS", tmp_path)
    monkeypatch.setattr(cores, "_QUOTA", quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert cores.physical_cores() == 4
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 5})
    assert cores.physical_cores() == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for text, expected in (
        ("max 100000", 4),
        ("300000 100000", 3),
        ("50000 100000", 1),
        ("1600000 100000", 4),
        ("?", 4),
    ):
        quota.write_text(text)
        assert cores.physical_cores() == expected


def test_without_the_extra(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(NotSupported, match=r"pip install 'eliza\[llama\]'"):
        LlamaBackend(path)


IMPORT = """
import os, sys
import eliza.backends.llama_cpp
assert "llama_cpp" not in sys.modules
eliza.backends.llama_load.import_llama()
assert "llama_cpp" in sys.modules
assert "GOMP_SPINCOUNT" not in os.environ
"""


def test_imported_when_first_used():
    env = {k: v for k, v in os.environ.items() if k != "GOMP_SPINCOUNT"}
    subprocess.run(
        [sys.executable, "-P", "-c", IMPORT], check=True, env=env, timeout=60
    )


# Files


def test_missing_and_wrong_files(tmp_path, path):
    text = tmp_path / "model.gguf"
    text.write_text("version https://git-lfs.github.com/spec/v1\n")
    empty = tmp_path / "empty.gguf"
    empty.touch()
    for file, reason in (
        (tmp_path / "none.gguf", "No such file"),
        (tmp_path, "is a folder"),
        (text, "not a GGUF file: it begins with b'vers'"),
        (empty, "not a GGUF file: it begins with b''"),
        ("a\0b", "not a path"),
    ):
        with pytest.raises(BundleError, match=reason) as caught:
            LlamaBackend(file)
        assert repr(str(file))[1:-1] in str(caught.value)


def test_truncated_anywhere(tmp_path, path):
    """R5: named with the reason, and the process lives."""
    data = path.read_bytes()
    short = tmp_path / "short.gguf"
    before = current_callback()
    offsets = {1, 4, 7, 8, 23, 24, 25, len(data) - 1}
    offsets |= set(random.Random(1).sample(range(len(data)), 40))
    offsets |= set(range(30, 20_000, 487))
    for n in sorted(offsets):
        short.write_bytes(data[:n])
        with pytest.raises(BundleError, match=r"short\.gguf (cannot be|is not)"):
            LlamaBackend(short)
    assert current_callback() == before
    short.write_bytes(data)
    LlamaBackend(short).close()


def test_the_reason_is_the_runtimes_own(tmp_path, path):
    data = path.read_bytes()
    file = tmp_path / "damaged.gguf"
    file.write_bytes(data[:-1000])
    with pytest.raises(BundleError, match="not within the file bounds"):
        LlamaBackend(file)
    file.write_bytes(data.replace(b"llama", b"lamma"))
    with pytest.raises(BundleError, match="unknown model architecture: 'lamma'"):
        LlamaBackend(file)
    file.write_bytes(data[:4] + b"\xff" + data[5:])
    with pytest.raises(BundleError, match="version"):
        LlamaBackend(file)


def test_progress(path):
    seen = []
    here = threading.get_ident()
    LlamaBackend(
        path, progress=lambda x: seen.append((x, threading.get_ident()))
    ).close()
    fractions, threads = zip(*seen, strict=True)
    assert fractions[-1] == 1.0
    assert list(fractions) == sorted(fractions)
    assert set(threads) == {here}


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_progress_stops_the_load(path, error):
    before = current_callback()
    threads = threading.active_count()

    def stop(fraction):
        raise error

    with pytest.raises(error):
        LlamaBackend(path, progress=stop)
    assert current_callback() == before
    assert threading.active_count() == threads
    LlamaBackend(path).close()


# The log


def test_the_log_goes_to_the_logger_and_back(path, caplog):
    """DESIGN 12.7: the former callback comes back on the last close."""
    said = []
    mine = llama_cpp.llama_log_callback(lambda level, text, data: said.append(text))
    former = llama_cpp.llama_log_callback()
    data = ctypes.c_void_p()
    llama_cpp.llama_log_get(ctypes.byref(former), ctypes.byref(data))
    llama_cpp.llama_log_set(mine, None)
    address = current_callback()
    try:
        with caplog.at_level(logging.DEBUG, LOGGER):
            one, two = LlamaBackend(path), LlamaBackend(path)
            assert current_callback() != address
            one.close()
            one.close()
            assert current_callback() != address
            two.close()
            assert current_callback() == address
            assert not said
            with pytest.raises(BundleError):
                LlamaBackend(path.with_name("none.gguf"))
            assert current_callback() == address
            backend = LlamaBackend(path)
            del backend
            gc.collect()
            assert current_callback() == address
    finally:
        llama_cpp.llama_log_set(former, data)
    records = [r for r in caplog.records if r.name == LOGGER]
    assert any("tiny-llama-bpe-0" in r.getMessage() for r in records)
    assert {r.levelno for r in records} <= {logging.DEBUG, logging.INFO}
    assert all("\n" not in r.getMessage() for r in records)


def test_a_callback_set_in_between_is_left_alone(path):
    mine = llama_cpp.llama_log_callback(lambda level, text, data: None)
    former = llama_cpp.llama_log_callback()
    data = ctypes.c_void_p()
    llama_cpp.llama_log_get(ctypes.byref(former), ctypes.byref(data))
    try:
        backend = LlamaBackend(path)
        llama_cpp.llama_log_set(mine, None)
        address = current_callback()
        backend.close()
        assert current_callback() == address
    finally:
        llama_cpp.llama_log_set(former, data)


def test_pieces_of_a_line_are_joined(caplog):
    with caplog.at_level(logging.DEBUG, LOGGER), llama_log.collect() as errors:
        for level, text in (
            (2, b"one: "),
            (5, b"half \xff"),
            (5, b"\n"),
            (4, b"two: broken\n"),
            (3, b"three"),
            (2, b"\n"),
        ):
            llama_log._on_log(level, text, None)
    got = [(r.levelname, r.getMessage()) for r in caplog.records]
    assert got == [
        ("INFO", "one: half \ufffd"),
        ("ERROR", "two: broken"),
        ("WARNING", "three"),
    ]
    assert llama_log.reason(errors) == "broken"
    assert llama_log.reason([]) == "llama.cpp gives no reason"


def test_no_exception_crosses_the_callback(monkeypatch):
    def fail(*args):
        raise ZeroDivisionError

    monkeypatch.setattr(llama_log.logger, "log", fail)
    llama_log._on_log(2, b"text\n", None)
    llama_log._on_log(2, b"text\n", None)


# A live Llama


@pytest.fixture
def llama(path):
    llama = llama_cpp.Llama(str(path), n_ctx=256, n_threads=1, verbose=False)
    yield llama
    llama.close()


def complete(llama):
    return llama.create_completion([5, 6, 7], max_tokens=8, temperature=0)


def test_a_live_llama_stays_usable(path, llama):
    expected = complete(llama)["choices"]
    with LlamaBackend.from_llama(llama, kv_type="f32") as backend:
        assert backend.n_ctx == 256
        assert backend.model_id == "tiny-llama-bpe-0"
        sequence = backend.open()
        sequence.decode([5, 6, 7])
        assert complete(llama)["choices"] == expected
        sequence.decode([8])
        with LlamaBackend(path, **EXACT) as own:
            other = own.open()
            other.decode([5, 6, 7, 8])
            np.testing.assert_allclose(sequence.logits(), other.logits(), atol=1e-4)
    assert complete(llama)["choices"] == expected


def test_closing_the_llama_closes_the_backend(llama):
    backend = LlamaBackend.from_llama(llama)
    sequence = backend.open()
    sequence.decode([5])
    llama.close()
    with pytest.raises(Closed):
        sequence.decode([6])
    backend.close()
    with pytest.raises(Closed, match="the Llama is closed"):
        LlamaBackend.from_llama(llama)


def test_a_vocabulary_outlives_its_backend_but_not_a_closed_llama(path, llama):
    with LlamaBackend(path) as own, LlamaBackend.from_llama(llama) as borrowed:
        vocabs = own.vocab, borrowed.vocab
    gc.collect()
    for vocab in vocabs:
        assert vocab.decode(vocab.encode("Maybe")) == b"Maybe"
    llama.close()
    for call in (
        lambda: vocabs[1].encode("Yes"),
        lambda: vocabs[1].piece(300),
        lambda: vocabs[1].is_special(300),
        lambda: vocabs[1].eog,
        lambda: vocabs[1].fingerprint,
    ):
        with pytest.raises(Closed, match="this vocabulary"):
            call()


def test_the_backend_keeps_the_llama_alive(path):
    llama = llama_cpp.Llama(str(path), n_ctx=256, n_threads=1, verbose=False)
    alive = weakref.ref(llama)
    backend = LlamaBackend.from_llama(llama)
    del llama
    gc.collect()
    sequence = backend.open()
    sequence.decode([5])
    backend.close()
    del sequence, backend
    gc.collect()
    assert alive() is None


def test_not_a_llama(llama, monkeypatch):
    with pytest.raises(InvalidType, match=r"not a llama_cpp\.Llama"):
        LlamaBackend.from_llama("model.gguf")
    monkeypatch.setattr(llama, "lora_path", "adapter.gguf")
    with pytest.raises(NotSupported, match="LoRA"):
        LlamaBackend.from_llama(llama)


# Memory


def test_memory_stays_flat(path):
    """R8: 60 loads with sequences, trees and rows; each context has 4 MB and more."""
    statm = "/proc/self/statm"
    if not os.path.exists(statm):
        pytest.skip("no /proc here")

    def cycle():
        backend = LlamaBackend(path, **EXACT)
        sequence = backend.open()
        sequence.decode([5] * 200)
        sequence.decode_tree([5, 6], [-1, -1])
        if cycle.n % 2:
            backend.close()
        cycle.n += 1

    cycle.n = 0
    resident = []
    for _ in range(3):
        for _ in range(20):
            cycle()
        gc.collect()
        with open(statm) as file:
            resident.append(int(file.read().split()[1]) * 4096)
    assert resident[2] - resident[0] < 20 << 20


def test_a_loading_thread_that_is_stopped_late_frees_the_model(path, monkeypatch):
    lib = llama_load.import_llama()
    freed = []

    class Spy:
        def __getattr__(self, name):
            return getattr(lib, name)

        def llama_model_free(self, pointer):
            freed.append(pointer)
            lib.llama_model_free(pointer)

        def llama_model_load_from_file(self, path, params):
            params.progress_callback = lib.llama_progress_callback()
            return lib.llama_model_load_from_file(path, params)

    def stop(fraction):
        raise ZeroDivisionError

    spy = Spy()
    loading = llama_load._Loading(spy, path, lib.llama_model_default_params())
    loading._fractions.put(0.5)
    with pytest.raises(ZeroDivisionError):
        loading.wait(stop)
    assert len(freed) == 1
