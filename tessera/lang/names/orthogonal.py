"""Orthogonal polynomials under SciPy's names, of a degree that is a whole number: by their recurrences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.core.errors import OperandError
from tessera.ir.graph.ir import Value
from tessera.lang.names.together import together
from tessera.ops.define import ArrayLike, public
from tessera.ops.elementwise import add, div, mul, sub


def _degree(op: str, n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        got = n if isinstance(n, int | float) else type(n).__name__
        raise OperandError(f"{op}: the degree is {got}, expected a whole number of 0 or more")
    return n


def _recurred(n: int, x: Value, first: Value, step: Callable[[int, Value, Value], Value]) -> Value:
    """The polynomial of degree n, from those of degrees 0 and 1; step(k, p[k], p[k - 1]) is p[k + 1]."""
    before, now = add(mul(x, 0.0), 1.0), first
    if n == 0:
        return before
    for k in range(1, n):
        before, now = now, step(k, now, before)
    return now


@public
def eval_chebyt(n: int, x: ArrayLike) -> Value:
    """Chebyshev's polynomial of the first kind: T_n(cos t) = cos(n t)."""
    (v,) = together(x)
    n = _degree("eval_chebyt", n)
    return _recurred(n, v, v, lambda k, p, q: sub(mul(mul(v, 2.0), p), q))


@public
def eval_chebyu(n: int, x: ArrayLike) -> Value:
    """Chebyshev's polynomial of the second kind: U_n(cos t) = sin((n + 1) t) / sin(t)."""
    (v,) = together(x)
    n = _degree("eval_chebyu", n)
    return _recurred(n, v, mul(v, 2.0), lambda k, p, q: sub(mul(mul(v, 2.0), p), q))


@public
def eval_legendre(n: int, x: ArrayLike) -> Value:
    """Legendre's polynomial."""
    return eval_gegenbauer(n, 0.5, x)


@public
def eval_gegenbauer(n: int, alpha: ArrayLike, x: ArrayLike) -> Value:
    """Gegenbauer's polynomial."""
    a, v = together(alpha, x)
    n = _degree("eval_gegenbauer", n)

    def step(k: int, p: Value, q: Value) -> Value:
        up = mul(mul(mul(add(a, float(k)), 2.0), v), p)
        return div(sub(up, mul(add(mul(a, 2.0), k - 1.0), q)), k + 1.0)

    return _recurred(n, v, mul(mul(a, 2.0), v), step)


@public
def eval_hermite(n: int, x: ArrayLike) -> Value:
    """The Hermite polynomial of physicists."""
    (v,) = together(x)
    n = _degree("eval_hermite", n)
    return _recurred(n, v, mul(v, 2.0), lambda k, p, q: sub(mul(mul(v, 2.0), p), mul(q, 2.0 * k)))


@public
def eval_hermitenorm(n: int, x: ArrayLike) -> Value:
    """The Hermite polynomial of probability."""
    (v,) = together(x)
    n = _degree("eval_hermitenorm", n)
    return _recurred(n, v, v, lambda k, p, q: sub(mul(v, p), mul(q, float(k))))


@public
def eval_laguerre(n: int, x: ArrayLike) -> Value:
    """Laguerre's polynomial."""
    return eval_genlaguerre(n, 0.0, x)


@public
def eval_genlaguerre(n: int, alpha: ArrayLike, x: ArrayLike) -> Value:
    """The generalised Laguerre polynomial."""
    a, v = together(alpha, x)
    n = _degree("eval_genlaguerre", n)

    def step(k: int, p: Value, q: Value) -> Value:
        up = mul(sub(add(a, 2.0 * k + 1.0), v), p)
        return div(sub(up, mul(add(a, float(k)), q)), k + 1.0)

    return _recurred(n, v, sub(add(a, 1.0), v), step)


@public
def eval_jacobi(n: int, alpha: ArrayLike, beta: ArrayLike, x: ArrayLike) -> Value:
    """Jacobi's polynomial."""
    a, b, v = together(alpha, beta, x)
    n = _degree("eval_jacobi", n)
    both = add(a, b)

    def step(k: int, p: Value, q: Value) -> Value:
        c = add(both, 2.0 * k)  # DLMF 18.9.2
        scale = mul(mul(add(both, k + 1.0), c), 2.0 * (k + 1))
        inner = add(mul(mul(add(c, 2.0), c), v), sub(mul(a, a), mul(b, b)))
        up = mul(mul(add(c, 1.0), inner), p)
        down = mul(mul(mul(add(a, float(k)), add(b, float(k))), mul(add(c, 2.0), 2.0)), q)
        return div(sub(up, down), scale)

    first = add(add(a, 1.0), mul(add(both, 2.0), mul(sub(v, 1.0), 0.5)))
    return _recurred(n, v, first, step)


@public
def eval_sh_chebyt(n: int, x: ArrayLike) -> Value:
    """Chebyshev's polynomial of the first kind on [0, 1]."""
    (v,) = together(x)
    return eval_chebyt(n, sub(mul(v, 2.0), 1.0))


@public
def eval_sh_chebyu(n: int, x: ArrayLike) -> Value:
    """Chebyshev's polynomial of the second kind on [0, 1]."""
    (v,) = together(x)
    return eval_chebyu(n, sub(mul(v, 2.0), 1.0))


@public
def eval_sh_legendre(n: int, x: ArrayLike) -> Value:
    """Legendre's polynomial on [0, 1]."""
    (v,) = together(x)
    return eval_legendre(n, sub(mul(v, 2.0), 1.0))
