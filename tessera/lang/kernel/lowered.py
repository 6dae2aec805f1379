"""What a kernel becomes at each level, as text."""

from __future__ import annotations

from functools import cached_property

from tessera.core.deferred import Deferred
from tessera.ir.target.cpu.program import program
from tessera.ir.tile.ir import Kernel
from tessera.ir.tile.legalize import expand
from tessera.ir.tile.nontemporal_stores import bypass
from tessera.ir.tile.prefetch_rows import ahead

# Loaded when the text for a GPU is first asked for.
_emit = Deferred("tessera.ir.target.triton.emit:emit")


class LoweredKernel(Kernel):
    """The Tile IR of a kernel, which also knows what targets make of it."""

    @property
    def tile(self) -> str:
        """The Tile IR."""
        return self.text

    @cached_property
    def llvm(self) -> str:
        """The LLVM IR of a CPU, before LLVM's own passes."""
        return program(prepared(self)).text

    @cached_property
    def triton(self) -> str:
        """The Triton source of a GPU."""
        text: str = _emit(self)
        return text


def prepared(kernel: Kernel) -> Kernel:
    """A kernel in the form that machine code is written from: tiles fit the registers, or are loops."""
    return ahead(bypass(expand(kernel)))
