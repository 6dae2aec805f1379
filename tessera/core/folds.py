"""The order of a fold: fixed by the policy, whatever schedule, thread or machine computes it.

Several axes are folded one after another, from the last to the first.  A reduced axis is cut into
leaves of 512 elements.  Inside a leaf, a fold of the last axis runs in 16 lanes (element i joins lane
i mod 16, in ascending order); a fold of any other axis is one chain in ascending order, and a sum of
products one chain of fused multiply-adds (integers wrap, so they have the same bits in any order).  Leaves
join as a balanced tree over neighbours, and lanes join last, as a tree that puts the upper half onto the
lower.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.fma import fma
from tessera.core.scalar import SCALARS

LEAF = 512  # elements in order (docs/numerics.md): part of the bits, so it never changes
WHOLE = 1 << 40  # the leaf of a fold without leaves, which keeps no order (numerics fast)
LANES = 16  # chains of a leaf, one vector of AVX-512 in f32: part of the bits
LEVELS = 24  # of the tree over leaves where their number is symbolic: enough for 2**33 elements
Array = np.ndarray[Any, np.dtype[Any]]


def fold(name: str, x: Array, axes: Sequence[int], identity: Any) -> Array:
    """Fold x over axes with a scalar op, in the order above."""
    for axis in sorted(axes, reverse=True):
        last = axis == x.ndim - 1
        moved = np.moveaxis(x, axis, -1)
        if x.shape[axis] == 0:
            x = np.full(moved.shape[:-1], identity, x.dtype)
        else:
            x = (fold_lanes if last else fold_chain)(name, moved, identity)
    return x


def fold_chain(name: str, x: Array, identity: Any) -> Array:
    """Fold the last axis: a chain in each leaf, leaves as a tree."""
    f = SCALARS[name].numpy
    leaves = []
    for start in range(0, x.shape[-1], LEAF):
        total = np.full(x.shape[:-1], identity, x.dtype)
        for i in range(start, min(start + LEAF, x.shape[-1])):
            total = f(total, x[..., i])
        leaves.append(total)
    return join_leaves(name, leaves)


def fold_lanes(name: str, x: Array, identity: Any) -> Array:
    """Fold the last axis: 16 lanes in each leaf, leaves as a tree, then the lanes as a tree."""
    f = SCALARS[name].numpy
    short = -x.shape[-1] % LANES
    padding = np.full((*x.shape[:-1], short), identity, x.dtype)
    count = (x.shape[-1] + short) // LANES
    rows = np.concatenate([x, padding], -1).reshape(*x.shape[:-1], count, LANES)
    leaves = []
    step = LEAF // LANES
    for start in range(0, rows.shape[-2], step):
        total = np.full((*x.shape[:-1], LANES), identity, x.dtype)
        for i in range(start, min(start + step, rows.shape[-2])):
            total = f(total, rows[..., i, :])
        leaves.append(total)
    lanes = join_leaves(name, leaves)
    width = LANES
    while width > 1:
        width //= 2
        lanes = f(lanes[..., :width], lanes[..., width:])
    return np.asarray(lanes[..., 0])


def contract(x: Array, y: Array) -> Array:
    """The sum of x * y over the last axis: fused multiply-adds in each leaf, leaves as a tree."""
    if x.dtype.kind in "iu":
        return np.asarray((x * y).sum(-1, dtype=x.dtype))
    leaves = []
    size = x.shape[-1]
    for start in range(0, size, LEAF):
        total = np.zeros(np.broadcast_shapes(x.shape, y.shape)[:-1], x.dtype)
        for i in range(start, min(start + LEAF, size)):
            total = fma(x[..., i], y[..., i], total)
        leaves.append(total)
    return join_leaves("add", leaves)


def join_leaves(name: str, leaves: list[Array]) -> Array:
    """Leaves as a balanced tree: neighbours first."""
    f, step = SCALARS[name].numpy, 1
    while step < len(leaves):
        for i in range(0, len(leaves) - step, 2 * step):
            leaves[i] = f(leaves[i], leaves[i + step])
        step *= 2
    return leaves[0]
