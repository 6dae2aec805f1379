"""bypass: stores to large results go past the caches.

    store(y, tile), y of 64 MiB   ->   store(y, tile) {bypass = 16777216}

A store brings the line that it is about to write into a cache.  For a result that is too large to be
found there when it is next read, that is a third of what the kernel moves.  A kernel that reads what it
stores keeps its stores.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import replace
from typing import Any

from tessera.core.dims import product
from tessera.core.processor import uncached_bytes
from tessera.ir.tile.ir import Block, Kernel, Memory, Operation, walk
from tessera.ir.tile.sharing import shareable


def bypass(kernel: Kernel, least: int | None = None) -> Kernel:
    """The same kernel; what it stores to results of at least so many bytes goes past the caches."""
    bound = uncached_bytes() if least is None else least
    read = {op.memory for op in walk(kernel.body) if op.name not in ("store", "alloc")}
    large = {m for m in kernel.parameters if m.writable and m not in read and _may_have(m, bound)}
    if not large:
        return kernel
    return replace(kernel, body=_block(kernel.body, large, bound))


def bypass_several(kernel: Kernel, outputs: Collection[str], least: int | None = None) -> Kernel:
    """The same kernel of a contraction; if several of these outputs are large, they go past the caches.

    One is written while the next block is computed, several are more than the caches take meanwhile.
    Lines that are not brought in are not asked for either.  What takes the place of an operand has its
    lines there already.
    """
    bound = uncached_bytes() if least is None else least
    large = {m for m in kernel.parameters if m.writable and m.name in outputs and _has(m, bound)}
    if len(large) > 1:
        large -= {kernel.parameters[result] for _, result in shareable(kernel)}
    if len(large) < 2:
        return kernel
    return replace(kernel, body=_block(_without_asking(kernel.body, large), large, bound))


def _without_asking(block: Block, large: Set[Memory]) -> Block:
    """A block that does not ask for lines of some memories."""
    made = []
    for op in block.operations:
        if op.block is not None:
            made.append(_with(op, op.attributes, _without_asking(op.block, large)))
        elif op.name != "prefetch" or op.memory not in large:
            made.append(op)
    return replace(block, operations=tuple(made))


def _has(m: Memory, bound: int) -> bool:
    """Whether a memory is known to have so many bytes."""
    return all(isinstance(n, int) for n in m.type.shape) and _may_have(m, bound)


def _may_have(m: Memory, bound: int) -> bool:
    """Whether a memory has so many bytes, or may have in some call."""
    size = product(m.type.shape) * max(m.type.dtype.bits // 8, 1)
    return not isinstance(size, int) or size >= bound


def _block(block: Block, large: Set[Memory], bound: int) -> Block:
    made = tuple(_operation(op, large, bound) for op in block.operations)
    return replace(block, operations=made)


def _operation(op: Operation, large: Set[Memory], bound: int) -> Operation:
    if op.block is not None:
        return _with(op, op.attributes, _block(op.block, large, bound))
    if op.name == "store" and op.memory in large:
        return _with(op, {**op.attributes, "bypass": bound}, None)
    return op


def _with(op: Operation, attributes: Mapping[str, Any], inner: Block | None) -> Operation:
    return Operation(op.name, op.operands, attributes, op.results, op.memory, inner, op.location)
