"""update: a part of a tensor is replaced where the tensor lies; nothing else of it is touched.

    y[s + i, j] = v[i, j]   for i < m, j < n    ->    block of elements e of v: y[place(e)] = v[e]

Both tensors are lines of elements here.  Axes that the part covers whole are one with the axis before them, so
that a row of a cache is one stretch of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tessera.core.dtype import i64
from tessera.core.types import TensorType
from tessera.ir.tile.gpu.blocks import power
from tessera.ir.tile.ir import Builder, Kernel, Tile

_ELEMENTS = 1024  # of a block, at most


@dataclass(frozen=True)
class _Axis:
    """Elements of the tensor and of the part along an axis, and which start it has, in steps of so many."""

    size: int
    part: int
    start: int | None  # its number among the starts; None where it is 0
    unit: int = 1


def update(whole: TensorType, part: TensorType, begins: Sequence[TensorType]) -> Kernel:
    """The kernel (y, v, starts...) that replaces a part of y."""
    sizes = [(int(n), int(m)) for n, m in zip(whole.shape, part.shape, strict=True)]
    b, count = Builder("update"), prod(m for _, m in sizes)
    y = b.parameter("y", TensorType(whole.dtype, (prod(n for n, _ in sizes),)), True)
    v = b.parameter("v", TensorType(part.dtype, (count,)))
    starts = [b.parameter(f"s{i}", t) for i, t in enumerate(begins)]
    block = min(power(count), _ELEMENTS)
    first = b.program(-(-count // block)) * block
    values = b.load(v, (first,), (block,), masked=(0,))
    e = b.index(first, (block,), 0)
    place, rest, stride = b.full(i64, (block,), 0), e, 1
    for a in reversed(_merged(sizes)):
        here, rest = _split(b, rest, a.part)
        if a.start is not None:
            at = _clamped(b, b.cast(b.load(starts[a.start], (), ()), i64), a)
            here = b.apply("add", here, b.broadcast(at, (block,)))
        place = b.apply("add", place, _times(b, here, stride))
        stride *= a.size
    past = b.apply("ge", e, b.full(i64, (block,), count))
    place = b.apply("where", past, b.full(i64, (block,), stride), place)
    b.scatter(y, values, {0: place}, (0,), (1,), (), (0,), distinct=True)
    return b.finish()


def _merged(sizes: list[tuple[int, int]]) -> list[_Axis]:
    """The axes, those that are covered whole merged into the ones before them."""
    out: list[_Axis] = []
    for i, (n, m) in enumerate(sizes):
        if out and n == m:
            a = out.pop()
            out.append(_Axis(a.size * n, a.part * n, a.start, a.unit * n))
        else:
            out.append(_Axis(n, m, None if n == m else i))
    return out


def _split(b: Builder, e: Tile, n: int) -> tuple[Tile, Tile]:
    """Numbers along an axis of n, and along those before it."""
    size = b.full(i64, e.shape, n)
    return b.apply("mod", e, size), b.apply("floor_div", e, size)


def _clamped(b: Builder, start: Tile, a: _Axis) -> Tile:
    """A start, moved so that the part lies inside."""
    last = b.full(i64, (), (a.size - a.part) // a.unit)
    return _times(b, b.apply("min", b.apply("max", start, b.full(i64, (), 0)), last), a.unit)


def _times(b: Builder, x: Tile, n: int) -> Tile:
    return x if n == 1 else b.apply("mul", x, b.full(i64, x.shape, n))
