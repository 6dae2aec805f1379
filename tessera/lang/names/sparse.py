"""Products with sparse matrices in CSR form, of elements and of blocks.

A matrix has pointers (rows + 1), columns and values: row i holds the entries pointers[i] to pointers[i + 1].
"""

from __future__ import annotations

from typing import Any

from tessera.core.constraints import require, same
from tessera.core.dtype import i64
from tessera.core.errors import OperandError, ShapeError
from tessera.ir.graph.ir import Value
from tessera.ops.contraction import matmul
from tessera.ops.creation import iota
from tessera.ops.define import ArrayLike, as_value, cast_to, full_of, public
from tessera.ops.elementwise import mul, sub
from tessera.ops.gather import scatter_add, take
from tessera.ops.reduction import sum as sum_
from tessera.ops.shape import expand_dims, matrix_transpose, reshape
from tessera.ops.sorting import searchsorted


def _pattern(op: str, columns: ArrayLike, pointers: ArrayLike) -> tuple[Value, Value, Any]:
    """Columns and rows of the entries, and the number of rows."""
    c, p = as_value(columns, op), as_value(pointers, op)
    for name, v in (("columns", c), ("pointers", p)):
        if v.dtype.kind not in "iu" or v.ndim != 1:
            raise OperandError(f"{op}: the {name} are {v.type}, expected a vector of integers")
    numbers = iota((c.shape[0],), 0, dtype=i64)
    rows = sub(searchsorted(cast_to(p, i64), numbers, side="right"), 1)
    return cast_to(c, i64), cast_to(rows, i64), p.shape[0] - 1


def _matrix(op: str, name: str, x: ArrayLike) -> Value:
    v = as_value(x, op)
    if v.ndim != 2:
        raise ShapeError(f"{op}: {name} is {v.type}, expected a matrix")
    return v


def _entries(op: str, v: Value, columns: Value, ndim: int, expected: str) -> None:
    if v.ndim != ndim or same(v.shape[0], columns.shape[0]) is False:
        raise ShapeError(f"{op}: the values are {v.type}, expected {expected} for {columns.type}")


def _rows(x: Value, places: Value, count: Any) -> Value:
    """The sums of the parts of x by row."""
    made: Value = scatter_add.bind(full_of((count, *x.shape[1:]), 0, x.dtype), x, places, axes=(0,))
    return made


@public
def spmm(values: ArrayLike, columns: ArrayLike, pointers: ArrayLike, x: ArrayLike) -> Value:
    """The product A @ x of a sparse matrix in CSR form and a matrix; entries of a row are added in order."""
    c, rows, count = _pattern("spmm", columns, pointers)
    v, m = as_value(values, "spmm"), _matrix("spmm", "x", x)
    _entries("spmm", v, c, 1, "one for each column")
    return _rows(mul(expand_dims(v, 1), take(m, c, axis=0)), rows, count)


@public
def sddmm(columns: ArrayLike, pointers: ArrayLike, a: ArrayLike, b: ArrayLike) -> Value:
    """The entries of a @ b at the places of a sparse matrix in CSR form, and no others."""
    c, rows, _ = _pattern("sddmm", columns, pointers)
    left, right = _matrix("sddmm", "a", a), _matrix("sddmm", "b", b)
    if same(left.shape[1], right.shape[0]) is False:
        raise ShapeError(f"sddmm: a is {left.type} and b {right.type}, which do not multiply")
    picked = take(matrix_transpose(right), c, axis=0)
    return sum_(mul(take(left, rows, axis=0), picked), axis=1)


@public
def bsmm(blocks: ArrayLike, columns: ArrayLike, pointers: ArrayLike, x: ArrayLike) -> Value:
    """The product A @ x of a block-sparse matrix, blocks (entries, rows, columns) in CSR form, and x."""
    c, rows, count = _pattern("bsmm", columns, pointers)
    v, m = as_value(blocks, "bsmm"), _matrix("bsmm", "x", x)
    _entries("bsmm", v, c, 3, "(entries, rows, columns)")
    _, high, wide = v.shape
    if not require("divisible", m.shape[0], wide, "bsmm: the rows of x"):
        raise ShapeError(
            f"bsmm: x is {m.type}, expected a multiple of the {wide} columns of a block"
        )
    parts = reshape(m, (m.shape[0] // wide, wide, m.shape[1]))
    made = _rows(matmul(v, take(parts, c, axis=0)), rows, count)
    return reshape(made, (count * high, m.shape[1]))
