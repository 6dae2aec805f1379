"""Counts of the numbers of a tile: NumPy's, by the interpreter, and Triton's histogram on a GPU."""

from __future__ import annotations

import ast

import numpy as np
import pytest

import tessera as ts
from tessera.core.dtype import i32, i64
from tessera.core.errors import VerifyError
from tessera.core.types import TensorType
from tessera.ir.target.triton.emit import emit
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.ir import Builder, Kernel
from tessera.ir.tile.verify import verify

RUNS_ON = "numpy"


def counting(n: int, size: int) -> Kernel:
    b = Builder("k")
    x = b.parameter("x", TensorType(i32, (n,)))
    y = b.parameter("y", TensorType(i32, (size,)), True)
    b.store(y, b.count(b.load(x, (0,), (n,)), size), (0,), (size,))
    return b.finish()


@pytest.mark.parametrize("size", [1, 7, 32, 100])
@pytest.mark.parametrize("n", [1, 13, 64])
def test_numbers_outside_are_not_counted(n: int, size: int) -> None:
    k = counting(n, size)
    verify(k)
    assert ts.ir.parse(k.text).text == k.text
    x = np.random.default_rng([n, size]).integers(-3, size + 3, n).astype(np.int32)
    y = np.full(size, 9, np.int32)
    interpret(k, [x, y])
    np.testing.assert_array_equal(y, [(x == i).sum() for i in range(size)])


def test_triton_counts_what_is_inside_alone() -> None:
    text = emit(counting(13, 100))
    ast.parse(text)
    assert "tl.histogram(" in text
    assert "128, mask=" in text
    assert "< 13)" in text


def test_tiles_of_other_kinds_are_refused() -> None:
    b = Builder("k")
    with pytest.raises(VerifyError) as e:
        b.count(b.full(i64, (8,), 1), 4)
    assert e.value.message == "count: i64[8], expected a tile of one axis and of i32"
    with pytest.raises(VerifyError) as e:
        b.count(b.full(i32, (8,), 1), 0)
    assert e.value.message == "count: numbers below 0, expected 1 or more"
