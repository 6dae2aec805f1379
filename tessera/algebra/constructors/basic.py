"""The identity, zero, dense matrices and diagonals."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tessera.algebra.apply import as_plain_matrix, as_vector, conjugate, dense_cost, light_cost
from tessera.algebra.kind import Kind, always, register
from tessera.algebra.operator import Operator, checked_flags, function
from tessera.core.dims import Dim
from tessera.core.dtype import DType, as_dtype, f32
from tessera.core.errors import DTypeError, NumericalError, OperandError, ShapeError
from tessera.ir.graph.ir import Value, host_data
from tessera.ops import shape
from tessera.ops.arrange import eye as identity
from tessera.ops.contraction import matmul
from tessera.ops.define import cast_to, full_of
from tessera.ops.elementwise import abs as absolute
from tessera.ops.elementwise import div, log, mul, reciprocal, sign
from tessera.ops.indexing import index
from tessera.ops.linalg import slogdet
from tessera.ops.matrix import diagonal, matrix_diag
from tessera.ops.reduction import prod, sum


def size_of(user: str, n: Any) -> Any:
    """A size: a whole number, or a symbolic one while tracing."""
    if isinstance(n, Dim):
        return n
    fraction = isinstance(n, Value) and n.dtype.kind not in "iu"
    if isinstance(n, bool) or not hasattr(n, "__index__") or fraction:
        raise OperandError(f"{user}: got {n!r:.40} for a size, expected a whole number")
    found = operator.index(n)
    if found < 0:
        raise ShapeError(f"{user}: size {found} is negative")
    return found


def float_dtype(user: str, dtype: Any) -> DType:
    """A dtype of floating-point numbers."""
    found = as_dtype(dtype)
    if found.kind not in "fc":
        raise DTypeError(
            f"{user}: dtype {found} is not floating-point; operators are of real or complex numbers"
        )
    return found


# Identity and zero ------------------------------------------------------------------------------


@function
def eye(n: Any, dtype: Any = f32) -> Operator:
    """The identity on vectors of n."""
    return Operator("eye", static=(size_of("eye", n), float_dtype("eye", dtype)))


@function
def zero(rows: Any, columns: Any = None, dtype: Any = f32) -> Operator:
    """The operator that maps every vector to zero; square unless the columns are given."""
    m = size_of("zero", rows)
    n = m if columns is None else size_of("zero", columns)
    return Operator("zero", static=(m, n, float_dtype("zero", dtype)))


def _ones(a: Operator) -> Value:
    return full_of((a.static[0],), 1, a.dtype)


def _scalar(a: Operator, x: float) -> Value:
    return full_of((), x, a.dtype)


register(Kind(
    name="eye", doc="The identity.",
    shape=lambda parts, data, static: (static[0], static[0]),
    dtype=lambda parts, data, static: static[1],
    apply=lambda a, x: x, transpose=lambda a: a, conj=lambda a: a,
    dense=lambda a: identity(a.static[0], dtype=a.dtype),
    flags=lambda a: frozenset(
        ("real", "permutation", "projector", "diagonal", "circulant", "positive")
    ),
    cost=lambda a, k: light_cost(a, 0, 0, launches=0), diagonal=_ones,
    slogdet=lambda a: (_scalar(a, 1), full_of((), 0, a.dtype.real)),
    solve=lambda a, b: b, inverse=lambda a: a, power=lambda a, k: a,
    exact=lambda a, parts, data: np.eye(a.static[0], dtype=int).astype(object),
))  # fmt: skip


register(Kind(
    name="zero", doc="Zero.", linear=always,
    shape=lambda parts, data, static: (static[0], static[1]),
    dtype=lambda parts, data, static: static[2],
    apply=lambda a, x: full_of((a.static[0], x.shape[1]), 0, x.dtype),
    transpose=lambda a: Operator("zero", static=(a.static[1], a.static[0], a.static[2])),
    conj=lambda a: a,
    dense=lambda a: full_of(a.shape, 0, a.dtype),
    flags=lambda a: frozenset(
        ("real", "projector", "diagonal", "circulant") if a.shape[0] == a.shape[1]
        else ("real", "diagonal", "toeplitz")
    ),
    cost=lambda a, k: light_cost(a, 0, 0, launches=0),
    power=lambda a, k: a, rank=lambda a: 0,
    exact=lambda a, parts, data: np.zeros(a.shape, int).astype(object),
))  # fmt: skip


# Dense ------------------------------------------------------------------------------------------


@function
def dense(a: Any, flags: Iterable[str] = ()) -> Operator:
    """A matrix as an operator, with flags that the caller vouches for."""
    if isinstance(a, Operator):
        a = a.todense()
    return Operator(
        "dense", data=(as_plain_matrix("dense", a),), assumed=checked_flags("dense", flags)
    )


_LARGE = 1 << 15  # elements of a matrix from which a column is worth being turned into a row


def _product(m: Value, x: Value) -> Value:
    """M X; one column is a row times the transpose, since machines compute the elements of a row at once."""
    rows, columns = m.shape
    known = isinstance(rows, int) and isinstance(columns, int)
    if x.shape[1] != 1 or not known or rows * columns < _LARGE:
        return matmul(m, x)
    row = matmul(shape.reshape(x, (1, columns)), shape.matrix_transpose(m))
    return shape.reshape(row, (rows, 1))


register(Kind(
    name="dense", doc="A matrix of numbers.", representation="dense", linear=always,
    shape=lambda parts, data, static: data[0].shape,
    apply=lambda a, x: _product(a.data[0], x),
    apply_transpose=lambda a, x: _product(shape.matrix_transpose(a.data[0]), x),
    dense=lambda a: a.data[0], cost=dense_cost,
    diagonal=lambda a: diagonal(a.data[0]),
    slogdet=lambda a: tuple(slogdet(a.data[0])),  # type: ignore[arg-type,return-value]
    slice=lambda a, rows, columns: Operator("dense", data=(index(a.data[0], (rows, columns)),)),
    exact=lambda a, parts, data: data[0],
))  # fmt: skip


# Diagonal ---------------------------------------------------------------------------------------


@function
def diag(v: Any) -> Operator:
    """The operator that multiplies a vector element by element with v."""
    return Operator("diag", data=(as_vector("diag", v),))


def column(v: Value) -> Value:
    """A vector as a matrix of one column."""
    return shape.expand_dims(v, 1)


def refuse_zeros(user: str, a: Operator, d: Value) -> None:
    """Singular diagonals are refused where the numbers are known."""
    if d.storage is not None and not np.all(host_data(d)):
        where = int(np.argmin(np.abs(host_data(d))))
        raise NumericalError(
            f"{user}: {a} is singular: element {where} of its diagonal is 0; use pseudoinverse"
        )


def _solve(a: Operator, b: Value) -> Value:
    refuse_zeros("solve", a, a.data[0])
    return div(b, column(a.data[0]))


def _inverse(a: Operator) -> Operator:
    refuse_zeros("inverse", a, a.data[0])
    return Operator("diag", data=(reciprocal(a.data[0]),))


def slogdet_of_diagonal(d: Value) -> tuple[Value, Value]:
    """Sign and logarithm of the absolute value of the product of a vector."""
    return prod(sign(d)), sum(log(absolute(d)))


def _mapped(f: Callable[[Value], Value]) -> Callable[[Operator], Operator]:
    return lambda a: Operator("diag", data=(f(a.data[0]),))


def _exact(a: Operator, parts: Any, data: Any) -> Any:
    out = np.zeros(a.shape, int).astype(object)
    out[np.arange(len(data[0])), np.arange(len(data[0]))] = data[0]
    return out


register(Kind(
    name="diag", doc="A diagonal matrix.", linear=always,
    shape=lambda parts, data, static: (data[0].shape[0],) * 2,
    apply=lambda a, x: mul(column(cast_to(a.data[0], x.dtype)), x),
    transpose=lambda a: a, conj=_mapped(conjugate),
    dense=lambda a: matrix_diag(a.data[0]), flags=lambda a: frozenset(("diagonal",)),
    cost=lambda a, k: light_cost(a, k, a.shape[0] * k, a.shape[0]),
    diagonal=lambda a: a.data[0], slogdet=lambda a: slogdet_of_diagonal(a.data[0]),
    solve=_solve, inverse=_inverse,
    slice=lambda a, rows, columns: (
        Operator("diag", data=(index(a.data[0], rows),)) if rows == columns else None
    ),
    exact=_exact,
))  # fmt: skip
