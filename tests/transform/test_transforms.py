"""Derivatives of programs: against finite differences, and the laws that tie the transforms."""

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f64, op

RNG = np.random.default_rng(0)


def tensor(*shape):
    return ts.tensor(RNG.normal(size=shape))


def difference(f, xs, ts_, eps=1e-6):
    """Central difference of f at xs along ts_."""
    hi, lo = (
        f(*(ts.tensor(x.numpy() + s * eps * t.numpy()) for x, t in zip(xs, ts_, strict=True)))
        for s in (1, -1)
    )
    return (hi.numpy() - lo.numpy()) / (2 * eps)


def mlp(x, w1, w2):
    return op.mean(op.square(op.tanh(x @ w1) @ w2))


def attention(q, k, v):
    return op.sum(op.softmax(q @ op.transpose(k) / 2.0) @ v * v)


def norms(x, g, b):
    return op.sum(
        op.sin(op.layernorm(x, g, b)) + op.rmsnorm(x, g) * op.logsumexp(x, axis=1, keepdims=True)
    )


def indexing(x, y, z):
    return op.sum(op.concat([x[1:] * y[0], op.flip(z, 0)])[::2] ** 2) + op.max(x) * op.prod(z[:1])


PROGRAMS = {
    "mlp": (mlp, lambda: (tensor(3, 4), tensor(4, 5), tensor(5, 2))),
    "attention": (attention, lambda: (tensor(4, 3), tensor(4, 3), tensor(4, 3))),
    "norms": (norms, lambda: (tensor(3, 4), tensor(4), tensor(4))),
    "indexing": (indexing, lambda: (tensor(3, 2), tensor(3, 2), tensor(3, 2))),
}
every_program = pytest.mark.parametrize("name", PROGRAMS)


def case(name):
    f, draw = PROGRAMS[name]
    return f, draw(), draw()


@every_program
def test_jvp_is_the_difference(name):
    f, xs, ds = case(name)
    y, t = ts.jvp(f, xs, ds)
    np.testing.assert_array_equal(y, f(*xs))
    np.testing.assert_allclose(t, difference(f, xs, ds), rtol=1e-6, atol=1e-7)


@every_program
def test_grad_is_the_transpose_of_jvp(name):
    f, xs, ds = case(name)
    _, t = ts.jvp(f, xs, ds)
    grads = ts.grad(f, argnums=(0, 1, 2))(*xs)
    total = sum(float(op.sum(g * d)) for g, d in zip(grads, ds, strict=True))
    np.testing.assert_allclose(total, float(t), rtol=1e-10)


@every_program
def test_linearize_agrees_with_jvp_and_is_linear(name):
    f, xs, ds = case(name)
    y, lin = ts.linearize(f, *xs)
    np.testing.assert_array_equal(y, f(*xs))
    np.testing.assert_allclose(lin(*ds), ts.jvp(f, xs, ds)[1], rtol=1e-12)
    np.testing.assert_allclose(lin(*(3.0 * d for d in ds)), 3.0 * lin(*ds), rtol=1e-12)


@every_program
def test_second_derivatives(name):
    f, xs, ds = case(name)

    def slope(*zs):
        return ts.jvp(f, zs, ds)[1]

    np.testing.assert_allclose(
        ts.jvp(slope, xs, ds)[1], difference(slope, xs, ds), rtol=1e-5, atol=1e-6
    )
    # reverse over forward = forward over reverse
    grads = ts.grad(slope, argnums=(0, 1, 2))(*xs)
    _, moved = ts.jvp(lambda *zs: ts.grad(f, argnums=(0, 1, 2))(*zs), xs, ds)
    for g, m in zip(grads, moved, strict=True):
        np.testing.assert_allclose(g, m, rtol=1e-8, atol=1e-10)


@every_program
def test_gradients_are_the_same_under_jit(name):
    f, xs, _ = case(name)
    eager = ts.value_and_grad(f, argnums=(0, 1, 2))(*xs)
    jitted = ts.jit(ts.value_and_grad(f, argnums=(0, 1, 2)))(*xs)
    np.testing.assert_allclose(jitted[0], eager[0], rtol=1e-13)
    for a, b in zip(eager[1], jitted[1], strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-11, atol=1e-13)


def test_gradients_with_symbolic_sizes():
    @ts.jit
    def f(x: Tensor["B", "D", f64], w: Tensor["D", "K", f64]):
        return ts.grad(lambda w: op.mean(op.tanh(x @ w)))(w)

    for shape in ((2, 3), (5, 3)):
        x, w = tensor(*shape), tensor(3, 2)
        want = ts.grad(lambda w, x=x: op.mean(op.tanh(x @ w)))(w)
        np.testing.assert_allclose(f(x, w), want, rtol=1e-12)
    assert f.compiled == 1


def test_grad_through_calls_closures_and_trees():
    w = tensor(3, 3)
    inner = ts.jit(lambda x: op.tanh(x @ w))

    def loss(p):
        return op.sum(inner(p["a"]) * p["b"][0])

    p = {"a": tensor(2, 3), "b": [tensor(2, 3)]}
    g = ts.grad(loss)(p)
    assert ts.tree.structure(g) == ts.tree.structure(p)
    np.testing.assert_allclose(g["b"][0], inner(p["a"]), rtol=1e-12)


def test_values_that_do_not_matter_have_zero_gradients():
    x, y = tensor(2), tensor(3)
    gx, gy = ts.grad(lambda a, b: op.sum(op.sin(a)), argnums=(0, 1))(x, y)
    np.testing.assert_allclose(gx, np.cos(x.numpy()))
    np.testing.assert_array_equal(gy, np.zeros(3))
    g = ts.grad(lambda a: op.sum(op.stop_gradient(a) * a))(x)
    np.testing.assert_array_equal(g, x)


def test_has_aux():
    (value, aux), g = ts.value_and_grad(lambda x: (op.sum(x * x), x + 1), has_aux=True)(tensor(2))
    assert value.shape == ()
    assert (aux.shape, g.shape) == ((2,), (2,))
    g, aux = ts.grad(lambda x: (op.sum(x * x), x + 1), has_aux=True)(tensor(2))
    assert (g.shape, aux.shape) == ((2,), (2,))


def test_vjp_of_several_results():
    x = tensor(2, 2)
    (a, b), back = ts.vjp(lambda x: (x * 2.0, {"s": op.sum(x)}), x)
    assert a.shape == (2, 2)
    (g,) = back((x, {"s": ts.tensor(3.0, dtype=f64)}))
    np.testing.assert_allclose(g, 2 * x.numpy() + 3)
    assert b["s"].shape == ()


def test_autodiff_decorator():
    @ts.autodiff
    def f(x):
        return op.sum(x**3)

    x = tensor(3)
    np.testing.assert_allclose(f.grad(x), 3 * x.numpy() ** 2, rtol=1e-12)
    assert f.value_and_grad(x)[0].item() == f(x).item()
    np.testing.assert_allclose(
        f.jvp((x,), (x,))[1], f.vjp(x)[1](ts.tensor(1.0, dtype=f64))[0] @ x, rtol=1e-12
    )


def test_linearize_has_a_transpose_and_an_adjoint():
    """<A t, c> = <t, A' c> in the pairing without and with a conjugate."""

    def f(p, z):
        return {"y": op.tanh(p["w"]) @ z, "s": op.sum(z * z)}

    def draw(*shape):
        return ts.tensor(RNG.normal(size=shape) + 1j * RNG.normal(size=shape))

    p, z = {"w": tensor(2, 3).astype("c128")}, draw(3)
    value, a = ts.linearize(f, p, z)
    t, c = ({"w": draw(2, 3)}, draw(3)), {"y": draw(2), "s": draw()}
    moved, pulled, adjoint = a(*t), a.T(c), a.H(c)

    def pair(x, y, conj=False):
        leaves = zip(ts.tree.leaves(x), ts.tree.leaves(y), strict=True)
        return sum(np.sum((u.numpy().conj() if conj else u.numpy()) * v.numpy()) for u, v in leaves)

    np.testing.assert_allclose(pair(moved, c), pair(t, pulled), rtol=1e-12)
    np.testing.assert_allclose(pair(c, moved, True), pair(adjoint, t, True), rtol=1e-12)
    assert ts.tree.structure(pulled) == ts.tree.structure(t)
    for u, v in zip(ts.tree.leaves(a.T.T(*t)), ts.tree.leaves(moved), strict=True):
        np.testing.assert_array_equal(u, v)
    np.testing.assert_allclose(value["y"], np.tanh(p["w"].numpy()) @ z.numpy(), rtol=1e-12)


def test_linear_maps_compose_under_jit():
    x, t = tensor(3), tensor(3)

    @ts.jit
    def both(x, t):
        _, a = ts.linearize(op.sin, x)
        _, b = ts.linearize(op.exp, x)
        whole = b @ a
        return whole @ t, whole.T @ t, (a.H @ a)(t)

    n = x.numpy()
    for got, want in zip(both(x, t), (np.exp(n) * np.cos(n),) * 2 + (np.cos(n) ** 2,), strict=True):
        np.testing.assert_allclose(got, want * t.numpy(), rtol=1e-12)
