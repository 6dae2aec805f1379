"""Direct sums and blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tessera.algebra import flags as rules
from tessera.algebra.apply import as_operator, columns, cost_of, dense_of, diagonal_of, trace_of
from tessera.algebra.combinators.queries import signed_logdet
from tessera.algebra.kind import Cost, Kind, always, register
from tessera.algebra.operator import Operator, are_adjoint, function
from tessera.algebra.solve import solve_columns
from tessera.core.constraints import unify
from tessera.core.errors import OperandError, ShapeError
from tessera.ir.graph.ir import Value
from tessera.ops import shape
from tessera.ops.define import full_of
from tessera.ops.elementwise import add, mul
from tessera.ops.linalg import slogdet as slogdet_matrix
from tessera.ops.matrix import diagonal, trace

Map = Callable[[Operator], Operator]


def _spread(f: Map) -> Map:
    return lambda a: Operator(a.kind, tuple(f(p) for p in a.parts), a.data, a.static)


def _ends(sizes: Sequence[Any]) -> list[Any]:
    out: list[Any] = [0]
    for s in sizes:
        out.append(out[-1] + s)
    return out


def _rows(x: Value, sizes: Sequence[Any]) -> list[Value]:
    """The rows of x, cut into pieces of these sizes."""
    ends = _ends(sizes)
    return [shape.slice_(x, (i, 0), (j, x.shape[1])) for i, j in pairwise(ends)]


# Direct sums ------------------------------------------------------------------------------------


@function
def direct_sum(*parts: Any) -> Operator:
    """Operators side by side: each acts on its own piece of the vector."""
    if not parts:
        raise OperandError("direct_sum: got no operators")
    return Operator("direct_sum", tuple(as_operator("direct_sum", p) for p in parts))


def _each(a: Operator, x: Value, f: Callable[[Operator, Value], Value]) -> Value:
    pieces = _rows(x, [p.shape[1] for p in a.parts])
    return shape.concat([f(p, v) for p, v in zip(a.parts, pieces, strict=True)], 0)


def _sum_dense(a: Operator) -> Value:
    rows = []
    ends = _ends([p.shape[1] for p in a.parts])
    for p, start, stop in zip(a.parts, ends, ends[1:], strict=False):
        m = p.shape[0]
        left, right = (full_of((m, n), 0, a.dtype) for n in (start, a.shape[1] - stop))
        rows.append(shape.concat([left, dense_of(p), right], 1))
    return shape.concat(rows, 0)


def _square_parts(a: Operator) -> bool:
    return all(p.shape[0] == p.shape[1] for p in a.parts)


def _sum_diagonal(a: Operator) -> Value:
    if not _square_parts(a):
        return diagonal(dense_of(a))
    return shape.concat([diagonal_of(p) for p in a.parts], 0)


def _sum_trace(a: Operator) -> Value:
    if not _square_parts(a):
        return trace(dense_of(a))
    total = trace_of(a.parts[0])
    for p in a.parts[1:]:
        total = add(total, trace_of(p))
    return total


def _sum_slogdet(a: Operator) -> tuple[Value, Value]:
    if not _square_parts(a):
        return slogdet_matrix(dense_of(a))  # type: ignore[return-value]
    s, size = signed_logdet(a.parts[0])
    for p in a.parts[1:]:
        t, more = signed_logdet(p)
        s, size = mul(s, t), add(size, more)
    return s, size


def _sum_function(a: Operator, f: Callable[[Operator], Operator]) -> Operator | None:
    return Operator("direct_sum", tuple(f(p) for p in a.parts)) if _square_parts(a) else None


def _sum_exact(a: Operator, parts: Any, data: Any) -> Any:
    out = np.zeros(a.shape, int).astype(object)
    i = j = 0
    for p in parts:
        out[i : i + p.shape[0], j : j + p.shape[1]] = p
        i, j = i + p.shape[0], j + p.shape[1]
    return out


def _total(a: Operator, k: int) -> Cost:
    return Cost().plus(*(cost_of(p, k) for p in a.parts))


register(Kind(
    name="direct_sum", doc="Operators side by side on the diagonal.", linear=always,
    shape=lambda parts, data, static: tuple(_ends([p.shape[i] for p in parts])[-1] for i in range(2)),
    apply=lambda a, x: _each(a, x, columns),
    transpose=_spread(lambda p: p.T), conj=_spread(lambda p: p.conj()), dense=_sum_dense,
    flags=lambda a: rules.of_blocks(a.parts), cost=_total,
    diagonal=_sum_diagonal, trace=_sum_trace, slogdet=_sum_slogdet,
    solve=lambda a, b: _each(a, b, solve_columns) if _square_parts(a) else None,
    inverse=lambda a: _sum_function(a, lambda p: p.inverse()),
    power=lambda a, k: _sum_function(a, lambda p: p**k),
    rank=lambda a: sum(p.rank for p in a.parts), exact=_sum_exact,
))  # fmt: skip


# Blocks -----------------------------------------------------------------------------------------


@function
def block(rows: Sequence[Sequence[Any]]) -> Operator:
    """A grid of operators, as numpy.block; None and 0 stand for zero blocks."""
    grid = [list(r) for r in rows]
    if not grid or not grid[0] or any(len(r) != len(grid[0]) for r in grid):
        raise OperandError(
            f"block: got rows of {[len(r) for r in grid]} blocks, expected as many in each row"
        )
    found = [[_block(x) for x in r] for r in grid]
    heights = [_size(found, i, 0) for i in range(len(found))]
    widths = [_size(found, j, 1) for j in range(len(found[0]))]
    dtype = next(x.dtype for r in found for x in r if x is not None)
    parts = [
        Operator("zero", static=(heights[i], widths[j], dtype)) if x is None else x
        for i, r in enumerate(found)
        for j, x in enumerate(r)
    ]
    return Operator("block", tuple(parts), static=(len(found), len(found[0])))


def _block(x: Any) -> Operator | None:
    empty = x is None or (isinstance(x, int) and x == 0)
    return None if empty else as_operator("block", x)


def _size(found: Sequence[Sequence[Operator | None]], i: int, axis: int) -> Any:
    """The size of row (axis 0) or column (axis 1) i of a grid."""
    line = found[i] if axis == 0 else [r[i] for r in found]
    what = ("row", "column")[axis]
    blocks = [x for x in line if x is not None]
    if not blocks:
        raise OperandError(f"block: {what} {i} has no operator that tells its size; use op.zero")
    for x in blocks[1:]:
        if not unify(x.shape[axis], blocks[0].shape[axis], f"block: {what} {i}"):
            raise ShapeError(f"block: {what} {i} has {blocks[0]} and {x}, which do not align")
    return blocks[0].shape[axis]


def grid_of(a: Operator) -> list[list[Operator]]:
    """The blocks by row."""
    m, n = a.static
    return [list(a.parts[i * n : (i + 1) * n]) for i in range(m)]


def _block_apply(a: Operator, x: Value) -> Value:
    grid = grid_of(a)
    pieces = _rows(x, [p.shape[1] for p in grid[0]])
    return shape.concat([_row_apply(row, pieces) for row in grid], 0)


def _row_apply(row: Sequence[Operator], pieces: Sequence[Value]) -> Value:
    total = None
    for p, v in zip(row, pieces, strict=True):
        if p.kind != "zero":
            y = columns(p, v)
            total = y if total is None else add(total, y)
    if total is not None:
        return total
    return full_of((row[0].shape[0], pieces[0].shape[1]), 0, pieces[0].dtype)


def _block_transpose(a: Operator) -> Operator:
    m, n = a.static
    parts = [a.parts[i * n + j].T for j in range(n) for i in range(m)]
    return Operator("block", tuple(parts), static=(n, m))


def _block_flags(a: Operator) -> frozenset[str]:
    """Self-adjoint when the blocks mirror each other; triangles and diagonals by their place."""
    m, n = a.static
    grid = grid_of(a)
    found = rules.common(a.parts, {"real"})
    if m == n and all(grid[i][i].shape[0] == grid[i][i].shape[1] for i in range(m)):
        pairs = [(grid[i][j], grid[j][i]) for i in range(m) for j in range(i)]
        on = [grid[i][i] for i in range(m)]
        if all("self_adjoint" in p.flags for p in on) and all(are_adjoint(p, q) for p, q in pairs):
            found.add("self_adjoint")
        for name, off in (("triangular_lower", 1), ("triangular_upper", 0)):
            if all(name in p.flags for p in on) and all(pair[off].kind == "zero" for pair in pairs):
                found.add(name)
    return frozenset(found)


register(Kind(
    name="block", doc="A grid of operators.", linear=always,
    shape=lambda parts, data, static: (
        _ends([p.shape[0] for p in parts[:: static[1]]])[-1],
        _ends([p.shape[1] for p in parts[: static[1]]])[-1],
    ),
    apply=_block_apply, transpose=_block_transpose, conj=_spread(lambda p: p.conj()),
    dense=lambda a: shape.concat(
        [shape.concat([dense_of(p) for p in row], 1) for row in grid_of(a)], 0
    ),
    flags=_block_flags, cost=_total,
    exact=lambda a, parts, data: np.block(
        [list(parts[i * a.static[1] : (i + 1) * a.static[1]]) for i in range(a.static[0])]
    ),
))  # fmt: skip
