"""Partition what keeps the shards that it gets: barriers, and the views of one shard, since along their
mesh axis the program is that of one shard already.

    %1 = to_local(%0) {axis = "sp", dim = 0} : f32[64@sp, 32@tp]      ->  %0 : f32[8, 32@tp]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tessera.core.layout import Layout, parts
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, bind
from tessera.ir.graph.op import Op
from tessera.ops.local import SUM, TO_GLOBAL, TO_LOCAL
from tessera.ops.remat import barrier
from tessera.transform.shards import Shard, ShardWalk

Rule = Callable[[ShardWalk, Node, Sequence[Shard], Sequence[TensorType]], list[Shard]]


def _without(layout: Layout, axis: str) -> Layout:
    cuts = tuple(tuple(a for a in names if a != axis) for names in layout.cuts)
    return Layout(cuts, tuple(a for a in layout.partial if a != axis))


def _divided(walk: ShardWalk, layout: Layout, dim: int, size: int) -> Layout:
    """A layout of a local tensor, whose axis `dim` is whole where other mesh axes do not divide it."""
    if dim < 0 or size % parts(layout.cuts[dim], walk.mesh) == 0:
        return layout
    return replace(layout, cuts=tuple(() if k == dim else c for k, c in enumerate(layout.cuts)))


def _in_front(layout: Layout, dim: int, axis: str) -> Layout:
    cuts = [(axis, *c) if k == dim else c for k, c in enumerate(layout.cuts)]
    return replace(layout, cuts=tuple(cuts))


def _to_local(
    walk: ShardWalk, n: Node, operands: Sequence[Shard], outs: Sequence[TensorType]
) -> list[Shard]:
    (s,), (out,) = operands, outs
    axis, dim = n.params["axis"], n.params["dim"]
    inner = _divided(walk, _without(s.layout, axis), dim, out.shape[dim] if dim >= 0 else 1)  # type: ignore[arg-type]
    want = inner if dim < 0 else _in_front(inner, dim, axis)
    return [Shard(walk.asked(s, want, "shard_map", n), out, inner)]


def _to_global(
    walk: ShardWalk, n: Node, operands: Sequence[Shard], outs: Sequence[TensorType]
) -> list[Shard]:
    (s,), (out,) = operands, outs
    axis, dim = n.params["axis"], n.params["dim"]
    inner = _divided(walk, s.layout, dim, s.type.shape[dim] if dim >= 0 else 1)  # type: ignore[arg-type]
    x = walk.asked(s, inner, "shard_map", n)
    if dim == SUM:
        return [Shard(x, out, replace(inner, partial=(*inner.partial, axis)))]
    return [Shard(x, out, inner if dim < 0 else _in_front(inner, dim, axis))]


def _barrier(
    walk: ShardWalk, n: Node, operands: Sequence[Shard], outs: Sequence[TensorType]
) -> list[Shard]:
    """Every value passes in the layout that it has."""
    out: Any = bind(n.op, *(s.value for s in operands))
    return [Shard(v, s.type, s.layout) for v, s in zip(out, operands, strict=True)]


VIEWS: dict[Op, Rule] = {TO_LOCAL: _to_local, TO_GLOBAL: _to_global, barrier.op: _barrier}
