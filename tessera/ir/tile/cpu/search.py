"""search: where numbers would be put into a sorted axis, some of them side by side by halving.

searchsorted(x, v)   ->   program of v by 1024: for v by 32: for 128, 64, .. 1: found += step if x[..] < v
"""

from __future__ import annotations

from collections.abc import Mapping

from tessera.core.dims import product, smaller
from tessera.core.dtype import i64
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.ir import Builder, Kernel
from tessera.ir.tile.launch import Expansion, Launch
from tessera.ir.tile.search import halve

_NUMBERS = 32  # abreast: each step waits for what it has read
_BLOCK = 1024  # of an instance: about 20 us of work


def _searchsorted(step: Primitive, types: Mapping[str, TensorType]) -> Expansion:
    """One kernel for all numbers."""
    x, v = (types[n] for n in step.operands)
    kernel = _kernel(x, v, step.params["side"] == "right")
    return Expansion((Launch(kernel, step.operands, step.results),))


def _kernel(x: TensorType, v: TensorType, right: bool) -> Kernel:
    b, count = Builder("kernel"), product(v.shape)
    line = b.parameter("x", x)
    values = b.parameter("v", TensorType(v.dtype, (count,)))
    out = b.parameter("y", TensorType(i64, (count,)), writable=True)
    start = b.program((count + _BLOCK - 1) // _BLOCK) * _BLOCK
    steps = int(x.shape[0]).bit_length()
    with b.loop(start, smaller(start + _BLOCK, count), _NUMBERS) as block:
        at = (block.variable,)
        wanted = b.cast(b.load(values, at, (_NUMBERS,), masked=(0,)), v.dtype.compute)
        begun = [b.full(i64, (_NUMBERS,), 0), b.full(i64, (1,), 1 << steps - 1)]
        with b.loop(0, steps, 1, begun) as halving:
            found, step = halving.carried
            found = halve(b, line, found, step, wanted, right)
            halving.carry(found, b.apply("shift_right", step, b.full(i64, (1,), 1)))
        b.store(out, halving.results[0], at, (_NUMBERS,), masked=(0,))
    return b.finish()


SEARCHES = {"searchsorted": _searchsorted}
