"""Every elementwise op in every narrow format: jitted code gives the bits of eager code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import bf16, f8e4m3, f8e5m2, f16, op
from tessera.core.dtype import DType
from tessera.core.errors import DTypeError
from tests.fuzz.rules import RULES
from tests.fuzz.rules_numbers import binary, public_functions_of, unary
from tests.support.runners.tolerance import assert_same_bits

X = np.array([0.0, -0.0, 1.0, -0.25, 2.5, np.nan, 1e-3, -3.0, 0.375])
Y = np.array([1.0, 0.5, 1.0, 0.0, -2.0, 1.0, 0.0, 4.0, 0.5])


def results(x: Any, y: Any) -> list[Any]:
    """What each op gives that takes the format."""
    found = []
    for name, f in public_functions_of().items():
        args = {unary: (x,), binary: (x, y)}.get(RULES.get(name))
        if args is None or "f" not in f.op.kinds:
            continue
        try:
            found.append(f(*args))
        except DTypeError:
            continue
    return found


@pytest.mark.parametrize("d", [f8e4m3, f8e5m2, bf16, f16], ids=str)
def test_jitted_elementwise_ops_have_the_bits_of_eager_ones(d: DType) -> None:
    x, y = ts.tensor(X, dtype=d), ts.tensor(Y, dtype=d)
    eager, jitted = results(x, y), ts.jit(results)(x, y)
    assert len(eager) > 70
    for a, b in zip(jitted, eager, strict=True):
        assert_same_bits(a, b)


@pytest.mark.parametrize("d", [f8e4m3, f8e5m2, bf16, f16], ids=str)
def test_the_next_number_is_the_next_of_the_format_in_jit_too(d: DType) -> None:
    """8-bit floats were computed in f32, whose next number rounds back to the first."""
    x, y = ts.tensor([1.0, -0.25, 0.0], dtype=d), ts.tensor([2.0, 0.0, 1.0], dtype=d)
    got = ts.jit(op.nextafter)(x, y)
    assert_same_bits(got, op.nextafter(x, y))
    assert bool(np.all(np.asarray(got).astype(float) != np.asarray(x).astype(float)))
