"""Where samples come from: arrays with samples along their first axis, or anything with a
length and items.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from tessera.core import tree
from tessera.core.errors import OperandError
from tessera.ir.graph.ir import Value, host_data

Array = np.ndarray[Any, np.dtype[Any]]


class Source(Protocol):
    """A count of samples, and trees of arrays for some of them."""

    count: int

    def rows(self, indices: Array) -> Any:
        """The samples of these indices, stacked along a first axis."""


class _Arrays:
    def __init__(self, data: Any):
        leaves, self.structure = tree.flatten(data)
        self.leaves = [host_data(x) if isinstance(x, Value) else np.asarray(x) for x in leaves]
        sizes = {x.shape[0] if x.ndim else None for x in self.leaves}
        if len(sizes) != 1 or None in sizes:
            shapes = ", ".join(str(x.shape) for x in self.leaves) or "none"
            raise OperandError(
                f"Loader: the arrays have the shapes {shapes}, expected one size along the first axis"
            )
        self.count = int(sizes.pop() or 0)

    def rows(self, indices: Array) -> Any:
        return tree.unflatten(self.structure, [x[indices] for x in self.leaves])


class _Items:
    def __init__(self, items: Any, collate: Callable[[list[Any]], Any] | None):
        self.items, self.count = items, len(items)
        self.collate = collate or _stacked

    def rows(self, indices: Array) -> Any:
        return self.collate([self.items[int(i)] for i in indices])


def _stacked(samples: list[Any]) -> Any:
    """Samples of one structure as one tree of arrays."""
    flat = [tree.flatten(s) for s in samples]
    structure = flat[0][1]
    for other in (s for _, s in flat if s != structure):
        raise OperandError(
            f"Loader: samples of one batch have the structures {structure} and {other}; make them alike, or "
            "give collate="
        )
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    made = []
    for column in columns:
        arrays = [host_data(x) if isinstance(x, Value) else np.asarray(x) for x in column]
        if len({a.shape for a in arrays}) > 1:
            shapes = sorted({str(a.shape) for a in arrays})
            raise OperandError(
                f"Loader: samples of one batch have the shapes {' and '.join(shapes[:3])}; pad them, or "
                "give collate="
            )
        made.append(np.stack(arrays))
    return tree.unflatten(structure, made)


def source_of(data: Any, collate: Callable[[list[Any]], Any] | None) -> Source:
    """The source that a user gave: a list or an object with items, or a tree of arrays."""
    if isinstance(data, str | bytes):
        raise OperandError(
            f"Loader: data is {type(data).__name__} {data!r:.40}, "
            "expected arrays, a tree of them, or samples; open a file first"
        )
    is_tree = isinstance(data, tuple | dict | np.ndarray | Value)
    if not is_tree and hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return _Items(data, collate)
    if collate is not None:
        raise OperandError("Loader: collate acts on samples, and arrays have batches as they are")
    return _Arrays(data)
