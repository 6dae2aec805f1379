"""launch: run a translated kernel on arrays, as machine code or by the Tile interpreter."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

from tessera.core.flags import flags
from tessera.core.types import TensorType
from tessera.ir.target.cpu.program import program
from tessera.ir.tile.expand import expand
from tessera.ir.tile.interp import interpret as run_tile
from tessera.ir.tile.interp import unwritten
from tessera.ir.tile.ir import Kernel, Memory
from tessera.ir.tile.verify import verify
from tessera.lang.kernel.translate import Translated, known_sizes
from tessera.runtime.kernel import CompiledKernel

Array = np.ndarray[Any, np.dtype[Any]]


class _State(threading.local):
    interpreting = False


_STATE = _State()


@contextmanager
def interpret() -> Iterator[None]:
    """While the block runs, kernels run by the Tile interpreter, which checks every access."""
    before, _STATE.interpreting = _STATE.interpreting, True
    try:
        yield
    finally:
        _STATE.interpreting = before


def interpreting() -> bool:
    """Whether kernels run by the interpreter."""
    return _STATE.interpreting


def launch(t: Translated, arrays: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
    """Run a kernel on the arguments of a call: what it stored to, then its results."""
    return run_kernel(t.kernel, arrays, known_sizes(t, sizes))


def run_kernel(kernel: Kernel, arrays: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
    """Run a Tile kernel on its first parameters: what it stored to of them, then the others."""
    if flags().verify:
        verify(kernel)
    first, last = kernel.parameters[: len(arrays)], kernel.parameters[len(arrays) :]
    known = {n: sizes[n] for n in kernel.sizes}
    given = [_own(a, m) for a, m in zip(arrays, first, strict=True)]
    made = [_empty(m.type.substitute(known)) for m in last]
    if interpreting():
        run_tile(kernel, [*given, *made], known)
    else:
        compiled(kernel).run([*given, *made], known)
    return [*(a for a, m in zip(given, first, strict=True) if m.writable), *made]


@lru_cache(maxsize=512)
def compiled(kernel: Kernel) -> CompiledKernel:
    """A kernel as machine code; tiles that do not fit the registers become loops."""
    made = expand(kernel)
    if flags().verify:
        verify(made)
    return CompiledKernel(program(made))


def _own(a: Array, m: Memory) -> Array:
    """An argument in order; a copy of it when the kernel stores to it."""
    if m.writable:
        return np.array(a, m.type.dtype.np, order="C")
    return np.require(a, requirements=("C", "A"))


def _empty(t: TensorType) -> Array:
    return unwritten([int(n) for n in t.shape], t.dtype)
