"""program: a Tile kernel as LLVM IR with all that a launch must know about it."""

from __future__ import annotations

from tessera.core.dims import product
from tessera.ir.target.cpu.emit import emit, scratch_bytes, size_names, symbol_of
from tessera.ir.target.cpu.entry import LlvmFunction, Parameter
from tessera.ir.tile.ir import Kernel
from tessera.ir.tile.sharing import is_copy, shareable
from tessera.ir.tile.work import instance_work


def program(kernel: Kernel) -> LlvmFunction:
    """The target program of a Tile kernel."""
    return LlvmFunction(
        kernel.name,
        symbol_of(kernel.name),
        tuple(Parameter(m.name, m.type, m.writable) for m in kernel.parameters),
        size_names(kernel),
        product(tuple(n for _, n in kernel.grid)),
        scratch_bytes(kernel),
        emit(kernel),
        work=instance_work(kernel),
        shares=shareable(kernel),
        copies=is_copy(kernel),
    )
