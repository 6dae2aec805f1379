"""Factors of small matrices by kernels: every level has one set of bits; NumPy is the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, op
from tessera.core.errors import NumericalError
from tessera.core.small_matrices import MOST
from tessera.ir.graph.interp import interpret
from tessera.ir.schedule.ir import Primitive
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.verify import verify
from tests.support.cases.random_graphs import same_bits
from tests.support.runners import levels

SHAPES = [(1, 1), (2, 2), (5, 3, 3), (17, 4, 4), (2, 9, 9), (MOST, MOST)]
DTYPES = (np.float32, np.float64)


def matrices(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Any:
    """Well-conditioned matrices whose largest elements are off the diagonal."""
    rng = np.random.default_rng([seed, *shape])
    q, _ = np.linalg.qr(rng.normal(size=shape))
    return (q * rng.uniform(1, 3, shape[-1])).astype(dtype)


def definite(shape: tuple[int, ...], dtype: Any) -> Any:
    x = matrices(shape, np.float64)
    return (x @ np.swapaxes(x, -1, -2)).astype(dtype)


def sides(shape: tuple[int, ...], k: int, dtype: Any) -> Any:
    return np.random.default_rng(7).normal(size=(*shape[:-1], k)).astype(dtype)


TRIANGLES = [
    {"lower": down, "transpose": turned, "unit_diagonal": unit}
    for down in (True, False) for turned in (True, False) for unit in (True, False)
]  # fmt: skip
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], int]] = {
    "cholesky": (op.cholesky, np.linalg.cholesky, 0),
    "det": (op.det, np.linalg.det, 0),
    "sign": (lambda x: op.slogdet(x)[0], lambda x: np.linalg.slogdet(x)[0], 0),
    "logabsdet": (lambda x: op.slogdet(x)[1], lambda x: np.linalg.slogdet(x)[1], 0),
    "inv": (op.inv, np.linalg.inv, 0),
    "solve of one": (op.solve, np.linalg.solve, 1),
    "solve": (op.solve, np.linalg.solve, 37),
}


def arguments(name: str, shape: tuple[int, ...], dtype: Any) -> list[Any]:
    x = (definite if name == "cholesky" else matrices)(shape, dtype)
    return [x, sides(shape, CASES[name][2], dtype)] if CASES[name][2] else [x]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_are_those_of_numpy(name: str, shape: tuple[int, ...], dtype: Any) -> None:
    f, reference, _ = CASES[name]
    xs = arguments(name, shape, dtype)
    got = np.asarray(ts.jit(f)(*xs))
    want = reference(*(x.astype(np.float64) for x in xs))
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(got, want, rtol=60 * eps, atol=60 * eps * np.max(np.abs(want)))
    assert same_bits([got], [np.asarray(f(*map(ts.tensor, xs)))])
    lowered = ts.jit(f).lower(*map(ts.tensor, xs))
    assert all(name.startswith(("sound", "constant")) for name in lowered.host_steps)


@pytest.mark.parametrize("p", TRIANGLES, ids=str)
@pytest.mark.parametrize("k", [1, 40])
def test_substitution(p: dict[str, bool], k: int) -> None:
    shape = (3, 7, 7)
    a = matrices(shape, np.float64) + 3 * np.eye(7)
    b = sides(shape, k, np.float64)
    t = np.tril(a) if p["lower"] else np.triu(a)
    t = t - t * np.eye(7) + np.eye(7) if p["unit_diagonal"] else t
    t = np.swapaxes(t, -1, -2) if p["transpose"] else t
    f = lambda a, b: op.triangular_solve(a, b, **p)  # noqa: E731
    got = np.asarray(ts.jit(f)(a, b))
    assert same_bits(
        interpret(levels.prepared(ts.trace(f, *map(ts.tensor, (a, b)))), (a, b)), [got]
    )
    np.testing.assert_allclose(got, np.linalg.solve(t, b), rtol=1e-9, atol=1e-11)
    assert same_bits([got], [np.asarray(op.triangular_solve(a, b, **p))])


def test_rows_are_swapped_for_the_first_of_the_largest() -> None:
    x = np.array([[1.0, 2, 3], [4, 5, 6], [-4, 8, 10]])
    perm, lower_, upper = (np.asarray(v) for v in ts.jit(op.lu)(x))
    np.testing.assert_array_equal(perm, [1, 2, 0])
    np.testing.assert_allclose(lower_ @ upper, x[perm], rtol=1e-15)
    assert np.all(np.abs(lower_) <= 1)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shape", [(1, 1), (18, 3, 3), (2, 5, 5)], ids=str)
def test_every_level_has_the_same_bits(name: str, shape: tuple[int, ...]) -> None:
    f, xs = CASES[name][0], arguments(name, shape, np.float32)
    g = levels.prepared(ts.trace(f, *map(ts.tensor, xs)))
    p = lower(g)
    assert any(isinstance(s, Primitive) and s.primitive.startswith("small_") for s in p.steps)
    verify(p)
    want = levels.by_schedule(p, xs)
    eps = 8 * float(np.finfo(np.float32).eps)  # NumPy multiplies in an order of its own
    np.testing.assert_allclose(interpret(g, xs), want, rtol=eps, atol=eps)
    for run in (levels.by_tile, levels.by_llvm):
        assert same_bits(run(p, xs), want), run.__name__


@pytest.mark.parametrize("name", CASES)
def test_a_matrix_knows_nothing_of_its_neighbours(name: str) -> None:
    f, xs = CASES[name][0], arguments(name, (19, 5, 5), np.float32)
    whole = np.asarray(ts.jit(f)(*xs))
    alone = np.stack([np.asarray(ts.jit(f)(*(x[i] for x in xs))) for i in range(19)])
    assert same_bits([whole], [alone])
    mapped = np.asarray(ts.jit(ts.vmap(f))(*xs))
    assert same_bits([mapped], [alone])
    assert same_bits([np.asarray(f(*map(ts.tensor, xs)))], [whole])


def test_a_batch_may_be_a_symbol() -> None:
    @ts.jit
    def f(x: Tensor["B", 4, 4], b: Tensor["B", 4, "K"]) -> Any:
        return op.solve(x, b), op.cholesky(x @ op.matrix_transpose(x))

    for count in (1, 16, 21):
        x, b = matrices((count, 4, 4), np.float32), sides((count, 4, 4), 3, np.float32)
        y, c = f(x, b)
        np.testing.assert_allclose(x @ np.asarray(y), b, atol=2e-5)
        np.testing.assert_allclose(
            c @ np.swapaxes(c, -1, -2), x @ np.swapaxes(x, -1, -2), atol=2e-5
        )


def test_what_has_no_factor_is_an_error() -> None:
    good = np.stack([np.eye(3), np.eye(3), np.eye(3)])
    bad = good * np.array([1, -1, 1])[:, None, None]
    flat = np.where(np.arange(3)[:, None, None] == 1, 0.0, good)
    cases: list[tuple[Any, Any, str]] = [
        (op.cholesky, bad, r"cholesky: f64\[3,3,3\] is not positive definite"),
        (op.inv, flat, r"inv: f64\[3,3,3\] is singular"),
        (lambda x: op.solve(x, np.ones((3, 1))), flat, r"solve: f64\[3,3,3\] is singular"),
        (lambda x: op.triangular_solve(x, np.ones((3, 1))), flat, "has a zero on its diagonal"),
        (op.cholesky, np.full((2, 2), np.nan), "is not positive definite"),
    ]
    for f, x, message in cases:
        for run in (f, ts.jit(f)):
            with pytest.raises(NumericalError, match=message):
                run(ts.tensor(x))
    assert float(op.det(flat)[1]) == 0.0
    sign, size = op.slogdet(flat)
    assert float(sign[1]) == 0.0
    assert float(size[1]) == -np.inf


def test_an_error_is_of_the_line_that_calls() -> None:
    bad = -np.eye(3)
    with pytest.raises(NumericalError, match="the first call"):
        op.cholesky(bad)  # the first call
    with pytest.raises(NumericalError, match="the second call"):
        op.cholesky(bad)  # the second call


def test_strict_numerics_take_small_factors() -> None:
    x = definite((4, 4), np.float32)
    with ts.numerics("strict"):
        assert np.isfinite(np.asarray(op.cholesky(ts.tensor(x)))).all()
        assert np.isfinite(np.asarray(ts.jit(op.inv)(x))).all()


def test_a_loop_solves_at_every_step() -> None:
    def f(x: Any, bs: Any) -> Any:
        return op.scan(
            lambda c, b: (op.solve(x, c + b), op.det(x) * c), op.zeros((4,), dtype="f64"), bs
        )

    x, bs = matrices((4, 4), np.float64), np.random.default_rng(1).normal(size=(6, 4))
    last, ys = ts.jit(f)(x, bs)
    c, want = np.zeros(4), []
    for b in bs:
        want.append(np.linalg.det(x) * c)
        c = np.linalg.solve(x, c + b)
    np.testing.assert_allclose(last, c, rtol=1e-12)
    np.testing.assert_allclose(ys, want, rtol=1e-12)
