"""Differences on regular grids: stencils, gradient, divergence and the Laplacian.

A grid is flattened row by row.  Outside of it a function is zero (`dirichlet`), what it is at the edge
(`neumann`), or goes on from the other side (`periodic`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tessera.algebra.apply import light_cost
from tessera.algebra.combinators.blocks import block
from tessera.algebra.combinators.linear import scaled
from tessera.algebra.combinators.tensor import kronecker
from tessera.algebra.constructors.basic import eye, float_dtype
from tessera.algebra.constructors.fourier import sizes_of
from tessera.algebra.constructors.poisson import solve_laplacian
from tessera.algebra.kind import Kind, register
from tessera.algebra.linear_graph import apply_transposed
from tessera.algebra.operator import Operator, function
from tessera.algebra.waves import spectrum_of_stencil
from tessera.core.dtype import complex_of, f32
from tessera.core.errors import OperandError, ShapeError
from tessera.ir.graph.ir import Value
from tessera.ops.define import cast_to, full_of
from tessera.ops.elementwise import add, imag, mul, real, sub
from tessera.ops.shape import concat, reshape, slice_

BOUNDARIES = ("dirichlet", "neumann", "periodic")
Taps = tuple[tuple[tuple[int, ...], float], ...]  # offsets and weights


def _boundary(user: str, boundary: str) -> str:
    if boundary not in BOUNDARIES:
        raise OperandError(
            f"{user}: boundary is {boundary!r}, expected one of {', '.join(BOUNDARIES)}"
        )
    return boundary


def _spacing(user: str, spacing: Any, rank: int) -> tuple[float, ...]:
    steps = tuple(spacing) if isinstance(spacing, tuple | list) else (spacing,) * rank
    if len(steps) != rank or any(not float(h) > 0 for h in steps):
        raise OperandError(
            f"{user}: spacing is {spacing!r}, expected a positive number for each of {rank} axes"
        )
    return tuple(float(h) for h in steps)


# Stencils ---------------------------------------------------------------------------------------


@function
def stencil(
    taps: Mapping[Any, float], shape: Any, boundary: str = "dirichlet", dtype: Any = f32
) -> Operator:
    """y[i] = sum of weight * x[i + offset] over the taps {offset: weight} on a grid of a shape."""
    sizes = sizes_of("stencil", shape)
    if not taps or not hasattr(taps, "items"):
        raise OperandError(
            f"stencil: got {taps!r:.40}, expected taps as in {{-1: 1.0, 0: -2.0, 1: 1.0}}"
        )
    found = []
    for offset, weight in taps.items():
        at = tuple(offset) if isinstance(offset, tuple | list) else (offset,)
        if len(at) != len(sizes) or any(abs(int(o)) > n for o, n in zip(at, sizes, strict=True)):
            raise ShapeError(f"stencil: offset {offset} does not fit the grid {sizes}")
        found.append((tuple(int(o) for o in at), weight))
    static = (
        tuple(sorted(found)),
        sizes,
        _boundary("stencil", boundary),
        float_dtype("stencil", dtype),
    )
    return Operator("stencil", static=(*static, ()))


@function
def laplacian(
    shape: Any, spacing: Any = 1.0, boundary: str = "dirichlet", dtype: Any = f32
) -> Operator:
    """The sum of second differences along all axes; it is divergence @ gradient."""
    sizes = sizes_of("laplacian", shape)
    steps = _spacing("laplacian", spacing, len(sizes))
    taps: dict[tuple[int, ...], float] = {}
    for axis, h in enumerate(steps):
        for o, w in ((-1, 1.0), (0, -2.0), (1, 1.0)):
            at = tuple(o if i == axis else 0 for i in range(len(sizes)))
            taps[at] = taps.get(at, 0.0) + w / h**2
    name = _boundary("laplacian", boundary)
    static = (tuple(sorted(taps.items())), sizes, name, float_dtype("laplacian", dtype), steps)
    return Operator("stencil", static=static)


def _extended(x: Value, axis: int, low: int, high: int, boundary: str) -> Value:
    """x with what lies outside of the grid along an axis."""

    def part(start: int, stop: int) -> Value:
        first, last = [0] * x.ndim, list(x.shape)
        first[axis], last[axis] = start, stop
        return slice_(x, tuple(first), tuple(last))

    def outside(count: int, at: int) -> Value:
        if boundary == "dirichlet":
            return full_of((*x.shape[:axis], count, *x.shape[axis + 1 :]), 0, x.dtype)
        return concat([part(at, at + 1)] * count, axis)

    n = x.shape[axis]
    pieces = [x]
    if low:
        pieces.insert(0, part(n - low, n) if boundary == "periodic" else outside(low, 0))
    if high:
        pieces.append(part(0, high) if boundary == "periodic" else outside(high, n - 1))
    return concat(pieces, axis) if len(pieces) > 1 else x


def _apply(a: Operator, x: Value) -> Value:
    taps, sizes, boundary, _, _ = a.static
    grid = reshape(x, (*sizes, x.shape[1]))
    low = [max(0, *(-o[i] for o, _ in taps)) for i in range(len(sizes))]
    high = [max(0, *(o[i] for o, _ in taps)) for i in range(len(sizes))]
    for axis, (i, j) in enumerate(zip(low, high, strict=True)):
        grid = _extended(grid, axis, i, j, boundary)
    total = None
    for offset, weight in taps:
        start = tuple(i + o for i, o in zip(low, offset, strict=True))
        stop = tuple(s + n for s, n in zip(start, sizes, strict=True))
        term = mul(slice_(grid, (*start, 0), (*stop, x.shape[1])), weight)
        total = term if total is None else add(total, term)
    assert total is not None
    return reshape(total, x.shape)


def _mirrored(taps: Taps) -> bool:
    table = dict(taps)
    return all(table.get(tuple(-o for o in at)) == w for at, w in taps)


def _flags(a: Operator) -> frozenset[str]:
    taps, sizes, boundary, _, _ = a.static
    near = all(sum(map(abs, at)) <= 1 for at, _ in taps)
    found = {"real"} if not any(isinstance(w, complex) for _, w in taps) else set()
    if _mirrored(taps) and (boundary != "neumann" or near):
        found.add("symmetric")
    if boundary == "periodic":
        found.add("circulant" if len(sizes) == 1 else "normal")
    if boundary == "dirichlet" and len(sizes) == 1:
        found.add("toeplitz")
    return frozenset(found)


def _rank(a: Operator) -> int:
    """Differences without an outside map constants to zero."""
    taps, sizes, boundary, _, _ = a.static
    size = max(abs(w) for _, w in taps)
    flat = boundary != "dirichlet" and abs(sum(w for _, w in taps)) <= 1e-12 * size
    return int(math.prod(sizes)) - int(flat)


def _transpose_columns(a: Operator, x: Value) -> Value:
    return apply_transposed(lambda v: _apply(a, v), x, a.shape[1])


def _solve(a: Operator, b: Value) -> Value | None:
    _, sizes, boundary, _, steps = a.static
    if boundary != "dirichlet" or not steps:
        return None
    if b.dtype.kind == "c":
        x, y = _solve(a, real(b)), _solve(a, imag(b))
        assert x is not None
        assert y is not None
        return add(cast_to(x, b.dtype), mul(cast_to(y, complex_of(b.dtype)), 1j))
    return solve_laplacian(b, sizes, steps)


register(Kind(
    name="stencil", doc="Weighted sums of neighbours on a grid.",
    shape=lambda parts, data, static: (math.prod(static[1]),) * 2,
    dtype=lambda parts, data, static: static[3], apply=_apply, apply_transpose=_transpose_columns,
    flags=_flags, rank=_rank,
    cost=lambda a, k: light_cost(a, k, 2.0 * len(a.static[0]) * a.shape[0] * k),
    solve=_solve, spectrum=lambda a: spectrum_of_stencil(dict(a.static[0]), *a.static[1:3]),
))  # fmt: skip


# First differences ------------------------------------------------------------------------------


def _differences(a: Operator, x: Value) -> Value:
    """(x[i + 1] - x[i]) / h over all faces: n + 1 with zeros outside, n - 1 without, n in a ring."""
    _, boundary, h, _ = a.static
    k = x.shape[1]
    if boundary == "dirichlet":
        x = _extended(x, 0, 1, 1, boundary)
    elif boundary == "periodic":
        x = _extended(x, 0, 0, 1, boundary)
    size = x.shape[0]
    return mul(sub(slice_(x, (1, 0), (size, k)), slice_(x, (0, 0), (size - 1, k))), 1 / h)


_FACES = {"dirichlet": 1, "neumann": -1, "periodic": 0}

register(Kind(
    name="difference", doc="First differences along an axis.",
    shape=lambda parts, data, static: (static[0] + _FACES[static[1]], static[0]),
    dtype=lambda parts, data, static: static[3], apply=_differences,
    apply_transpose=lambda a, x: apply_transposed(lambda v: _differences(a, v), x, a.shape[1]),
    conj=lambda a: a, flags=lambda a: frozenset(("real",)),
    cost=lambda a, k: light_cost(a, k, a.shape[0] * k),
))  # fmt: skip


@function
def gradient(
    shape: Any, spacing: Any = 1.0, boundary: str = "dirichlet", dtype: Any = f32
) -> Operator:
    """First differences along every axis, those of one axis after those of the one before."""
    sizes = sizes_of("gradient", shape)
    steps = _spacing("gradient", spacing, len(sizes))
    found = float_dtype("gradient", dtype)
    name = _boundary("gradient", boundary)
    rows = []
    for axis, (n, h) in enumerate(zip(sizes, steps, strict=True)):
        d = Operator("difference", static=(n, name, h, found))
        before, after = math.prod(sizes[:axis]), math.prod(sizes[axis + 1 :])
        others = [eye(before, found)] if before > 1 else []
        rows.append([kronecker(*others, d, *([eye(after, found)] if after > 1 else []))])
    return rows[0][0] if len(rows) == 1 else block(rows)


@function
def divergence(
    shape: Any, spacing: Any = 1.0, boundary: str = "dirichlet", dtype: Any = f32
) -> Operator:
    """Minus the adjoint of the gradient."""
    return scaled(gradient(shape, spacing, boundary, dtype).H, -1)
