"""Running Tile kernels as machine code, any part of the grid."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.dims import product, substitute
from tessera.ir.target.cpu.emit import emit, scratch_bytes, size_names, symbol_of
from tessera.ir.tile.interp import sizes_of
from tessera.ir.tile.ir import Kernel
from tessera.runtime.code import LlvmSource, load_all


class Machine:
    """Kernels, each a module of its own as in a program, built side by side or from the store."""

    def __init__(self, kernels: Sequence[Kernel], features: frozenset[str] | None = None):
        self.kernels = list(kernels)
        sources = [LlvmSource(k.name, emit(k, features), (symbol_of(k.name),)) for k in kernels]
        self.calls = [loaded.call for loaded in load_all(sources)]

    def instances(self, i: int, arrays: Sequence[Any]) -> int:
        """How many instances the grid of a kernel has."""
        k = self.kernels[i]
        return int(substitute(product(tuple(n for _, n in k.grid)), sizes_of(k, arrays)))

    def run(
        self, i: int, arrays: Sequence[Any], parts: Sequence[tuple[int, int]] | None = None
    ) -> None:
        """Run kernel i in place, over the whole grid or over parts of it in the order given."""
        k = self.kernels[i]
        sizes = sizes_of(k, arrays)
        pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
        numbers = (ctypes.c_int64 * len(sizes))(*(sizes[n] for n in size_names(k)))
        scratch = np.full(int(substitute(scratch_bytes(k), sizes)) + 64, 0xA5, np.uint8)
        for begin, end in parts or [(0, self.instances(i, arrays))]:
            self.calls[i](
                ctypes.addressof(pointers), ctypes.addressof(numbers), begin, end,
                scratch.ctypes.data,
            )  # fmt: skip
