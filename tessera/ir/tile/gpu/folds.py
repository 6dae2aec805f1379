"""Folds on a GPU: binary trees, whatever computes which part of them.

    x0 x1 x2 x3   ->   (x0 + x1) + (x2 + x3)

A tree over 2^k neighbours is a subtree of every larger one, so the bits do not depend on how many
elements a block of threads takes, nor on how many threads it has.  What is missing up to a power of two
counts as the identity.

A row whose length is no multiple of 8 is halved first: threads read it number by number, so that what is
folded with each other lies in the registers of one, where neighbours lie in those of two.  Of other rows, a
thread reads neighbours at once.

    x0 ... x4095   ->   the tree over neighbours of y0 ... y127, y[i] = the halves of x[i], x[i + 128], ...
"""

from __future__ import annotations

from tessera.core.dims import Size
from tessera.core.dtype import DType
from tessera.ir.schedule.gpu_blocks import is_halved
from tessera.ir.tile.ir import Builder, Tile

_ANY_ORDER = ("max", "min", "and", "or", "xor", "logical_and", "logical_or", "logical_xor")
_WARP = 128  # elements: 16 bytes of f32 in each thread of a warp; part of the order


def has_any_order(scalar: str, dtype: DType) -> bool:
    """Whether a fold has the same bits in any order."""
    return scalar in _ANY_ORDER or dtype.kind != "f"


def tree(b: Builder, scalar: str, x: Tile, axis: int) -> Tile:
    """The fold of a tile along an axis of 2^k elements; the axis stays, with size 1."""
    if has_any_order(scalar, x.dtype):
        return b.fold(scalar, x, axis)
    n = x.shape[axis]
    while n > 1:
        n //= 2
        pairs = b.reshape(x, (*x.shape[:axis], n, 2, *x.shape[axis + 1 :]))
        joined = b.fold(scalar, pairs, axis + 1)
        x = b.reshape(joined, (*x.shape[:axis], n, *x.shape[axis + 1 :]))
    return x


def row_tree(b: Builder, scalar: str, x: Tile, axis: int, length: Size) -> Tile:
    """The fold of a row, or a piece of one, in one tile of 2^k elements.

    By neighbours; where the length of the whole row says so, by halves down to a warp's width first.
    """
    if has_any_order(scalar, x.dtype):
        return b.fold(scalar, x, axis)
    while is_halved(int(length)) and (n := x.shape[axis]) > _WARP:
        halves = b.reshape(x, (*x.shape[:axis], 2, n // 2, *x.shape[axis + 1 :]))
        joined = b.fold(scalar, halves, axis)
        x = b.reshape(joined, (*x.shape[:axis], n // 2, *x.shape[axis + 1 :]))
    return tree(b, scalar, x, axis)
