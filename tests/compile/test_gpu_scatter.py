"""Sums into numbered rows on a GPU: what is not finite stays in its own row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.ir.tile.gpu import primitives
from tests.support.fakes.gpu_fake import fake_gpu


@pytest.mark.parametrize("dtype", [ts.f32, ts.f64, ts.f16, ts.bf16], ids=str)
def test_values_that_are_not_finite_do_not_spread_over_their_column(
    dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more indices than are sorted, the sum is a product, in which 0 * inf would be NaN."""
    monkeypatch.setattr(primitives, "MOST", 16)
    rng = np.random.default_rng(5)
    x, v = rng.integers(-3, 4, (7, 5)), rng.integers(-3, 4, (80, 5)).astype(np.float32)
    index = rng.integers(-1, 9, 80)
    index[:6] = [0, 1, 2, 2, 3, 8]
    v[0, 0], v[1, 1], v[2, 2], v[3, 2], v[4, 3], v[5, 4] = (
        np.nan, np.inf, np.inf, -np.inf, -np.inf, np.nan
    )  # fmt: skip
    want = x.astype(np.float32)
    with np.errstate(invalid="ignore"):
        for i, row in zip(index, v, strict=True):
            if -7 <= i < 7:
                want[i] += row
    with fake_gpu():
        given = [ts.tensor(a.astype(np.float32), dtype=dtype).to("cuda") for a in (x, v)]
        got = ts.jit(op.scatter_add)(*given, ts.tensor(index).to("cuda"))
        np.testing.assert_array_equal(got.numpy().astype(np.float32), want)
