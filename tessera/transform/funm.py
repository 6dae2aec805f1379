"""Functions of a matrix through its eigenvalues or singular values, with derivatives that are right
where those repeat or vanish.

The derivative of V f(w) V^H is V (K * (V^H dA V)) V^H with the divided differences K[i, j] =
(f(w_i) - f(w_j)) / (w_i - w_j), which are f' for equal values (Daleckii and Krein 1965).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tessera.core.errors import OperandError, ShapeError
from tessera.ir.graph.ir import Value, current_builder
from tessera.ops.contraction import matmul
from tessera.ops.creation import ones_like
from tessera.ops.custom import ForwardRule, Values, custom
from tessera.ops.define import broadcast, full_of
from tessera.ops.elementwise import abs as absolute
from tessera.ops.elementwise import add, div, eq, le, logical_or, mul, sign, sub, where
from tessera.ops.factor import eigh, rtol
from tessera.ops.matrix import adjoint, hermitian_part
from tessera.ops.reduction import sum
from tessera.ops.shape import concat, expand_dims, slice_
from tessera.transform.batch_control import traced
from tessera.transform.differentiate import push_forward, zeros
from tessera.transform.inline import inline

Function = Callable[[Any], Any]

# Nodes and weights of the rule of Gauss with four points on [-1, 1].
_NODES = (-0.8611363115940526, -0.3399810435848563, 0.3399810435848563, 0.8611363115940526)
_WEIGHTS = (0.34785484513745385, 0.6521451548625461, 0.6521451548625461, 0.34785484513745385)


def spectral_function(name: str, a: Value, f: Function, slope: Function | None = None) -> Value:
    """V f(w) V^H for the Hermitian part of a; `slope` is f' where f alone does not tell it."""
    if not callable(f):
        raise OperandError(f"{name}: f is {type(f).__name__}, expected a function of eigenvalues")

    def values(w: Value) -> Value:
        y = f(w)
        if not isinstance(y, Value) or y.shape != w.shape or y.dtype is not w.dtype:
            shown = y.type if isinstance(y, Value) else type(y).__name__
            raise ShapeError(f"{name}: f gives {shown} for eigenvalues {w.type}, expected {w.type}")
        return y

    def run(x: Value) -> list[Value]:
        w, v = eigh(x)
        return [matmul(mul(v, expand_dims(values(w), -2)), adjoint(v))]

    def push(operands: Values, tangents: Values) -> tuple[Values, Values]:
        (x,), (t,) = operands, tangents
        w, v = eigh(x)
        inner = matmul(adjoint(v), matmul(hermitian_part(t), v))
        rates = slope or (lambda w: slope_of(values, w))
        turned = mul(inner, divided_differences(w, values, rates))
        return run(x), [matmul(v, matmul(turned, adjoint(v)))]

    if current_builder() is None:
        return run(a)[0]
    g, outer = traced([a], run, name)
    return custom(g, a, *outer, rule=ForwardRule(name, 1, push))[0]


def singular_function(name: str, a: Value, f: Function) -> Value:
    """U f(s) V^H for a = U diag(s) V^H, where f(0) is 0.

    It is the upper right block of a function of [[0, a], [a^H, 0]], whose eigenvalues are s, -s and
    zeros, so that the derivative is right at equal singular values and at zeros.
    """
    *batch, m, n = a.shape

    def none(size: Any) -> Value:
        return full_of((*batch, size, size), 0, a.dtype)

    upper = concat([none(m), a], -1)
    whole = concat([upper, concat([adjoint(a), none(n)], -1)], -2)
    odd = lambda w: mul(sign(w), f(absolute(w)))  # noqa: E731
    out = spectral_function(name, whole, odd, lambda w: slope_of(f, absolute(w)))
    return slice_(out, (*(0 for _ in batch), 0, m), (*batch, m, m + n))


def slope_of(f: Function, w: Value) -> Value:
    """The derivative of a function of numbers at each of them."""
    g, outer = traced([w], lambda x: [f(x)], "slope")
    ts = [ones_like(w), *(None for _ in outer)]
    found = push_forward(inline(g), [w, *outer], ts)[1][0]
    return zeros(w.type) if found is None else found


def divided_differences(w: Value, f: Function, slope: Function) -> Value:
    """(f(w_i) - f(w_j)) / (w_i - w_j) at (i, j).

    The quotient loses digits as the values come together.  The mean of f' between them, by the rule of
    Gauss, gains them, and replaces the quotient where it agrees with what digits that has left.
    """
    y = f(w)
    a, b = expand_dims(w, -1), expand_dims(w, -2)
    gap, near = sub(a, b), eq(sub(a, b), 0)
    apart = where(near, 1, gap)
    quotient = div(sub(expand_dims(y, -1), expand_dims(y, -2)), apart)
    size = add(absolute(expand_dims(y, -1)), absolute(expand_dims(y, -2)))
    lost = div(mul(size, rtol(w)), absolute(apart))
    mean = _mean(slope, mul(add(a, b), 0.5), mul(gap, 0.5))
    return where(logical_or(near, le(absolute(sub(mean, quotient)), lost)), mean, quotient)


def _mean(slope: Function, middle: Value, half: Value) -> Value:
    nodes, weights = (_row(x, middle) for x in (_NODES, _WEIGHTS))
    at = add(expand_dims(middle, -1), mul(expand_dims(half, -1), nodes))
    return mul(sum(mul(slope(at), weights), -1), 0.5)


def _row(x: Sequence[float], like: Value) -> Value:
    """A few numbers along a new last axis."""
    parts = [full_of((1,), v, like.dtype) for v in x]
    return broadcast(concat(parts, 0), (*like.shape, len(parts)))
