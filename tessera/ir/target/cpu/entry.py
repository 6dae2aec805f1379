"""What a launch must know about a function in machine code: reading it loads nothing that lowers."""

from __future__ import annotations

from dataclasses import dataclass, field

from tessera.core.dims import Size
from tessera.core.types import TensorType


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
    work: Size = field(kw_only=True)  # picoseconds that one instance takes, about
    # Numbers of parameters (read, written) that may be one memory.
    shares: tuple[tuple[int, int], ...] = field(kw_only=True)
    copies: bool = field(kw_only=True)  # whether it copies its first parameter


@dataclass(frozen=True)
class LlvmFunction(Entry):
    """A function and the LLVM IR that defines it."""

    text: str
