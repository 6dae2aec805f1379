"""Circulant and Toeplitz operators, applied by Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.algebra.apply import as_vector, conjugate, dense_cost, dense_of, light_cost
from tessera.algebra.constructors.basic import column
from tessera.algebra.kind import Cost, Kind, always, register
from tessera.algebra.operator import Operator, function
from tessera.algebra.solve import named
from tessera.algebra.table import IndexTable
from tessera.core.dtype import complex_of
from tessera.core.errors import NumericalError, ShapeError
from tessera.ir.graph.ir import Value, host_data
from tessera.ops.arrange import roll
from tessera.ops.contraction import matmul
from tessera.ops.define import broadcast, cast_to
from tessera.ops.elementwise import abs as absolute
from tessera.ops.elementwise import div, log, mul, pow, real, reciprocal, sign
from tessera.ops.fft import fft, ifft, irfft, rfft
from tessera.ops.gather import take
from tessera.ops.linalg import slogdet as slogdet_matrix
from tessera.ops.reduction import prod
from tessera.ops.reduction import sum as total
from tessera.ops.shape import concat, flip, slice_
from tessera.ops.toeplitz import toeplitz_slogdet, toeplitz_solve

DIRECT = 64  # up to this size a matrix is quicker than its transforms
FACTORISED = 2048  # up to this size systems and determinants are those of the matrix


# Convolution along the first axis ---------------------------------------------------------------


def convolved(kernel: Value, x: Value, n: Any) -> Value:
    """The cyclic convolution of a vector and of columns, both filled with zeros to n elements."""
    if kernel.dtype.kind != "c" and x.dtype.kind != "c":
        dtype = x.dtype
        spectrum = mul(column(rfft(cast_to(kernel, dtype), n)), rfft(x, n, 0))
        return irfft(spectrum, n, 0)
    return ifft(mul(column(fft(kernel, n)), fft(x, n, 0)), n, 0)


# Circulant --------------------------------------------------------------------------------------


@function
def circulant(c: Any) -> Operator:
    """The operator whose first column is c, each other one the one before, turned down by one."""
    v = as_vector("circulant", c)
    if v.shape[0] == 0:
        raise ShapeError("circulant: got an empty vector, expected the first column")
    return Operator("circulant", data=(v,))


def eigenvalues(a: Operator) -> Value:
    """The eigenvalues of a circulant: the transform of its first column."""
    return fft(a.data[0])


def _of_eigenvalues(w: Value, dtype: Any, user: str, a: Operator) -> Operator:
    """The circulant with these eigenvalues."""
    c = ifft(w)
    if dtype.kind == "c":
        return Operator("circulant", data=(c,))
    _refuse_complex(user, a, c)
    return Operator("circulant", data=(cast_to(real(c), dtype),))


def _refuse_complex(user: str, a: Operator, c: Value) -> None:
    """A function that leaves the real numbers is refused where the numbers are known."""
    if c.storage is None:
        return
    size, off = float(np.max(np.abs(host_data(c)))), float(np.max(np.abs(host_data(c).imag)))
    if not off <= 1e3 * float(np.finfo(host_data(c).dtype).eps) * max(size, 1e-300):
        raise NumericalError(
            f"{user}: {a} has eigenvalues whose function is not real; make it complex: "
            "op.circulant(c.astype(c128))"
        )


def _refuse_singular(user: str, a: Operator, w: Value) -> None:
    if w.storage is None or not host_data(w).size:
        return
    least, most = float(np.min(np.abs(host_data(w)))), float(np.max(np.abs(host_data(w))))
    if least <= most * float(np.finfo(host_data(w).dtype).eps):
        raise NumericalError(f"{user}: {a} is singular: an eigenvalue is 0; use pseudoinverse")


def _solve(a: Operator, b: Value) -> Value:
    w = cast_to(eigenvalues(a), complex_of(b.dtype))
    _refuse_singular("solve", a, w)
    y = ifft(div(fft(b, axis=0), column(w)), axis=0)
    return y if b.dtype.kind == "c" else real(y)


def _mapped(f: Callable[[Value], Value], user: str, check: bool = False) -> Any:
    def run(a: Operator, *rest: Any) -> Operator:
        w = eigenvalues(a)
        if check:
            _refuse_singular(user, a, w)
        return _of_eigenvalues(f(w), a.dtype, user, a)

    return run


def _function(a: Operator, f: Callable[[Value], Value], keeps_real: bool) -> Operator:
    dtype = a.dtype if keeps_real else complex_of(a.dtype)
    return _of_eigenvalues(f(eigenvalues(a)), dtype, "function", a)


def _slogdet(a: Operator) -> tuple[Value, Value]:
    w = eigenvalues(a)
    phase, size = prod(sign(w)), total(log(absolute(w)))
    return (phase if a.dtype.kind == "c" else sign(real(phase))), size


def _turned(c: Value) -> Value:
    """The first row of the circulant with the first column c."""
    return roll(flip(c), 1)


def _positions(n: int) -> Any:
    return (np.arange(n)[:, None] - np.arange(n)[None, :]) % n


def _transform_cost(a: Operator, k: int) -> Cost:
    n = float(sum(a.shape)) if all(isinstance(s, int) for s in a.shape) else 1.0
    return light_cost(a, k, 10.0 * n * np.log2(max(n, 2)) * k, n, 4)


register(Kind(
    name="circulant", doc="A circulant matrix.", linear=always,
    shape=lambda parts, data, static: (data[0].shape[0],) * 2,
    apply=lambda a, x: convolved(a.data[0], x, a.shape[0]),
    transpose=lambda a: Operator("circulant", data=(_turned(a.data[0]),)),
    conj=lambda a: Operator("circulant", data=(conjugate(a.data[0]),)),
    dense=lambda a: take(a.data[0], IndexTable(_positions(a.shape[0])).value, 0),
    flags=lambda a: frozenset(("circulant",)), cost=_transform_cost,
    diagonal=lambda a: broadcast(slice_(a.data[0], (0,), (1,)), (a.shape[0],)), slogdet=_slogdet,
    solve=_solve, inverse=_mapped(reciprocal, "inverse", True), function=_function,
    power=lambda a, k: _mapped(lambda w: pow(w, k), "power")(a),
    exact=lambda a, parts, data: data[0][_positions(len(data[0]))],
))  # fmt: skip


# Toeplitz ---------------------------------------------------------------------------------------


@function
def toeplitz(c: Any, r: Any = None) -> Operator:
    """The operator with the first column c and the first row r, whose first element is not read.

    Without r it is the conjugate of c, as in scipy.linalg.toeplitz.
    """
    first = as_vector("toeplitz", c)
    row = conjugate(first) if r is None else as_vector("toeplitz", r)
    m, n = first.shape[0], row.shape[0]
    if 0 in (m, n):
        raise ShapeError(
            f"toeplitz: got {first.type} and {row.type}, expected at least one element"
        )
    above = flip(slice_(row, (1,), (n,)))
    mirrored = r is None and first.dtype.kind != "c"
    return Operator("toeplitz", data=(concat([above, first], 0),), static=(m, n, mirrored))


def _diagonals(m: int, n: int) -> Any:
    """Where the element (i, j) lies in the vector of diagonals, from the upper right one down."""
    return n - 1 + np.arange(m)[:, None] - np.arange(n)[None, :]


def _dense(a: Operator) -> Value:
    m, n, _ = a.static
    return take(a.data[0], IndexTable(_diagonals(m, n)).value, 0)


def _is_small(a: Operator) -> bool:
    return all(isinstance(n, int) and n <= DIRECT for n in a.shape)


def _apply(a: Operator, x: Value) -> Value:
    """The matrix when it is small, else the part of a convolution that wraps do not reach."""
    if _is_small(a):
        return matmul(_dense(a), x)
    m, n, _ = a.static
    y = convolved(a.data[0], x, m + n - 1)
    return slice_(y, (n - 1, 0), (m + n - 1, x.shape[1]))


def _slogdet_toeplitz(a: Operator) -> tuple[Value, Value]:
    n = a.shape[0]
    if not isinstance(n, int) or n <= FACTORISED:
        return slogdet_matrix(dense_of(a))  # type: ignore[return-value]
    sign, size = toeplitz_slogdet(a.data[0])
    return sign, size


def _solve_toeplitz(a: Operator, b: Value) -> Value | None:
    n = a.shape[0]
    if not isinstance(n, int) or n != a.shape[1] or n <= FACTORISED:
        return None
    return named(a, lambda: toeplitz_solve(cast_to(a.data[0], b.dtype), b))


def _slice(a: Operator, rows: Any, cols: Any) -> Operator | None:
    m, n, mirrored = a.static
    (i, top, step), (j, right, stride) = rows.indices(m), cols.indices(n)
    if step != 1 or stride != 1 or top <= i or right <= j:
        return None
    start = n - 1 + i - (right - 1)
    data = slice_(a.data[0], (start,), (n - 1 + top - 1 - j + 1,))
    kept = mirrored and i == j and top == right
    return Operator("toeplitz", data=(data,), static=(top - i, right - j, kept))


register(Kind(
    name="toeplitz", doc="A matrix with one value along each diagonal.", linear=always,
    shape=lambda parts, data, static: static[:2], apply=_apply,
    transpose=lambda a: Operator(
        "toeplitz", data=(flip(a.data[0]),), static=(a.static[1], a.static[0], a.static[2])
    ),
    conj=lambda a: Operator("toeplitz", data=(conjugate(a.data[0]),), static=a.static),
    dense=_dense, flags=lambda a: frozenset(("toeplitz", *(("symmetric",) if a.static[2] else ()))),
    cost=lambda a, k: dense_cost(a, k) if _is_small(a) else _transform_cost(a, k),
    diagonal=lambda a: broadcast(
        slice_(a.data[0], (a.static[1] - 1,), (a.static[1],)), (min(a.static[:2]),)
    ),
    slice=_slice, slogdet=_slogdet_toeplitz, solve=_solve_toeplitz,
    exact=lambda a, parts, data: data[0][_diagonals(*a.static[:2])],
))  # fmt: skip
