"""synchronous: asynchronous copies as copies that are there at once, one of the orders they may have.

store_async(s, t); ...; wait   ->   store(s, t); ...
"""

from __future__ import annotations

from dataclasses import replace

from tessera.ir.tile.ir import Block, Kernel, Operation, walk


def synchronous(kernel: Kernel) -> Kernel:
    """The same kernel without asynchronous copies; itself where it has none."""
    if not any(op.name == "store_async" for op in walk(kernel.body)):
        return kernel
    return replace(kernel, body=_block(kernel.body))


def _block(block: Block) -> Block:
    kept = (op for op in block.operations if op.name != "wait")
    return replace(block, operations=tuple(map(_operation, kept)))


def _operation(op: Operation) -> Operation:
    if op.block is None and op.name != "store_async":
        return op
    name, inner = op.name.removesuffix("_async"), None if op.block is None else _block(op.block)
    return Operation(name, op.operands, op.attributes, op.results, op.memory, inner, op.location)
