"""Launches of many kernels in one call.

Everything that the driver wants to know of a launch is laid out once.  Parameters that are addresses are in
slots, each the address in a cell and an offset; a run fills the slots from the cells and calls the driver
for each kernel, in machine code (launch_ir.py).
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any

from tessera.runtime.capi import address, words
from tessera.runtime.code import LlvmSource, load
from tessera.runtime.cuda.device import Gpu
from tessera.runtime.cuda.launch_ir import CONFIG_BYTES, STREAM, launch_ir
from tessera.runtime.cuda.module import DriverFunction
from tessera.runtime.cuda.stream import DriverStream

_CLUSTER = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_EARLY = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_PORTABLE = 8  # blocks of a cluster that every device with clusters can do
_MAP_BYTES, _MAP_LINE = 128, 64
_POINTER = ctypes.c_void_p


@dataclass(frozen=True, slots=True)
class Pointer:
    """A parameter: the address in a cell, and bytes beyond it."""

    cell: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class FixedValue:
    """A parameter whose bytes are the same in every run."""

    data: bytes


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A parameter: a TMA descriptor (tma.py) of the memory at the address in a cell, and bytes beyond it."""

    data: bytes
    cell: int
    offset: int = 0


Parameter = Pointer | FixedValue | TensorMap


def i32(n: int) -> FixedValue:
    """A 32-bit integer."""
    return FixedValue(struct.pack("<i", n))


def i64(n: int) -> FixedValue:
    """A 64-bit integer."""
    return FixedValue(struct.pack("<q", n))


def f32(x: float) -> FixedValue:
    """A 32-bit float."""
    return FixedValue(struct.pack("<f", x))


@dataclass(frozen=True, slots=True)
class DeviceLaunch:
    """One kernel on a grid of blocks of so many threads."""

    function: DriverFunction
    grid: tuple[int, int, int]
    block: int
    parameters: tuple[Parameter, ...]
    cluster: tuple[int, int, int] | None = None
    name: str = ""  # that people know it by
    early: bool = False  # whether the kernel waits itself for the launch before it


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", _POINTER), ("attributes", _POINTER), ("count", ctypes.c_uint),
    )  # fmt: skip


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute, of which we need clusters and a word."""

    _fields_ = (
        ("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 3),
        ("rest", ctypes.c_char * 52),
    )  # fmt: skip


assert (ctypes.sizeof(LaunchConfig), LaunchConfig.stream.offset) == (CONFIG_BYTES, STREAM)


class Launcher:
    """Launches that are prepared for any addresses.  Launches of no blocks are left out."""

    def __init__(self, launches: Sequence[DeviceLaunch], gpu: Gpu):
        self.gpu = gpu
        self.launches = tuple(x for x in launches if prod(x.grid))
        for x in self.launches:
            _check(x, gpu)
        self._slots: dict[tuple[int, int], int] = {}
        self._values: list[tuple[int, int]] = []  # begin and size in the memory of values
        self._lay_out()
        self._lock = threading.Lock()  # of the memory that a run fills
        cells = 1 + max((cell for cell, _ in self._slots), default=-1)
        self.cells = cells
        self._pack = struct.Struct(f"{cells}Q").pack

    def run(self, cells: Sequence[int], stream: DriverStream | None = None) -> None:
        """Launch everything on a stream (the main one, if none is given), with these addresses."""
        gpu = self.gpu
        gpu.make_current()
        packed = self._pack(*cells)
        with self._lock:
            failed = self._run(self._plan, packed, (stream or gpu.stream).handle)
        if failed:
            self._raise(failed)

    def bind(self, cells: Sequence[int]) -> None:
        """Fill in addresses without a launch."""
        packed = self._pack(*cells)
        with self._lock:
            failed = self._run(self._plan_to_bind, packed, 0)
        if failed:
            self._raise(failed)

    def run_one(self, i: int, stream: DriverStream, early: bool = False) -> None:
        """Launch one kernel with the addresses that were filled in last; an early one before the last one
        ends.
        """
        self.gpu.make_current()
        if early:
            self._point(i, early=True)
        arrays = (self._configs, self._kernels, self._lists)
        places = [ctypes.addressof(x) + i * ctypes.sizeof(x) // len(x) for x in arrays]
        plan = words([0] * 5 + [1, *places, address(self.gpu.driver.cuLaunchKernelEx), 0])
        failed = self._run(ctypes.addressof(plan), b"", stream.handle)
        if early:
            self._point(i, early=False)
        if failed:
            self._raise(i << 32 | failed)

    def node_params(self, i: int) -> ctypes.Structure:
        """What a graph wants to know of a launch; it points at the addresses that were filled in last."""
        c = self._configs[i]
        return self.gpu.driver.api.node_params(
            kernel=self._kernels[i], grid=c.grid, block=c.block, shared=c.shared,
            parameters=self._lists[i],
        )  # fmt: skip

    def reads(self, i: int) -> frozenset[int]:
        """The cells that a launch has addresses of."""
        found = (p for p in self.launches[i].parameters if not isinstance(p, FixedValue))
        return frozenset(p.cell for p in found)

    @cached_property
    def users(self) -> dict[int, set[int]]:
        """The launches that have the address in a cell."""
        out: dict[int, set[int]] = {}
        for i in range(len(self.launches)):
            for cell in self.reads(i):
                out.setdefault(cell, set()).add(i)
        return out

    def _lay_out(self) -> None:
        """Make the memory that the driver reads, and the plan of it."""
        for p in (p for x in self.launches for p in x.parameters):
            if not isinstance(p, FixedValue):
                self._slots.setdefault((p.cell, p.offset), len(self._slots))
        self._table = words([n for slot in self._slots for n in slot])
        self._words = words([0] * len(self._slots))
        maps: list[tuple[int, int]] = []
        self._memory: list[Any] = []
        lists = [[self._place(p, maps) for p in x.parameters] for x in self.launches]
        self._places = [(_POINTER * max(1, len(x)))(*x) for x in lists]
        n = len(self.launches)
        self._lists = (_POINTER * n)(*map(ctypes.addressof, self._places))
        self._kernels = (_POINTER * n)(*[x.function.handle for x in self.launches])
        self._attributes = (_Attribute * (2 * n))()  # that a launch is early, and its cluster
        self._configs = (LaunchConfig * n)(*[self._config(i) for i in range(n)])
        for i in range(n):
            self._point(i, early=False)
        self._maps = words([n for at, slot in maps for n in (at, slot, 0)])
        driver = self.gpu.driver
        rest = (
            *(ctypes.addressof(x) for x in (self._configs, self._kernels, self._lists)),
            address(driver.cuLaunchKernelEx),
            address(driver.cuTensorMapReplaceAddress) if maps else 0,
        )
        tables = [ctypes.addressof(x) for x in (self._table, self._words, self._maps)]
        head = (len(self._slots), tables[0], tables[1], len(maps), tables[2])
        self._plan_words = words([*head, n, *rest])
        self._bind_words = words([*head, 0, *rest])
        self._plan = ctypes.addressof(self._plan_words)
        self._plan_to_bind = ctypes.addressof(self._bind_words)
        self._run = _code(driver.api.name("cuLaunchKernelEx"))

    def _place(self, p: Parameter, maps: list[tuple[int, int]]) -> int:
        """Where the bytes of a parameter are."""
        if isinstance(p, Pointer):
            return ctypes.addressof(self._words) + 8 * self._slots[p.cell, p.offset]
        memory = ctypes.create_string_buffer(len(p.data) + _MAP_LINE)
        at = ctypes.addressof(memory)
        at += -at % _MAP_LINE
        ctypes.memmove(at, p.data, len(p.data))
        self._memory.append(memory)
        if isinstance(p, TensorMap):
            maps.append((at, self._slots[p.cell, p.offset]))
        return at

    def _config(self, i: int) -> LaunchConfig:
        x = self.launches[i]
        self._attributes[2 * i] = _Attribute(_EARLY, 0, (1, 0, 0))
        if x.cluster is not None:
            self._attributes[2 * i + 1] = _Attribute(_CLUSTER, 0, x.cluster)
        return LaunchConfig(x.grid, (x.block, 1, 1), x.function.shared)

    def _point(self, i: int, early: bool) -> None:
        """Let a configuration have the attributes of its launch."""
        c, first = self._configs[i], 2 * i + (not early)
        c.count = early + (self.launches[i].cluster is not None)
        c.attributes = ctypes.addressof(self._attributes[first]) if c.count else None

    def _raise(self, failed: int) -> None:
        number, code = failed >> 32, failed & 0xFFFFFFFF
        if number >= len(self.launches):
            self.gpu.driver.check("cuTensorMapReplaceAddress", code)
        x = self.launches[number]
        about = (
            f" for {x.function}, launch {number + 1} of {len(self.launches)}: grid {x.grid}, "
            f"{x.block} threads, {x.function.shared} bytes of shared memory"
        )
        self.gpu.driver.check("cuLaunchKernelEx", code, about, held=self.gpu.pool.used)


def _check(x: DeviceLaunch, gpu: Gpu) -> None:
    """Too few parameters would make the driver read memory that is not ours."""
    assert x.function.gpu is gpu, f"{x.function} of {x.function.gpu} in launches of {gpu}"
    assert gpu.kind == "cuda" or not x.cluster, f"{gpu} has no clusters: {x}"
    sizes = tuple(8 if isinstance(p, Pointer) else len(p.data) for p in x.parameters)
    known = x.function.parameters
    wanted = sizes if known is None else tuple(size for _, size in known)
    assert sizes == wanted, f"{x.function}: got parameters of {sizes} bytes, expected {wanted}"
    maps = [len(p.data) for p in x.parameters if isinstance(p, TensorMap)]
    assert all(n == _MAP_BYTES for n in maps), f"{x.function}: tensor maps of {maps} bytes"
    if x.cluster is not None and prod(x.cluster) > _PORTABLE:
        x.function.allow_clusters()


@cache
def _code(function: str) -> Any:
    """Machine code that launches by a function of a driver."""
    code = load(LlvmSource("launches", launch_ir(function), ("run",)))
    return ctypes.CFUNCTYPE(ctypes.c_int64, _POINTER, ctypes.c_char_p, _POINTER)(code.address)
