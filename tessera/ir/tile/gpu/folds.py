"""Folds on a GPU: a binary tree over neighbours, whatever computes which part of it.

    x0 x1 x2 x3   ->   (x0 + x1) + (x2 + x3)

A tree over 2^k neighbours is a subtree of every larger one, so the bits do not depend on how many
elements a block of threads takes, nor on how many threads it has.  What is missing up to a power of two
counts as the identity.
"""

from __future__ import annotations

from tessera.core.dtype import DType
from tessera.core.evaluate import identity
from tessera.core.scalar import Number
from tessera.ir.tile.ir import Builder, Tile

_ANY_ORDER = ("max", "min", "and", "or", "xor", "logical_and", "logical_or", "logical_xor")


def tree(b: Builder, scalar: str, x: Tile, axis: int) -> Tile:
    """The fold of a tile along an axis of 2^k elements; the axis stays, with size 1."""
    if scalar in _ANY_ORDER or x.dtype.kind != "f":
        return b.fold(scalar, x, axis)
    n = x.shape[axis]
    while n > 1:
        n //= 2
        pairs = b.reshape(x, (*x.shape[:axis], n, 2, *x.shape[axis + 1 :]))
        joined = b.fold(scalar, pairs, axis + 1)
        x = b.reshape(joined, (*x.shape[:axis], n, *x.shape[axis + 1 :]))
    return x


def neutral(scalar: str, dtype: DType) -> Number:
    """What changes nothing: x + -0 is x, also where x is -0."""
    return -0.0 if scalar == "add" and dtype.kind == "f" else identity(scalar, dtype)
