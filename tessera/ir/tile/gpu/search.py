"""search: where numbers would be put into a sorted axis, all of them at once by halving."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tessera.core.dtype import i64
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.gpu.blocks import power
from tessera.ir.tile.ir import Builder, Kernel, Tile
from tessera.ir.tile.launch import Expansion, Launch, Threads

_NUMBERS = 256  # of a block


def searchsorted(step: Primitive, types: Mapping[str, TensorType]) -> Expansion | None:
    """One launch."""
    x, v = (types[n] for n in step.operands)
    if 0 in (*x.shape, *v.shape) or x.dtype is not x.dtype.base or x.dtype.bits < 8:
        return None
    kernel = _kernel(x, prod(int(n) for n in v.shape), step.params["side"] == "right")
    return Expansion((Launch(kernel, step.operands, step.results, Threads(4)),))


def _kernel(x: TensorType, count: int, right: bool) -> Kernel:
    b, n = Builder("searchsorted"), min(power(count), _NUMBERS)
    line = b.parameter("x", x)
    values = b.parameter("v", TensorType(x.dtype, (count,)))
    out = b.parameter("out", TensorType(i64, (count,)), True)
    at, wide = (b.program(-(-count // n)) * n,), x.dtype.compute
    wanted = b.cast(b.load(values, at, (n,), masked=(0,)), wide)
    size = int(x.shape[0])
    found, step = b.full(i64, (n,), 0), power(size + 1)
    while step:
        probe = b.apply("add", found, b.full(i64, (n,), step))
        place = b.apply("sub", probe, b.full(i64, (n,), 1))
        there = b.cast(b.gather(line, {0: place}, (0,), (1,), (), (0,)), wide)
        inside = b.apply("le", probe, b.full(i64, (n,), size))
        further = b.apply("logical_and", inside, _is_before(b, there, wanted, right))
        found = b.apply("where", further, probe, found)
        step //= 2
    b.store(out, found, at, (n,), masked=(0,))
    return b.finish()


def _is_before(b: Builder, x: Tile, v: Tile, right: bool) -> Tile:
    """Whether v comes behind x, also where they are equal if `right`; NaN comes behind all numbers."""
    plain = b.apply("le" if right else "lt", x, v)
    if x.dtype.kind != "f":
        return plain
    last = b.apply("is_nan", v)
    if not right:
        last = b.apply("logical_and", last, b.apply("logical_not", b.apply("is_nan", x)))
    return b.apply("logical_or", plain, last)
