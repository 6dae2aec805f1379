"""Sizes of a kernel's operands that must agree, and tiles that are put together."""

from __future__ import annotations

from typing import Any

import pytest

import tessera as ts
from tessera import Tensor, f32, i32, op, tile
from tessera.core.errors import ShapeError

RUNS_ON = "numpy"


@ts.kernel
def added(x: Tensor["N", f32], y: Tensor["N", f32]):
    i = tile.program(2) * 4
    return tile.load(x, at=(i,), shape=(4,)) + tile.load(y, at=(i,), shape=(4,))


@ts.kernel
def mixed(x: Tensor["N", f32], y: Tensor["N", i32]):
    i = tile.program(2) * 4
    return tile.concat((tile.load(x, at=(i,), shape=(4,)), tile.load(y, at=(i,), shape=(4,))))


def test_operands_that_share_a_name_share_a_size() -> None:
    x, y = op.ones((8,)), op.ones((6,))
    for f in (
        added,
        lambda x, y: added(x, y),
        ts.jit(lambda x, y: added(x, y)),
        ts.jit(lambda x, y: added(x * 2, y * 2)),
    ):
        with pytest.raises(ts.TesseraError, match="N") as e:
            f(x, y)
        assert isinstance(e.value, ShapeError), e.value
        got: Any = f(x, x)
        assert got.shape == (8,)


def test_tiles_that_are_put_together_are_of_one_dtype() -> None:
    with pytest.raises(ts.TesseraError, match="differ in dtype or rank; cast or reshape before"):
        mixed(op.ones((8,)), op.ones((8,), i32))
