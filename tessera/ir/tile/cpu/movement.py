"""movement: lines of a tensor asked for before they are read, as a Tile program of prefetch instructions.

prefetch(x)   ->   for i by 64 lines, as far as the second cache of a core reaches: prefetch x[i : i + 64
lines]
"""

from __future__ import annotations

from collections.abc import Mapping

from tessera.core.dims import product, smaller
from tessera.core.dtype import u8
from tessera.core.processor import near_bytes
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.ir import Builder
from tessera.ir.tile.launch import Expansion, Launch

_AT_ONCE = 4096  # bytes: 64 lines


def lower_prefetch(
    step: Primitive, types: Mapping[str, TensorType], asks: bool = True
) -> Expansion:
    """One kernel; what a cache does not hold is not asked for, and nothing by a target that has no such
    instruction.
    """
    t = types[step.operands[0]]
    b, size = Builder("prefetch"), product(t.shape) * max(t.dtype.bits // 8, 1)
    x = b.parameter("x", TensorType(u8, (size,)))
    y = b.parameter("y", types[step.results[0]], writable=True)
    if asks:
        with b.loop(0, smaller(size, near_bytes()), _AT_ONCE) as at:
            b.prefetch(x, (at.variable,), (_AT_ONCE,), far=step.params["into"] == "l2")
    b.store(y, b.full(u8, (), 0), (), ())
    return Expansion((Launch(b.finish(), step.operands, step.results),))


MOVEMENT = {"state_prefetch": lower_prefetch}
