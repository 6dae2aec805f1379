"""Kernels of products: with an epilogue, of groups of rows, and with packed weights.

Each element is one chain in ascending k, whatever the blocks are.
"""

from __future__ import annotations

import math

from tessera.core.dtype import f32
from tessera.lang import tile
from tessera.lang.kernel.decorate import kernel
from tessera.lang.kernel.signature import KTile
from tessera.stdlib.kernels.rows import wide


def none(x):
    """Nothing."""
    return x


def relu(x):
    """max(x, 0)."""
    return tile.maximum(x, 0.0)


def gelu(x):
    """x times the probability that a normal number is less."""
    return x * (tile.erf(x * math.sqrt(0.5)) + 1) * 0.5


def silu(x):
    """x * sigmoid(x)."""
    return x * tile.sigmoid(x)


def tanh(x):
    """The hyperbolic tangent."""
    return tile.tanh(x)


ACTIVATIONS = {"none": none, "relu": relu, "gelu": gelu, "silu": silu, "tanh": tanh}


@kernel
def matmul(
    a: KTile["B", "M", "K"], b: KTile["B", "K", "N"], bias: KTile["N"], residual: KTile["B", "M", "N"],
    *, activation: str,
):  # fmt: skip
    """activation(a b + bias) + residual."""
    T = tile.context()
    acc = tile.zeros((T.m, T.n), f32 if a.dtype.bits < 32 else a.dtype)
    for kb in tile.range_k(a.shape, T.k):
        left, right = tile.load(a, rows=T.m, cols=kb), tile.load(b, rows=kb, cols=T.n)
        acc = tile.dot(wide(left), wide(right), acc)
    if bias is not None:
        acc = acc + wide(tile.load(bias, T.n))
    acc = ACTIVATIONS[activation](acc)
    if residual is not None:
        acc = acc + wide(tile.load(residual, rows=T.m, cols=T.n))
    return tile.cast(acc, a.dtype)


@kernel
def grouped(
    x: KTile["R", "K"], w: KTile["W", "N"], rows: KTile["P"], groups: KTile["G"], *, size: int
):
    """Blocks of `size` rows of x, named by `rows`, times the matrix of the group of each block.

    The matrices of all groups lie one below the other in w.
    """
    T, block, depth = tile.context(), tile.program(groups.shape[0]), x.shape[1]
    ids = within(tile.load(rows, tile.span(rows.shape[0], block * size, size)), x.shape[0])
    acc = tile.zeros((size, T.n), f32 if x.dtype.bits < 32 else x.dtype)
    for kb in tile.range_k(x.shape, T.k):
        below = groups[block] * depth + tile.minimum(kb.start + tile.arange(T.k), depth - 1)
        below = within(below, w.shape[0])
        left = tile.load(x, rows=ids, cols=kb, unchecked=True)  # both lie within
        right = tile.load(w, rows=below, cols=T.n, unchecked=True)
        acc = tile.dot(wide(left), wide(right), acc)
    y = tile.empty((rows.shape[0], w.shape[1]), x.dtype)
    tile.store(y, tile.cast(acc, x.dtype), at=(block * size, tile.program_of("n") * T.n))
    return y


def within(at, size):
    """Positions that lie on an axis."""
    return tile.minimum(tile.maximum(at, 0), size - 1)


@kernel
def by_weights(x: KTile["M", "K"], w: KTile["K", "N"], scale: KTile["G", "N"], *, group: int):
    """x times (w * scale): weights of few bits, a scale for each group of rows and each column."""
    T = tile.context()
    acc = tile.zeros((T.m, T.n), f32)
    for kb in tile.range_k(x.shape, group):
        part = tile.dot(
            wide(tile.load(x, rows=T.m, cols=kb)), tile.cast(tile.load(w, rows=kb, cols=T.n), f32)
        )
        acc = acc + part * tile.load(
            scale, rows=tile.span(scale.shape[0], kb.start // group, 1), cols=T.n
        )
    return tile.cast(acc, x.dtype)
