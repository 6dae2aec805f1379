"""launch: run a translated kernel on arrays, as machine code or by the Tile interpreter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import numpy as np

from tessera.compile.fallback import BY_TILES, Task, Way, first_that_works
from tessera.core.approximate import FUNCTIONS
from tessera.core.assembly import PREFIX
from tessera.core.blame import blames_arguments
from tessera.core.flags import flags
from tessera.core.matrix_units import matrix_units
from tessera.core.types import TensorType
from tessera.ir.target.cpu.program import program
from tessera.ir.target.cpu.scalars import TEMPLATES
from tessera.ir.tile.coverage import is_covered
from tessera.ir.tile.interp import interpret as run_tile
from tessera.ir.tile.interp import unwritten
from tessera.ir.tile.ir import Kernel, Memory, walk
from tessera.ir.tile.verify import verify
from tessera.lang.kernel.lowered import prepared
from tessera.lang.kernel.translate import Translated, known_sizes
from tessera.lang.kernel.values import KernelError
from tessera.runtime import memory
from tessera.runtime.kernel import CompiledKernel

Array = np.ndarray[Any, np.dtype[Any]]


_MACHINE = frozenset(("where", *(name for table in TEMPLATES.values() for name in table)))


_INTERPRETING: ContextVar[bool] = ContextVar("tessera interpreting", default=False)
_STEPPING: ContextVar[bool] = ContextVar("tessera stepping", default=False)


@blames_arguments
@contextmanager
def interpret(step: bool = False) -> Iterator[None]:
    """While the block runs, kernels run by the Tile interpreter, which checks every access.

    With step=True their Python runs, one instance after the other, for breakpoint() and print().
    """
    before = _INTERPRETING.get(), _STEPPING.get()
    _INTERPRETING.set(True)
    _STEPPING.set(step)
    try:
        yield
    finally:
        _INTERPRETING.set(before[0])
        _STEPPING.set(before[1])


def is_stepping() -> bool:
    """Whether kernels run as Python."""
    return _STEPPING.get()


def interpreting() -> bool:
    """Whether kernels run by the interpreter."""
    return _INTERPRETING.get()


def launch(t: Translated, arrays: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
    """Run a kernel on the arguments of a call: what it stored to, then its results."""
    return run_kernel(t.kernel, arrays, known_sizes(t, sizes))


def run_kernel(kernel: Kernel, arrays: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
    """Run a Tile kernel on its first parameters: what it stored to of them, then the others."""
    if flags().verify:
        verify(kernel)
    known = {n: sizes[n] for n in kernel.sizes}
    given, made = owned(kernel, arrays, known)
    if interpreting():
        run_tile(kernel, [*given, *made], known)
    else:
        compiled(kernel).run([*given, *made], known)
    return [*(a for a, m in zip(given, kernel.parameters, strict=False) if m.writable), *made]


def owned(
    kernel: Kernel, arrays: Sequence[Array], sizes: Mapping[str, int]
) -> tuple[list[Array], list[Array]]:
    """The arrays that a kernel runs on: its arguments, and what it makes."""
    first, last = kernel.parameters[: len(arrays)], kernel.parameters[len(arrays) :]
    given = [_own(a, m) for a, m in zip(arrays, first, strict=True)]
    makers = zip(last, covered(kernel, len(arrays)), strict=True)
    return given, [_made(m.type.substitute(sizes), whole) for m, whole in makers]


@lru_cache(maxsize=512)
def covered(kernel: Kernel, count: int) -> tuple[bool, ...]:
    """Of each parameter after the first ones, whether the kernel writes every element of it."""
    return tuple(is_covered(kernel, m) for m in kernel.parameters[count:])


class InterpretedKernel:
    """A kernel that the compiler failed on: the Tile interpreter runs it."""

    def __init__(self, kernel: Kernel):
        self.source = kernel

    def run(self, arrays: Sequence[Array], sizes: Mapping[str, int]) -> None:
        """Run on arrays, one for each parameter; those that the kernel writes change in place."""
        run_tile(self.source, arrays, sizes)


def compiled(kernel: Kernel) -> CompiledKernel | InterpretedKernel:
    """What runs a kernel: machine code for the units that may be used here, if the compiler does not fail."""
    return _compiled(kernel, matrix_units(), flags().strict)


@lru_cache(maxsize=512)
def _compiled(
    kernel: Kernel, units: frozenset[str], strict: bool
) -> CompiledKernel | InterpretedKernel:
    """The same for these units, and for users who want faults to be errors or not."""
    _check_scalars(kernel)
    task = Task(kernel, "cpu", flags().numerics)
    code: Way[CompiledKernel | InterpretedKernel] = ("", lambda: machine_code(kernel))
    return first_that_works(task, code, (BY_TILES, lambda: InterpretedKernel(kernel)))


def machine_code(kernel: Kernel) -> CompiledKernel:
    """A kernel as machine code; tiles that do not fit the registers become loops."""
    made = prepared(kernel)
    if flags().verify:
        verify(made)
    out = CompiledKernel(program(made))
    out.source = kernel
    return out


def _check_scalars(kernel: Kernel) -> None:
    """Raise KernelError at a scalar op that only the host computes."""
    for op in walk(kernel.body):
        name = op.attributes.get("scalar")
        if name is None or name.startswith(PREFIX):
            continue
        if not (name in FUNCTIONS or name in _MACHINE):
            raise KernelError(
                f"{name}: has no machine code in kernels; use op.{name} outside of it"
            ).at(op.location)


def _own(a: Array, m: Memory) -> Array:
    """An argument in order; a copy of it when the kernel stores to it."""
    return np.array(a, m.type.dtype.np, order="C") if m.writable else in_order(a)


def in_order(a: Array) -> Array:
    """An array whose elements lie in row-major order and aligned."""
    if a.flags.c_contiguous and a.flags.aligned:
        return a
    return np.require(a, requirements=("C", "A"))


def _made(t: TensorType, whole: bool) -> Array:
    """A result before it is written: zeros where some of it may stay; wrong numbers for the interpreter."""
    shape = tuple(int(n) for n in t.shape)
    if not whole:
        return np.zeros(shape, t.dtype.np)
    return unwritten(shape, t.dtype) if interpreting() else memory.empty(shape, t.dtype.np)
