"""Target programs for the CPU: LLVM IR, and what a launch must know about it."""

from __future__ import annotations

from dataclasses import dataclass

from tessera.core.dims import Size, product
from tessera.core.types import TensorType
from tessera.ir.target.cpu.emit import emit, scratch_bytes, size_names, symbol_of
from tessera.ir.tile.ir import Kernel

__all__ = ["Kernel", "Parameter", "Program", "program"]


@dataclass(frozen=True)
class Parameter:
    """A tensor that a program is called with."""

    name: str
    type: TensorType
    writable: bool

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"


@dataclass(frozen=True)
class Program:
    """One function `symbol(parameters, sizes, begin, end, scratch)` over instances 0 to count."""

    name: str
    symbol: str
    text: str
    parameters: tuple[Parameter, ...]
    sizes: tuple[str, ...]  # what `sizes` holds, in order
    count: Size
    scratch: Size  # bytes that one thread needs


def program(kernel: Kernel) -> Program:
    """The target program of a Tile kernel."""
    return Program(
        kernel.name,
        symbol_of(kernel.name),
        emit(kernel),
        tuple(Parameter(m.name, m.type, m.writable) for m in kernel.parameters),
        size_names(kernel),
        product(tuple(n for _, n in kernel.grid)),
        scratch_bytes(kernel),
    )
