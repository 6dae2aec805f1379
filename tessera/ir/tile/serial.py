"""serialised: a kernel whose instances run one after the other, so that they may add to one memory."""

from __future__ import annotations

from dataclasses import replace

from tessera.ir.tile.ir import Block, Kernel, Operation


def serialised(kernel: Kernel) -> Kernel:
    """The grid as loops, the last axis fastest."""
    operations = kernel.body.operations
    for name, count in reversed(kernel.grid):
        attributes = {"variable": name, "start": 0, "stop": count, "step": 1}
        block = Block((), operations, ())
        operations = (Operation("for", (), attributes, (), None, block),)
    return replace(kernel, grid=(("_serial", 1),), body=Block((), operations, ()))
