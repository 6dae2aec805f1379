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
from tessera.ir.tile.ir import Kernel
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
    known = known_sizes(t, sizes)
    if flags().verify:
        verify(t.kernel)
    given = [
        _own(a, i in t.written, ty) for i, (a, ty) in enumerate(zip(arrays, t.inputs, strict=True))
    ]
    made = [_empty(r.substitute(known)) for r in t.results]
    every = [*given, *made]
    if interpreting():
        run_tile(t.kernel, every, known)
    else:
        compiled(t.kernel).run(every, known)
    return [*(given[i] for i in t.written), *made]


@lru_cache(maxsize=512)
def compiled(kernel: Kernel) -> CompiledKernel:
    """A kernel as machine code; tiles that do not fit the registers become loops."""
    made = expand(kernel)
    if flags().verify:
        verify(made)
    return CompiledKernel(program(made))


def _own(a: Array, written: bool, t: TensorType) -> Array:
    """An argument in order; a copy of it when the kernel stores to it."""
    if written:
        return np.array(a, t.dtype.np, order="C")
    return np.require(a, requirements=("C", "A"))


def _empty(t: TensorType) -> Array:
    return unwritten([int(n) for n in t.shape], t.dtype)
