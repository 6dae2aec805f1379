"""Intrinsics for attention: causal masks, and softmax block by block of the columns.

Blocks are scaled by powers of two, which is exact, and what is added up is one chain over the columns.  So
the bits of a result do not depend on how the columns are cut, unless numerics are fast.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tessera.core.dims import Size
from tessera.core.errors import ShapeError
from tessera.ir.tile.ir import Tile
from tessera.lang.kernel.compute import squeezed, wide
from tessera.lang.kernel.table import IntrinsicContext, intrinsic
from tessera.lang.kernel.values import TileValue
from tessera.lang.kernel.writer import KernelWriter

_LN2 = math.log(2)
# log2(e) as the sum of a number of 24 bits and the rest, for products that are rounded once.
_LOG2E = float(np.float32(1 / _LN2)), 1 / _LN2 - float(np.float32(1 / _LN2))


@intrinsic(
    lambda s, rows, cols, offset=0: np.where(cols <= rows + offset, s, -np.inf), updates=True
)
def mask_causal(p: IntrinsicContext, s: Any, rows: Any, cols: Any) -> TileValue:
    """Scores in which a row sees no later column: the last row sees the last column.

    As a statement it changes the scores.
    """
    t = p.w.tile(s)
    if t.rank != 2:
        raise ShapeError(f"mask_causal: {t.type} has rank {t.rank}, expected 2")
    row, col = t.axes
    behind: Size = 0 if row is None or col is None else col.size - row.size
    seen = p.w.apply("le", cols, rows if behind == 0 else p.w.apply("add", rows, behind))
    made: TileValue = p.w.apply("where", seen, t, -math.inf)
    return made


class RowSums(TileValue):
    """The sums of the rows of a tile, which are added up where they are used."""

    def __init__(self, w: KernelWriter, of: TileValue):
        for name, x in (("w", w), ("of", of), ("axes", of.axes[:1]), ("pads", (None,))):
            object.__setattr__(self, name, x)

    w: KernelWriter
    of: TileValue

    @property
    def tile(self) -> Tile:
        """The sums."""
        return squeezed(self.w, self.w.fold("add", self.of, 1), [1]).tile


@intrinsic()
def softmax_online(p: IntrinsicContext, s: Any) -> tuple[TileValue, TileValue, TileValue]:
    """Of a block of scores: exp(s - m), what m is for each row, and the sums of the rows.

    m is the largest score, or the multiple of log(2) next to it.
    """
    w, t = p.w, p.w.tile(s)
    if t.rank != 2 or t.dtype.kind != "f":
        raise ShapeError(f"softmax_online: got {t.type}, expected floats of rank 2")
    t = w.masked(w.cast(t, wide(t.dtype)), 1, -math.inf)
    if not w.exact:
        m = w.fold("max", t, 1)
        e = w.apply("exp", w.apply("sub", t, _finite(w, m)))
    else:
        n = w.apply("round", w.apply("mul", t, _LOG2E[0]))
        top = w.fold("max", w.masked(n, 1, -math.inf), 1)
        rest = _rest(w, t, n)
        e = w.apply("mul", w.apply("exp2", rest), _power(w, n, top))
        m = w.apply("mul", top, _LN2)
    e = _zero_past(e, 1)  # exp(-inf - m), and m is finite
    return e, squeezed(w, m, [1]), RowSums(w, e)


def _rest(w: KernelWriter, s: TileValue, n: TileValue) -> TileValue:
    """log2(e) s - n, to the last bit or so; 0 where there is no score."""
    near = w.apply("fma", s, _LOG2E[0], w.apply("neg", n))
    rest: TileValue = w.apply("fma", s, _LOG2E[1], near)
    kept: TileValue = w.apply("where", w.apply("eq", n, -math.inf), 0.0, rest)
    return kept


def _power(w: KernelWriter, n: Any, top: Any) -> Any:
    """2**(n - top) for whole numbers: exact."""
    return w.apply("exp2", w.apply("sub", n, _finite(w, top)))


def _zero_past(x: TileValue, axis: int) -> TileValue:
    """A tile that is known to hold 0 past the end of an axis."""
    pads = tuple(0.0 if i == axis else p for i, p in enumerate(x.pads))
    return TileValue(x.tile, x.axes, pads)


def _finite(w: KernelWriter, m: Any) -> Any:
    """A largest score to subtract: 0 for a row that has no score at all."""
    return w.apply("where", w.apply("eq", m, -math.inf), 0.0, m)


@intrinsic()
def softmax_accumulate(
    p: IntrinsicContext, acc: Any, m: Any, l: Any, e: Any, v: Any, m_c: Any, l_c: Any
) -> tuple[TileValue, TileValue, TileValue]:
    """Join a block to what came before: the sum of values, what rows are scaled by, the sums of rows.

    Weights that are cast to bf16 or f16 meet the values as such, in the matrix units of a GPU; the sums of
    rows are those of the weights before the cast.
    """
    w, e = p.w, p.w.tile(e)
    now = w.apply("max", m, m_c)
    before, block = (_scale(w, x, now) for x in (m, m_c))
    weights = w.apply("mul", e, _column(w, block))
    if e.pads[1] == 0:
        weights = _zero_past(weights, 1)
    start = w.cast(w.tile(w.apply("mul", acc, _column(w, before))), weights.dtype)
    if e.dtype.is_narrow:  # a power of two scales them: nothing is rounded again
        total = w.dot(w.cast(weights, e.dtype), w.tile(v), start)
    else:
        total = w.dot(weights, w.cast(w.tile(v), weights.dtype), start)
    return w.cast(total, w.tile(acc).dtype), now, _sums(w, l, l_c, before, block)


def _scale(w: KernelWriter, m: Any, now: Any) -> Any:
    """exp(m - now)."""
    if not w.exact:
        return w.apply("exp", w.apply("sub", m, _finite(w, now)))
    n, top = (w.apply("round", w.apply("mul", x, _LOG2E[0])) for x in (m, now))
    return _power(w, n, top)


def _sums(w: KernelWriter, l: Any, l_c: Any, before: Any, block: Any) -> TileValue:
    """The sums of rows so far and of a block, in one chain over the columns."""
    scaled = w.apply("mul", l, before)
    if not w.exact or not isinstance(l_c, RowSums):
        joined: TileValue = w.apply("add", scaled, w.apply("mul", l_c, block))
        return joined
    of = _zero_past(w.apply("mul", l_c.of, _column(w, block)), 1)
    ones = w.full(of.dtype, (of.shape[1], 1), 1)
    chain = w.dot(of, ones, _column(w, w.cast(scaled, of.dtype)))
    return w.cast(squeezed(w, chain, [1]), scaled.dtype)


def _column(w: KernelWriter, x: TileValue) -> TileValue:
    made = w.b.expand(x.tile, x.rank)
    return TileValue(made, (*x.axes, None), (*x.pads, None), x.constant)
