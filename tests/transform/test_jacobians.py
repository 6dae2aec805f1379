"""Jacobians and Hessians: against differences, against each other, and as trees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f64, op
from tessera.core.errors import DTypeError, OperandError, ShapeError

RNG = np.random.default_rng(0)


def tensor(*shape: int) -> ts.Tensor:
    return ts.tensor(RNG.normal(size=shape))


def curve(x: Any, w: Any) -> Any:
    return op.tanh(x @ w) * op.sum(x) + op.sort(x @ w)


def difference(f: Any, x: Any, step: float = 1e-6) -> Any:
    """The derivative of an array function of an array, element by element."""
    x = np.asarray(x)
    rows = []
    for i in np.ndindex(x.shape):
        e = np.zeros_like(x)
        e[i] = step
        hi, lo = np.asarray(f(ts.tensor(x + e))), np.asarray(f(ts.tensor(x - e)))
        rows.append((hi - lo) / (2 * step))
    return np.moveaxis(
        np.reshape(rows, (*x.shape, *rows[0].shape)), range(x.ndim), range(-x.ndim, 0)
    )


X, W = tensor(3), tensor(3, 4)
both = pytest.mark.parametrize("jac", [ts.jacfwd, ts.jacrev])


@both
@pytest.mark.parametrize("argnums", [0, 1])
def test_is_the_difference(jac: Any, argnums: int) -> None:
    args = [X, W]
    got = jac(curve, argnums)(*args)
    want = difference(
        lambda v: curve(*(v if i == argnums else a for i, a in enumerate(args))), args[argnums]
    )
    assert got.shape == (4, *args[argnums].shape)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-8)


@both
def test_composes_with_jit_and_vmap(jac: Any) -> None:
    want = jac(curve)(X, W)
    np.testing.assert_allclose(ts.jit(jac(curve))(X, W), want, rtol=1e-13)
    xs = tensor(5, 3)
    got = ts.vmap(jac(curve), in_axes=(0, None))(xs, W)
    for x, j in zip(xs, got, strict=True):
        np.testing.assert_allclose(j, jac(curve)(x, W), rtol=1e-12, atol=1e-14)


def test_both_modes_agree_on_trees() -> None:
    def f(p: Any, x: Any) -> Any:
        h = op.sin(x @ p["w"]) + p["b"][0]
        return {"h": h, "s": (op.sum(h * h),)}

    p, x = {"w": W, "b": [tensor(4)]}, X
    for argnums in (0, 1, (0, 1), (1,)):
        a, b = ts.jacfwd(f, argnums)(p, x), ts.jacrev(f, argnums)(p, x)
        assert ts.tree.structure(a) == ts.tree.structure(b)
        for u, v in zip(ts.tree.leaves(a), ts.tree.leaves(b), strict=True):
            np.testing.assert_allclose(u, v, rtol=1e-12, atol=1e-14)
    j = ts.jacrev(f)(p, x)
    assert j["h"]["w"].shape == (4, 3, 4)
    assert j["s"][0]["b"][0].shape == (4,)


@both
def test_aux_is_handed_on(jac: Any) -> None:
    j, aux = jac(lambda x: (x * x, {"sum": op.sum(x)}), has_aux=True)(X)
    np.testing.assert_allclose(j, np.diag(2 * X.numpy()))
    np.testing.assert_array_equal(aux["sum"], op.sum(X))


def rosenbrock(x: Any) -> Any:
    return op.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def test_the_hessian_is_symmetric_and_the_difference_of_the_gradient() -> None:
    x = tensor(4)
    h = ts.hessian(rosenbrock)(x).numpy()
    np.testing.assert_allclose(h, h.T, rtol=1e-12)
    np.testing.assert_allclose(h, difference(ts.grad(rosenbrock), x), rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(ts.jit(ts.hessian(rosenbrock))(x), h, rtol=1e-12)


def test_hvp_is_the_hessian_times_a_vector() -> None:
    x, v = tensor(4), tensor(4)
    want = ts.hessian(rosenbrock)(x).numpy() @ v.numpy()
    np.testing.assert_allclose(ts.hvp(rosenbrock, (x,), (v,)), want, rtol=1e-12)

    def f(a: Any, b: Any) -> Any:
        return op.sum(op.exp(a) * b * b)

    a, b = tensor(3), tensor(3)
    ha, hb = ts.hvp(f, (a, b), (b, a))
    ea, na, nb = np.exp(a.numpy()), a.numpy(), b.numpy()
    np.testing.assert_allclose(ha, ea * nb**3 + 2 * ea * nb * na, rtol=1e-12)
    np.testing.assert_allclose(hb, 2 * ea * nb * nb + 2 * ea * na, rtol=1e-12)


def test_third_derivatives() -> None:
    x = tensor(2)
    d3 = ts.jacfwd(ts.hessian(lambda x: op.sum(x**4) + op.prod(x)))(x).numpy()
    want = np.zeros((2, 2, 2))
    want[0, 0, 0], want[1, 1, 1] = 24 * x.numpy()
    np.testing.assert_allclose(d3, want, atol=1e-12)


def test_forward_mode_goes_through_while_loops() -> None:
    def f(x: Any) -> Any:
        return ts.while_loop(lambda v: op.sum(v) < 50.0, lambda v: v * v, x)

    x = ts.tensor(np.array([2.0, 3.0]))
    np.testing.assert_allclose(ts.jacfwd(f)(x), np.diag(4 * x.numpy() ** 3))


def test_symbolic_sizes() -> None:
    @ts.jit
    def f(x: Tensor["N", f64]) -> Any:
        return ts.hessian(lambda v: op.sum(op.sin(v)) * op.sum(v))(x)

    for n in (2, 4):
        x = tensor(n)
        want = ts.hessian(lambda v: op.sum(op.sin(v)) * op.sum(v))(x)
        np.testing.assert_allclose(f(x), want, rtol=1e-12)
    assert f.compiled == 1


def test_an_empty_argument() -> None:
    assert ts.jacrev(lambda x: op.concat([x, x]))(op.zeros((0,))).shape == (0, 0)


ERRORS: dict[str, tuple[Any, type[Exception], str]] = {
    "integers": (
        lambda: ts.jacfwd(lambda x: x)(op.zeros((2,), "i32")),
        DTypeError,
        "jacfwd: tensor 0 of the argument is i32[2], expected real floating-point numbers",
    ),
    "integer results": (
        lambda: ts.jacrev(lambda x: op.argmax(x))(op.zeros((2,))),
        DTypeError,
        "jacrev: tensor 0 of the result is i64[], expected real floating-point numbers",
    ),
    "argnums": (
        lambda: ts.jacrev(lambda x: x, argnums=1)(op.zeros((2,))),
        OperandError,
        "grad: argnums 1 is out of range: <lambda> got 1 positional arguments",
    ),
    "hvp": (
        lambda: ts.hvp(rosenbrock, (op.zeros((3,)),), (op.zeros((2,)),)),
        ShapeError,
        "jvp: tangent 0 is f32[2], expected f32[3] as its primal",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    call, kind, text = ERRORS[name]
    with pytest.raises(kind) as e:
        call()
    assert e.value.message == text
