"""Links and chains are freed once, in whatever order, and leave nothing behind."""

import gc
import random
import subprocess
import sys
import textwrap
import threading
import weakref

import pytest

import eliza
from candidates import Candidates, L, new_chain, pointer
from eliza.errors import InvalidArgument, InvalidType, OffPathError
from eliza.hooks.llama import Link, chain
from support import END, on_linux, resident

LEAVES = {"THINK": [100, 101], "EXECUTE": [200], "EXECUTE_ALL": [200, 201]}
# Of a position in one trie the other knows nothing: fewer nodes, shorter runs.
OTHER = {f"n{i:03}": [i, i + 300, *range(600, 640), i] for i in range(3, 203)}


def trie_of(leaves=LEAVES):
    return eliza.Trie.from_tokens(leaves, n_vocab=1000)


class Rounds:
    """Random legal operations on links, raw clones of them, and chains."""

    def __init__(self, seed, *tries):
        self.random = random.Random(seed)
        self.tries = tries
        self.links, self.raw, self.chains, self.ours = [], [], [], []
        self.inside = {}  # id of a link -> its chain

    def pick(self, things):
        return things.pop(self.random.randrange(len(things))) if things else None

    def new(self):
        trie = self.random.choice(self.tries)
        self.links.append(Link(trie, eog=[END], mode=self.random.randrange(2)))

    def new_chain(self):
        self.chains.append(new_chain())

    def add(self):
        free = [x for x in self.links if x.owned]
        if free and self.chains:
            link, to = self.random.choice(free), self.random.choice(self.chains)
            link.add_to(to)
            self.inside[id(link)] = to

    def remove(self):
        held = [x for x in self.links if id(x) in self.inside]
        if held:
            link = self.random.choice(held)
            link.remove_from(self.inside.pop(id(link)))

    def use(self):
        alive = [x for x in self.links if x.alive]
        if alive:
            link = self.random.choice(alive)
            c = Candidates([(token, -0.1 * token) for token in range(640)])
            if c.apply(link).left:
                ids = [*sorted(c.left), 999]
                L.llama_sampler_accept(pointer(link), self.random.choice(ids))
            try:
                link.check()
            except OffPathError:
                link.reset()

    def read(self):
        """What a link says of itself fits together, whatever was copied over it."""
        if self.links:
            link = self.random.choice(self.links)
            cursor = link.cursor
            assert (link.path, link.done) == (cursor.path, cursor.done)
            assert len(link.path) == link.depth
            assert repr(cursor) in repr(link) or not link.alive
            if link.done:
                leaves = LEAVES if link.name in LEAVES else OTHER
                ids = leaves[link.name]
                assert link.path[: len(ids)] == tuple(ids)
                assert link.leaf == sorted(leaves, key=leaves.get).index(link.name)

    def clone(self):
        alive = [x for x in self.links if x.alive]
        if alive:
            link = self.random.choice(alive)
            if self.random.random() < 0.5:
                self.links.append(link.clone())
            else:
                self.raw.append(L.llama_sampler_clone(pointer(link)))

    def clone_chain(self):
        if self.chains:
            self.chains.append(L.llama_sampler_clone(self.random.choice(self.chains)))

    def copy(self):
        alive = [x for x in self.links if x.alive]
        if len(alive) > 1:
            a, b = self.random.sample(alive, 2)
            L.llama_sampler_copy(pointer(a), pointer(b))
            assert (a.path, a.leaf, a.name) == (b.path, b.leaf, b.name)

    def take_out(self):
        """A chain of ours that lost its link cannot be cloned."""
        held = [x for x in self.ours if not x.closed and x.link.alive]
        if held:
            sampler = self.random.choice(held)
            if "eliza-token-trie" in sampler.names:
                self.ours.append(sampler.clone())
                if self.random.random() < 0.5:
                    return
                sampler.link.remove_from(sampler)
            with pytest.raises(InvalidArgument, match="taken out"):
                sampler.clone()

    def own_chain(self):
        free = [x for x in self.links if x.owned]
        if free:
            link = self.random.choice(free)
            options = {} if link.mode == "greedy" else {"seed": 1, "top_k": 3}
            self.ours.append(chain(link, **options))

    def drop(self):
        what = self.random.randrange(4)
        if what == 0 and self.raw:
            L.llama_sampler_free(self.pick(self.raw))
        elif what == 1 and self.chains:
            self.free_chain(self.pick(self.chains))
        elif what == 2 and self.ours:
            sampler = self.pick(self.ours)
            if self.random.random() < 0.5:
                sampler.close()
        elif self.links:
            link = self.pick(self.links)
            self.inside.pop(id(link), None)
            if self.random.random() < 0.5:
                link.close()

    def free_chain(self, freed):
        held = [x for x in self.links if self.inside.get(id(x)) == freed]
        L.llama_sampler_free(freed)
        for link in held:
            del self.inside[id(link)]
            assert not link.alive

    def wrong(self):
        for options, error in (
            ({"mode": 7}, InvalidArgument),
            ({"eog": ()}, InvalidArgument),
            ({"allow": ["NONE"]}, InvalidArgument),
            ({"eog": "x"}, InvalidType),
        ):
            with pytest.raises(error):
                Link(self.tries[0], **({"eog": [END]} | options))

    def step(self):
        operations = (self.new, self.new_chain, self.add, self.add, self.remove)
        operations += (self.use, self.use, self.clone, self.clone_chain, self.copy)
        operations += (self.own_chain, self.drop, self.drop, self.drop, self.wrong)
        operations += (self.read, self.read, self.take_out)
        self.random.choice(operations)()
        if len(self.links) + len(self.chains) + len(self.raw) + len(self.ours) > 24:
            for _ in range(8):
                self.drop()

    def end(self):
        while self.chains:
            self.free_chain(self.pick(self.chains))
        while self.raw:
            L.llama_sampler_free(self.pick(self.raw))
        self.links.clear()
        self.ours.clear()
        self.inside.clear()


def run(rounds, seed=0):
    state = Rounds(seed, trie_of(), trie_of(OTHER))
    for _ in range(rounds):
        state.step()
    state.end()


def test_fc_099_every_order_of_release():
    for seed in range(4):
        run(500, seed)
    gc.collect()


@on_linux
def test_fc_099_create_clone_add_free_without_growth():
    _create_clone_add_free(2_000)


@on_linux
@pytest.mark.long
def test_fc_099_create_clone_add_free_100_000_times():
    _create_clone_add_free(100_000)
    run(100_000, 99)


def _create_clone_add_free(rounds):
    trie = trie_of()

    def some(n):
        for i in range(n):
            link = Link(trie, eog=[END])
            outer = new_chain()
            Candidates([(100, 1.0), (7, 2.0)]).apply(link)
            copy = link.clone()
            link.add_to(outer)
            other = L.llama_sampler_clone(outer)
            first, second = (outer, other) if i % 2 else (other, outer)
            L.llama_sampler_free(first)
            if i % 3:
                del copy
            L.llama_sampler_free(second)

    some(1_000)
    gc.collect()
    before = resident()
    some(rounds)
    gc.collect()
    assert resident() - before < 5 << 20


def test_a_trie_is_let_go_with_its_last_link():
    trie = trie_of()
    gone = weakref.ref(trie)
    link = Link(trie, eog=[END])
    del trie
    sampler = chain(link)
    copy = sampler.clone()
    sampler.close()
    del link, sampler
    assert gone() is not None
    copy.accept(100)
    copy.close()
    del copy
    gc.collect()
    assert gone() is None


def test_a_trie_is_let_go_when_another_state_is_copied_over_it():
    trie = trie_of()
    gone = weakref.ref(trie)
    link, other = Link(trie, eog=[END]), Link(trie_of(), eog=[END])
    raw = L.llama_sampler_clone(pointer(link))
    del trie, link
    L.llama_sampler_copy(pointer(other), pointer(raw))
    other.close()
    assert gone() is None
    assert Candidates([(100, 1.0), (5, 2.0)]).apply(raw).token == 100
    L.llama_sampler_free(raw)


def test_a_trie_of_links_that_c_freed_goes_with_the_next_use():
    trie = trie_of()
    gone = weakref.ref(trie)
    link = Link(trie, eog=[END])
    outer = new_chain()
    link.add_to(outer)
    del trie, link
    thread = threading.Thread(target=L.llama_sampler_free, args=(outer,))
    thread.start()
    thread.join()
    assert gone() is not None
    Link(trie_of(), eog=[END]).close()
    assert gone() is None


def test_fc_100_nothing_else_is_needed_to_keep_a_link_alive():
    outer = new_chain()
    Link(trie_of(), eog=[END]).add_to(outer)
    for i in range(10_000):
        if i % 1000 == 0:
            gc.collect()
        assert Candidates([(100, 1.0), (5, 2.0)]).apply(outer).token == 100
    L.llama_sampler_free(outer)


SCRIPTS = {
    "a link": "",
    "a chain": "kept = chain(link)",
    "a foreign chain": "kept = new_chain(); link.add_to(kept)",
    "a freed chain": "x = new_chain(); link.add_to(x); L.llama_sampler_free(x)",
    "a cycle": "class C: pass\nkept = C(); kept.me = kept; kept.chain = chain(link)",
    "an error that nobody raised": "L.llama_sampler_accept(pointer(link), 5)",
    "a thread": """
        kept = chain(link)
        def work():
            while True:
                kept.sample_row(row)
                kept.reset()
        threading.Thread(target=work, daemon=True).start()
    """,
    "sys.exit": "kept = chain(link); sys.exit(0)",
    "at exit": "import atexit; kept = chain(link); atexit.register(kept.close)",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_fc_101_a_script_that_ends_with_something_left(name):
    code = f"""
import sys, threading
sys.path.insert(0, {str(sys.path[0])!r})
sys.path[:0] = {[p for p in sys.path if p.endswith("tests")]!r}
import numpy as np
import eliza
from candidates import L, new_chain, pointer
from eliza.hooks.llama import Link, chain
row = np.zeros(1000, np.float32)
link = Link(eliza.Trie.from_tokens({LEAVES!r}, n_vocab=1000), eog=[2])
"""
    code += textwrap.dedent(SCRIPTS[name])
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
