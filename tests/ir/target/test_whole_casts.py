"""Floats as integers: toward zero, NaN as 0, what is beyond as the ends; vectors stay vectors."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.dtype import as_dtype
from tessera.core.processor import machine

RUNS_ON = "cpu"
FLOATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
WHOLE = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)
_ENDS = [s * 2.0**k for k in (7, 8, 15, 16, 24, 31, 32, 62, 63, 64) for s in (1, -1)]
POINTS = [
    0.0, -0.0, 0.5, -0.5, 0.99, -0.99, 1.5, -1.5, math.inf, -math.inf, math.nan, 1e30, -1e30,
    *(e + d for e in _ENDS for d in (-1.5, -1, -0.5, 0, 0.5, 1)), *(e * 1.01 for e in _ENDS),
]  # fmt: skip


def whole(x: float, to: Any) -> int:
    """x as an integer of a dtype."""
    info = np.iinfo(to)
    if math.isnan(x):
        return 0
    if math.isinf(x):
        return int(info.max if x > 0 else info.min)
    return min(max(int(x), int(info.min)), int(info.max))


@pytest.mark.parametrize("source", FLOATS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("to", WHOLE, ids=lambda d: np.dtype(d).name)
def test_every_float_has_its_integer(source: Any, to: Any) -> None:
    with np.errstate(all="ignore"):
        x = np.array(POINTS, np.float64).astype(source)
    got = ts.jit(lambda v: op.cast(v, as_dtype(to)))(ts.tensor(x))
    want = np.array([whole(float(v), to) for v in x], to)
    np.testing.assert_array_equal(np.asarray(got), want)


@pytest.mark.skipif(machine() != "x86_64", reason="elsewhere one instruction does it")
@pytest.mark.parametrize("to", WHOLE, ids=lambda d: np.dtype(d).name)
def test_no_vector_is_taken_apart(to: Any) -> None:
    """LLVM has no vectors for its own conversion that saturates."""
    x = ts.tensor(np.zeros(1024, np.float32))
    text = str(ts.jit(lambda v: op.cast(v, as_dtype(to))).lower(x).target)
    assert "fpto" in text
    assert "i.sat.v" not in text
