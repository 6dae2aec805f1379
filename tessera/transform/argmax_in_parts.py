"""argmax_in_parts: the first largest element of a large tensor is looked for in one part of it alone.

    %1 = argmax(x[N])
->  %m = max(x as parts of L); %p = argmax(%m); %1 = %p L + argmax(x[%p L : %p L + L])

The usual decomposition folds x twice: for the extreme, and for the first place that has it.  What is larger
than the second cache of a GPU comes from memory twice, so the second fold reads only the first part whose
extreme is the extreme of all.  The place is the same, also with NaN and with zeros of both signs.

Columns stay with two folds: by parts those of 4096x4097 took 92 us, and 49 so (H200).  A tensor that is
computed point by point stays with two folds as well, which compute it where they read: to look into one part
of it, it would have to be written first.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Op
from tessera.ops.creation import iota
from tessera.ops.define import broadcast
from tessera.ops.elementwise import (
    add,
    gt,
    isnan,
    logical_and,
    logical_not,
    logical_or,
    lt,
    mul,
    where,
)
from tessera.ops.gather import along_axis
from tessera.ops.reduction import argmax, argmin, max, min
from tessera.ops.shape import reshape, slice_

LARGE = 1 << 25  # bytes: the caches of GPUs hold less, or little more
PART = 8192  # neighbours in memory: a block of threads reads a part at once
FEWEST = 8  # parts

_EXTREMES = {argmax.op: (max, argmax, gt), argmin.op: (min, argmin, lt)}


def in_parts(n: Node) -> Callable[..., Value] | None:
    """How the place of an extreme is found by parts; None for any other node, and for small tensors."""
    if n.op not in _EXTREMES or not n.types[0].static or not _lies_in_memory(n.operands[0]):
        return None
    t, axis = n.types[0], n.params["axis"]
    shape = tuple(map(int, t.shape))
    columns = prod(shape[axis + 1 :]) > 1
    if columns or prod(shape) * t.dtype.bits < 8 * LARGE or shape[axis] < FEWEST * PART:
        return None
    return lambda x, axis: _place(n.op, x, axis, PART)


def _lies_in_memory(v: Value) -> bool:
    """Whether a tensor is given, or is made by a kernel of its own."""
    while v.node is not None and v.node.op.reshapes:
        v = v.node.operands[0]
    return v.node is None or v.node.op.call is not None or v.node.op.combine is not None


def _place(op: Op, x: Value, axis: int, each: int) -> Value:
    extreme, argument, better = _EXTREMES[op]
    shape = tuple(map(int, x.shape))
    many, left = divmod(shape[axis], each)
    inside = _between(x, axis, 0, many * each)
    folded = extreme(reshape(inside, (*shape[:axis], many, each, *shape[axis + 1 :])), axis + 1)
    first = mul(argument(folded, axis), each)
    near = (*shape[:axis], each, *shape[axis + 1 :])
    places = add(_along(first, near, axis), iota(near, axis))
    found = add(first, argument(along_axis(x, places, axis), axis))
    if not left:
        return found
    last = _between(x, axis, many * each, shape[axis])
    a, b = extreme(folded, axis), extreme(last, axis)
    wins = better(b, a)
    if x.dtype.kind == "f":  # NaN is the extreme wherever it is, and the first one counts
        wins = logical_and(logical_or(wins, isnan(b)), logical_not(isnan(a)))
    return where(wins, add(argument(last, axis), many * each), found)


def _between(x: Value, axis: int, start: int, stop: int) -> Value:
    """Some places of an axis."""
    ends = [(0, int(n)) for n in x.shape]
    ends[axis] = (start, stop)
    return slice_(x, *zip(*ends, strict=True))


def _along(x: Value, shape: tuple[int, ...], axis: int) -> Value:
    """A number for each line, at every place of the lines of a shape."""
    return broadcast(reshape(x, (*shape[:axis], 1, *shape[axis + 1 :])), shape)
