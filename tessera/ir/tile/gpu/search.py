"""search: where numbers would be put into a sorted axis, all of them at once by halving."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tessera.core.dtype import i64
from tessera.core.types import TensorType
from tessera.ir.schedule.gpu_blocks import power
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.ir import Builder, Kernel
from tessera.ir.tile.launch import Expansion, Launch, Threads
from tessera.ir.tile.search import halve

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
    found, step = b.full(i64, (n,), 0), power(int(x.shape[0]) + 1)
    while step:
        found = halve(b, line, found, b.full(i64, (n,), step), wanted, right)
        step //= 2
    b.store(out, found, at, (n,), masked=(0,))
    return b.finish()
