"""Numbers that tell about an operator: norms, radius, condition, and whether its adjoint is right.

Small operators are looked at as matrices, large ones through products with vectors.
"""

from __future__ import annotations

from typing import Any

from tessera.algebra.apply import applied, as_operator, columns, dense_of, square
from tessera.algebra.combinators.inverse import inverse_of
from tessera.algebra.operator import Operator, function
from tessera.algebra.solve import DENSE_LIMIT
from tessera.algebra.solvers.implicit import dot
from tessera.algebra.solvers.implicit import norm as length
from tessera.algebra.solvers.krylov import steps_of
from tessera.algebra.solvers.long import arnoldi_process
from tessera.algebra.spectral import spectral
from tessera.ir.graph.ir import Value
from tessera.ops.arrange import eye
from tessera.ops.callbacks import ensure
from tessera.ops.contraction import matmul
from tessera.ops.define import cast_to, full_of
from tessera.ops.elementwise import abs as absolute
from tessera.ops.elementwise import div, le, maximum, mul, sub
from tessera.ops.factor import eig, eigvals, svdvals
from tessera.ops.gather import take
from tessera.ops.linalg import epsilon, matrix_norm
from tessera.ops.matrix import adjoint
from tessera.ops.random import normal
from tessera.ops.random_bits import key as key_of
from tessera.ops.reduction import argmax
from tessera.ops.reduction import max as largest
from tessera.ops.shape import slice_, squeeze


def _is_small(a: Operator) -> bool:
    return bool(max(a.shape) <= DENSE_LIMIT)


def _first(s: Value) -> Value:
    return absolute(squeeze(slice_(s, (0,), (1,)), 0))


@function
def norm(a: Any, ord: Any = 2) -> Value:
    """The norm of an operator: 2 (the largest singular value), or an ord of op.matrix_norm."""
    found = as_operator("norm", a)
    if ord == 2 and "orthogonal_columns" in found.flags:
        return full_of((), 1, found.dtype.real)
    if ord == 2 and not _is_small(found):
        return _first(spectral(found, 1).S)
    return matrix_norm(dense_of(found), ord)


@function
def spectral_radius(a: Any, *, steps: int = 200, tol: float = 1e-6) -> Value:
    """The largest absolute value of the eigenvalues of a square operator."""
    found = square("spectral_radius", a)
    if "normal" in found.flags:  # then it is the largest singular value
        made: Value = norm(found)
        return made
    if _is_small(found):
        return largest(absolute(eigvals(dense_of(found))))
    n = found.shape[0]
    count = steps_of("spectral_radius", steps, n)
    start = cast_to(normal(key_of(0), (n,), dtype=found.dtype.real), found.dtype)
    h = arnoldi_process(lambda x: applied("spectral_radius", found, x), start, count)
    w, y = eig(h.hessenberg)
    size = absolute(w)
    at = argmax(size, 0)
    radius = take(size, at, 0)
    last = squeeze(slice_(y, (count - 1, 0), (count, count)), 0)
    rest = mul(h.rest, absolute(take(last, at, 0)))
    return ensure(
        radius, le(rest, mul(radius, tol)), radius, rest,
        message=f"spectral_radius: {found} has about {{:.6g}}, with a residual of {{:.2g}} after "
        f"{count} steps; raise steps= or tol=",
    )  # fmt: skip


@function
def cond(a: Any) -> Value:
    """The condition number: the largest singular value over the smallest, inf when that is zero."""
    found = as_operator("cond", a)
    if "unitary" in found.flags:
        return full_of((), 1, found.dtype.real)
    if _is_small(found):
        s = svdvals(dense_of(found))
        return div(_first(s), squeeze(slice_(s, (s.shape[0] - 1,), s.shape), 0))
    there: Value = norm(square("cond", found))
    back: Value = norm(inverse_of(found))
    return mul(there, back)


@function
def is_unitary(a: Any, *, tol: float | None = None) -> Value:
    """Whether A.H @ A is the identity, exactly up to tol for small operators, else on random vectors."""
    found = as_operator("is_unitary", a)
    m, n = found.shape
    if m != n:
        return full_of((), 0, found.dtype.real) > 1
    limit = 100 * max(n, 1) ** 0.5 * epsilon(found.dtype) if tol is None else tol
    if _is_small(found):
        matrix = dense_of(found)
        rest = sub(matmul(adjoint(matrix), matrix), eye(n, dtype=found.dtype))
        return le(largest(absolute(rest)), limit)
    x = cast_to(normal(key_of(0), (n, 4), dtype=found.dtype.real), found.dtype)
    back = columns(found.H, columns(found, x))
    return le(largest(absolute(sub(back, x))), mul(largest(absolute(x)), limit))


@function
def adjoint_test(a: Any, *, key: Any = None) -> Value:
    """|(A x, y) - (x, A.H y)| beside |A x| |y| for random x and y: about eps when A.H is right."""
    found = as_operator("adjoint_test", a)
    m, n = found.shape
    draws = normal(key_of(0) if key is None else key, (m + n,), dtype=found.dtype.real)
    both = cast_to(draws, found.dtype)
    x, y = slice_(both, (0,), (n,)), slice_(both, (n,), (m + n,))
    ax = applied("adjoint_test", found, x)
    gap = absolute(sub(dot(ax, y), dot(x, applied("adjoint_test", found.H, y))))
    size = mul(length(ax), length(y))
    return div(gap, maximum(size, epsilon(found.dtype)))
