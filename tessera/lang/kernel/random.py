"""Random numbers in kernels: Philox at the number of each element in its tensor, however it is cut."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.core.dims import Size
from tessera.core.dtype import f32, u64
from tessera.core.philox import MULTIPLIERS, ROUNDS, WEYL, philox
from tessera.lang.kernel.table import IntrinsicContext, intrinsic
from tessera.lang.kernel.values import KernelError, TileValue

PURPOSE = 0x7473  # a stream of its own
_MASK = 0xFFFFFFFF  # the low word


def _logical(p: IntrinsicContext, x: TileValue, batch: Any) -> TileValue:
    """The number of each element of a tile in its tensor, in row-major order, batch axes first."""
    w, grid = p.w, p.places.grid
    own = 0 if grid.batch is None else p.places.instance("b")
    total: Any = own if batch is None else batch
    for i, (n, axis) in enumerate(zip(x.shape, x.axes, strict=True)):
        size: Size = n if axis is None else axis.size
        held = tuple(axis if j == i else None for j in range(x.rank))
        at = TileValue(w.position(x.shape, i, axis), held, (None,) * x.rank)
        total = w.apply("add", w.apply("mul", w.tile(total), w.tile(size)), at)
    found: TileValue = w.cast(w.tile(total), u64)
    return found


def words(p: IntrinsicContext, x: TileValue, seed: int, batch: Any = None) -> TileValue:
    """The first word of the Philox block of each element, 32 bits in a u64."""
    w, counter = p.w, _logical(p, x, batch)

    def number(v: int) -> TileValue:
        return w.full(u64, (), v)

    mask, half = number(_MASK), number(32)
    c: list[Any] = [
        w.apply("and", counter, mask),
        w.apply("shift_right", counter, half),
        number(0),
        number(PURPOSE),
    ]
    key = [seed & _MASK, seed >> 32 & _MASK]
    for i in range(ROUNDS):
        p0, p1 = (w.apply("mul", c[j], number(m)) for j, m in zip((0, 2), MULTIPLIERS, strict=True))
        e0, e1 = (number(k + i * g & _MASK) for k, g in zip(key, WEYL, strict=True))
        c = [
            w.apply("xor", w.apply("xor", w.apply("shift_right", p1, half), c[1]), e0),
            w.apply("and", p1, mask),
            w.apply("xor", w.apply("xor", w.apply("shift_right", p0, half), c[3]), e1),
            w.apply("and", p0, mask),
        ]
    found: TileValue = c[0]
    return found


def words_reference(counter: Any, seed: int = 0) -> Any:
    """The same words by NumPy."""
    n = np.asarray(counter, np.uint64)
    key = (np.uint64(seed & _MASK), np.uint64(seed >> 32 & _MASK))
    return philox((n & np.uint64(_MASK), n >> np.uint64(32), 0, PURPOSE), key)[0]


def _kept_reference(x: Any, p: float, seed: int = 0) -> Any:
    drawn = words_reference(np.arange(x.size).reshape(x.shape), seed)
    return np.where(drawn >= np.uint64(int(p * 2**32)), x / (1 - p), 0)


@intrinsic(_kept_reference)
def dropout_in_kernel(
    program: IntrinsicContext, x: Any, p: Any = 0.5, seed: int = 0, batch: Any = None
) -> TileValue:
    """Elements at random set to 0, each with probability p, and the others divided by 1 - p.

    Elements are numbered by their rows and columns, and by the batch: this instance's, or the one given.
    """
    if not isinstance(p, int | float) or not 0 <= p < 1:
        raise KernelError(f"dropout_in_kernel: p is {p!r}, expected a number from 0 to less than 1")
    w, t = program.w, program.w.tile(x)
    kept = w.apply("ge", words(program, t, seed, batch), w.full(u64, (), int(p * 2**32)))
    made: TileValue = w.apply("where", kept, w.apply("mul", t, 1 / (1 - p)), 0.0)
    return TileValue(made.tile, t.axes, tuple(0.0 if q == 0 else None for q in t.pads))


@intrinsic()
def random_uniform(program: IntrinsicContext, like: Any, seed: int = 0) -> TileValue:
    """Uniform f32 numbers in [0, 1), one for each element of a tile."""
    w, t = program.w, program.w.tile(like)
    top = w.apply("shift_right", words(program, t, seed), w.full(u64, (), 8))
    wide = w.apply("mul", w.cast(top, f32), 2.0**-24)
    return TileValue(wide.tile, t.axes, (None,) * t.rank)
