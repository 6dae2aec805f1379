"""Polynomials as vectors of coefficients, the highest power first, as in NumPy."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from tessera.core.errors import OperandError, ShapeError
from tessera.core.promotion import promote
from tessera.ir.graph.ir import Value
from tessera.lang.names.numeric import convolve
from tessera.lang.names.together import as_tensor, together
from tessera.ops.arrange import eye
from tessera.ops.creation import full, full_like, iota, ones, zeros
from tessera.ops.define import ArrayLike, as_value, cast_to, floating, public
from tessera.ops.elementwise import add, div, mul, neg, sqrt, square, sub
from tessera.ops.elementwise import pow as pow_
from tessera.ops.factor import eigvals
from tessera.ops.linalg import lstsq
from tessera.ops.reduction import sum as sum_
from tessera.ops.shape import concat, expand_dims, flip, pad


@public
def polyval(p: ArrayLike, x: ArrayLike) -> Value:
    """A polynomial at x, by Horner's rule."""
    c, v = as_tensor(p), as_value(x)
    wide = promote(c.dtype, v.dtype)
    total = zeros(v.shape, wide)
    for i in range(_length("polyval", c)):
        total = add(mul(total, cast_to(v, wide)), cast_to(c[i], wide))
    return total


def _length(op: str, c: Value) -> int:
    n = c.shape[0] if c.ndim == 1 else None
    if not isinstance(n, int):
        raise ShapeError(f"{op}: p is {c.type}, expected a vector of known length")
    return n


@public
def polyadd(p: ArrayLike, q: ArrayLike) -> Value:
    """The sum of two polynomials."""
    a, b = as_value(p), as_value(q)
    n = builtins.max(_length("polyadd", a), _length("polyadd", b))
    return add(*(pad(c, ((n - c.shape[0], 0),)) for c in (a, b)))


@public
def polysub(p: ArrayLike, q: ArrayLike) -> Value:
    """The difference of two polynomials."""
    return polyadd(p, neg(as_value(q)))


@public
def polymul(p: ArrayLike, q: ArrayLike) -> Value:
    """The product of two polynomials."""
    return convolve(p, q)


@public
def polyder(p: ArrayLike, m: int = 1) -> Value:
    """The m-th derivative of a polynomial."""
    c = as_tensor(p)
    for _ in range(m):
        n = _length("polyder", c)
        c = mul(c[:-1], np.arange(n - 1, 0, -1)) if n > 1 else zeros((0,), c.dtype)
    found: Value = c
    return found


@public
def polyint(p: ArrayLike, m: int = 1, k: float = 0.0) -> Value:
    """The m-th antiderivative of a polynomial, with the constant k at each step."""
    c = floating(as_value(p))
    for _ in range(m):
        n = _length("polyint", c)
        c = concat(
            [div(c, cast_to(as_value(np.arange(n, 0, -1)), c.dtype)), full((1,), k, c.dtype)], 0
        )
    return c


@public
def vander(x: ArrayLike, n: int | None = None, increasing: bool = False) -> Value:
    """The powers of each element as a row, the highest first."""
    v = as_value(x)
    count = v.shape[0] if n is None else n
    powers = iota((count,), 0)
    return pow_(expand_dims(v, -1), powers if increasing else flip(powers, 0))


@public
def polyfit(x: ArrayLike, y: ArrayLike, degree: int, w: ArrayLike = None) -> Value:
    """The polynomial of least squares through points, with weights w."""
    v, values = floating(as_value(x)), floating(as_value(y))
    left = vander(v, degree + 1)
    if w is not None:
        weight = cast_to(as_value(w), v.dtype)
        left, values = (
            mul(left, expand_dims(weight, 1)),
            mul(values, weight if values.ndim == 1 else expand_dims(weight, 1)),
        )
    scale = sqrt(sum_(square(left), 0))
    found = lstsq(div(left, scale), values).solution
    return div(found, scale if values.ndim == 1 else expand_dims(scale, 1))


@public
def poly(roots: ArrayLike) -> Value:
    """The polynomial with these zeros, highest power first; of a square matrix, its characteristic one."""
    v: Any = floating(as_value(roots))
    v = eigvals(v) if v.ndim == 2 else v
    found: Any = ones((1,), v.dtype)
    for k in range(_length("poly", v)):
        none = full_like(found[:1], 0)
        found = sub(concat([found, none]), mul(concat([none, found]), v[k]))
    return as_value(found)


@public
def roots(p: ArrayLike) -> Value:
    """The zeros of a polynomial, highest power first, whose first coefficient is not 0: complex numbers."""
    c: Any = floating(as_value(p))
    n = _length("roots", c) - 1
    if n < 1:
        raise OperandError(f"roots: got {c.type}, expected two coefficients or more")
    top = expand_dims(neg(div(c[1:], c[0])), 0)
    return eigvals(concat([top, cast_to(eye(n - 1, n), c.dtype)], axis=0))


@public
def polydiv(p: ArrayLike, q: ArrayLike) -> tuple[Value, Value]:
    """The quotient and the remainder of polynomials, highest power first; q starts with no 0."""
    both: Any = together(p, q)
    a, b = both
    n, m = _length("polydiv", a), _length("polydiv", b)
    if n < m:
        return full_like(a[:1], 0), a
    left: Any = a
    found = []
    for _ in range(n - m + 1):
        found.append(div(left[:1], b[:1]))
        rest: Any = sub(left[:m], mul(found[-1], b))
        left = concat([rest[1:], left[m:]])
    return concat(found), left if m > 1 else full_like(a[:1], 0)
