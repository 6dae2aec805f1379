"""f(A) b for a self-adjoint A by Chebyshev polynomials: products with A alone, any derivative.

On an interval that holds the eigenvalues f is a sum of polynomials c_k T_k; then f(A) b is the sum of
c_k T_k(A) b.  T_k(A) b is never longer than b, which shows when the interval is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.algebra.apply import applied, square
from tessera.algebra.combinators.functions import ACTION, NAMED
from tessera.algebra.operator import Operator, function
from tessera.algebra.solve import DENSE_LIMIT
from tessera.algebra.solvers.implicit import norm, widened
from tessera.algebra.solvers.krylov import steps_of
from tessera.algebra.solvers.long import lanczos_process, tridiagonal
from tessera.core.errors import OperandError, ShapeError
from tessera.core.promotion import promote
from tessera.ir.graph.ir import Value, concrete
from tessera.ops.callbacks import ensure
from tessera.ops.control import scan
from tessera.ops.define import as_value, as_value_of, cast_to, floating, full_of
from tessera.ops.elementwise import abs as absolute
from tessera.ops.elementwise import (
    gt,
    isfinite,
    le,
    logical_and,
    maximum,
    mul,
    stop_gradient,
    where,
)
from tessera.ops.factor import eigh
from tessera.ops.indexing import index
from tessera.ops.linalg import epsilon
from tessera.ops.random import normal
from tessera.ops.random_bits import key as key_of
from tessera.ops.reduction import all as every
from tessera.ops.reduction import max as largest
from tessera.ops.shape import slice_, squeeze
from tessera.ops.spectrum import dct

Function = Callable[[Value], Any]


@function
def apply_function(
    a: Any, f: Function, b: Any, *, bounds: Any = None, degree: int = 64, tol: float | None = None
) -> Value:
    """f(A) b for a self-adjoint A, as apply_function(A, op.exp, b); b is a vector or columns.

    bounds = (low, high) hold the eigenvalues; without them Lanczos finds some.  An f that needs a higher
    degree for the tolerance is an error.
    """
    user = "apply_function"
    found = square(user, a)
    right = floating(as_value_of(found.dtype, b, user), found.dtype)
    if right.ndim not in (1, 2) or right.shape[0] != found.shape[1]:
        raise ShapeError(
            f"{user}: b is {right.type}, expected {found.shape[1]} elements along axis 0 for {found}"
        )
    right = cast_to(right, promote(found.dtype, right.dtype))
    count = steps_of(user, degree, 1 << 20, "degree")
    apply = lambda x: applied(user, found, x)  # noqa: E731
    low, high = _bounds(user, apply, right, bounds)
    if bounds is None and "positive" in found.flags:
        low = maximum(low, 0)
    middle, half = mul(low + high, 0.5), mul(high - low, 0.5)
    half = where(gt(half, 0), half, 1)
    c = _coefficients(user, f, middle, half, count)
    c = _enough(f"{user}: {found}", c, tol)
    return _sum(f"{user}: {found}", apply, right, c, middle, half)


def _bounds(user: str, apply: Function, b: Value, bounds: Any) -> tuple[Value, Value]:
    """The ends of an interval with all eigenvalues."""
    real = b.dtype.real
    if bounds is not None:
        if not isinstance(bounds, tuple | list) or len(bounds) != 2:
            raise OperandError(f"{user}: bounds are {bounds!r:.40}, expected (low, high)")
        low, high = (cast_to(as_value(v, user), real) for v in bounds)
        return low, high
    n = b.shape[0]
    start = cast_to(normal(key_of(0), (n,), dtype=real), b.dtype)
    t = lanczos_process(apply, start, min(n, 24))
    w, v = eigh(tridiagonal(t))
    last = w.shape[0] - 1
    rest = squeeze(slice_(t.beside, (last,), (last + 1,)), 0)
    # A Ritz value lies within its residual of an eigenvalue.
    far = mul(absolute(squeeze(slice_(v, (last, 0), (last + 1, last + 1)), 0)), rest)
    low, high = index(w, 0) - index(far, 0), index(w, last) + index(far, last)
    margin = mul(high - low, 0.01) + mul(maximum(absolute(low), absolute(high)), 1e-6)
    return stop_gradient(low - margin), stop_gradient(high + margin)


def _coefficients(user: str, f: Function, middle: Value, half: Value, degree: int) -> Value:
    """Of f on the interval, from its values at the nodes of Chebyshev."""
    size = degree + 1
    nodes = np.cos(math.pi * (np.arange(size) + 0.5) / size)
    at = middle + mul(half, concrete(nodes, middle.dtype))
    y = f(at)
    if not isinstance(y, Value) or y.shape != at.shape or y.dtype is not at.dtype:
        shown = y.type if isinstance(y, Value) else type(y).__name__
        raise ShapeError(f"{user}: f gives {shown} for {at.type}, expected {at.type}")
    weights = np.full(size, 1 / size)
    weights[0] /= 2
    return mul(dct(y), concrete(weights, middle.dtype))


def _enough(user: str, c: Value, tol: float | None) -> Value:
    """The coefficients, if the last of them are small."""
    size = c.shape[0]
    bound = max(1e-10 if tol is None else tol, 100 * epsilon(c.dtype))
    most = largest(absolute(c))
    tail = largest(absolute(slice_(c, (max(size - 2, 0),), (size,))))
    c = ensure(
        c, every(isfinite(c)),
        message=f"{user}: f is not finite on the interval of the eigenvalues; give bounds within its "
        "domain",
    )  # fmt: skip
    return ensure(
        c, le(tail, mul(most, bound)), tail, most,
        message=f"{user}: the last coefficients of f are {{:.2g}} where the largest is {{:.2g}}; raise "
        "degree= or tol=, or give closer bounds",
    )  # fmt: skip


def _sum(user: str, apply: Function, b: Value, c: Value, middle: Value, half: Value) -> Value:
    moved = widened(middle, b)
    scale = widened(1 / half, b)
    size = norm(b)

    def step(x: Value) -> Value:
        return mul(apply(x) - mul(x, moved), scale)

    def body(carry: tuple[Value, ...], ck: Value) -> tuple[tuple[Value, ...], None]:
        before, now, y, longest = carry
        y = y + mul(now, widened(ck, b))
        nxt = mul(step(now), 2) - before
        return (now, nxt, y, maximum(longest, norm(stop_gradient(now)))), None

    first = widened(squeeze(slice_(c, (0,), (1,)), 0), b)
    start = (b, step(b), mul(b, first), full_of((), 0, b.dtype.real))
    (_, _, y, longest), _ = scan(body, start, slice_(c, (1,), c.shape))
    fine = logical_and(le(longest, mul(size, 1.0 + 1e-3)), isfinite(longest))
    y = ensure(
        y, fine,
        message=f"{user}: is not self-adjoint or has eigenvalues beyond the bounds; give wider bounds",
    )  # fmt: skip
    most, found = mul(largest(absolute(c)), size), norm(stop_gradient(y))
    return ensure(
        y, le(mul(most, 1e3 * epsilon(b.dtype)), found), found, most,
        message=f"{user}: f(A) b has length {{:.3g}} but f on the bounds reaches {{:.3g}} times b, so that "
        "rounding leaves no digits; give closer bounds",
    )  # fmt: skip


def _action(a: Operator, f: Any, x: Value) -> Value | None:
    """f(A) X for operators that are too large to be matrices."""
    if "self_adjoint" not in a.flags or a.shape[0] <= DENSE_LIMIT:
        return None
    found: Value = apply_function(a, NAMED[f].scalar if isinstance(f, str) else f, x, degree=256)
    return found


ACTION.provide(_action)
