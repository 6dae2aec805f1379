"""vector_accesses: boxes of memory that are read and written in accesses of at most so many elements.

    load(x) {extent = [16]}, at most 4 of x   ->   load(x) {extent = [16], vector = 4}

What a load gives does not change.  A kernel that is expanded has loads of other boxes: they take what the
accesses of their memory had.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tessera.ir.tile.ir import Block, Kernel, Operation, walk

_BOXES = ("load", "store")


def vector_accesses(kernel: Kernel, widths: Mapping[str, int]) -> Kernel:
    """The same kernel, whose boxes of these memories are accessed so many elements at a time."""
    return replace(kernel, body=_block(kernel.body, widths)) if widths else kernel


def widths_of(kernel: Kernel) -> dict[str, int]:
    """How many elements an access of each memory takes at most, where a kernel says so."""
    found: dict[str, int] = {}
    for op in walk(kernel.body):
        if op.name in _BOXES and "vector" in op.attributes:
            assert op.memory is not None
            name, n = op.memory.name, op.attributes["vector"]
            found[name] = min(n, found.get(name, n))
    return found


def _block(block: Block, widths: Mapping[str, int]) -> Block:
    return replace(block, operations=tuple(_operation(op, widths) for op in block.operations))


def _operation(op: Operation, widths: Mapping[str, int]) -> Operation:
    attributes, inner = op.attributes, op.block
    if inner is not None:
        inner = _block(inner, widths)
    elif op.name in _BOXES and op.memory is not None and op.memory.name in widths:
        attributes = {**attributes, "vector": widths[op.memory.name]}
    else:
        return op
    return Operation(op.name, op.operands, attributes, op.results, op.memory, inner, op.location)
