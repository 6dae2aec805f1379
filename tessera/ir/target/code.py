"""Code: what the Target level makes of one launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tessera.ir.tile.launch import Launch

if TYPE_CHECKING:  # one target needs nothing of another
    from tessera.ir.target.cpu.entry import Entry
    from tessera.ir.target.triton.triton_source import TritonSource

ModuleKey = tuple[bytes, tuple[str, ...]]  # of a module's text, and the functions wanted of it


@dataclass(frozen=True)
class Code:
    """A launch, and what the passes of the Target level have made of it so far."""

    name: str
    launch: Launch
    text: str = ""  # LLVM IR, Triton or Gluon
    entry: Entry | TritonSource | None = None  # a function of the CPU, or what Triton is asked for
    key: ModuleKey | None = None  # by which the store has its machine code
    scratch: int = 0  # bytes that a block of a GPU needs beside
    buffers: Sequence[str] = ()  # of its parameters
    constant: frozenset[str] = frozenset()  # those that the program does not write
    sizes: Mapping[str, int] = field(default_factory=dict)  # of a kernel that serves all sizes
    written: bool = False  # by the user, in the kernel language
