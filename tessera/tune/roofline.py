"""The roofline: what a kernel must do at least, and what the machine can do at most."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Protocol

import numpy as np

from tessera.core.costs import COSTS
from tessera.core.dims import Size, substitute
from tessera.core.dtype import DType, f32, f64
from tessera.core.errors import OperandError
from tessera.core.processor import near_bytes
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Apply, Axis, Kernel, Literal, Read, Stage, walk
from tessera.ir.target.cpu.program import program
from tessera.ir.tile.cpu.lower import lower
from tessera.runtime import tuned
from tessera.runtime.kernel import compile_kernels
from tessera.runtime.threads import thread_count
from tessera.tune.caches import delivered

_SIDE, _COPIED = 768, 1 << 23  # of the product and the copy that are measured
_ROUNDS = 5  # in a row that are not faster
_FASTER = 0.98  # a round that is 2% faster begins the count of calm rounds anew
_LONGEST = 1.0  # seconds of all rounds


@dataclass(frozen=True)
class MemoryLevel:
    """A cache of all threads in use, or the memory: the bytes that it holds, and bytes a second from it."""

    name: str
    bytes: float
    bandwidth: float


class StepDone(Protocol):
    """What a step does: operations by their cost, bytes moved, and whether it computes in f64."""

    @property
    def cost(self) -> float: ...
    @property
    def bytes(self) -> float: ...
    @property
    def wide(self) -> bool: ...


@dataclass(frozen=True)
class Peaks:
    """What the machine reaches: operations and bytes a second on some threads, and its caches."""

    flops: float  # in f32
    bandwidth: float  # of the memory
    threads: int
    near: int  # bytes of the second cache of a core
    levels: tuple[MemoryLevel, ...] = ()  # caches, the first one first
    wide: float = 0.0  # operations a second in f64; 0: as in f32

    def level(self, moved: float) -> MemoryLevel:
        """Where data of so many bytes come from: the first cache that holds them, or the memory."""
        memory = MemoryLevel("memory", float("inf"), self.bandwidth)
        return next((x for x in self.levels if moved <= x.bytes), memory)

    def roof(self, work: StepDone) -> tuple[float, float]:
        """The operations and bytes a second that a step may have at most."""
        flops = self.wide if work.wide and self.wide else self.flops
        return flops, self.level(work.bytes).bandwidth

    def raised(self, reached: Iterable[tuple[StepDone, float]]) -> Peaks:
        """Peaks that are not below what steps have reached in so many seconds."""
        flops, wide, bandwidth = self.flops, self.wide, self.bandwidth
        levels = {x.name: x for x in self.levels}
        for w, seconds in reached:
            if seconds <= 0:
                continue
            x, rate = self.level(w.bytes), w.bytes / seconds
            if x.name in levels:
                best = max(levels[x.name].bandwidth, rate)
                levels[x.name] = replace(levels[x.name], bandwidth=best)
            else:
                bandwidth = max(bandwidth, rate)
            if w.wide and self.wide:
                wide = max(wide, w.cost / seconds)
            else:
                flops = max(flops, w.cost / seconds)
        return replace(
            self, flops=flops, wide=wide, bandwidth=bandwidth, levels=tuple(levels.values())
        )


@dataclass(frozen=True)
class KernelWork:
    """What a kernel does at known sizes: operations, and bytes that it reads and writes once."""

    flops: float
    bytes: float

    def seconds(self, peaks: Peaks) -> float:
        """The least time that it takes."""
        return max(self.flops / peaks.flops, self.bytes / peaks.bandwidth)


def number(x: Size, sizes: Mapping[str, int]) -> int:
    """A size as a number."""
    n = substitute(x, sizes)
    assert isinstance(n, int), f"{x} has no value in {sizes}"
    return n


def work_of(
    kernel: Kernel, types: Mapping[str, TensorType], sizes: Mapping[str, int]
) -> KernelWork:
    """The work of a kernel at known sizes."""
    flops = 0.0
    for s in kernel.stages:
        points = prod(number(a.size, sizes) for a in (*s.axes, *s.reduced))
        applied = [t.scalar for t in walk(s.term) if isinstance(t, Apply)]
        flops += points * (sum(COSTS.get(x, 1) for x in applied) + (s.combine is not None))
    names = (*kernel.inputs(), *kernel.outputs)
    moved = sum(
        types[n].dtype.itemsize * prod(number(d, sizes) for d in types[n].shape) for n in names
    )
    return KernelWork(flops, moved)


def peaks_here() -> Peaks:
    """What this machine reaches on the threads in force: measured once and kept."""
    threads = thread_count()
    found, roofs = None, dict[str, tuple[int, float]]()
    with contextlib.suppress(OperandError):  # a store that cannot be read is no fault of theirs
        found, roofs = tuned.peaks(threads), tuned.roofs(threads)
    flops, bandwidth = found or _measured()
    roofs = roofs or _roofs()
    return _sane(Peaks(flops, bandwidth, threads, near_bytes()), roofs)


def _sane(p: Peaks, roofs: Mapping[str, tuple[int, float]]) -> Peaks:
    """Peaks with the caches, none slower than what is behind it, and f64 not faster than f32."""
    bandwidth = max(p.bandwidth, roofs.get("memory", (0, 0.0))[1])
    levels: list[MemoryLevel] = []
    for name in ("L3", "L2", "L1"):  # from the memory to the core
        if name in roofs:
            size, rate = roofs[name]
            before = levels[0].bandwidth if levels else bandwidth
            levels.insert(0, MemoryLevel(name, size, max(rate, before)))
    wide = min(roofs.get("f64", (0, 0.0))[1], p.flops)
    return replace(p, bandwidth=bandwidth, levels=tuple(levels), wide=wide)


def _measured() -> tuple[float, float]:
    """A product of matrices for arithmetic, and a scaled copy for memory."""
    product = _seconds(_product(), 2)
    copy = _seconds(_copy(), 1)
    flops, bandwidth = 2 * _SIDE**3 / product, 2 * 4 * _COPIED / copy
    with contextlib.suppress(OperandError):  # a folder that cannot be written is no fault of theirs
        tuned.keep_peaks(thread_count(), flops, bandwidth)
    return flops, bandwidth


def _roofs() -> dict[str, tuple[int, float]]:
    """What caches and memory deliver, and a product of matrices in f64."""
    found = delivered(thread_count())
    found["f64"] = 0, 2 * _SIDE**3 / _seconds(_product(f64), 2, f64)
    with contextlib.suppress(OperandError):
        tuned.keep_roofs(thread_count(), found)
    return found


def _seconds(kernel: Kernel, inputs: int, dtype: DType = f32) -> float:
    shape = tuple(a.size for a in kernel.stages[0].axes)
    t = TensorType(dtype, shape)
    names = (*kernel.inputs(), *kernel.outputs)
    (compiled,) = compile_kernels([program(lower(kernel, dict.fromkeys(names, t)))])
    arrays = [np.ones(shape, dtype.np) for _ in range(inputs + 1)]
    best, calm, end = float("inf"), 0, time.perf_counter() + _LONGEST
    while (
        calm < _ROUNDS and time.perf_counter() < end
    ):  # until no round is faster: others may use the cores
        start = time.perf_counter()
        compiled.run(arrays)
        took = time.perf_counter() - start
        calm = 0 if took < _FASTER * best else calm + 1
        best = min(best, took)
    return best


def _product(dtype: DType = f32) -> Kernel:
    m, n, k = (Axis(name, _SIDE) for name in ("_m", "_n", "_k"))
    left = Read(dtype, "x", (m.variable, k.variable))
    right = Read(dtype, "y", (k.variable, n.variable))
    term = Apply(dtype, "mul", (left, right))
    return Kernel("product", 0, (Stage("t", (m, n), (k,), "add", term),), ("t",))


def _copy() -> Kernel:
    c = Axis("_c", _COPIED)
    term = Apply(f32, "mul", (Read(f32, "x", (c.variable,)), Literal(f32, 2.0)))
    return Kernel("copy", 0, (Stage("t", (c,), (), None, term),), ("t",))
