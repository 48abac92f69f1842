"""What a signature of a `.tflite` file is given, and what that tells of the file."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from eliza.backends.litert_layout import CacheInfo, Layout, Step
from eliza.errors import NotSupported

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eliza.backends.litert_base import Inputs, Runtime

__all__ = ["inputs_of", "settled"]

#: What is added to the scores of ids that must not be seen, where a mask is of floats.
_HIDDEN = {"float32": -1e9, "float16": -6e4}

#: Ids of which one should leave something in keys and values, and where it is put.
_TRIALS, _PLACE = (1, 2, 3, 0), 1


def inputs_of(step: Step, ids: NDArray[np.int32], begin: int) -> Inputs:
    """Return the inputs for ids at a position; what is left of the call is filled up.

    Parameters
    ----------
    ids : int32 array
        At most `step.n`.
    begin : int
        The position of the first of them.
    """
    at = np.arange(begin, begin + step.n, dtype=np.int32)
    filled = np.zeros((1, step.n), np.int32)
    filled[0, : len(ids)] = ids
    inputs: dict[str, NDArray[Any]] = {
        step.ids: filled,
        step.positions: at.reshape(step.positions_shape),
    }
    if step.mask is not None:
        wide = step.mask_shape[-1]
        edge = _edge(wide, step.mask_dtype)
        # Cut out of one row with one edge: 50 us less than a comparison, for one id.
        rows = [edge[wide - 1 - p : 2 * wide - 1 - p] for p in at.tolist()]
        mask = rows[0] if step.n == 1 else np.concatenate(rows)
        inputs[step.mask] = mask.reshape(step.mask_shape)
    return inputs


@lru_cache(maxsize=8)
def _edge(wide: int, dtype: str) -> NDArray[Any]:
    """Return masks of all positions in one: what is seen, and as much that is not."""
    seen = np.arange(2 * wide) < wide
    if dtype == "bool":
        return seen
    return np.where(seen, 0.0, _HIDDEN[dtype]).astype(dtype)


def settled(runtime: Runtime, where: str) -> Layout:
    """Return the layout with the axes along which ids lie, where shapes do not tell.

    So it is where there is no mask, or where two axes have the length of the context.
    An id is then decoded, and what it changed in the keys and values is looked at.

    Raises
    ------
    NotSupported
        That does not tell either.
    """
    layout = runtime.layout
    masked = any(step.mask is not None for step in layout.steps)
    if masked and all(info.shape.count(layout.n_ctx) == 1 for info in _kept(layout)):
        return layout
    cache = runtime.new_cache()
    try:
        for token in _TRIALS:
            inputs = inputs_of(layout.steps[0], np.array([token], np.int32), _PLACE)
            runtime.run(layout.steps[0], inputs, cache)
            values = {name: runtime.read(cache, name) for name in layout.caches}
            if all(array.any() for array in values.values()):
                break
    finally:
        runtime.free(cache)
    caches, sizes = {}, set()
    for name, info in layout.caches.items():
        axes = [axis for axis in range(len(info.shape)) if _only(values[name], axis)]
        if masked:
            axes = [axis for axis in axes if info.shape[axis] == layout.n_ctx]
        if len(axes) != 1:
            raise NotSupported(
                f"{where}: {name!r} has shape {info.shape}, and along which axis ids "
                "lie cannot be found out; a state that cannot be cut back is not "
                "supported"
            )
        caches[name] = replace(info, axis=axes[0])
        sizes.add(info.shape[axes[0]])
    if len(sizes) != 1:
        raise NotSupported(f"{where}: keys and values hold different numbers of ids")
    return replace(layout, caches=caches, n_ctx=sizes.pop())


def _kept(layout: Layout) -> list[CacheInfo]:
    return list(layout.caches.values())


def _only(values: NDArray[Any], axis: int) -> bool:
    """Return whether only what lies at the place is not 0."""
    if values.shape[axis] <= _PLACE or not values.any():
        return False
    return not np.delete(values, _PLACE, axis).any()
