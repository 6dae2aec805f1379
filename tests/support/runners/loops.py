"""The meaning of an op by its signature or view, one point of the index space at a time.

Slow and obvious: this is what a loop nest of the op must compute.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tessera.core.rounding import round_to
from tessera.core.scalar import SCALARS, evaluate
from tessera.core.signature import Axes
from tessera.ir.graph.ir import Node
from tessera.ir.graph.op import Element

Array = np.ndarray[Any, np.dtype[Any]]


def run_loops(n: Node, xs: Sequence[Array]) -> Array:
    """out[out axes] = fold over the reduced axes of body(operands at their axes)."""
    sig, body = n.op.sig(n.types, n.params), n.op.expr(n.params)
    assert sig is not None
    assert body is not None
    bound, sizes = sig.bind(n.op.name, n.types)
    at: dict[str, Any] = {**dict(n.params.get("sizes", ())), **sizes}
    out = np.empty([at[a] for a in bound.out], n.results[0].type.dtype.np)
    for point in _points(bound.out, at):
        values = [
            evaluate(body, [_at(x, axes, {**point, **inner}) for x, axes in _zip(xs, bound.ins)])
            for inner in _points(bound.reduced, at)
        ]
        total = values[0] if n.op.combine is None else _fold(n.op.combine, values)
        out[tuple(point[a] for a in bound.out)] = round_to(
            np.asarray(total), n.results[0].type.dtype
        )
    return out


def _zip(xs: Sequence[Array], ins: Sequence[Axes]) -> Any:
    return zip(xs, ins, strict=True)


def _points(axes: Axes, sizes: Mapping[str, int]) -> Any:
    """Every assignment of indices to these axes."""
    for index in itertools.product(*(range(sizes[a]) for a in axes)):
        yield dict(zip(axes, index, strict=True))


def _at(x: Array, axes: Axes, point: Mapping[str, int]) -> Any:
    return x[tuple(point[a] for a in axes)]


def _fold(name: str, values: Sequence[Any]) -> Any:
    row = SCALARS[name]
    assert row.identity is not None, f"{name} cannot fold"
    total = values[0] if values else row.identity
    for v in values[1:]:
        total = row.numpy(total, v)
    return total


def run_view(n: Node, x: Array) -> Array:
    """out[index] = x[view(index)]."""
    assert n.op.view is not None
    shape = n.results[0].shape
    source = n.op.view(tuple(np.indices(shape)), n.types, n.params)
    assert len(source) == x.ndim, f"{n!r}: the view has {len(source)} indices"
    index = tuple(np.broadcast_to(i, shape) for i in source)
    for i, size in zip(index, x.shape, strict=True):
        assert ((i >= 0) & (i < size)).all(), f"{n!r}: the view leaves its operand"
    return np.broadcast_to(x[index], shape)


def run_pick(n: Node, xs: Sequence[Array]) -> Array:
    """out[index] = x[pick(index)], point by point."""
    assert n.op.pick is not None
    out = np.empty(n.results[0].shape, xs[0].dtype)
    for point in np.ndindex(*out.shape):
        places = n.op.pick(point, n.types, n.params)
        out[point] = xs[0][tuple(_held(i, xs) for i in places)]
    return out


def _held(i: Any, xs: Sequence[Array]) -> int:
    if not isinstance(i, Element):
        return int(i)
    return min(max(int(xs[i.operand][i.index]), 0), i.last) + i.offset
