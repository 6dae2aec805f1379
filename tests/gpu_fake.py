"""The GPU target without a GPU: a driver in Python, and the Tile interpreter in place of Triton's code.

Everything above is as on a device: lowering, memory plan, addresses, views, host calls, jit and eager code.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tessera.accelerator import program as gpu_program
from tessera.accelerator.program import GpuProgram, _Call
from tessera.core.types import TensorType
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.ir import Kernel
from tessera.ir.tile.verify import verify
from tessera.lang import device as devices
from tessera.runtime.cuda import driver
from tessera.runtime.triton_builder import Source
from tests.cuda_fake import FakeCuda

BUILT: dict[Source, Kernel] = {}  # what Triton would have been asked for


class Interpreted:
    """Launches that the Tile interpreter runs on the memory that addresses point at."""

    def __init__(self, program: GpuProgram, calls: Sequence[_Call]):
        self.program, self.launches = program, calls
        self.cells = program._scratch + 1

    def run(self, cells: Sequence[int], stream: Any = None) -> None:
        self.bind(cells)
        for i in range(len(self.launches)):
            self.run_one(i, stream)

    def bind(self, cells: Sequence[int]) -> None:
        self.bound = tuple(cells)

    def run_one(self, i: int, stream: Any) -> None:
        c = self.launches[i]
        verify(c.launch.kernel)
        places = [self.program._place(n) for n in (*c.inputs, *c.outputs)]
        known = self.program._sizes.get(c.outputs[0], {}) if c.outputs else {}
        arrays = [
            _array(self.bound[cell] + offset, m.type.substitute(known))
            for (cell, offset), m in zip(places, c.launch.kernel.parameters, strict=True)
        ]
        interpret(c.launch.kernel, arrays, dict(known))


def _array(at: int, t: TensorType) -> Any:
    dtype = np.dtype(t.dtype.np)
    shape = tuple(int(n) for n in t.shape)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    return np.frombuffer((ctypes.c_char * size).from_address(at), dtype).reshape(shape)


def _segments(self: GpuProgram, steps: Sequence[tuple[Any, Any]]) -> list[Any]:
    out: list[Any] = []
    waiting: list[_Call] = []
    for access, c in [*steps, (None, None)]:
        if isinstance(c, _Call):
            waiting.append(c)
            BUILT[c.source] = c.launch.kernel
            continue
        if waiting:
            out.append(Interpreted(self, tuple(waiting)))
            waiting.clear()
        if access is not None:
            out.append((access, c))
    self.scratch = 0
    return out


@contextmanager
def fake_gpu() -> Iterator[FakeCuda]:
    """While the block runs there is a device cuda:0."""
    fake = FakeCuda(total=1 << 30)
    with pytest.MonkeyPatch.context() as patch, driver.use(fake):
        patch.setattr(GpuProgram, "_segments", _segments)
        patch.setattr(gpu_program, "Launcher", Interpreted)
        devices._gpus.cache_clear()
        try:
            yield fake
        finally:
            devices._gpus.cache_clear()
