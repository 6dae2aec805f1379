"""debug_nans: the first op that makes a NaN or an infinity is named, with the user's line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f64, op
from tessera.core.errors import NumericalError

X = ts.tensor(np.array([1.0, 0.0, 4.0]))


def logs(x: Any) -> Any:
    y = op.log(x)
    return op.sum(y * 2.0)


def quotients(x: Any) -> Any:
    z = x - x
    return z / z


def scanned(x: Any) -> Any:
    def step(c: Any, r: Any) -> Any:
        return c + op.sqrt(r - 1.0), None

    return ts.scan(step, op.sum(x), x)[0]


def branched(x: Any) -> Any:
    return ts.cond(x[0] > 0.0, lambda v: op.rsqrt(v), lambda v: v, x)


INNER = ts.jit(lambda x: op.reciprocal(x))


def nested(x: Any) -> Any:
    return op.sum(INNER(x))


PROGRAMS: dict[str, tuple[Any, str, str]] = {
    "inf": (
        logs,
        ": y = op.log(x)",
        "debug_nans: log made -inf at [1] of f64[3] from operands f64[3] that have none",
    ),
    "nan": (
        quotients,
        ": return z / z",
        "debug_nans: div made nan at [0] of f64[3] from operands f64[3], f64[3] that have none",
    ),
    "scan": (
        scanned,
        ": return c + op.sqrt(r - 1.0), None",
        "debug_nans: sqrt made nan at [] of f64[] from operands f64[] that have none",
    ),
    "cond": (
        branched,
        ": return ts.cond(x[0] > 0.0, lambda v: op.rsqrt(v), lambda v: v, x)",
        "debug_nans: rsqrt made inf at [1] of f64[3] from operands f64[3] that have none",
    ),
    "call": (
        nested,
        ": INNER = ts.jit(lambda x: op.reciprocal(x))",
        "debug_nans: reciprocal made inf at [1] of f64[3] from operands f64[3] that have none",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
def test_the_first_op_is_named_with_its_line(name: str, jitted: bool) -> None:
    f, line, text = PROGRAMS[name]
    run = ts.jit(f) if jitted else f
    run(X)  # compiled before, and silent without the check
    with ts.debug_nans(), pytest.raises(NumericalError) as e:
        run(X)
    assert e.value.message == text
    assert str(e.value).endswith(line)
    run(X)


def test_finite_programs_pass() -> None:
    def f(x: Any) -> Any:
        return op.softmax(op.where(x > 0.0, x, float("-inf"))) + op.tanh(x)

    with ts.debug_nans():
        np.testing.assert_array_equal(ts.jit(f)(X), f(X))


def test_what_is_given_is_not_to_blame() -> None:
    bad = ts.tensor(np.array([np.nan, np.inf, 1.0]))
    with ts.debug_nans():
        y = ts.jit(lambda x: op.exp(x) + 1.0)(bad)
        op.full((2,), float("nan"))
    assert np.isnan(y.numpy()[0])


def test_nan_from_infinities_is_made() -> None:
    x = ts.tensor(np.array([np.inf]))
    with (
        ts.debug_nans(),
        pytest.raises(NumericalError, match=r"^debug_nans: sub made nan at \[0\]"),
    ):
        x - x


def test_infinities_may_be_let_through() -> None:
    with ts.debug_nans(infinities=False):
        logs(X)
        with pytest.raises(NumericalError, match=r"^debug_nans: div made nan"):
            quotients(X)


def test_backward_passes_are_checked() -> None:
    def f(x: Any) -> Any:
        return op.sum(op.sqrt(x))

    for g in (ts.grad(f), ts.jit(ts.grad(f))):
        with ts.debug_nans(), pytest.raises(NumericalError, match=r"^debug_nans: .* made inf"):
            g(X)


def test_symbolic_sizes_and_narrow_dtypes() -> None:
    @ts.jit
    def f(x: Tensor["N", f64]) -> Any:
        return op.log(x)

    with (
        ts.debug_nans(),
        pytest.raises(NumericalError, match=r"^debug_nans: log made -inf at \[1\]"),
    ):
        f(X)
    with ts.debug_nans(), pytest.raises(NumericalError, match=r"made -inf at \[1\] of bf16\[3\]"):
        op.log(X.astype("bf16"))


def test_checks_end_with_the_block_even_after_an_error() -> None:
    with pytest.raises(NumericalError), ts.debug_nans():
        logs(X)
    logs(X)
    with ts.debug_nans(), ts.debug_nans(infinities=False):
        logs(X)
