"""Loads that the tensor memory accelerator can make: factors of products that are boxes of memory."""

from __future__ import annotations

from tessera.core.dims import product
from tessera.ir.schedule.gpu_blocks import power
from tessera.ir.tile.ir import Kernel, Operation, walk


def fetched(kernel: Kernel) -> frozenset[Operation]:
    """The loads of factors that are boxes of memory whose rows begin at multiples of 16 bytes."""
    makers = {t: op for op in walk(kernel.body) for t in op.results}
    found = set()
    for op in walk(kernel.body):
        for t in op.operands[:2] if op.name == "dot" else ():
            made = makers.get(t)
            while made is not None and made.name in ("reshape", "transpose", "broadcast"):
                made = makers.get(made.operands[0])
            if made is not None and made.name == "load" and _is_box(made):
                found.add(made)
    return frozenset(found)


def _is_box(op: Operation) -> bool:
    m, a = op.memory, op.attributes
    assert m is not None
    rank, size = m.type.rank, m.type.dtype.bits // 8
    if (
        not 2 <= rank <= 5
        or not all(isinstance(n, int) for n in m.type.shape[1:])
        or m.space != "global"
        or m.writable
    ):
        return False
    if a["fill"] != 0 or len(a["axes"]) != 2 or rank - 1 not in a["axes"]:
        return False
    if any(power(n) != n for n in a["extent"]) or a["extent"][-1] * size < 16:
        return False
    return all(product(m.type.shape[i:]) * size % 16 == 0 for i in range(1, rank))
