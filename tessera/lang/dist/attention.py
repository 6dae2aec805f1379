"""Context parallel attention: the sequence is cut, key blocks go round, and what each adds is joined as a tree.

A shard along the axis holds one block of queries, keys and values.  Keys and values move to the next shard in each of as
many rounds as there are shards.  A round gives, for the queries of this shard, the largest score, the sum of exponentials
and the weighted values of one key block; two such parts join into one, and the tree over rounds has logarithmic depth.
"""

from __future__ import annotations

import math
from typing import Any

from tessera.core.errors import OperandError, ShapeError
from tessera.core.mesh import Mesh, mesh_of
from tessera.core.shardspec import ShardSpec
from tessera.ir.graph.ir import Value
from tessera.lang import collective
from tessera.lang.dist.shard_map import shard_map
from tessera.lang.remat import checkpoint
from tessera.lang.transforms import guarded
from tessera.ops.control import cond
from tessera.ops.creation import iota
from tessera.ops.define import as_value, cast_to, full_of
from tessera.ops.elementwise import add, div, exp, ge, maximum, mul, sub, where
from tessera.ops.contraction import matmul
from tessera.ops.neural import attention as whole_attention
from tessera.ops.reduction import max as max_of
from tessera.ops.reduction import sum as sum_of
from tessera.ops.shape import swapaxes
from tessera.ops.arrange import repeat

Part = tuple[Value, Value, Value]  # the largest score, the sum of exponentials, the weighted values
_LEAST = -1e30  # below every score: exp of it less a score is zero, and it less itself is zero too


@guarded
def attention(
    q: Any, k: Any, v: Any, axis: str = "sp", causal: bool = False, scale: float | None = None
) -> Value:
    """op.attention on (batch, heads, seq, dim) with the sequences of q, k and v cut along a mesh axis."""
    q, k, v = (as_value(x, "dist.attention") for x in (q, k, v))
    values = [q, k, v]
    mesh = next((mesh_of(x.device) for x in values if x.device.kind == "mesh"), None)
    if mesh is None or axis not in mesh.axes:
        return whole_attention(q, k, v, causal=causal, scale=scale)
    _check(values, mesh.size(axis), axis)
    groups = values[0].shape[1] // values[1].shape[1]
    factor = 1 / math.sqrt(values[0].shape[-1]) if scale is None else float(scale)
    spec = ShardSpec((2,), (axis,))

    def ring(q: Value, k: Value, v: Value) -> Value:
        return _ring(q, k, v, groups, mesh, axis, causal, factor)

    made: Value = shard_map(ring, mesh, spec, spec, axes=(axis,))(*values)
    return made


def _check(values: list[Value], size: int, axis: str) -> None:
    q, k, v = values
    if any(x.ndim != 4 for x in values) or k.shape[:3] != v.shape[:3] or q.shape[1] % k.shape[1]:
        raise ShapeError(
            f"dist.attention: got {q.type}, {k.type}, {v.type}, expected (batch, heads, seq, dim) with one number of keys and values"
        )
    if q.shape[2] != k.shape[2] or not isinstance(q.shape[2], int) or q.shape[2] % size:
        raise OperandError(
            f"dist.attention: sequences of {q.shape[2]} queries and {k.shape[2]} keys must be equal and divide by the {size} "
            f"shards of mesh axis {axis!r}"
        )


def _ring(
    q: Value, k: Value, v: Value, groups: int, mesh: Mesh, axis: str, causal: bool, scale: float
) -> Value:
    n, mine = mesh.size(axis), collective.axis_index(axis)
    wide = q.dtype.compute
    forward = [(i, (i + 1) % n) for i in range(n)]
    waiting: list[tuple[int, Part]] = []  # subtrees by their number of rounds, as the digits of a counter
    for turn in range(n):
        if turn:
            k, v = (collective.ppermute(x, axis, forward) for x in (k, v))
        part = _block(q, k, v, groups, mine, sub(mine, turn), turn, causal, scale, wide)
        size = 1
        while waiting and waiting[-1][0] == size:
            _, before = waiting.pop()
            part, size = _joined(before, part), 2 * size
        waiting.append((size, part))
    _, part = waiting.pop()
    while waiting:
        part = _joined(waiting.pop()[1], part)
    return cast_to(div(part[2], part[1]), q.dtype)


def _block(
    q: Value, k: Value, v: Value, groups: int, mine: Value, other: Value, turn: int, causal: bool, scale: float, wide: Any
) -> Part:  # fmt: skip
    """What the keys of another shard give; in a causal one, those of a later shard give nothing."""
    length = q.shape[2]

    @checkpoint
    def part(q: Value, k: Value, v: Value) -> Part:
        if groups > 1:
            k, v = (repeat(x, groups, axis=1) for x in (k, v))
        scores = mul(cast_to(matmul(q, swapaxes(k, 2, 3)), wide), scale)
        if causal and turn == 0:
            seen = ge(iota((length, 1), 0), iota((1, length), 1))
            scores = where(seen, scores, full_of((), _LEAST, wide))
        top = max_of(scores, 3, keepdims=True)
        weights = exp(sub(scores, top))
        return top, sum_of(weights, 3, keepdims=True), matmul(weights, cast_to(v, wide))

    if not causal or turn == 0:
        return part(q, k, v)  # type: ignore[no-any-return]

    def nothing(q: Value, k: Value, v: Value) -> Part:
        column = (*q.shape[:3], 1)
        return (
            full_of(column, _LEAST, wide), full_of(column, 0, wide), full_of((*q.shape[:3], v.shape[3]), 0, wide)
        )  # fmt: skip

    made: Part = cond(ge(other, 0), part, nothing, q, k, v)
    return made


def _joined(a: Part, b: Part) -> Part:
    top = maximum(a[0], b[0])
    x, y = exp(sub(a[0], top)), exp(sub(b[0], top))
    return top, add(mul(a[1], x), mul(b[1], y)), add(mul(a[2], x), mul(b[2], y))
