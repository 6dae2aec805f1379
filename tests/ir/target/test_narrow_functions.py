"""Functions of kernels that store narrow floats alone: their formulas, with NumPy in Triton's place."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, bf16, op
from tessera.compile import compile_graph
from tessera.ir.target.triton.scalars import HELPERS, NARROW

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "log1p": np.log1p, "expm1": np.expm1, "atan": np.arctan, "tanh": np.tanh,
}  # fmt: skip


def fma(x: Any, y: Any, z: Any) -> Any:
    return (np.float64(x) * np.float64(y) + np.float64(z)).astype(np.float32)


TL = SimpleNamespace(
    abs=np.abs, where=np.where, fma=fma, exp2=np.exp2, log2=np.log2
)  # fmt: skip
NAMES = {
    "tl": TL,
    "triton": SimpleNamespace(jit=lambda f: f),
    "libdevice": SimpleNamespace(fast_dividef=lambda x, y: np.float32(x) / y),
}


def numbers(dtype: Any) -> Any:
    """All of a format that are finite, and the infinities."""
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    return x[~np.isnan(x.astype(np.float32))].astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_vanish_in_the_rounding(name: str, dtype: Any) -> None:
    """At most 2^-16 of a number of 16 bits, and the sign of 0, infinities and what has no value kept."""
    made = dict(NAMES)
    exec(HELPERS[f"narrow_{name}"], made)  # the text is that of the kernels
    assert NARROW[name] == f"narrow_{name}({{0}})"
    x = numbers(dtype)
    with np.errstate(all="ignore"):
        got = made[f"narrow_{name}"](x)  # type: ignore[operator]
        want = FUNCTIONS[name](x.astype(np.float64))
        assert got.dtype == np.float32
        assert np.array_equal(np.isnan(got), np.isnan(want))
        limit = np.finfo(np.float32).max
        plain = np.isfinite(want) & (abs(want) <= limit) & (abs(want) > 1e-37)
        error = abs(got[plain] - want[plain]) / abs(want[plain])
        assert error.max() <= 2.0**-16
        huge = np.isfinite(want) & (abs(want) > limit) | np.isinf(want)
        assert np.array_equal(np.sign(got[huge]), np.sign(want[huge]))
        assert np.isinf(got[huge]).all()
    zero = x == 0
    assert np.array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_kernels_have_the_functions_that_they_call(name: str) -> None:
    g = ts.trace(getattr(op, name), Tensor[5, 7, bf16])
    made: Any = compile_graph(g, "cuda:sm_90")
    (text,) = made.target_at([(5, 7)]).values()
    assert f"def narrow_{name}(" in str(text)
