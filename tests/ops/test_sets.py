"""Distinct elements as kernels of a device find them: NumPy's, with each NaN by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.ops.sets import _unique_far
from tests.support.fakes.gpu_fake import fake_gpu

RUNS_ON = "numpy"
NAN = np.nan
ROWS: list[Any] = [
    [1.0], [NAN], [NAN, NAN], [3.0, NAN, 1.0, 3.0, NAN, -1.0, NAN], [0.0, -0.0, 0.0],
    [np.inf, NAN, np.inf, -np.inf],
    [[2, 1, 2], [1, 5, 2]], [7], [0, 0, 0, 0], [True, False, True], [[5, 4], [3, 2]],
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_what_a_device_finds_is_what_numpy_finds(row: Any) -> None:
    x = np.array(row)
    found = _unique_far(ts.tensor(x))
    want = np.unique(
        x.reshape(-1), return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    values, first, inverse, counts = (np.asarray(v) for v in found)
    np.testing.assert_array_equal(values, want[0])
    np.testing.assert_array_equal(counts, want[3])
    np.testing.assert_array_equal(values[inverse], x)
    assert inverse.shape == x.shape
    flat = x.reshape(-1)
    np.testing.assert_array_equal(flat[first], values)
    assert len(set(first.tolist())) == len(first)
    assert sorted(np.bincount(inverse.reshape(-1)).tolist()) == sorted(counts.tolist())
    with fake_gpu():
        far = ts.tensor(x).to("cuda")
        got, count = op.unique_values(far).numpy(), [v.numpy() for v in op.unique_counts(far)]
    np.testing.assert_array_equal(got, want[0])
    np.testing.assert_array_equal(count[1], want[3])
