"""The GPU target without a GPU: a driver in Python, and the Tile interpreter in place of Triton's code.

Everything above is as on a device: lowering, memory plan, addresses, views, host calls, jit and eager code.
Behind
`launching_gpus` so are modules, launches and graphs; behind `fake_gpu` the interpreter takes the place of
launches too.
"""

from __future__ import annotations

import ctypes
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest

from tessera.compile import artifact
from tessera.compile.gpu import bind, context
from tessera.compile.gpu.image import GpuCall
from tessera.compile.gpu.lowering import GpuLowering
from tessera.compile.gpu.planned import PlannedProgram
from tessera.core.types import TensorType
from tessera.ir.graph import ir as graph_ir
from tessera.ir.target.triton.triton_source import TritonSource
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.ir import Kernel
from tessera.ir.tile.verify import verify
from tessera.lang import device as lang_device
from tessera.runtime.cuda import driver
from tessera.runtime.triton_builder import BuiltCode
from tests.support.fakes.cuda_fake import FakeCuda
from tests.support.fakes.hip_fake import FakeHip

FAKES = {"cuda": FakeCuda, "hip": FakeHip}
BUILT: dict[TritonSource, Kernel] = {}  # what Triton would have been asked for


class Interpreted:
    """Launches that the Tile interpreter runs on the memory that addresses point at."""

    def __init__(self, program: PlannedProgram, calls: Sequence[GpuCall]):
        self.program, self.launches = program, calls
        self.cells = 1 + max(program.place(n)[0] for c in calls for n in c.buffers)

    def run(self, cells: Sequence[int], stream: Any = None) -> None:
        self.bind(cells)
        for i in range(len(self.launches)):
            self.run_one(i, stream)

    def bind(self, cells: Sequence[int]) -> None:
        self.bound = tuple(cells)

    def run_one(self, i: int, stream: Any) -> None:
        c = self.launches[i]
        kernel = self.program.lowered.launches[c.name].kernel
        verify(kernel)
        places = [self.program.place(n) for n in c.buffers]
        known = self.program.lowered.known.get(c.name, {})
        arrays = [
            _array(self.bound[cell] + offset, m.type.substitute(known))
            for (cell, offset), m in zip(places, kernel.parameters, strict=True)
        ]
        interpret(kernel, arrays, dict(known))


def _array(at: int, t: TensorType) -> Any:
    dtype = np.dtype(t.dtype.np)
    shape = tuple(int(n) for n in t.shape)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    return np.frombuffer((ctypes.c_char * size).from_address(at), dtype).reshape(shape)


def _segments(p: PlannedProgram, gpu: Any) -> tuple[list[Any], int]:
    out: list[Any] = []
    waiting: list[GpuCall] = []
    for access, c in [*p.steps, (None, None)]:
        if isinstance(c, GpuCall):
            waiting.append(c)
            BUILT[c.source] = p.lowered.launches[c.name].kernel
            continue
        if waiting:
            out.append(Interpreted(p, tuple(waiting)))
            waiting.clear()
        if access is not None:
            out.append(bind.between(p, access, c))
    return out, 0


def set_roles(patch: pytest.MonkeyPatch, roles: bool) -> None:
    """Let groups of threads have roles, or not, whatever the device."""
    patch.setattr(context, "roles_on", lambda device: roles)


@contextmanager
def fake_gpu() -> Iterator[FakeCuda]:
    """While the block runs there is a device cuda:0."""
    fake = FakeCuda(total=1 << 30)
    with pytest.MonkeyPatch.context() as patch, driver.use(fake):
        patch.setattr(bind, "segments_of", _segments)
        _forget()
        try:
            yield fake
        finally:
            _forget()


def _forget() -> None:
    """Let nothing that was made for another device stay: its handles, and programs of single ops."""
    lang_device._gpus.cache_clear()
    for key in [k for k in graph_ir._KERNELS if getattr(k[4], "kind", "cpu") in FAKES]:
        del graph_ir._KERNELS[key]


class _Kernels:
    """Takes the place of Triton: what it builds is a kernel of the driver that the Tile interpreter runs."""

    def __init__(self, fake: FakeCuda):
        self.fake = fake
        # One source may be of several kernels, which differ in their grids alone.
        self.tiles: dict[tuple[TritonSource, int], Kernel] = {}

    def launch(self, lowering: GpuLowering, *given: Any, **named: Any) -> None:
        _usual_launch(lowering, *given, **named)
        _, made = lowering.steps[-1]
        assert isinstance(made, GpuCall)
        self.tiles[made.source, made.blocks] = lowering.made.launches[made.name].kernel

    def build(self, sources: Sequence[TritonSource]) -> list[BuiltCode]:
        return [self.code(s) for s in sources]

    def code(self, s: TritonSource) -> BuiltCode:
        name = f"{s.name}_{len(self.fake.kernels)}"
        boxes = [kind.startswith("tensordesc") for _, kind in s.signature]
        sizes: list[int] = []
        first: list[int] = []  # parameters, of which a box has one and two for each axis
        for (_, kind), box in zip(s.signature, boxes, strict=True):
            first.append(len(sizes))
            rank = 1 if "rank=1" in kind else 2
            own = [128, *[4] * rank, *[8] * rank]
            sizes += own if box else [8 if kind.startswith("*") else 4]

        def run(*values: bytes) -> None:
            kernel = self.tiles[s, math.prod(self.fake.grid)]
            given = [int.from_bytes(values[i][:8], "little") for i in first]
            known = dict(zip(kernel.sizes, given[len(kernel.parameters) :], strict=False))
            arrays = []
            for m, at in zip(kernel.parameters, given, strict=False):
                t = m.type.substitute(known)
                arrays.append(_array(at, t))
                where = self.fake.where(at, arrays[-1].nbytes)
                assert where == self.fake.running or not arrays[-1].nbytes, (name, m.name, where)
            interpret(kernel, arrays, known)

        self.fake.kernels[name] = (*sizes, 8, 8), run
        return BuiltCode(name, s.warps, 1000, 0, (1, 1, 1), b"fake")


_usual_launch = GpuLowering._launch


@contextmanager
def launching_gpus(
    kind: str = "cuda", devices: int = 1, keeps_programs: bool = False
) -> Iterator[FakeCuda]:
    """While the block runs there are so many devices of a kind; their kernels are launched by the driver."""
    fake = FAKES[kind](total=1 << 28, devices=devices)
    kernels = _Kernels(fake)
    with pytest.MonkeyPatch.context() as patch, driver.use(fake, kind):
        patch.setattr(
            GpuLowering, "_launch", lambda p, *given, **named: kernels.launch(p, *given, **named)
        )
        patch.setattr(bind, "build", kernels.build)
        if (
            not keeps_programs
        ):  # a program of another process, read from disk, has kernels that are unknown here
            patch.setattr(artifact, "stored", lambda key, read: None)
            patch.setattr(artifact, "keep", lambda key, data: None)
        _forget()
        try:
            yield fake
        finally:
            _forget()


@contextmanager
def at(place: str) -> Iterator[None]:
    """A "device", or one that is "fake", where an op that runs on the host is an error."""
    if place == "device" and not driver.available():
        pytest.skip("there is no GPU")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with nullcontext() if place == "device" else fake_gpu():
            yield
