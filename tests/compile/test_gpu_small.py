"""Small matrices and complex numbers on a GPU: kernels with the bits of the CPU, and the errors of the
ops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.dtype import f32
from tessera.core.errors import NumericalError
from tests.support.cases.op_cases import Case, all_cases
from tests.support.fakes.gpu_fake import at

RUNS_ON = "numpy"
# With the fake, the Tile interpreter runs what a device would.
PLACES = ["fake", pytest.param("device", marks=pytest.mark.gpu)]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[None]:
    with at(request.param):
        yield


def draw(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(shape).normal(size=shape).astype(dtype)


def even(x: Any) -> Any:
    return x @ x.swapaxes(-1, -2) + x.shape[-1] * np.eye(x.shape[-1], dtype=x.dtype)


PROGRAMS: dict[str, Any] = {
    "cholesky": lambda a, s, b: op.cholesky(s),
    "lu": lambda a, s, b: op.lu(a),
    "inv": lambda a, s, b: op.inv(a),
    "solve": lambda a, s, b: op.solve(a, b),
    "column": lambda a, s, b: op.solve(a, b[..., :1]),
    "lower": lambda a, s, b: op.triangular_solve(s, b, lower=True),
    "upper": lambda a, s, b: op.triangular_solve(s, b, lower=False, unit_diagonal=True),
    "turned": lambda a, s, b: op.triangular_solve(s, b, lower=True, transpose=True),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", PROGRAMS)
def test_factors_have_the_bits_of_the_cpu(name: str, dtype: Any, place: None) -> None:
    f = PROGRAMS[name]
    for n, batch in [(1, (2,)), (2, ()), (3, (2, 20)), (5, (1,)), (8, (3,)), (13, ())]:
        a = draw(*batch, n, n, dtype=dtype)
        xs = [ts.tensor(x) for x in (a, even(a), draw(*batch, n, 35, dtype=dtype))]
        want = ts.tree.leaves(ts.jit(f, target="cpu")(*xs))
        got = ts.tree.leaves(ts.jit(f)(*(x.to("cuda") for x in xs)))
        for g, w in zip(got, want, strict=True):
            np.testing.assert_array_equal(g.numpy(), w.numpy(), err_msg=f"{n} {batch}")


def test_rows_are_swapped_as_on_the_cpu(place: None) -> None:
    """Ties, zeros of both signs, NaN in and below the row of the pivot, infinities, singular matrices."""
    rng = np.random.default_rng(5)
    parts = np.array([0.0, -0.0, 1.0, -1.0, 2.0, np.nan, np.inf], np.float32)
    x = ts.tensor(parts[rng.choice(7, (300, 3, 3), p=[0.2, 0.2, 0.2, 0.2, 0.14, 0.03, 0.03])])
    want, got = ts.jit(op.lu, target="cpu")(x), ts.jit(op.lu)(x.to("cuda"))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g.numpy(), w.numpy())
        if w.dtype is f32:
            known = ~np.isnan(w.numpy())  # NaN has any sign
            np.testing.assert_array_equal(
                np.signbit(g.numpy())[known], np.signbit(w.numpy())[known]
            )


def test_a_matrix_without_a_factor_is_the_error_of_the_op(place: None) -> None:
    bad = ts.tensor(np.array([[1, 2], [2, 1]], np.float32)).to("cuda")
    with pytest.raises(NumericalError, match=r"cholesky: f32\[2,2\] is not positive definite"):
        ts.jit(lambda x: op.sum(op.cholesky(x)) + 1)(bad)
    with pytest.raises(NumericalError, match=r"inv: f32\[2,2\] is singular"):
        op.inv(bad * 0)

    def steps(x: Any) -> Any:
        return op.scan(lambda c, _: (op.inv(c), c), x, op.iota(3, 0, ts.f32))

    good = np.array([[2, 1], [1, 1]], np.float32)
    last, _ = ts.jit(steps)(ts.tensor(good).to("cuda"))
    np.testing.assert_allclose(last.numpy(), np.linalg.inv(good), rtol=1e-5)
    with pytest.raises(NumericalError, match="inv"):
        ts.jit(steps)(bad * 0)


def test_no_step_of_a_filter_runs_on_the_host() -> None:
    def f(p: Any, h: Any, z: Any) -> Any:
        s = h @ p @ h.T + op.eye(3)
        return p @ h.T @ op.solve(s, z), op.slogdet(s)[1], op.cholesky(s)

    xs = [ts.tensor(x) for x in (even(draw(4, 4)), draw(3, 4), draw(3))]
    lowered = ts.jit(f, target="cuda:sm_90").lower(*xs)
    assert lowered.host_steps == {}


# Complex numbers ---------------------------------------------------------------------------------


def as_complex(x: Any) -> Any:
    return op.complex(x, x * 0.5) if x.dtype is f32 else x


def run(c: Case) -> tuple[list[Any], list[Any]] | None:
    """What a case gives on the CPU and on a GPU; None where it takes no complex numbers, or the GPU leaves
    some of it to the host.
    """
    xs = [as_complex(ts.tensor(x)) for x in c.draw(f32)]
    try:
        want = ts.tree.leaves(ts.jit(lambda *a: c.call(a), target="cpu")(*xs))
    except ts.TesseraError:
        return None
    if ts.jit(lambda *a: c.call(a), target="cuda:sm_90").lower(*xs).host_steps:
        return None
    with at("fake"):
        made = ts.jit(lambda *a: c.call(a))(*(x.to("cuda") for x in xs))
        return [x.numpy() for x in ts.tree.leaves(made)], [x.numpy() for x in want]


def compare(cases: list[Case]) -> int:
    seen = 0
    for c in cases:
        found = run(c)
        if found is None:
            continue
        seen += 1
        for got, want in zip(*found, strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=c.name)
    return seen


def takes_floats(c: Case) -> bool:
    return c.name not in ("fori_loop", "state_move")


def test_complex_ops_mean_what_they_mean_here() -> None:
    assert compare([c for c in all_cases() if takes_floats(c)][::24]) > 15


@pytest.mark.deep
def test_all_complex_ops_mean_what_they_mean_here() -> None:
    assert compare([c for c in all_cases() if takes_floats(c)]) > 500


def test_complex_numbers_have_the_bits_of_the_cpu(place: None) -> None:
    x = draw(40, 2) * 3
    z = ts.tensor(x[:, 0] + 1j * x[:, 1])

    def f(z: Any) -> Any:
        return (
            op.exp(z) / (1 + z * z),
            op.sqrt(z),
            op.abs(op.log(z)),
            op.where(op.real(z) > 0, z, -z) ** 3,
        )

    def march(z: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            c = op.ifft(op.fft(c) * op.exp(-0.1j * op.abs(c) ** 2))
            return c, op.sum(op.abs(c))

        return op.scan(step, z, op.iota(3, 0, f32))

    for g in (f, march):
        want, got = ts.jit(g, target="cpu")(z), ts.jit(g)(z.to("cuda"))
        for a, b in zip(ts.tree.leaves(got), ts.tree.leaves(want), strict=True):
            if g is f:
                np.testing.assert_array_equal(a.numpy(), b.numpy())
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5)
