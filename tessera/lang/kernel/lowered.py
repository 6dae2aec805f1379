"""What a kernel becomes at each level, as text."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from tessera.core.deferred import Deferred
from tessera.core.errors import TesseraError, located
from tessera.ir.target.cpu.program import program
from tessera.ir.tile.cpu.legalize import expand
from tessera.ir.tile.cpu.passes.nontemporal_stores import bypass
from tessera.ir.tile.cpu.passes.prefetch_rows import ahead
from tessera.ir.tile.cpu.passes.vector_accesses import vector_accesses, widths_of
from tessera.ir.tile.ir import Kernel

# Loaded when the text for a GPU is first asked for.
_code = Deferred("tessera.compile.gpu.written_code:GpuCode")


class LoweredKernel(Kernel):
    """The Tile IR of a kernel, which also knows what targets make of it."""

    # What refuses the kernel on a target, and what a GPU is given: its kernel, threads and sizes.
    refuse: Callable[[str], None]
    there: Callable[[], tuple[Kernel, tuple[int, ...] | None, Any]]

    @property
    def tile(self) -> str:
        """The Tile IR."""
        return self.text

    @cached_property
    def llvm(self) -> str:
        """The LLVM IR of a CPU, before LLVM's own passes."""
        self._demand("cpu")
        return program(prepared(self)).text

    @cached_property
    def triton(self) -> str:
        """The Triton source of a GPU; its first line has the options that it is built with."""
        self._demand("cuda")
        text: str = self._on_gpu.triton
        return text

    @cached_property
    def ptx(self) -> str:
        """The assembly of NVIDIA GPUs of architecture sm_90; `assembly(name)` has that of others."""
        return self.assembly("sm_90")

    @cached_property
    def amdgcn(self) -> str:
        """The assembly of AMD GPUs of architecture gfx942; `assembly(name)` has that of others."""
        return self.assembly("gfx942")

    def assembly(self, architecture: str) -> str:
        """The assembly of a GPU, such as sm_90 or gfx942, which Triton builds; no GPU needs to be there."""
        try:
            kind = "hip" if str(architecture).startswith("gfx") else "cuda"
            self._demand(kind)
            text: str = self._on_gpu.assembly(kind, architecture)
            return text
        except TesseraError as e:
            error = located(e)
        raise error

    @cached_property
    def _on_gpu(self) -> Any:
        there = getattr(self, "there", None)
        return _code(self, None, {}) if there is None else _code(*there())

    def _demand(self, target: str) -> None:
        """Raise ScheduleError where the target lacks what the kernel asks for."""
        refuse = getattr(self, "refuse", None)
        if refuse is None:
            return
        try:
            refuse(target)
        except TesseraError as e:
            error = located(e)
        else:
            return
        raise error


def prepared(kernel: Kernel) -> Kernel:
    """A kernel in the form that machine code is written from: tiles fit the registers, or are loops."""
    return vector_accesses(ahead(bypass(expand(kernel))), widths_of(kernel))
