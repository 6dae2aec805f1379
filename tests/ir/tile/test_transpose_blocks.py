"""turned: what reads across rows in squares gives the same bits as row by row, at every level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.ir.schedule.ir import Kernel
from tessera.ir.schedule.lower import lower
from tessera.ir.tile.cpu.lower import expand
from tessera.ir.tile.ir import walk
from tessera.ir.tile.verify import verify
from tests.support.runners.levels import by_llvm, by_schedule, by_tile, prepared
from tests.support.runners.tolerance import assert_same_bits

RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 80)).astype(np.float32)
Y = RNG.normal(size=(80, 32)).astype(np.float32)
STACK = RNG.normal(size=(3, 48, 32)).astype(np.float32)
WHOLE = RNG.integers(0, 99, (32, 48)).astype(np.int32)

# Programs, their arguments, and whether they are computed in squares.
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], bool]] = {
    "a copy": (lambda x: x.T + 1, (X,), True),
    "beside another": (lambda x, y: op.exp(x.T) * y + y[:, :1], (X, Y), True),
    "twice": (lambda x: x[:, 16:48].T + x[:, :32].T, (X,), True),
    "some rows": (lambda x: x[:, 5:70].T * 2, (X,), True),
    "whole numbers": (lambda x: x.T // 3, (WHOLE,), True),
    "a stack": (lambda x: op.swapaxes(x, 1, 2) - 1, (STACK,), True),
    "two results": (lambda x, y: (x.T + y, op.sin(x.T + y)), (X, Y), True),
    "positions": (lambda x: op.tril(x.T), (X,), True),
    "columns that end in a square": (lambda x: x[:30].T + 1, (X,), False),
    "rows whose lines begin elsewhere": (lambda x: x.T + 1, (X[:, :79].copy(),), False),
    "doubles": (lambda x: x.T + 1, (X.astype(np.float64),), False),
    "along rows": (lambda x: x + 1, (X,), False),
}


@pytest.mark.parametrize("name", CASES)
def test_squares_have_the_bits_of_rows(name: str) -> None:
    f, inputs, squares = CASES[name]
    p = lower(prepared(ts.trace(f, *(ts.tensor(x) for x in inputs))))
    types = {n: b.type for n, b in p.buffers.items()}
    made = [
        launch.kernel
        for s in p.steps
        if isinstance(s, Kernel)
        for launch in expand(s, types).launches
    ]
    for kernel in made:
        verify(kernel)
    assert any(o.name == "transpose" for k in made for o in walk(k.body)) == squares
    want = by_schedule(p, inputs)
    for got in (by_tile(p, inputs), by_llvm(p, inputs)):
        for x, y in zip(got, want, strict=True):
            assert_same_bits(x, y)
    reference = f(*(ts.tensor(x) for x in inputs))
    for x, y in zip(want, ts.tree.leaves(reference), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)
