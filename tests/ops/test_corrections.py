"""var and std with any correction, whether their sizes are numbers, symbols, or those of an eager call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, accum, bf16, f16, f32, f64, op, saturate
from tessera.core.dtype import DType
from tests.support.runners.tolerance import assert_same_bits

CORRECTIONS = (0.0, 0.5, 1.0, 1.5, 1, 2, 2.9, 3.0, 4.0)
X = np.array([[0.25, 0.0, 1.0], [0.5, -1.5, 2.0]])


def _named(c: float, d: DType) -> Any:
    def f(x: Tensor["N", "M"]) -> Any:
        return op.var(x, 1, c), op.std(x, 1, c)

    f.__annotations__ = {"x": Tensor["N", "M", d]}
    return ts.jit(f)


@pytest.mark.parametrize("d", [f64, f32, bf16, f16 @ saturate, bf16 @ accum(bf16)], ids=str)
@pytest.mark.parametrize("c", CORRECTIONS)
def test_a_correction_that_is_not_whole_acts_everywhere(c: float, d: DType) -> None:
    """Eager code has symbolic sizes: it took the whole part of the correction, and less than none was
    negative.
    """
    x = ts.tensor(X, dtype=d)
    with np.errstate(all="ignore"):
        want = np.divide(np.var(X, 1) * 3, max(3 - c, 0))
    if d.policy.saturate:
        want = np.minimum(want, np.finfo(d.np).max)
    eager = op.var(x, 1, c), op.std(x, 1, c)
    np.testing.assert_allclose(np.asarray(eager[0]).astype(float), want, rtol=2e-2)
    for f in (ts.jit(lambda x: (op.var(x, 1, c), op.std(x, 1, c))), _named(c, d)):
        for got, y in zip(f(x), eager, strict=True):
            assert_same_bits(got, y)


@pytest.mark.parametrize("d", [f64, bf16 @ accum(bf16)], ids=str)
def test_gradients_of_corrected_variances(d: DType) -> None:
    x = ts.tensor(X, dtype=d)
    slope = ts.grad(lambda x: op.sum(op.var(x, 1, 0.5)))
    want = 2 * (X - X.mean(1, keepdims=True)) / 2.5
    np.testing.assert_allclose(np.asarray(slope(x)).astype(float), want, rtol=2e-2, atol=2e-2)
    assert_same_bits(ts.jit(slope)(x), slope(x))
