"""A trie laid out for showing: its nodes in order, what they count, and drawings."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eliza._trie import Trie

__all__ = ["Node", "Spell", "Tree", "as_dot", "as_text", "counted", "plain", "tree_of"]

#: Lines of a drawing, and children of one node, from which on it is cut.
MAX_LINES = 200
MAX_CHILDREN = 20

#: Writes a run of ids for a reader.
Spell = Callable[[Sequence[int]], str]

_RUN = 12  # ids of a forced run that are shown
_NAME = 60  # characters of a name that are shown


@dataclass(slots=True)
class Node:
    """A branching point, the end of a leaf, or both."""

    ids: tuple[int, ...]
    """The ids that lead here from the parent."""
    depth: int
    leaf: int | None = None
    """The leaf that ends here."""
    children: list[Node] = field(default_factory=list)
    n_leaves: int = 0
    """Leaves that end here or below."""

    @property
    def ways(self) -> int:
        """How many ways lead on; to end here is one of them."""
        return len(self.children) + (self.leaf is not None and bool(self.children))


@dataclass(frozen=True)
class Tree:
    """A trie with its node objects and what they count."""

    trie: Trie
    nodes: tuple[Node, ...]
    """In the order of the leaves, each before its children; the root comes first."""

    @property
    def n_tokens(self) -> int:
        """Ids of all leaves together."""
        return sum([node.depth for node in self.nodes if node.leaf is not None])

    @property
    def n_branching(self) -> int:
        """Nodes from which more than one way leads on."""
        return sum([node.ways > 1 for node in self.nodes])

    @property
    def forced_share(self) -> float:
        """The share of `n_tokens` at which there was only one way to go."""
        decided = sum(
            [
                node.n_leaves - (node.leaf is not None)
                for node in self.nodes
                if node.ways > 1
            ]
        )
        return 1 - decided / self.n_tokens

    def name(self, leaf: int) -> str:
        """Return what to call a leaf."""
        name = self.trie.name(leaf)
        return f"leaf {leaf}" if name is None else plain(name)


def tree_of(trie: Trie) -> Tree:
    """Lay a trie out. Time and memory grow with its ids; depth does not matter."""
    root = Node((), 0)
    line = [root]  # from the root to the last leaf
    before: tuple[int, ...] = ()
    for leaf in range(len(trie)):
        ids = trie.tokens(leaf)
        shared = 0
        while shared < len(before) and before[shared] == ids[shared]:
            shared += 1
        while line[-1].depth > shared:
            below = line.pop()
        if line[-1].depth < shared:  # the way to `below` forks half-way
            parent = line[-1]
            cut = shared - parent.depth
            fork = Node(below.ids[:cut], shared, children=[below])
            below.ids = below.ids[cut:]
            parent.children[-1] = fork
            line.append(fork)
        end = Node(ids[shared:], len(ids), leaf)
        line[-1].children.append(end)
        line.append(end)
        before = ids
    nodes = tuple(_in_order(root))
    for node in reversed(nodes):
        own = node.leaf is not None
        node.n_leaves = own + sum([child.n_leaves for child in node.children])
    return Tree(trie, nodes)


def _in_order(root: Node) -> Iterator[Node]:
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def _shown(tree: Tree) -> dict[int, list[Node]]:
    """Return the children to show of each node that is opened, by `id(node)`.

    A small tree is shown whole. Of a large one the upper part is: nodes are opened in
    breadth-first order while there are lines left.
    """
    root = tree.nodes[0]
    if len(tree.nodes) <= MAX_LINES:
        return {id(node): node.children for node in tree.nodes}
    opened: dict[int, list[Node]] = {}
    room = MAX_LINES
    queue = deque([root])
    while queue:
        node = queue.popleft()
        children = node.children[:MAX_CHILDREN]
        if len(children) + 1 > room:
            break
        room -= len(children) + (len(children) < len(node.children))
        opened[id(node)] = children
        queue.extend([child for child in children if child.children])
    return opened


def as_text(tree: Tree, spell: Spell, *, ascii_only: bool = False) -> str:
    """Draw a tree with a line per node, forced ids in parentheses."""
    tee, end, bar, more = (
        ("|-- ", "`-- ", "|   ", "...") if ascii_only else ("├── ", "└── ", "│   ", "…")
    )
    opened = _shown(tree)
    root = tree.nodes[0]
    lines = []
    stack: list[tuple[Node | str, str, str, bool]] = [(root, "", "", False)]
    while stack:
        node, lead, indent, chosen = stack.pop()
        if isinstance(node, str):
            lines.append(lead + node)
            continue
        parts = [_run(node.ids, spell, chosen, more)] if node.ids else []
        if node.leaf is not None:
            parts.append(tree.name(node.leaf))
        hidden = node.children and id(node) not in opened
        if node.ways > 1 or node is root or hidden:
            parts.append(_counts(node) + (f" {more}" if hidden else ""))
        lines.append(lead + "  ".join(parts))
        below: list[Node | str] = [*opened.get(id(node), ())]
        rest = node.children[len(below) :]
        if rest and not hidden:
            n = sum([child.n_leaves for child in rest])
            below.append(f"{more} {len(rest):,} more, with {counted(n, 'choice')}")
        for i, child in reversed(list(enumerate(below))):
            last = i == len(below) - 1
            stack.append(
                (
                    child,
                    indent + (end if last else tee),
                    indent + ("    " if last else bar),
                    node.ways > 1,
                )
            )
    return "\n".join(lines)


def _run(ids: tuple[int, ...], spell: Spell, chosen: bool, more: str) -> str:
    """Write the ids of an edge; all are forced, but the first where it was chosen."""
    forced = ids[chosen:]
    text = spell(forced[:_RUN])
    if len(forced) > _RUN:
        text += f" {more} {len(forced) - _RUN:,} more"
    parts = [spell(ids[:1])] if chosen else []
    return " ".join([*parts, f"({text})"] if forced else parts)


def _counts(node: Node) -> str:
    return f"{counted(node.ways, 'way')}, {counted(node.n_leaves, 'choice')}"


def counted(n: int, what: str) -> str:
    """Write a number of things."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def plain(name: str) -> str:
    """Write a name on one line, without control characters, and not too long."""
    if len(name) > _NAME:
        name = name[: _NAME - 1] + "…"
    simple = name.isprintable() and name == name.strip() and name
    return name if simple else repr(name)


def as_dot(trees: Sequence[Tree], titles: Sequence[str], spell: Spell) -> str:
    """Draw trees in the language of Graphviz, large ones cut as in `as_text`."""
    lines = [
        "digraph trie {",
        "  rankdir=LR;",
        '  node [fontname="sans-serif", shape=box, style=rounded];',
        '  edge [fontname="monospace"];',
    ]
    for t, (tree, title) in enumerate(zip(trees, titles, strict=True)):
        opened = _shown(tree)
        number = {id(node): f"t{t}n{i}" for i, node in enumerate(tree.nodes)}
        queue = deque([tree.nodes[0]])
        lines.append(f"  t{t}n0 [label={_quoted(plain(title))}, shape=plaintext];")
        while queue:
            node = queue.popleft()
            below = opened.get(id(node), [])
            for child in below:
                label = _run(child.ids, spell, node.ways > 1, "…")
                me = number[id(child)]
                lines.append(f"  {me} [{_look(tree, child, id(child) in opened)}];")
                lines.append(f"  {number[id(node)]} -> {me} [label={_quoted(label)}];")
                queue.append(child)
            rest = node.children[len(below) :]
            if rest and id(node) in opened:
                n = sum([child.n_leaves for child in rest])
                me = number[id(node)]
                text = _quoted(f"… {len(rest):,} more, with {counted(n, 'choice')}")
                lines.append(f"  {me}more [label={text}, style=dotted];")
                lines.append(f"  {me} -> {me}more [style=dotted];")
    return "\n".join([*lines, "}"])


def _look(tree: Tree, node: Node, opened: bool) -> str:
    parts = [] if node.leaf is None else [tree.name(node.leaf)]
    if node.children and not opened:
        parts.append(f"… {counted(node.n_leaves, 'choice')}")
    if not parts:
        return "shape=point"
    return f"label={_quoted(', '.join(parts))}"


def _quoted(text: str) -> str:
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
