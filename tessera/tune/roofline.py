"""The roofline: what a kernel must do at least, and what the machine can do at most."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from tessera.core.costs import COSTS
from tessera.core.dims import Size, substitute
from tessera.core.dtype import f32
from tessera.core.errors import OperandError
from tessera.core.processor import near_bytes
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Apply, Axis, Kernel, Literal, Read, Stage, walk
from tessera.ir.target.cpu.program import program
from tessera.ir.tile.lower import lower
from tessera.runtime import tuned
from tessera.runtime.kernel import compile_kernels
from tessera.runtime.threads import thread_count

_SIDE, _COPIED = 768, 1 << 23  # of the product and the copy that are measured
_ROUNDS = 5


@dataclass(frozen=True)
class Peaks:
    """What the machine reaches: operations and bytes a second on some threads, and its caches."""

    flops: float
    bandwidth: float
    threads: int
    near: int  # bytes of the second cache of a core


@dataclass(frozen=True)
class Work:
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


def work_of(kernel: Kernel, types: Mapping[str, TensorType], sizes: Mapping[str, int]) -> Work:
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
    return Work(flops, moved)


def peaks_here() -> Peaks:
    """What this machine reaches on the threads in force: measured once and kept."""
    threads = thread_count()
    found = None
    with contextlib.suppress(OperandError):  # a store that cannot be read is no fault of theirs
        found = tuned.peaks(threads)
    found = found or _measured()
    return Peaks(*found, threads, near_bytes())


def _measured() -> tuple[float, float]:
    """A product of matrices for arithmetic, and a scaled copy for memory."""
    product = _seconds(_product(), 2)
    copy = _seconds(_copy(), 1)
    flops, bandwidth = 2 * _SIDE**3 / product, 2 * 4 * _COPIED / copy
    with contextlib.suppress(OperandError):  # a folder that cannot be written is no fault of theirs
        tuned.keep_peaks(thread_count(), flops, bandwidth)
    return flops, bandwidth


def _seconds(kernel: Kernel, inputs: int) -> float:
    shape = tuple(a.size for a in kernel.stages[0].axes)
    t = TensorType(f32, shape)
    names = (*kernel.inputs(), *kernel.outputs)
    (compiled,) = compile_kernels([program(lower(kernel, dict.fromkeys(names, t)))])
    arrays = [np.ones(shape, np.float32) for _ in range(inputs + 1)]
    best = float("inf")
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        compiled.run(arrays)
        best = min(best, time.perf_counter() - start)
    return best


def _product() -> Kernel:
    m, n, k = (Axis(name, _SIDE) for name in ("_m", "_n", "_k"))
    left = Read(f32, "x", (m.variable, k.variable))
    right = Read(f32, "y", (k.variable, n.variable))
    term = Apply(f32, "mul", (left, right))
    return Kernel("product", 0, (Stage("t", (m, n), (k,), "add", term),), ("t",))


def _copy() -> Kernel:
    c = Axis("_c", _COPIED)
    term = Apply(f32, "mul", (Read(f32, "x", (c.variable,)), Literal(f32, 2.0)))
    return Kernel("copy", 0, (Stage("t", (c,), (), None, term),), ("t",))
