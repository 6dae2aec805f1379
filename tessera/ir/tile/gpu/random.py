"""random_bits on a GPU: one launch on flat tensors, each block with its own elements."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tessera.core.dtype import u32, u64
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.draws import words_of
from tessera.ir.tile.gpu.blocks import power
from tessera.ir.tile.ir import Builder, Kernel
from tessera.ir.tile.launch import Expansion, Launch, Threads

_ELEMENTS = 512  # of a block


def random_bits(step: Primitive, types: Mapping[str, TensorType]) -> Expansion | None:
    """One launch on flat tensors."""
    t = types[step.results[0]]
    if 0 in t.shape or any(types[x].shape != t.shape for x in step.operands):
        return None
    p = step.params
    kernel = _kernel(prod(int(n) for n in t.shape), t.dtype.bits // 32, p["draw"], p["purpose"])
    return Expansion((Launch(kernel, step.operands, step.results, Threads(4)),))


def _kernel(count: int, words: int, draw: int, purpose: int) -> Kernel:
    b, n = Builder("random_bits"), min(power(count), _ELEMENTS)
    dtypes = {"k0": u32, "k1": u32, "counter": u64}
    given = [b.parameter(name, TensorType(d, (count,))) for name, d in dtypes.items()]
    out = b.parameter("out", TensorType(u64 if words == 2 else u32, (count,)), True)
    at = (b.program(-(-count // n)) * n,)
    tiles = [b.load(m, at, (n,), masked=(0,)) for m in given]
    b.store(out, words_of(b, tiles, out, draw, purpose), at, (n,), masked=(0,))
    return b.finish()
