"""custom_jvp and custom_vjp: the rule is what counts, under every transform, and wrong rules say so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f64, op
from tessera.core.errors import DTypeError, OperandError, RuleError, ShapeError, TreeError
from tessera.ir.graph.interp import interpret
from tessera.ir.graph.ir import Builder, building
from tessera.ir.graph.text import parse_graph
from tessera.transform.differentiate import push_forward

RNG = np.random.default_rng(0)


def tensor(*shape: int) -> ts.Tensor:
    return ts.tensor(RNG.normal(size=shape))


@ts.custom_jvp
def squared(x: Any) -> Any:
    """x * x with a derivative that is wrong on purpose, so that it shows: 10 x."""
    return x * x


@squared.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return squared(x), 10.0 * x * t


@ts.custom_vjp
def product(x: Any, y: Any) -> Any:
    """sin(x) * y with cotangents that are wrong on purpose: 3 ct and y ct."""
    return op.sin(x) * y


product.defvjp(lambda x, y: (op.sin(x) * y, {"y": y}), lambda r, ct: (3.0 * ct, r["y"] * ct))

X = tensor(3)


def test_values_are_those_of_the_function() -> None:
    np.testing.assert_array_equal(squared(X), X.numpy() ** 2)
    np.testing.assert_array_equal(ts.jit(squared)(X), X.numpy() ** 2)
    np.testing.assert_allclose(ts.jit(product)(X, X), np.sin(X.numpy()) * X.numpy())
    np.testing.assert_array_equal(ts.vmap(squared)(X), X.numpy() ** 2)


def test_compiling_without_derivatives_leaves_the_function_alone() -> None:
    ops = [n.op.name for n in ts.jit(lambda x: squared(x), target="numpy").lower(X).graph.nodes]
    assert ops == ["mul"]


def test_a_jvp_rule_is_used_in_both_modes() -> None:
    y, t = ts.jvp(squared, (X,), (X,))
    np.testing.assert_array_equal(y, X.numpy() ** 2)
    np.testing.assert_allclose(t, 10 * X.numpy() ** 2)
    g = ts.grad(lambda x: op.sum(squared(x)))
    np.testing.assert_allclose(g(X), 10 * X.numpy())
    np.testing.assert_allclose(ts.jit(g)(X), 10 * X.numpy())


def test_a_rule_is_differentiated_in_turn() -> None:
    """The derivative of 10 x is 10: second derivatives come from the rule, not from the function."""
    np.testing.assert_allclose(ts.hessian(lambda x: op.sum(squared(x)))(X), 10 * np.eye(3))
    deep = ts.grad(lambda x: ts.grad(lambda y: squared(squared(y)))(x))
    # d/dx (10 x^2)(10 x) = 300 x^2, with d(x^2) = 10 x inside of the rule: 10 (10 x) (10 x) + ...
    x = ts.tensor(0.7, dtype=f64)
    np.testing.assert_allclose(deep(x), 100 * 10 * 0.7**2 + 100 * 0.7**2, rtol=1e-12)


def test_a_vjp_rule_is_used_in_reverse_mode() -> None:
    y = tensor(3)
    gx, gy = ts.grad(lambda x, y: op.sum(product(x, y) * 2.0), argnums=(0, 1))(X, y)
    np.testing.assert_allclose(gx, np.full(3, 6.0))
    np.testing.assert_allclose(gy, 2 * y.numpy())
    g = ts.grad(lambda x: op.sum(product(x, y)))
    np.testing.assert_allclose(ts.jit(g)(X), np.full(3, 3.0))


def test_forward_over_reverse_of_a_vjp_rule() -> None:
    """hvp differentiates the two halves: d(y ct)/dy = ct."""
    moved = ts.jvp(ts.grad(lambda y: op.sum(product(X, y))), (X,), (tensor(3),))[1]
    assert moved.shape == (3,)
    again = ts.grad(lambda y: op.sum(ts.grad(lambda z: op.sum(product(X, z)))(y) ** 2))(X)
    np.testing.assert_allclose(again, 2 * X.numpy())


def test_a_backward_rule_may_bend_the_cotangent() -> None:
    @ts.custom_vjp
    def clipped(x: Any) -> Any:
        return x

    clipped.defvjp(lambda x: (x, None), lambda _, ct: (op.clip(ct, -1.0, 1.0),))
    g = ts.grad(lambda x: op.sum(clipped(x) * ts.tensor(np.array([5.0, 0.5, -7.0]))))(X)
    np.testing.assert_allclose(g, [1.0, 0.5, -1.0])


def test_vmap_and_grad_in_any_order() -> None:
    xs, ys = tensor(4, 3), tensor(3)

    def f(x: Any, y: Any) -> Any:
        return op.sum(product(squared(x), y))

    want = np.stack([ts.grad(f)(x, ys).numpy() for x in xs])
    for g in (ts.vmap(ts.grad(f), (0, None)), ts.jit(ts.vmap(ts.grad(f), (0, None)))):
        np.testing.assert_allclose(g(xs, ys), want, rtol=1e-12)
    total = ts.grad(lambda x, y: op.sum(ts.vmap(f, (0, None))(x, y)), argnums=(0, 1))
    gx, gy = total(xs, ys)
    np.testing.assert_allclose(gx, want, rtol=1e-12)
    # y is shared: its cotangent is the sum over the batch.
    np.testing.assert_allclose(gy, 4 * ys.numpy(), rtol=1e-12)
    twice = ts.grad(lambda x: op.sum(ts.vmap(ts.vmap(squared))(x)))(tensor(2, 3))
    assert twice.shape == (2, 3)
    np.testing.assert_allclose(
        ts.vmap(lambda x: ts.jvp(squared, (x,), (x,))[1])(xs), 10 * xs.numpy() ** 2
    )
    _, t = ts.jvp(ts.vmap(squared), (xs,), (xs,))
    np.testing.assert_allclose(t, 10 * xs.numpy() ** 2)


def test_inside_of_control_flow() -> None:
    def f(x: Any) -> Any:
        y, _ = ts.scan(lambda c, r: (squared(c) + product(r, c), None), op.sum(x), x)
        return ts.cond(y > 0.0, squared, lambda v: product(v, v), y)

    x = tensor(2)

    def by_hand(x: Any) -> Any:
        c = np.sum(x)
        dc = np.ones(2)  # by the wrong rules
        for i, r in enumerate(x):
            new = c * c + np.sin(r) * c
            slope = 10 * c + c
            dc = slope * dc + 3.0 * np.eye(2)[i]
            c = new
        return (10 * c * dc) if c > 0 else (3.0 * dc + c * dc)

    np.testing.assert_allclose(ts.grad(f)(x), by_hand(x.numpy()), rtol=1e-12)
    np.testing.assert_allclose(ts.jit(ts.grad(f))(x), by_hand(x.numpy()), rtol=1e-12)


def test_trees_keywords_and_static_arguments() -> None:
    @ts.custom_jvp
    def f(p: Any, scale: Any = 2.0) -> Any:
        return {"y": p["a"] * p["b"][0] * scale}

    @f.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        (p, scale), (t, _) = primals, tangents
        return f(p, scale), {"y": t["a"] + t["b"][0] * 7.0}

    p = {"a": X, "b": [tensor(3)]}
    g = ts.grad(lambda p: op.sum(f(p, scale=3.0)["y"]))(p)
    np.testing.assert_allclose(g["a"], np.ones(3))
    np.testing.assert_allclose(g["b"][0], np.full(3, 7.0))

    def apply(h: Any, x: Any, n: Any) -> Any:
        return h(x) * n

    forward = ts.custom_jvp(apply, nondiff_argnums=(0, 2))
    forward.defjvp(lambda h, n, primals, tangents: (h(primals[0]) * n, tangents[0] * 5.0))
    np.testing.assert_allclose(ts.grad(lambda x: op.sum(forward(op.sin, x, 2)))(X), np.full(3, 5.0))
    reverse = ts.custom_vjp(apply, nondiff_argnums=(0, 2))
    reverse.defvjp(lambda h, x, n: (h(x) * n, ()), lambda h, n, r, ct: (ct * float(n),))
    np.testing.assert_allclose(ts.grad(lambda x: op.sum(reverse(op.sin, x, 2)))(X), np.full(3, 2.0))


def test_integers_have_no_tangents() -> None:
    @ts.custom_vjp
    def pick(x: Any, i: Any) -> Any:
        return op.take(x, i), i

    pick.defvjp(
        lambda x, i: ((op.take(x, i), i), (i, x)),
        lambda r, ct: (op.zeros_like(r[1]).at[r[0]].set(ct[0] * 9.0), None),
    )
    g = ts.grad(lambda x: pick(x, ts.tensor(1))[0])(X)
    np.testing.assert_array_equal(g, [0.0, 9.0, 0.0])


def test_symbolic_sizes() -> None:
    @ts.jit
    def g(x: Tensor["N", f64]) -> Any:
        return ts.grad(lambda x: op.sum(squared(x) + product(x, x)))(x)

    for n in (2, 5):
        x = tensor(n)
        np.testing.assert_allclose(g(x), 10 * x.numpy() + 3 + x.numpy(), rtol=1e-12)
    assert g.compiled == 1


def test_text_keeps_the_function_but_not_the_rule() -> None:
    g = ts.jit(squared).lower(X).traced
    again = parse_graph(g.text)
    assert again.text == g.text
    np.testing.assert_array_equal(interpret(again, [X.numpy()])[0], X.numpy() ** 2)
    with building(Builder()) as b:
        x = b.input(X.type)
        with pytest.raises(RuleError, match=r"^squared: its derivative was lost"):
            push_forward(again, [x], [x])


# Wrong rules ------------------------------------------------------------------------------------


def with_jvp(rule: Any) -> Any:
    f = ts.custom_jvp(lambda x: x * 2.0)
    f.__name__ = f._name = "f"
    f.defjvp(rule)
    return lambda: ts.jvp(f, (op.zeros((3,)),), (op.zeros((3,)),))


def with_vjp(fwd: Any, bwd: Any) -> Any:
    def f(x: Any, y: Any) -> Any:
        return x * y

    g = ts.custom_vjp(f)
    g.defvjp(fwd, bwd)
    return lambda: ts.grad(lambda x: op.sum(g(x, x)))(op.zeros((3,)))


def keeping(bwd: Any) -> Any:
    return with_vjp(lambda x, y: (x * y, (x, y)), bwd)


@ts.custom_jvp
def bare(x: Any) -> Any:
    return x


@ts.custom_vjp
def bare_too(x: Any) -> Any:
    return x


def uses_outside() -> Any:
    def loss(w: Any) -> Any:
        @ts.custom_jvp
        def f(x: Any) -> Any:
            return x * w

        f.defjvp(lambda p, t: (p[0], t[0]))
        return op.sum(f(X))

    return ts.grad(loss)(X)


ERRORS: dict[str, tuple[Any, type[Exception], str]] = {
    "no rule": (
        lambda: bare(X),
        RuleError,
        "custom_jvp: bare has no rule; give it one with bare.defjvp(rule)",
    ),
    "no rules": (
        lambda: bare_too(X),
        RuleError,
        "custom_vjp: bare_too has no rule; give it one with bare_too.defvjp(fwd, bwd)",
    ),
    "no pair": (
        with_jvp(lambda p, t: p[0] * 2.0),
        TreeError,
        "custom_jvp: the rule of f returns *, expected (result, tangent)",
    ),
    "tree": (
        with_jvp(lambda p, t: (p[0] * 2.0, [t[0]])),
        TreeError,
        "custom_jvp: the tangent from the rule of f is [*], expected *",
    ),
    "shape": (
        with_jvp(lambda p, t: (p[0] * 2.0, op.sum(t[0]))),
        ShapeError,
        "custom_jvp: the tangent from the rule of f has f32[] as tensor 0, expected f32[3]",
    ),
    "dtype": (
        with_jvp(lambda p, t: (p[0].astype("f64"), t[0])),
        DTypeError,
        "custom_jvp: the result from the rule of f has f64[3] as tensor 0, expected f32[3]",
    ),
    "fwd": (
        with_vjp(lambda x, y: x * y, lambda r, ct: (ct, ct)),
        TreeError,
        "custom_vjp: fwd of f returns *, expected (result, residuals)",
    ),
    "fwd shape": (
        with_vjp(lambda x, y: (op.sum(x), ()), lambda r, ct: (ct, ct)),
        ShapeError,
        "custom_vjp: the result from fwd of f has f32[] as tensor 0, expected f32[3]",
    ),
    "count": (
        keeping(lambda r, ct: (ct,)),
        TreeError,
        "custom_vjp: bwd of f returns (*,), expected a tuple of 2, one for each argument",
    ),
    "cotangent": (
        keeping(lambda r, ct: (ct, op.sum(ct))),
        ShapeError,
        "custom_vjp: cotangent 1 from bwd of f has f32[] as tensor 0, expected f32[3]",
    ),
    "forward mode": (
        lambda: ts.jvp(lambda x: product(x, x), (X,), (X,)),
        RuleError,
        "jvp: product has a derivative for reverse mode only (custom_vjp); use vjp or grad, or give it "
        "one for both modes with custom_jvp",
    ),
    "outside": (
        uses_outside,
        RuleError,
        "f uses a value from outside of it that is differentiated; pass it as an argument",
    ),
    "static": (
        lambda: call_with_a_string(),
        OperandError,
        "f: got str 'a', which is no tensor; name its argument in nondiff_argnums",
    ),
}


def call_with_a_string() -> Any:
    @ts.custom_jvp
    def f(x: Any, mode: Any) -> Any:
        return x

    f.defjvp(lambda p, t: (p[0], t[0]))
    return ts.jit(lambda x: f(x, "a"))(X)


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    call, kind, text = ERRORS[name]
    with pytest.raises(kind) as e:
        call()
    assert e.value.message == text
