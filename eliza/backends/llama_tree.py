"""Which sequence ids the nodes of a tree carry in llama.cpp.

A token of a batch attends to the cells that share an id with it. So each branch needs
an id of its own, and a node needs the ids of all branches that pass through it. Ids
are given to the tips of a batch only: one that starts at a node of an earlier batch is
first added to the cells of the path there, which costs 0.1 us for each cell, and is
kept until the tree is cleared. A node that ends an id hands it on to its first child,
so that a branch which grows by one node at a time needs one id and no more additions.
"""

from __future__ import annotations

from eliza.errors import InvalidArgument

__all__ = ["Growth", "Tree"]


class Growth:
    """What a batch adds to a tree.

    Attributes
    ----------
    depths : list of int
        Of each new node, counted from the end of the timeline, where 0 is.
    owners : list of list of int
        The ids of each new node.
    begun : list of tuple (int or None, int, int)
        (source, id, depth): ids to be added to the cells of `source` up to that depth;
        None is the timeline.
    extended : list of tuple (int, int)
        (node, id): ids that go on below that node of an earlier batch.
    ends : dict of int to int
        New node to the id whose last cell it is.
    """

    __slots__ = ("begun", "depths", "ends", "extended", "owners")

    def __init__(self) -> None:
        self.depths: list[int] = []
        self.owners: list[list[int]] = []
        self.begun: list[tuple[int | None, int, int]] = []
        self.extended: list[tuple[int, int]] = []
        self.ends: dict[int, int] = {}


class Tree:
    """The nodes decoded above the end of a timeline, and their ids."""

    def __init__(self) -> None:
        self.depths: list[int] = []
        self.ids: list[int] = []
        self._carriers: list[int] = []
        self._ends: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.depths)

    def plan(self, parents: list[int], free: list[int]) -> Growth:
        """Give ids to new nodes; nothing changes until `add`.

        Parameters
        ----------
        parents : list of int
            Of the new nodes, by number; -1 is the end of the timeline.
        free : list of int
            Ids that nothing uses. They are taken from its end.

        Raises
        ------
        InvalidArgument
            There are more branches than free ids.
        """
        known, growth = len(self), Growth()
        for parent in parents:
            growth.depths.append(1 + self._depth(parent, growth))
            growth.owners.append([])
        inner = set(parents)
        tips = [i for i in range(len(parents)) if known + i not in inner]
        handed_on = dict(self._ends)
        for tip in tips:
            path = [tip]
            while (above := parents[path[-1]]) >= known:
                path.append(above - known)
            id_ = handed_on.pop(above, None)
            if id_ is not None:
                growth.extended.append((above, id_))
            else:
                n = len(growth.begun)
                if n == len(free):
                    raise InvalidArgument(
                        f"the batch has more than {n} new branches; see tree_room()"
                    )
                id_ = free[-1 - n]
                source = None if above < 0 else self._carriers[above]
                growth.begun.append((source, id_, self._depth(above, growth)))
            growth.ends[known + tip] = id_
            for node in path:
                growth.owners[node].append(id_)
        return growth

    def _depth(self, node: int, growth: Growth) -> int:
        if node < 0:
            return 0
        known = len(self)
        return self.depths[node] if node < known else growth.depths[node - known]

    def add(self, growth: Growth) -> None:
        """Take up the nodes of a batch that was computed."""
        for node, _ in growth.extended:
            del self._ends[node]
        self._ends |= growth.ends
        self._carriers += [ids[0] for ids in growth.owners]
        self.ids += [id_ for _, id_, _ in growth.begun]
        self.depths += growth.depths
