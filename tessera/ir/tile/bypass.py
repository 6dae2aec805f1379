"""bypass: stores to large results go past the caches.

    store(y, tile), y of 64 MiB   ->   store(y, tile) {bypass = 16777216}

A store brings the line that it is about to write into a cache.  For a result that is too large to be
found there when it is next read, that is a third of what the kernel moves.  A kernel that reads what it
stores keeps its stores.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from tessera.core.dims import product
from tessera.core.processor import uncached_bytes
from tessera.ir.tile.ir import Block, Kernel, Memory, Operation, walk


def bypass(kernel: Kernel, least: int | None = None) -> Kernel:
    """The same kernel; what it stores to results of at least so many bytes goes past the caches."""
    bound = uncached_bytes() if least is None else least
    read = {op.memory for op in walk(kernel.body) if op.name not in ("store", "alloc")}
    large = {m for m in kernel.parameters if m.writable and m not in read and _may_have(m, bound)}
    if not large:
        return kernel
    return replace(kernel, body=_block(kernel.body, large, bound))


def _may_have(m: Memory, bound: int) -> bool:
    """Whether a memory has so many bytes, or may have in some call."""
    size = product(m.type.shape) * max(m.type.dtype.bits // 8, 1)
    return not isinstance(size, int) or size >= bound


def _block(block: Block, large: Set[Memory], bound: int) -> Block:
    made = tuple(_operation(op, large, bound) for op in block.operations)
    return replace(block, operations=made)


def _operation(op: Operation, large: Set[Memory], bound: int) -> Operation:
    attributes, inner = op.attributes, op.block
    if inner is not None:
        inner = _block(inner, large, bound)
    elif op.name == "store" and op.memory in large:
        attributes = {**attributes, "bypass": bound}
    else:
        return op
    return Operation(op.name, op.operands, attributes, op.results, op.memory, inner, op.location)
