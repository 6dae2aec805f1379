"""Derivatives of spectral decompositions where values repeat or vanish: right, or an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import tessera as ts
from tessera import op
from tessera.core.errors import NumericalError, OperandError, ShapeError

RNG = np.random.default_rng(0)
C = RNG.normal(size=(4, 4))
Q = np.linalg.qr(RNG.normal(size=(4, 4)))[0]
P = np.linalg.qr(RNG.normal(size=(4, 4)))[0]
SPECTRA = {
    "one value": [1.0, 1.0, 1.0, 1.0],
    "all zero": [0.0, 0.0, 0.0, 0.0],
    "three and one": [2.0, 2.0, 2.0, 5.0],
    "two pairs": [0.0, 0.0, 3.0, 3.0],
    "rank one": [0.0, 0.0, 0.0, 4.0],
    "distinct": [1.0, 2.0, 3.0, 4.0],
    "nearly equal": [1.0, 1.0 + 1e-15, 2.0, 2.0 + 1e-5],
}
every_spectrum = pytest.mark.parametrize("name", SPECTRA)


def symmetric(name: str) -> Any:
    return Q @ np.diag(SPECTRA[name]) @ Q.T


def general(name: str) -> Any:
    return Q @ np.diag(SPECTRA[name]) @ P.T


def difference(f: Callable[[Any], Any], a: Any, h: float = 1e-5) -> Any:
    """The gradient of a real function by central differences."""
    out = np.zeros_like(a)
    for at in np.ndindex(a.shape):
        for part in (1, 1j) if a.dtype.kind == "c" else (1,):
            e = np.zeros_like(a)
            e[at] = h * part
            slope = (float(f(ts.tensor(a + e))) - float(f(ts.tensor(a - e)))) / (2 * h)
            # cotangents are transposes: the real part of ct * t is what moves
            out[at] += slope / part if part == 1 else -1j * slope
    return out


def close(got: Any, want: Any, rtol: float = 1e-8) -> None:
    scale = max(np.abs(np.asarray(want)).max(), 1e-3)
    np.testing.assert_allclose(np.asarray(got), want, rtol=rtol, atol=rtol * scale)


def by_vectors(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """V f(w) V^H written with eigh."""

    def run(a: Any) -> Any:
        w, v = op.eigh(a)
        return op.matmul(v * op.expand_dims(f(w), -2), op.matrix_transpose(op.conj(v)))

    return run


# Functions of a matrix --------------------------------------------------------------------------


@every_spectrum
def test_funm_has_the_derivative_of_the_exponential(name: str) -> None:
    a = symmetric(name)
    want = scipy.linalg.expm_frechet(a, (C + C.T) / 2, compute_expm=False)

    def loss(a: Any) -> Any:
        return op.sum(op.funm(a, op.exp) * C)

    close(op.funm(ts.tensor(a), op.exp), scipy.linalg.expm(a))
    close(ts.grad(loss)(ts.tensor(a)), want, 1e-12)
    close(ts.jit(ts.grad(loss))(ts.tensor(a)), want, 1e-12)
    t = RNG.normal(size=(4, 4))
    close(ts.jvp(loss, (ts.tensor(a),), (ts.tensor(t),))[1], np.sum(want * t), 1e-11)


@every_spectrum
@pytest.mark.parametrize(
    "f", [op.tanh, lambda w: op.log(w + 2.0), lambda w: w**3 - w], ids=["tanh", "log", "cubic"]
)
def test_funm_against_differences(name: str, f: Any) -> None:
    a = symmetric(name)
    loss = lambda a: op.sum(op.funm(a, f) * C)  # noqa: E731
    close(ts.grad(loss)(ts.tensor(a)), difference(loss, a), 1e-7)


@every_spectrum
def test_second_derivatives_of_funm(name: str) -> None:
    a, t = symmetric(name), RNG.normal(size=(4, 4))
    slope = ts.grad(lambda a: op.sum(op.funm(a, op.exp) * C))
    got = ts.jvp(slope, (ts.tensor(a),), (ts.tensor(t),))[1]
    high, low = (slope(ts.tensor(a + h * t)).numpy() for h in (1e-5, -1e-5))
    close(got, (high - low) / 2e-5, 1e-5)


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5)])
@pytest.mark.parametrize("values", [(2.0, 2.0, 1.0), (3.0, 0.0, 0.0), (0.0, 0.0, 0.0)])
def test_singular_map_against_differences(shape: tuple[int, int], values: Any) -> None:
    u, v = (np.linalg.qr(RNG.normal(size=(n, n)))[0] for n in shape)
    a = u[:, :3] @ np.diag(values) @ v[:, :3].T
    weight = ts.tensor(RNG.normal(size=shape))
    loss = lambda a: op.sum(op.singular_map(a, op.tanh) * weight)  # noqa: E731
    close(op.singular_map(ts.tensor(a), op.tanh), u[:, :3] @ np.diag(np.tanh(values)) @ v[:, :3].T)
    close(ts.grad(loss)(ts.tensor(a)), difference(loss, a), 1e-7)
    same = ts.grad(lambda a: op.sum(op.singular_map(a, lambda s: s) * weight))
    close(same(ts.tensor(a)), weight.numpy(), 1e-12)


def test_low_rank_projection_at_a_gap() -> None:
    """The best approximation of rank 2, where the other singular values are equal and zero."""
    a = Q @ np.diag([5.0, 3.0, 0.0, 0.0]) @ P.T
    weight = ts.tensor(C)

    def loss(a: Any) -> Any:
        return op.sum(op.singular_map(a, lambda s: op.where(s > 1.0, s, 0.0)) * weight)

    close(ts.grad(loss)(ts.tensor(a)), difference(loss, a), 1e-7)


def test_funm_batched_complex_and_in_f32() -> None:
    x = RNG.normal(size=(3, 3)) + 1j * RNG.normal(size=(3, 3))
    u = np.linalg.qr(x)[0]
    a = (u * [1.0, 1.0, 3.0]) @ u.conj().T
    weight = ts.tensor(x)
    loss = lambda a: op.sum(op.real(op.funm(a, op.exp) * weight))  # noqa: E731
    close(ts.grad(loss)(ts.tensor(a)), difference(loss, a), 1e-7)

    stack = np.stack([symmetric(n) for n in ("one value", "distinct")])
    one = lambda a: op.sum(op.funm(a, op.exp) * C)  # noqa: E731
    want = np.stack([ts.grad(one)(ts.tensor(a)).numpy() for a in stack])
    close(ts.vmap(ts.grad(one))(ts.tensor(stack)), want, 1e-12)
    total = lambda a: op.sum(op.funm(a, op.exp) * C)  # noqa: E731
    close(ts.grad(total)(ts.tensor(stack)), want, 1e-12)
    narrow = ts.tensor(symmetric("two pairs").astype(np.float32))
    exact = scipy.linalg.expm_frechet(symmetric("two pairs"), (C + C.T) / 2, compute_expm=False)
    close(ts.grad(lambda a: op.sum(op.funm(a, op.exp) * C.astype(np.float32)))(narrow), exact, 2e-5)


# Decompositions: smooth functions of values and vectors -------------------------------------------


@every_spectrum
def test_forward_mode_is_right_for_functions_written_with_vectors(name: str) -> None:
    """The basis follows the tangent, so that divided differences are not needed."""
    a, t = symmetric(name), RNG.normal(size=(4, 4))
    if name == "nearly equal":
        a = symmetric("distinct")
    want = scipy.linalg.expm_frechet(a, (t + t.T) / 2, compute_expm=False)
    close(ts.jvp(by_vectors(op.exp), (ts.tensor(a),), (ts.tensor(t),))[1], want, 1e-10)

    def rebuilt(a: Any) -> Any:
        u, s, vh = op.svd(a, full_matrices=False)
        return (u * s) @ vh

    for x in (general(name), general(name)[:, :3], general(name)[:3]):
        d = RNG.normal(size=x.shape)
        close(ts.jvp(rebuilt, (ts.tensor(x),), (ts.tensor(d),))[1], d, 1e-8)


SMOOTH: dict[str, Callable[[Any], Any]] = {
    "trace of exp": lambda a: op.sum(op.exp(op.eigh(a)[0])),
    "projector on the top": lambda a: op.sum(top(op.eigh(a)[1][:, 3:]) * C),
    "projector on the rest": lambda a: op.sum(top(op.eigh(a)[1][:, :3]) * C),
    "nuclear norm": lambda a: op.sum(op.svd(a, full_matrices=False)[1]),
    "norm of the product": lambda a: op.norm(product(*op.svd(a, full_matrices=False))),
    "polar factor": lambda a: op.sum(polar(*op.svd(a)) * C),
    "logdet": lambda a: op.sum(op.log(op.svdvals(a))),
}


def top(v: Any) -> Any:
    return v @ op.matrix_transpose(v)


def product(u: Any, s: Any, vh: Any) -> Any:
    return (u * s) @ vh


def polar(u: Any, _: Any, vh: Any) -> Any:
    return u @ vh


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_of_functions_that_do_not_depend_on_the_basis(name: str) -> None:
    f, a = SMOOTH[name], symmetric("three and one")
    want = difference(f, a, 1e-6)
    for g in (ts.grad(f), ts.jit(ts.grad(f))):
        close(g(ts.tensor(a)), want, 1e-6)
    along = ts.jvp(f, (ts.tensor(a),), (ts.tensor(C),))[1]
    close(along, np.sum(want * C), 1e-6)


def test_norms_at_zero_have_the_shortest_slope() -> None:
    """Of all slopes that fit, the one of least norm, which does not depend on a basis."""
    zero = ts.tensor(np.zeros((3, 2)))
    for f in (op.norm, op.matrix_norm, lambda x: op.matrix_norm(x, "nuc"),
              lambda x: op.matrix_norm(x, 2), op.vector_norm):  # fmt: skip
        np.testing.assert_array_equal(ts.grad(f)(zero), np.zeros((3, 2)))
    u, v = np.ones(3) / np.sqrt(3), np.ones(2) / np.sqrt(2)
    one = ts.tensor(4.0 * np.outer(u, v))
    for f in (lambda x: op.matrix_norm(x, "nuc"), lambda x: op.matrix_norm(x, 2), op.matrix_norm):
        close(ts.grad(f)(one), np.outer(u, v), 1e-12)


# Cases that others report -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_svd_of_ones_jax_2311(dtype: Any) -> None:
    """Four singular values are zero or rounding; what depends on the first one has a gradient."""
    a = ts.tensor(np.ones((5, 5), dtype))
    accuracy = 1e-5 if dtype is np.float32 else 1e-12

    def leading(a: Any) -> Any:
        u, s, vh = op.svd(a)
        return op.sum(u[:, 0] * vh[0]) * s[0]

    close(ts.grad(lambda a: op.svd(a)[1][0])(a), np.full((5, 5), 0.2), accuracy)
    close(ts.grad(leading)(a), difference(leading, np.ones((5, 5)), 1e-4), max(accuracy, 1e-6))
    with pytest.raises(NumericalError):
        ts.grad(lambda a: op.svd(a)[0][0, 1])(a)


def test_equal_singular_values_jax_8732() -> None:
    a = np.diag([1.0, 1.0, 2.0, 3.0])
    f = lambda a: op.norm(product(*op.svd(a, full_matrices=False)))  # noqa: E731
    value, grad = ts.value_and_grad(f)(ts.tensor(a))
    close(value, np.linalg.norm(a))
    close(grad, a / np.linalg.norm(a), 1e-12)


def test_eigenvector_of_a_single_eigenvalue_jax_4646() -> None:
    """dv_2 = sum over the others of v_j (v_j . dA v_2) / (4 - 1), whatever basis these have."""
    m = np.diag([4.0, 1.0, 1.0])
    v = np.linalg.eigh(m)[1][:, 2]
    rest = np.eye(3) - np.outer(v, v)
    for i in range(3):
        got = ts.grad(lambda m, i=i: op.eigh(m)[1][i, 2])(ts.tensor(m))
        want = np.outer(rest[i], v) / 3.0
        close(got, (want + want.T) / 2, 1e-12)
    for j in range(2):
        with pytest.raises(NumericalError) as e:
            ts.grad(lambda m, j=j: op.eigh(m)[1][1, j])(ts.tensor(m))
        assert e.value.message == (
            "eigh: values 0 to 1 are equal, and the result depends on the basis of their vectors; use "
            "op.eigvalsh for the values, projectors v @ v.H, or op.funm for functions of the matrix"
        )


@pytest.mark.parametrize(("dtype", "scale"), [
    (np.float32, 1e-20), (np.float32, 1e-30), (np.float32, 1e25),
    (np.float64, 1e-200), (np.float64, 1e200),
])  # fmt: skip
def test_svd_of_tiny_and_huge_matrices_pytorch_194705(dtype: Any, scale: float) -> None:
    """Squares of singular values would leave the format; the gradients scale with the matrix."""
    a = np.array([[4.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 2.0]])
    weight = ts.tensor(C[:3, :3].astype(dtype))

    def factor(a: Any) -> Any:
        return op.sum(polar(*op.svd(a)) * weight)

    def vectors(a: Any) -> Any:
        return op.sum(op.abs(op.eigh(a)[1]) * weight)

    def at(x: Any) -> Any:
        return ts.tensor(x.astype(dtype))

    accuracy = 1e-4 if dtype is np.float32 else 1e-10
    for f in (factor, vectors):
        close(ts.grad(f)(at(a * scale)).numpy() * dtype(scale), ts.grad(f)(at(a)).numpy(), accuracy)
    nuclear = lambda a: op.sum(op.svdvals(a))  # noqa: E731
    close(ts.grad(nuclear)(at(a * scale)), ts.grad(nuclear)(at(a)).numpy(), accuracy)
    turned = ts.hessian(nuclear)(at(a * scale)).numpy() * dtype(scale)
    close(turned, ts.hessian(nuclear)(at(a)).numpy(), accuracy)


def test_product_of_a_matrix_of_low_rank_pytorch_49886() -> None:
    """The sum is right.  A weight that meets the null space needs singular_map: svd does not tell."""
    x = np.zeros((15, 15))
    for i in range(3):
        x[i, 5 * i : 5 * i + 5] = i + 1
    close(ts.grad(lambda a: op.sum(product(*op.svd(a))))(ts.tensor(x)), np.ones((15, 15)), 1e-12)
    weight = RNG.normal(size=(15, 15))
    with pytest.raises(NumericalError) as e:
        ts.grad(lambda a: op.sum(product(*op.svd(a)) * weight))(ts.tensor(x))
    assert e.value.message == (
        "svd: values 3 to 14 are zero, and values and vectors do not tell the derivative of this "
        "function of both; use op.svdvals for the values, or op.singular_map for functions of them"
    )
    got = ts.grad(lambda a: op.sum(op.singular_map(a, lambda s: s) * weight))(ts.tensor(x))
    close(got, weight, 1e-12)


# What depends on a choice -------------------------------------------------------------------------


def test_the_identity_does_not_hide_the_basis() -> None:
    """At the identity LAPACK gives the identity, in which cotangents look alike by chance."""
    with pytest.raises(NumericalError) as e:
        ts.grad(lambda a: op.sum(by_vectors(op.exp)(a)))(ts.tensor(np.eye(3)))
    assert e.value.message == (
        "eigh: values 0 to 2 are equal, and values and vectors do not tell the derivative of this "
        "function of both; use op.eigvalsh for the values, projectors v @ v.H, or op.funm for functions "
        "of the matrix"
    )
    got = ts.grad(lambda a: op.sum(op.funm(a, op.exp)))(ts.tensor(np.eye(3)))
    close(got, np.full((3, 3), np.e), 1e-12)


def test_phases_are_a_choice() -> None:
    x = RNG.normal(size=(3, 3)) + 1j * RNG.normal(size=(3, 3))
    a = ts.tensor(x + x.conj().T)
    with pytest.raises(NumericalError) as e:
        ts.grad(lambda a: op.sum(op.real(op.eigh(a)[1])))(a)
    assert e.value.message == (
        "eigh: the phase of vector 0 is arbitrary, and the result depends on it; use op.eigvalsh for the "
        "values, projectors v @ v.H, or op.funm for functions of the matrix"
    )
    f = lambda a: op.sum(op.abs(op.eigh(a)[1]) * C[:3, :3])  # noqa: E731
    close(ts.grad(f)(a), difference(f, a.numpy()), 1e-6)


def test_the_basis_of_singular_vectors_is_a_choice() -> None:
    a = ts.tensor(np.diag([2.0, 2.0, 1.0]))
    for f in (ts.grad, lambda f: ts.jit(ts.grad(f))):
        with pytest.raises(NumericalError) as e:
            f(lambda a: op.svd(a)[0][0, 0])(a)
        assert e.value.message == (
            "svd: values 0 to 1 are equal, and the result depends on the basis of their vectors; use "
            "op.svdvals for the values, or op.singular_map for functions of them"
        )
    tall = ts.tensor(np.zeros((3, 2)))
    with pytest.raises(NumericalError):
        ts.grad(lambda a: product(*op.svd(a, full_matrices=False))[2, 0])(tall)


def test_batches_are_checked_one_by_one() -> None:
    stack = ts.tensor(np.stack([np.diag([1.0, 2.0, 3.0]), np.eye(3)]))
    with pytest.raises(NumericalError):
        ts.vmap(ts.grad(lambda a: op.sum(by_vectors(op.exp)(a))))(stack)
    got = ts.vmap(ts.grad(lambda a: op.sum(op.exp(op.eigh(a)[0]))))(stack)
    close(got, np.stack([np.diag(np.exp([1.0, 2.0, 3.0])), np.e * np.eye(3)]), 1e-12)


def test_wrong_functions() -> None:
    with pytest.raises(OperandError) as e:
        op.funm(np.eye(2), 3)  # type: ignore[arg-type]
    assert e.value.message == "funm: f is int, expected a function of eigenvalues"
    with pytest.raises(ShapeError) as s:
        op.funm(np.eye(2), op.sum)
    assert s.value.message == "funm: f gives f64[] for eigenvalues f64[2], expected f64[2]"
