"""Sparse operators: elements or square tiles at places that are part of the structure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.algebra.apply import conjugate, light_cost
from tessera.algebra.kind import Kind, always, register
from tessera.algebra.operator import Operator, function
from tessera.algebra.table import IndexTable
from tessera.core.device import ANYWHERE
from tessera.core.errors import OperandError, ShapeError
from tessera.ir.graph.ir import Value
from tessera.ir.graph.place import known_data, on_device
from tessera.ops.contraction import matmul
from tessera.ops.define import as_value, cast_to, floating, full_of
from tessera.ops.elementwise import mul
from tessera.ops.gather import take
from tessera.ops.indexing import update
from tessera.ops.shape import expand_dims, matrix_transpose, moveaxis, reshape
from tessera.ops.whole import wholes

_EXPECTED = (
    "a matrix of scipy.sparse, (values, columns, row starts) with a shape, or a NumPy matrix"
)


@function
def sparse(a: Any, shape: Any = None, block: Any = None) -> Operator:
    """A sparse matrix: of scipy.sparse, (values, columns, row starts) with a shape, or a NumPy matrix.

    BSR matrices, values of shape (count, rows, columns) and NumPy matrices with block=(rows, columns)
    are kept as dense tiles.
    """
    if isinstance(a, tuple) and len(a) == 3:
        return _from_rows(*a, shape)
    if hasattr(a, "tocsr"):
        m = a if getattr(a, "format", "") == "bsr" else a.tocsr()
        return _from_rows(m.data, m.indices, m.indptr, m.shape)
    array = known_data(a) if isinstance(a, Value) else a
    if not isinstance(array, np.ndarray) or array.ndim != 2:
        raise OperandError(f"sparse: got {type(a).__name__} {a!r:.40}, expected {_EXPECTED}")
    device = a.device if isinstance(a, Value) else ANYWHERE
    return _from_dense(array, block, lambda x: floating(on_device(x, None, device)))


def _from_rows(values: Any, columns: Any, starts: Any, shape: Any) -> Operator:
    """Compressed rows: the elements or tiles of row i lie from starts[i] to starts[i + 1]."""
    v = floating(as_value(values, "sparse"))
    cols, ends = np.asarray(columns), np.asarray(starts)
    if shape is None:
        raise OperandError("sparse: (values, columns, row starts) need a shape=(rows, columns)")
    m, n = wholes("sparse", "shape", shape)
    tile = tuple(v.shape[1:]) or (1, 1)
    if v.ndim not in (1, 3) or len(tile) != 2 or m % tile[0] or n % tile[1]:
        raise ShapeError(f"sparse: values {v.type} do not fit a matrix of {m} by {n}")
    rows, width = m // tile[0], n // tile[1]
    fits = (
        len(ends) == rows + 1 and len(cols) == v.shape[0] and ends[-1] == len(cols) and ends[0] == 0
    )
    if not fits or np.any(np.diff(ends) < 0):
        raise ShapeError(
            f"sparse: {len(cols)} columns and {len(ends)} row starts do not fit {v.shape[0]} values in "
            f"{rows} rows: the starts go from 0 to the number of values"
        )
    if len(cols) and not (cols.min() >= 0 and cols.max() < width):
        raise ShapeError(f"sparse: column {int(cols.max())} is out of range for {width} columns")
    at = np.repeat(np.arange(rows), np.diff(ends))
    kind = "sparse" if v.ndim == 1 else "block_sparse"
    return Operator(kind, data=(v,), static=(IndexTable(at), IndexTable(cols), m, n))


def _from_dense(array: Any, block: Any, held: Callable[[Any], Value]) -> Operator:
    m, n = array.shape
    if block is None:
        rows, cols = np.nonzero(array)
        values = held(array[rows, cols])
        return Operator("sparse", data=(values,), static=(IndexTable(rows), IndexTable(cols), m, n))
    r, c = wholes("sparse", "block", block)
    if min(r, c) < 1 or m % r or n % c:
        raise ShapeError(f"sparse: tiles of {r} by {c} do not divide a matrix of {m} by {n}")
    tiles = array.reshape(m // r, r, n // c, c).swapaxes(1, 2)
    rows, cols = np.nonzero(np.any(tiles != 0, axis=(2, 3)))
    values = held(np.ascontiguousarray(tiles[rows, cols]))
    return Operator(
        "block_sparse", data=(values,), static=(IndexTable(rows), IndexTable(cols), m, n)
    )


# Elements ---------------------------------------------------------------------------------------


def _apply(a: Operator, x: Value) -> Value:
    """Each element times its row of x, added to its row of the result."""
    rows, cols, m, _ = a.static
    terms = mul(expand_dims(cast_to(a.data[0], x.dtype), 1), take(x, cols.value, 0))
    return update(full_of((m, x.shape[1]), 0, x.dtype), rows.value, terms, "add")


def _diagonal(a: Operator) -> Value:
    rows, cols, m, n = a.static
    on = np.flatnonzero(rows.array == cols.array)
    zeros = full_of((min(m, n),), 0, a.dtype)
    where = IndexTable(rows.array[on]).value
    return update(zeros, where, take(a.data[0], IndexTable(on).value, 0), "add")


def _flags(a: Operator) -> frozenset[str]:
    rows, cols = a.static[0].array, a.static[1].array
    found = []
    if np.all(rows >= cols):
        found.append("triangular_lower")
    if np.all(rows <= cols):
        found.append("triangular_upper")
    return frozenset(found)


def _exact(a: Operator, parts: Any, data: Any) -> Any:
    out = np.zeros(a.shape, int).astype(object)
    for i, j, v in zip(a.static[0].array, a.static[1].array, data[0], strict=True):
        out[i, j] = out[i, j] + v
    return out


def _dense(a: Operator) -> Value:
    rows, cols, m, n = a.static
    flat = IndexTable(rows.array * n + cols.array).value
    return reshape(update(full_of((m * n,), 0, a.dtype), flat, a.data[0], "add"), (m, n))


register(Kind(
    name="sparse", doc="Elements at given places, zero elsewhere.", representation="blocksparse",
    linear=always, shape=lambda parts, data, static: (static[2], static[3]), apply=_apply,
    transpose=lambda a: Operator(
        "sparse", data=a.data, static=(a.static[1], a.static[0], a.static[3], a.static[2])
    ),
    conj=lambda a: Operator("sparse", data=(conjugate(a.data[0]),), static=a.static),
    dense=_dense, diagonal=_diagonal, flags=_flags,
    cost=lambda a, k: light_cost(
        a, k, 2.0 * len(a.static[0]) * k, (3.0 + k) * len(a.static[0]), 3
    ),
    exact=_exact,
))  # fmt: skip


# Tiles ------------------------------------------------------------------------------------------


def _tiles(a: Operator, x: Value, turned: bool) -> Value:
    """Each tile times its rows of x, added to its rows of the result."""
    rows, cols, m, n = a.static
    r, c = a.data[0].shape[1:]
    tiles = cast_to(a.data[0], x.dtype)
    if turned:
        rows, cols, m, n, r, c = cols, rows, n, m, c, r
        tiles = matrix_transpose(tiles)
    pieces = take(reshape(x, (n // c, c, x.shape[1])), cols.value, 0)
    zeros = full_of((m // r, r, x.shape[1]), 0, x.dtype)
    return reshape(update(zeros, rows.value, matmul(tiles, pieces), "add"), (m, x.shape[1]))


def _tiles_dense(a: Operator) -> Value:
    rows, cols, m, n = a.static
    r, c = a.data[0].shape[1:]
    flat = IndexTable(rows.array * (n // c) + cols.array).value
    grid = update(full_of(((m // r) * (n // c), r, c), 0, a.dtype), flat, a.data[0], "add")
    return reshape(moveaxis(reshape(grid, (m // r, n // c, r, c)), 2, 1), (m, n))


def _tiles_exact(a: Operator, parts: Any, data: Any) -> Any:
    out = np.zeros(a.shape, int).astype(object)
    r, c = data[0].shape[1:]
    for i, j, v in zip(a.static[0].array, a.static[1].array, data[0], strict=True):
        out[i * r : (i + 1) * r, j * c : (j + 1) * c] += v
    return out


register(Kind(
    name="block_sparse", doc="Dense tiles at given places, zero elsewhere.",
    representation="blocksparse", linear=always,
    shape=lambda parts, data, static: (static[2], static[3]),
    apply=lambda a, x: _tiles(a, x, False), apply_transpose=lambda a, x: _tiles(a, x, True),
    conj=lambda a: Operator("block_sparse", data=(conjugate(a.data[0]),), static=a.static),
    dense=_tiles_dense,
    cost=lambda a, k: light_cost(
        a, k, 2.0 * np.prod(a.data[0].shape) * k, float(np.prod(a.data[0].shape)), 3
    ),
    exact=_tiles_exact,
))  # fmt: skip
