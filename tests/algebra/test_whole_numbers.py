"""Whole numbers and sizes beside operators keep the precision of the operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op

RUNS_ON = "numpy"
BIG = 2**40 + 1  # no f32
OPERATORS = {"dense": op.dense(np.eye(3) * 4), "diagonal": op.diag(np.full(3, 4.0))}


@pytest.mark.parametrize("kind", OPERATORS)
@pytest.mark.parametrize("dtype", ["f64", "c128"])
def test_whole_numbers_are_not_rounded_to_f32(kind: str, dtype: str) -> None:
    a = op.dense(op.cast(OPERATORS[kind].todense(), dtype)) if kind == "dense" else OPERATORS[kind]
    v, b = ts.tensor([BIG, 1, 2]), np.array([BIG, 1, 2])
    for got, want in (
        (a @ v, 4.0 * b), (v @ a, 4.0 * b), (a.solve(v), b / 4.0), (a @ b, 4.0 * b),
        ((a * ts.tensor(BIG)) @ np.ones(3), 4.0 * BIG * np.ones(3)),
    ):  # fmt: skip
        np.testing.assert_array_equal(got.numpy(), want)
    for n in (ts.tensor(3), np.int64(3), np.array(3, np.int8)):
        np.testing.assert_allclose(((a / n) @ np.ones(3)).numpy(), np.full(3, 4 / 3), rtol=1e-15)
    x, _ = op.cg(a, v)
    np.testing.assert_allclose(x.numpy(), b / 4.0, rtol=1e-15)


def test_sizes_scale_operators_in_their_precision() -> None:
    def f(x: ts.Tensor["N", ts.f64]) -> Any:  # type: ignore[name-defined]
        n = x.shape[0]
        return (n * op.dense(np.eye(3)) + op.dense(np.eye(3)) / n) @ x

    x = np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(ts.jit(f)(x).numpy(), x * (3 + 1 / 3), rtol=1e-15)


def test_narrow_operators_stay_in_f32() -> None:
    a = op.dense(np.eye(3, dtype=np.float32))
    assert (a / ts.tensor(3)).dtype is (a @ ts.tensor([1, 2, 3])).dtype is ts.f32
