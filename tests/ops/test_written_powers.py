"""Powers that a program writes as numbers are products, everywhere with the same bits."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import KTile, f32, kernel, op, tile
from tessera.core.dtype import bf16, f64

X = np.array(
    [-np.inf, -2.5, -1.0, -0.0, 0.0, 1e-30, 0.3, 1.0, 7.7, 1e30, np.inf, np.nan], np.float32
)
SHORT: dict[float, Callable[[Any], Any]] = {2: lambda x: x * x, 1: lambda x: x, -1: lambda x: 1 / x}


@pytest.mark.parametrize("e", [2, 2.0, 1, -1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_bits_are_those_of_products(e: float, dtype: type) -> None:
    x = X.astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = SHORT[e](x)
    for made in (ts.tensor(x) ** e, op.pow(x, e), ts.jit(lambda x: x**e)(x)):
        np.testing.assert_array_equal(np.asarray(made), wanted, strict=True)


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("e", [2, 3, 4, 1, -1, 0.5, 1.5])
def test_an_exponent_has_one_result_however_it_is_given(e: float, dtype: str) -> None:
    """As a number of the program, as an argument of jit, and as a tensor."""
    draw = np.random.default_rng(0).standard_normal(20_000) * 10
    x = ts.tensor(np.concatenate([draw, X.astype(np.float64)]), dtype=dtype)

    def wide(y: Any) -> Any:  # NumPy does not compare NaN of bf16
        y = np.asarray(y)
        return y.astype(np.float32) if dtype == "bf16" else y

    wanted = wide(x**e)
    with_tensor = x ** op.full((), float(e), x.dtype)
    for made in (ts.jit(lambda x, e: x**e)(x, e), ts.jit(lambda x: x**e)(x), with_tensor):
        np.testing.assert_array_equal(wide(made), wanted, strict=True)


def test_other_powers_and_exponents_in_tensors_are_functions() -> None:
    x = np.array([0.3, 1.7, 20.0], np.float32)
    for e in (-2, 5, 1.5, 0, 0.25):
        np.testing.assert_allclose(np.asarray(op.pow(x, e)), x.astype(np.float64) ** e, rtol=3e-7)
    np.testing.assert_allclose(
        np.asarray(op.pow(x, np.float32([2, 3, 0.5]))), x ** np.float32([2, 3, 0.5])
    )
    np.testing.assert_allclose(np.asarray(2.0 ** ts.tensor(x)), 2.0**x, rtol=1e-6)


@pytest.mark.parametrize("e", [3, 4])
def test_powers_of_narrow_floats_are_rounded_once(e: int) -> None:
    x = np.linspace(0.1, 3, 200)
    t = ts.tensor(x, dtype=bf16)
    exact = np.asarray(op.cast(t, f64)) ** e
    wanted = np.asarray(op.cast(ts.tensor(exact.astype(np.float32)), bf16))
    assert (np.asarray(t**e) == wanted).mean() > 0.99


def test_derivatives() -> None:
    x = np.array([0.3, 1.7, -2.0])
    for e in (2, 3, 4, -1):
        found = np.asarray(ts.grad(lambda x, e=e: op.sum(x**e))(x))
        np.testing.assert_allclose(found, e * x ** (e - 1.0), rtol=1e-12)
    np.testing.assert_allclose(
        np.asarray(ts.grad(lambda x: op.sum(x**0.5))(abs(x))), 0.5 * abs(x) ** -0.5
    )


def test_integers_and_complex_numbers() -> None:
    np.testing.assert_array_equal(np.asarray(ts.tensor([3, -4]) ** 2), [9, 16])
    np.testing.assert_allclose(np.asarray(ts.tensor([1 + 2j]) ** 2), [-3 + 4j])
    np.testing.assert_allclose(np.asarray(ts.tensor([4, 9]) ** 0.5), [2, 3])


@kernel
def powers(x: KTile["M", "N", f32]):
    t = tile.load(x)
    return t**2 + pow(t, 2.0) + t**-1 + t**1, t**3 + tile.abs(t) ** 1.5


def test_kernels_take_powers_as_programs_do() -> None:
    x = np.random.default_rng(0).standard_normal((5, 37)).astype(np.float32)
    short, others = powers(x)
    np.testing.assert_array_equal(np.asarray(short), x * x + x * x + 1 / x + x)
    np.testing.assert_array_equal(
        np.asarray(others), np.asarray(op.pow(x, 3) + op.pow(op.abs(x), 1.5))
    )
    text = str(powers.lower(x).tile)
    assert text.count('"square"') == text.count('"pow"') == 2
