"""Target programs for the CPU: LLVM IR, and what a launch must know about it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tessera.core.dims import Size, product
from tessera.core.types import TensorType
from tessera.ir.target.cpu.emit import emit, scratch_bytes, size_names, symbol_of
from tessera.ir.tile.ir import Kernel
from tessera.ir.tile.sharing import shareable
from tessera.ir.tile.work import instance_work

__all__ = ["Entry", "Kernel", "Parameter", "Program", "program"]


@dataclass(frozen=True)
class Parameter:
    """A tensor that a program is called with."""

    name: str
    type: TensorType
    writable: bool

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"


@dataclass(frozen=True)
class Entry:
    """One function `symbol(parameters, sizes, begin, end, scratch)` over instances 0 to count."""

    name: str
    symbol: str
    parameters: tuple[Parameter, ...]
    sizes: tuple[str, ...]  # what `sizes` holds, in order
    count: Size
    scratch: Size  # bytes that one thread needs
    work: Size = field(default=0, kw_only=True)  # picoseconds that one instance takes, about
    # Numbers of parameters (read, written) that may be one memory.
    shares: tuple[tuple[int, int], ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class Program(Entry):
    """A function and the LLVM IR that defines it."""

    text: str


def program(kernel: Kernel) -> Program:
    """The target program of a Tile kernel."""
    return Program(
        kernel.name,
        symbol_of(kernel.name),
        tuple(Parameter(m.name, m.type, m.writable) for m in kernel.parameters),
        size_names(kernel),
        product(tuple(n for _, n in kernel.grid)),
        scratch_bytes(kernel),
        emit(kernel),
        work=instance_work(kernel),
        shares=shareable(kernel),
    )
