"""What a GPU makes of a kernel of the kernel language: its Triton source, and the assembly built from it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tessera.compile.gpu.offline import target_named
from tessera.core.dims import Dim, substitute
from tessera.core.errors import OperandError
from tessera.ir.target.triton.emit import emit, scratch_bytes
from tessera.ir.target.triton.triton_source import source_of
from tessera.ir.tile.gpu.written import written, written_threads
from tessera.ir.tile.ir import Kernel
from tessera.ir.tile.launch import Threads
from tessera.runtime.triton_builder import assembly, version

_ARCHITECTURES = {"cuda": re.compile(r"sm_\d+a?"), "hip": re.compile(r"gfx[0-9a-f]+")}


@dataclass(frozen=True)
class GpuCode:
    """A kernel as a GPU runs it: the same text and options as in a program."""

    source: Kernel
    threads: tuple[int, ...] | None  # warps and stages, where they are said
    sizes: Mapping[str, Any]

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel in the form that Triton source is written from."""
        return written(self.source)

    @cached_property
    def options(self) -> Threads:
        """How many warps run a block, and how many rounds of a loop overlap."""
        return written_threads(self.kernel, self.threads)

    @cached_property
    def triton(self) -> str:
        """The Triton source, and a first line with the options that it is built with."""
        o = self.options
        most = "" if o.registers is None else f", maxnreg={o.registers}"
        return f"# num_warps={o.warps}, num_stages={o.stages}{most}\n{emit(self.kernel, o)}"

    def assembly(self, kind: str, name: str) -> str:
        """PTX or AMDGCN for an architecture, such as sm_90 or gfx942."""
        known = _ARCHITECTURES[kind]
        if not known.fullmatch(str(name)):
            wanted = "sm_90" if kind == "cuda" else "gfx942"
            raise OperandError(f"lower: architecture is {name!r}, expected one such as {wanted!r}")
        version()  # an error that says how to install Triton
        known_sizes = {n: k for n, k in self.sizes.items() if not isinstance(k, Dim)}
        scratch = substitute(scratch_bytes(self.kernel), known_sizes)
        text = emit(self.kernel, self.options, kind)
        made = source_of(
            self.kernel, text, self.options, target_named(kind, name), 0 if scratch == 0 else 1
        )
        return assembly(made)
