"""Compiled kernels: Tile kernels that run on NumPy arrays."""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tessera.core.constraints import solve
from tessera.core.dims import Size, substitute
from tessera.core.errors import DTypeError, OperandError
from tessera.core.observe import Observed
from tessera.ir.target.cpu.entry import Entry, LlvmFunction, Parameter
from tessera.runtime.allocator import blocks, blocks_source
from tessera.runtime.code import LlvmSource, load, load_all
from tessera.runtime.loaded import Loaded
from tessera.runtime.pool import Job, pool, pool_source
from tessera.runtime.pool_ir import FLAGS, HEAD, TYPE
from tessera.runtime.threads import thread_count

Array = np.ndarray[Any, np.dtype[Any]]

_CONTIGUOUS, _ALIGNED, _WRITABLE = 0x1, 0x100, 0x400  # bits of ndarray.flags.num
_MOST_SHAPES = 1024  # how many launches a kernel remembers


# (what runs it, the kernel, arrays, sizes) -> None
LAUNCHES: Observed[Callable[..., None]] = Observed(
    "launches", "launches of single kernels on the CPU"
)


class CompiledKernel:
    """A kernel as machine code; what a launch needs is worked out once for each set of shapes."""

    def __init__(self, program: Entry, grain: int = 1, code: Loaded | None = None):
        self.program, self.name, self.grain = program, program.name, grain
        self._code = load(source_of(program)) if code is None else code
        parameters = program.parameters
        self._wanted = tuple((np.dtype(p.type.dtype.np), _flags(p)) for p in parameters)
        self._pack = struct.Struct(f"{len(parameters)}P").pack
        self._jobs: dict[Any, Job] = {}
        self.source: Any = None  # the Tile kernel that it was made from, if anyone should ask

    def run(self, arrays: Sequence[Array], sizes: Mapping[str, int] | None = None) -> None:
        """Run on arrays, one for each parameter; those that the kernel writes change in place.

        A caller that knows the symbolic sizes gives them: the arrays of one kernel may not tell.
        """
        if LAUNCHES.observers:
            LAUNCHES.around(CompiledKernel._run)(self, arrays, sizes)
        else:
            self._run(arrays, sizes)

    def _run(self, arrays: Sequence[Array], sizes: Mapping[str, int] | None) -> None:
        try:
            for a, (dtype, flags) in zip(arrays, self._wanted, strict=True):
                if a.dtype is not dtype or a.flags.num & flags != flags:
                    self._check(arrays)
            given = None if sizes is None else tuple([sizes[n] for n in self.program.sizes])
            key = (thread_count(), given, *[a.shape for a in arrays])
        except (AttributeError, ValueError):
            self._check(arrays)
            raise
        job = self._jobs.get(key)
        if job is None:
            job = self._job(arrays, sizes, key)
        if job.count:
            pool().run(job, self._pack(*[address(a) for a in arrays]))

    def _job(self, arrays: Sequence[Array], sizes: Mapping[str, int] | None, key: Any) -> Job:
        if sizes is None:
            shapes = zip(self.program.parameters, arrays, strict=True)
            sizes = solve([(x.name, x.type.shape, a.shape) for x, a in shapes], ())
        if len(self._jobs) >= _MOST_SHAPES:
            self._jobs.clear()
        job = self._jobs[key] = self.job(sizes, key[0])
        return job

    def job(self, sizes: Mapping[str, int], threads: int, quantum: int = 0) -> Job:
        """A launch at known sizes; `quantum` is the work, in picoseconds, that is worth a thread."""
        p = self.program
        count, scratch, work = (_number(x, p, sizes) for x in (p.count, p.scratch, p.work))
        grain = max(self.grain, -(-quantum // work)) if work and quantum else self.grain
        numbers = [sizes[name] for name in p.sizes]
        return Job(self._code.address, numbers, count, threads, scratch, grain)

    def _check(self, arrays: Sequence[Array]) -> None:
        """Raise the error that says what is wrong with the arguments of a call."""
        parameters = self.program.parameters
        if len(arrays) != len(parameters):
            wanted = ", ".join(map(str, parameters))
            raise OperandError(
                f"{self.name}: got {len(arrays)} arrays, expected {len(parameters)}: {wanted}"
            )
        for p, a, (dtype, flags) in zip(parameters, arrays, self._wanted, strict=True):
            if not isinstance(a, np.ndarray):
                raise OperandError(
                    f"{self.name}: {p.name} is a {type(a).__name__}, expected a NumPy array for {p}"
                )
            if a.dtype != dtype:
                raise DTypeError(f"{self.name}: {p.name} has elements {a.dtype}, expected {p}")
            absent = flags & ~a.flags.num
            if absent:
                raise OperandError(
                    f"{self.name}: {p.name} is not {_word(absent)}, expected {p} in row-major "
                    "order and aligned; pass a copy"
                )


def compile_kernels(programs: Sequence[LlvmFunction]) -> list[CompiledKernel]:
    """Kernels as machine code, built side by side, and the code of the pool and the memory that they will
    need.
    """
    load_all([*(source_of(p) for p in programs), pool_source(), blocks_source()])
    blocks()
    return [CompiledKernel(p) for p in programs]


def source_of(p: Entry) -> LlvmSource:
    """The module of a program."""
    assert isinstance(p, LlvmFunction), f"{p.name} has no LLVM IR"
    return LlvmSource(p.name, p.text, (p.symbol,))


def _number(x: Size, p: Entry, sizes: Mapping[str, int]) -> int:
    n = substitute(x, sizes)
    assert isinstance(n, int), f"{p.name}: {x} has no value in {sizes}"
    return n


def _flags(p: Parameter) -> int:
    return _CONTIGUOUS | _ALIGNED | (_WRITABLE if p.writable else 0)


def _word(absent: int) -> str:
    if absent & _CONTIGUOUS:
        return "contiguous"
    return "aligned" if absent & _ALIGNED else "writable"


# Reading the word after the head of an array object takes 0.2 us, `a.ctypes.data` takes 1.4 us.
_word_at = ctypes.c_size_t.from_address


def _fast_address(a: Array) -> int:
    return _word_at(id(a) + HEAD).value


def _plain_address(a: Array) -> int:
    return int(a.ctypes.data)


def _fast_cells(arrays: Iterable[Any]) -> Iterable[int]:
    return map(id, arrays)


class _Kept(threading.local):
    table: Any = None


_KEPT = _Kept()


def _plain_cells(arrays: Iterable[Any]) -> Iterable[int]:
    """Places that look like array objects: the address of the data stands after the head."""
    data = [0 if a is None else _plain_address(a) for a in arrays]
    table = _KEPT.table = (ctypes.c_size_t * len(data))(*data)
    start = ctypes.addressof(table) - HEAD
    return [start + i * ctypes.sizeof(ctypes.c_size_t) for i in range(len(data))]


def _is_as_expected() -> bool:
    """Whether this Python and this NumPy lay arrays out so that the fast ways work."""
    samples: list[Array] = [np.zeros(3), np.zeros((2, 2), np.int8)[:, 1:], np.zeros(())]
    return sys.implementation.name == "cpython" and all(
        _fast_address(a) == _plain_address(a)
        and _word_at(id(a) + TYPE).value == id(np.ndarray)
        and ctypes.c_int32.from_address(id(a) + FLAGS).value == a.flags.num
        for a in samples
    )


FAST = _is_as_expected()  # whether `Pool.run_series` may look into array objects
address: Callable[[Array], int] = _fast_address if FAST else _plain_address
# The addresses that `Pool.run_series` wants; they are good until this thread asks again.
cells_of: Callable[[Iterable[Any]], Iterable[int]] = _fast_cells if FAST else _plain_cells
