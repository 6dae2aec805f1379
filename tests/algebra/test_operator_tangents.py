"""Derivatives of operator-valued functions are operators: those of the matrix, for every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.algebra.kind import KINDS
from tests.support.cases.operator_cases import close
from tests.support.cases.operator_functions import SAMPLES, A, B, N, V

RUNS_ON = "numpy"  # what is compared here is algebra, not machine code
RNG = np.random.default_rng(9)


def dense(a: Any) -> Any:
    return np.asarray(a.todense())


def difference(f: Any, x: Any, dx: Any, h: float = 1e-3) -> Any:
    """The derivative of the matrix along dx, by differences of fourth order."""
    at = [dense(f(ts.tensor(x + k * h * dx))) for k in (-2, -1, 1, 2)]
    return (at[0] - 8 * at[1] + 8 * at[2] - at[3]) / (12 * h)


@pytest.mark.parametrize("name", SAMPLES)
def test_forward(name: str) -> None:
    make, matrix, x = SAMPLES[name]
    dx = RNG.normal(size=x.shape)
    value, moved = ts.jvp(make, (ts.tensor(x),), (ts.tensor(dx),))
    close(dense(value), matrix(np, x), 1e-9)
    assert isinstance(moved, ts.Operator)
    assert moved.shape == value.shape
    assert op.check_flags(moved) == ()
    want = difference(make, x, dx)
    close(dense(moved), want, 1e-7)
    for turned, m in ((moved, want), (moved.T, want.T), (moved.H, want.T)):
        close(turned @ np.arange(1.0, 1 + m.shape[1]), m @ np.arange(1.0, 1 + m.shape[1]), 1e-7)
        y = np.ones((m.shape[1], 2))
        close(turned @ y, m @ y, 1e-7)
    close(moved.diagonal(), np.diagonal(want), 1e-7)
    _, linear = ts.linearize(make, ts.tensor(x))
    close(dense(linear(ts.tensor(dx))), want, 1e-7)
    assert linear.shape == (want.size, x.size)
    close(linear @ dx.reshape(-1), want.reshape(-1), 1e-7)
    close(np.tensordot(np.asarray(ts.jacfwd(make)(ts.tensor(x))), dx, x.ndim), want, 1e-7)


@pytest.mark.parametrize("name", SAMPLES)
def test_reverse(name: str) -> None:
    make, _, x = SAMPLES[name]
    dx = RNG.normal(size=x.shape)
    want = difference(make, x, dx)
    value, back = ts.vjp(make, ts.tensor(x))
    weight, thin = RNG.normal(size=value.shape), RNG.normal(size=(value.shape[0], 2))
    other = RNG.normal(size=(value.shape[1], 2))
    cts = (weight, weight), (op.dense(weight), weight), (op.low_rank(thin, other), thin @ other.T)
    for ct, m in cts:
        (g,) = back(ct)
        assert g.shape == x.shape
        close(np.sum(np.asarray(g) * dx), np.sum(m * want), 1e-7)
    _, linear = ts.linearize(make, ts.tensor(x))
    close(linear.T(ts.tensor(weight)), back(weight)[0], 1e-9)
    close(linear.T @ weight.reshape(-1), np.asarray(back(weight)[0]).reshape(-1), 1e-9)
    rows = np.asarray(ts.jacrev(make)(ts.tensor(x)))
    assert rows.shape == (*value.shape, *x.shape)
    close(np.tensordot(rows, dx, x.ndim), want, 1e-7)

    def loss(t: Any) -> Any:
        return op.sum(make(t).todense() * weight), make(t)

    (total, held), g = ts.value_and_grad(loss, has_aux=True)(ts.tensor(x))
    close(np.sum(np.asarray(g) * dx), np.sum(weight * want), 1e-7)
    assert total.shape == ()
    assert held.shape == value.shape


def test_every_kind_is_differentiated() -> None:
    reached: set[str] = set()

    def enter(a: Any) -> None:
        reached.add(a.kind)
        for p in a.parts:
            enter(p)

    for make, _, x in SAMPLES.values():
        enter(make(ts.tensor(x)))
        enter(ts.jvp(make, (ts.tensor(x),), (ts.tensor(x),))[1])
    complex_only = {"transpose", "conj", "fft"}
    assert set(KINDS) - reached == {"linear_map"} | complex_only


@pytest.mark.parametrize(
    "name", ["compose", "expm", "circulant", "from_matvec of a closure", "block"]
)
def test_under_jit_and_vmap(name: str) -> None:
    make, _, x = SAMPLES[name]
    dx = RNG.normal(size=x.shape)
    eager = dense(ts.jvp(make, (ts.tensor(x),), (ts.tensor(dx),))[1])
    jitted = ts.jit(lambda t, d: ts.jvp(make, (t,), (d,))[1])(ts.tensor(x), ts.tensor(dx))
    close(dense(jitted), eager, 1e-12)
    weight = np.cos(np.arange(eager.size)).reshape(eager.shape)
    pulled = ts.jit(lambda t, c: ts.vjp(make, t)[1](c)[0])(ts.tensor(x), ts.tensor(weight))
    close(pulled, ts.vjp(make, ts.tensor(x))[1](weight)[0], 1e-12)
    several = np.stack([dx, 2 * dx])
    batch = ts.vmap(lambda d: ts.jvp(make, (ts.tensor(x),), (d,))[1].todense())(ts.tensor(several))
    close(batch, np.stack([eager, 2 * eager]), 1e-12)


def test_second_derivatives() -> None:
    x, d = ts.tensor(A), ts.tensor(B)

    def slope(t: Any) -> Any:
        return ts.jvp(lambda s: op.dense(s) @ op.dense(s) @ op.dense(s), (t,), (d,))[1]

    _, twice = ts.jvp(slope, (x,), (d,))
    close(dense(twice), 2 * (B @ B @ A + B @ A @ B + A @ B @ B), 1e-12)
    g = ts.grad(lambda t: op.sum(slope(t).todense()))(x)
    want = ts.jacrev(lambda t: op.sum(d @ t @ t + t @ d @ t + t @ t @ d))(x)
    close(g, want, 1e-12)


def test_complex_operators_pair_as_complex_matrices_do() -> None:
    c = RNG.normal(size=(2, N)) + 1j * RNG.normal(size=(2, N))
    weight = RNG.normal(size=(N, N)) + 1j * RNG.normal(size=(N, N))
    x, dx = ts.tensor(c[0]), ts.tensor(c[1])
    F = op.fft(N, dtype=ts.c128)
    for make in (
        lambda t: F @ op.diag(t) @ F.H,
        lambda t: (F @ op.diag(t)).T @ op.circulant(t),
        lambda t: (op.triangular(op.dense(np.ones((N, N))).todense() * t) @ F).conj(),
        lambda t: op.toeplitz(t).H @ op.inverse(op.circulant(t)),
    ):
        by_matrix = lambda t, make=make: make(t).todense()  # noqa: E731
        _, moved = ts.jvp(make, (x,), (dx,))
        _, want = ts.jvp(by_matrix, (x,), (dx,))
        close(dense(moved), want, 1e-12)
        close(dense(moved.H), np.asarray(want).conj().T, 1e-12)
        want_back = ts.vjp(by_matrix, x)[1](ts.tensor(weight))[0]
        close(ts.vjp(make, x)[1](weight)[0], want_back, 1e-12)
        close(ts.vjp(make, x)[1](op.dense(weight))[0], want_back, 1e-12)
        low = op.low_rank(weight[:, :1], weight[:, 1:2])
        want_back = ts.vjp(by_matrix, x)[1](low.todense())[0]
        close(ts.vjp(make, x)[1](low)[0], want_back, 1e-12)
        (_, linear), (_, plain) = ts.linearize(make, x), ts.linearize(by_matrix, x)
        close(linear.H(weight), plain.H(ts.tensor(weight)), 1e-12)
        close(dense(linear.H.H(dx)), plain(dx), 1e-12)


# Operators as arguments --------------------------------------------------------------------------


def test_the_tangent_of_an_argument_holds_tangents_of_its_tensors() -> None:
    a, d = (
        op.kronecker(A[:2, :2], op.dense(B[:2, :2])),
        op.kronecker(B[:2, :2], op.dense(A[:2, :2])),
    )
    want = np.kron(B[:2, :2], B[:2, :2]) + np.kron(A[:2, :2], A[:2, :2])
    _, same = ts.jvp(lambda a: a, (a,), (d,))
    close(dense(same), want, 1e-12)
    _, moved = ts.jvp(lambda a: a @ a, (a,), (d,))
    m = dense(a)
    close(dense(moved), want @ m + m @ want, 1e-12)
    _, moved = ts.jvp(lambda a: a @ V, (a,), (same,))  # a tangent that jvp gave is taken again
    close(moved, want @ V, 1e-12)


def test_flags_of_tangents_need_not_be_those_of_the_primals() -> None:
    m = A + A.T
    a = op.dense(m, flags=("self_adjoint", "invertible"))
    _, moved = ts.jvp(lambda a: a @ a, (a,), (op.dense(B),))
    close(dense(moved), B @ m + m @ B, 1e-12)
    _, moved = ts.jvp(lambda a: a @ a, (a,), (op.diag(V),))  # any operator is a matrix of tangents
    close(dense(moved), np.diag(V) @ m + m @ np.diag(V), 1e-12)
    _, moved = ts.jvp(lambda a: a @ a, (a,), (op.zero(N, dtype=ts.f64),))
    assert not np.any(dense(moved))


def test_chains_of_derivatives() -> None:
    """jvp and vjp of f, then of g at what f gave, are those of g of f."""

    def f(t: Any) -> Any:
        return op.kronecker(t, op.circulant(t[0]))

    def g(a: Any) -> Any:
        return op.sum(op.sin(a @ np.ones(a.shape[1])))

    x, dx = ts.tensor(A[:2, :2]), ts.tensor(B[:2, :2])
    y, moved = ts.jvp(f, (x,), (dx,))
    _, slope = ts.jvp(g, (y,), (moved,))
    close(slope, ts.jvp(lambda t: g(f(t)), (x,), (dx,))[1], 1e-12)
    want = ts.grad(lambda t: g(f(t)))(x)
    y, back = ts.vjp(f, x)
    ct = ts.grad(g)(y)
    close(back(ct)[0], want, 1e-12)
    close(back(ts.tree.map(lambda v: 2 * v, ct))[0], 2 * np.asarray(want), 1e-12)
    _, first = ts.linearize(f, x)
    _, second = ts.linearize(g, y)
    chain = second @ first
    close(chain(dx), slope, 1e-12)
    close(chain.T(ts.tensor(1.0, dtype=ts.f64)), want, 1e-12)


def test_hessian_products_by_operators_keep_their_structure() -> None:
    a, d = op.kronecker(A[:2, :2], B[:2, :2]), op.kronecker(B[:2, :2], A[:2, :2])
    loss = lambda a: op.sum(op.sin(a @ V))  # noqa: E731
    moved = ts.hvp(loss, (a,), (d,))
    assert ts.tree.structure(moved) == ts.tree.structure(a)
    h = 1e-5
    step = lambda k: ts.tree.map(lambda x, y: x + k * h * y, a, d)  # noqa: E731
    high, low = (ts.tree.leaves(ts.grad(loss)(step(k))) for k in (1, -1))
    for got, p, q in zip(ts.tree.leaves(moved), high, low, strict=True):
        close(got, (np.asarray(p) - np.asarray(q)) / (2 * h), 1e-7)


def test_the_tangent_of_a_decomposition_is_that_of_the_matrix() -> None:
    def halves(t: Any) -> Any:
        return op.spectral(op.sym(op.dense(t)))

    def singular(t: Any) -> Any:
        return op.spectral(op.dense(t))

    for f, whole in ((halves, lambda t: (t + t.T) / 2), (singular, lambda t: t)):
        for run in (lambda g: g, ts.jit):
            value, moved = run(lambda t, d, f=f: ts.jvp(f, (t,), (d,)))(ts.tensor(A), ts.tensor(B))
            close(dense(value.reconstruct()), whole(A), 1e-10)
            close(dense(moved.reconstruct()), whole(B), 1e-9)
            close(moved @ V, whole(B) @ V, 1e-9)
        want = np.linalg.eigvalsh(whole(A) + 1e-6 * whole(B)) if f is halves else None
        if want is not None:  # S and U are tangents of those of the decomposition
            order = np.argsort(-np.abs(want))
            close(moved.S, (want[order] - np.asarray(value.S)) / 1e-6, 1e-4)
        _, again = ts.jvp(lambda s: s.S * 2, (value,), (moved,))
        close(again, 2 * np.asarray(moved.S), 1e-12)
        _, back = ts.vjp(lambda t, f=f: f(t).S, ts.tensor(A))
        assert back(np.ones(N))[0].shape == (N, N)
    with pytest.raises(
        ts.TesseraError, match="filter: got a tangent, whose values are no eigenvalues"
    ):
        moved.filter(op.sin)


def test_the_pseudoinverse_of_factors_that_are_wider_than_high() -> None:
    for rows, cols in ((1, 3), (3, 1), (1, 1)):
        u, v = (ts.tensor(RNG.normal(size=(n, 2))) for n in (rows, cols))
        make = lambda u, v: op.pseudoinverse(op.low_rank(u, v))  # noqa: E731
        _, moved = ts.jvp(make, (u, v), (u * u, v * v))
        _, want = ts.jvp(lambda u, v: op.pinv(u @ v.T), (u, v), (u * u, v * v))
        close(dense(make(u, v)), np.linalg.pinv(np.asarray(u @ v.T)), 1e-12)
        close(dense(moved), want, 1e-10)


def test_gradients_have_not_the_flags_of_what_they_are_gradients_by() -> None:
    a = op.dense(A + A.T, flags=("self_adjoint",))
    g = ts.grad(lambda a: op.sum((a @ V) * A[0]))(a)
    assert g.flags == {"real"}
    close(dense(g.H), np.outer(V, A[0]), 1e-12)
    close(np.arange(4.0) @ g, np.arange(4.0) @ np.outer(A[0], V), 1e-12)
    moved = ts.tree.map(lambda p, q: p - 0.1 * q, a, g)  # the trees are alike
    assert "self_adjoint" in moved.flags
    twice = ts.tree.map(lambda q: 2 * q, g)
    assert twice.flags == {"real"}


# Errors ------------------------------------------------------------------------------------------


def message(run: Any) -> str:
    with pytest.raises(ts.TesseraError) as found:
        run()
    return str(found.value.message)


def test_errors() -> None:
    x = ts.tensor(A)
    product = op.dense(A) @ op.dense(B)
    assert message(lambda: ts.jvp(lambda a: a @ a, (product,), (op.dense(A),))) == (
        "jvp: the tangent of operator 0 is dense f64[4,4], expected compose(dense f64[4,4], dense f64[4,4]) "
        "f64[4,4] with tangents in place of its tensors, or a tangent of it that jvp gave"
    )
    assert message(lambda: ts.jvp(lambda a: a @ a, (op.dense(A),), (op.dense(A[:3]),))) == (
        "jvp: tangent 0 is f64[3,4], expected f64[4,4] as its primal"
    )
    back = ts.vjp(lambda t: op.dense(t) @ op.dense(t), x)[1]
    assert message(lambda: back(np.ones((2, 2)))) == (
        "vjp: cotangent 0 is f64[2,2], expected an operator or a matrix f64[4,4] for the result "
        "compose(dense f64[4,4], dense f64[4,4]) f64[4,4]"
    )
    assert message(lambda: back(op.eye(4))) == (
        "vjp: cotangent 0 is eye f32[4,4], expected an operator or a matrix f64[4,4] for the result "
        "compose(dense f64[4,4], dense f64[4,4]) f64[4,4]"
    )
    assert message(lambda: ts.jvp(lambda t: ts.linearize(op.sin, t)[1], (x,), (x,))) == (
        "jvp, vjp and linearize: the function returns what linearize gave, which has no tangent; return its "
        "matrix A.todense(), or op.jacobian(f, x)"
    )
    L = op.laplacian(4, dtype=ts.f64)
    assert message(
        lambda: ts.jvp(lambda t: op.function(L, lambda w: w * t[0, 0]), (x,), (x,))
    ).startswith(
        "tangent: f of function(stencil f64[4,4]) f64[4,4] uses tensors that are differentiated"
    )
