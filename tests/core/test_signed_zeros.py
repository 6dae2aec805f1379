"""Zeros of both signs and NaN in running and scattered extremes, and in pools: eager, jitted and every
target have the same bits.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.ir.schedule.lower import lower
from tests.support.runners import levels

VALUES = (0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf)
ROWS = np.array([*itertools.product(VALUES, repeat=3)], np.float64)
LONG = np.random.default_rng(0).choice([0.0, -0.0, 0.0, -0.0, 1e-300, -1.0], (6, 37))
FUNCTIONS = {
    "cummax": lambda x: op.cummax(x, 1),
    "cummin": lambda x: op.cummin(x, 1),
    "cummax from the end": lambda x: op.cummax(x, 1, reverse=True),
    "cummin from the end": lambda x: op.cummin(x, 1, reverse=True),
    "cummax of columns": lambda x: op.cummax(x, 0),
    "max": lambda x: op.max(x, 1),
    "min": lambda x: op.min(x, 1),
    "maximum": lambda x: op.maximum(x[:, 0], x[:, 1]),
    "minimum": lambda x: op.minimum(x[:, 0], x[:, 1]),
    "scatter_max": lambda x: op.scatter_max(x, x[:, ::-1], ts.arange(x.shape[0]) // 2),
    "scatter_min": lambda x: op.scatter_min(x, x[:, ::-1], ts.arange(x.shape[0]) // 2),
    "max_pool": lambda x: op.max_pool(x[:, None, :], 2, stride=1),
    "max_pool with padding": lambda x: op.max_pool(x[:, None, :], 3, stride=2, padding=1),
}


def bits(x) -> bytes:
    """The bits of an array, all NaN as one."""
    x = np.asarray(x).copy()
    x[np.isnan(x)] = np.nan
    return x.tobytes()


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_everyone_has_the_same_bits(name, dtype):
    f = FUNCTIONS[name]
    for rows in (ROWS, LONG):
        x = ts.tensor(rows).astype(dtype)
        want = bits(f(x))
        for target in ("cpu", "numpy"):
            assert bits(ts.jit(f, target=target)(x)) == want, target
        p = lower(levels.prepared(ts.trace(f, x)))
        assert bits(levels.by_schedule(p, [x.numpy()])[0]) == want
        assert bits(levels.by_tile(p, [x.numpy()])[0]) == want
        got = (
            [f(x[i : i + 2]) for i in range(0, len(rows) - 1, 97)] if "columns" not in name else []
        )
        for i, g in zip(range(0, len(rows) - 1, 97), got, strict=False):
            if "scatter" not in name:
                assert bits(g) == bits(f(x)[i : i + 2])


def test_plus_zero_is_above_minus_zero():
    x = ts.tensor(np.array([-0.0, 0.0, -0.0]))
    assert np.signbit(op.cummax(x).numpy()).tolist() == [True, False, False]
    assert np.signbit(op.cummin(-x).numpy()).tolist() == [False, True, True]
    assert np.signbit(ts.jit(op.cummax)(x).numpy()).tolist() == [True, False, False]
