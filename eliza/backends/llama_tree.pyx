"""Which sequence ids the nodes of a tree carry in llama.cpp; see the .pxd."""

cimport cython
from libc.stdint cimport int64_t

from eliza.errors import InvalidArgument

__all__ = ["Growth", "Tree", "read_parents"]


def read_parents(parents, int64_t n_ids, int64_t n_nodes):
    """Say whether parents are a list that can be used as it is.

    Parameters
    ----------
    parents : object
        What a caller gave.
    n_ids : int
        The number of new nodes.
    n_nodes : int
        The number of nodes that the tree has already.

    Returns
    -------
    list of int, or None
        None: `eliza.backends.base.parents_array` is to look into it.
    """
    cdef int64_t i
    if type(parents) is not list or len(<list>parents) != n_ids:
        return None
    for i in range(n_ids):
        item = (<list>parents)[i]
        if type(item) is not int or not -1 <= item < n_nodes + i:
            return None
    return parents


@cython.final
@cython.auto_pickle(False)
cdef class Growth:
    """Growth()
    --

    What a batch adds to a tree.

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

    def __cinit__(self):
        self.depths = []
        self.owners = []
        self.begun = []
        self.extended = []
        self.ends = {}


@cython.final
@cython.auto_pickle(False)
cdef class Tree:
    """Tree()
    --

    The nodes decoded above the end of a timeline, and their ids.

    Attributes
    ----------
    depths : list of int
        Of each node, counted from the end of the timeline, where 0 is.
    ids : list of int
        All sequence ids that it uses.
    """

    def __cinit__(self):
        self.depths = []
        self.ids = []
        self.carriers = []
        self.ends = {}

    def __len__(self):
        return len(self.depths)

    def plan(self, list parents not None, list free not None):
        """Give ids to new nodes; nothing changes until `add`.

        Parameters
        ----------
        parents : list of int
            Of the new nodes, by number; -1 is the end of the timeline.
        free : list of int
            Ids that nothing uses. They are taken from its end.

        Returns
        -------
        Growth

        Raises
        ------
        InvalidArgument
            There are more branches than free ids.
        """
        cdef int64_t known = len(self.depths), n = len(parents)
        cdef int64_t i, at, above, begun = 0
        cdef Growth growth = Growth.__new__(Growth)
        cdef list inner = [False] * n
        cdef dict handed_on = dict(self.ends)
        for i in range(n):
            above = parents[i]
            growth.depths.append(1 + self.depth(above, growth))
            growth.owners.append([])
            if above >= known:
                inner[above - known] = True
        for i in range(n):
            if inner[i]:
                continue
            at = i
            while (above := parents[at]) >= known:
                at = above - known
            id_ = handed_on.pop(above, None)
            if id_ is not None:
                growth.extended.append((above, id_))
            else:
                if begun == len(free):
                    raise InvalidArgument(
                        f"the batch has more than {begun} new branches; see tree_room()"
                    )
                id_ = free[len(free) - 1 - begun]
                begun += 1
                source = None if above < 0 else self.carriers[above]
                growth.begun.append((source, id_, self.depth(above, growth)))
            growth.ends[known + i] = id_
            at = i
            while True:
                (<list>growth.owners[at]).append(id_)
                above = parents[at]
                if above < known:
                    break
                at = above - known
        return growth

    cdef int64_t depth(self, int64_t node, Growth growth) except -1:
        cdef int64_t known = len(self.depths)
        if node < 0:
            return 0
        return self.depths[node] if node < known else growth.depths[node - known]

    def add(self, Growth growth not None):
        """Take up the nodes of a batch that was computed.

        Parameters
        ----------
        growth : Growth
            What `plan` gave.
        """
        for node, _ in growth.extended:
            del self.ends[node]
        self.ends.update(growth.ends)
        for ids in growth.owners:
            self.carriers.append((<list>ids)[0])
        for _, id_, _ in growth.begun:
            self.ids.append(id_)
        self.depths.extend(growth.depths)
