"""Linear algebra: what StableHLO has, and loops of ops for the rest."""

from __future__ import annotations

from typing import Any

from tessera.core.dtype import i64
from tessera.interop.stablehlo.rules.table import rule, stands_for
from tessera.interop.stablehlo.writer import Ssa, StableHloWriter
from tessera.ir.graph.interp import wide
from tessera.ir.graph.ir import Node, Value
from tessera.ops.arrange import eye, tril, triu
from tessera.ops.contraction import matmul
from tessera.ops.control import fori_loop
from tessera.ops.creation import full, iota
from tessera.ops.define import broadcast, cast_to
from tessera.ops.elementwise import (
    abs,
    add,
    ceil,
    conj,
    div,
    eq,
    exp2,
    gt,
    log,
    log2,
    lt,
    maximum,
    mul,
    ne,
    neg,
    real,
    sqrt,
    sub,
    where,
)
from tessera.ops.gather import take_along_axis
from tessera.ops.matrix import diagonal, matrix_diag
from tessera.ops.reduction import argmax, max, prod, sum
from tessera.ops.shape import expand_dims, slice_
from tessera.ops.solve import triangular_solve


@rule("cholesky")
def _cholesky(w: StableHloWriter, n: Node, x: Ssa) -> Any:
    """The lower factor; StableHLO leaves the upper triangle undefined."""
    if 0 in x.shape:
        return x
    x = w.cast(x, wide(n.op, x.dtype))
    y = w.op("cholesky", x, properties={"lower": "true"})
    k = len(x.shape) - 2
    below = w.compare("GE", w.iota(x.shape, k), w.iota(x.shape, k + 1))
    return w.cast(w.select(below, y, w.like(0, y)), n.results[0].dtype)


@rule("triangular_solve")
def _triangular(w: StableHloWriter, n: Node, a: Ssa, b: Ssa) -> Any:
    if 0 in b.shape:
        return b
    p, at = n.params, wide(n.op, a.dtype)
    way = "TRANSPOSE" if p["transpose"] else "NO_TRANSPOSE"
    held = {
        "left_side": "true", "lower": _bool(p["lower"]), "unit_diagonal": _bool(p["unit_diagonal"]),
        "transpose_a": f"#stablehlo<transpose {way}>",
    }  # fmt: skip
    a, b = w.cast(a, at), w.cast(b, at)
    y = w.op("triangular_solve", a, b, dtype=at, shape=b.shape, properties=held)
    return w.cast(y, n.results[0].dtype)


def _bool(x: bool) -> str:
    return "true" if x else "false"


# Elimination


def _eliminated(x: Value) -> tuple[Value, Value]:
    """L below and U above the diagonal of the rows perm of x, by partial pivoting."""
    *batch, m, n = x.shape
    rows = broadcast(iota((m,), 0), (*batch, m))
    columns = broadcast(iota((n,), 0), (*batch, n))

    def step(k: Value, state: tuple[Value, Value]) -> tuple[Value, Value]:
        a, perm = state
        column = sum(where(expand_dims(eq(columns, k), -2), a, 0), -1)
        size = where(lt(rows, k), -1, abs(column))
        best = expand_dims(argmax(size, -1), -1)
        order = where(eq(rows, k), best, where(eq(rows, best), k, rows))
        full_order = broadcast(expand_dims(order, -1), a.shape)
        a, perm = take_along_axis(a, full_order, -2), take_along_axis(perm, order, -1)
        pivot_row = sum(where(expand_dims(eq(rows, k), -1), a, 0), -2)
        column = sum(where(expand_dims(eq(columns, k), -2), a, 0), -1)
        pivot = sum(where(eq(columns, k), pivot_row, 0), -1, keepdims=True)
        under = gt(rows, k)
        factor = where(under, div(column, where(eq(pivot, 0), 1, pivot)), 0)
        right = where(gt(columns, k), pivot_row, 0)
        a = sub(a, mul(expand_dims(factor, -1), expand_dims(right, -2)))
        here = mul(
            expand_dims(cast_to(under, i64), -1), expand_dims(cast_to(eq(columns, k), i64), -2)
        )
        return where(ne(here, 0), expand_dims(factor, -1), a), perm

    return fori_loop(0, min(m, n), step, (x, rows))  # type: ignore[no-any-return]


@stands_for("lu")
def _lu(x: Value) -> tuple[Value, Value, Value]:
    *batch, m, n = x.shape
    k = min(m, n)
    if 0 in x.shape:
        rows = broadcast(iota((m,), 0), (*batch, m))
        return rows, full((*batch, m, k), 0, x.dtype), full((*batch, k, n), 0, x.dtype)
    a, perm = _eliminated(x)
    zero = (0,) * len(batch)
    low = tril(slice_(a, (*zero, 0, 0), (*batch, m, k)), -1)
    unit = broadcast(eye(m, k, dtype=x.dtype), low.shape)
    return perm, add(low, unit), triu(slice_(a, (*zero, 0, 0), (*batch, k, n)))


def _solved(a: Value, b: Value) -> Value:
    perm, low, up = _lu(a)
    moved = take_along_axis(b, broadcast(expand_dims(perm, -1), b.shape), -2)
    y = triangular_solve(low, moved, lower=True, unit_diagonal=True)
    return triangular_solve(up, y, lower=False)


@stands_for("solve")
def _solve(a: Value, b: Value) -> Value:
    return b if 0 in b.shape else _solved(a, b)


@stands_for("inv")
def _inv(a: Value) -> Value:
    if 0 in a.shape:
        return a
    return _solved(a, broadcast(eye(a.shape[-1], dtype=a.dtype), a.shape))


def _parity(perm: Value, like: Value) -> Value:
    """The sign of a permutation, by counting pairs out of order."""
    a, b = expand_dims(perm, -1), expand_dims(perm, -2)
    n = perm.shape[-1]
    early = lt(iota((n, n), 0), iota((n, n), 1))
    crossed = mul(cast_to(gt(a, b), i64), cast_to(early, i64))
    odd = sum(crossed, (-2, -1)) % 2  # type: ignore[operator]
    return cast_to(sub(1, mul(2, odd)), like.dtype)


@stands_for("det")
def _det(x: Value) -> Value:
    if x.shape[-1] == 0:
        return full(x.shape[:-2], 1, x.dtype)
    if 0 in x.shape:
        return full(x.shape[:-2], 0, x.dtype)
    perm, _, up = _lu(x)
    return mul(_parity(perm, x), prod(diagonal(up), -1))


@stands_for("slogdet")
def _slogdet(x: Value) -> tuple[Value, Value]:
    batch, kind = x.shape[:-2], x.dtype.real
    if 0 in x.shape:
        return full(batch, 1, x.dtype), full(batch, 0, kind)
    perm, _, up = _lu(x)
    d = diagonal(up)
    size = abs(d)
    unit = div(d, cast_to(where(eq(size, 0), 1, size), d.dtype))
    return mul(_parity(perm, x), prod(unit, -1)), sum(log(size), -1)


@stands_for("qr")
def _qr(x: Value, complete: bool) -> tuple[Value, Value]:
    """Householder reflections, applied to x and to the identity."""
    *batch, m, n = x.shape
    k = m if complete else min(m, n)
    if 0 in x.shape:
        unit = broadcast(eye(m, k, dtype=x.dtype), (*batch, m, k))
        return unit, full((*batch, k, n), 0, x.dtype)
    rows = broadcast(iota((m,), 0), (*batch, m))

    def step(j: Value, state: tuple[Value, Value]) -> tuple[Value, Value]:
        r, q = state
        here = broadcast(eq(iota((n,), 0), j), (*batch, m, n))
        column = where(lt(rows, j), 0, sum(where(here, r, 0), -1))
        length = cast_to(sqrt(sum(real(mul(column, conj(column))), -1, keepdims=True)), x.dtype)
        head = sum(where(eq(rows, j), column, 0), -1, keepdims=True)
        size = cast_to(abs(head), x.dtype)
        turn = where(eq(size, 0), 1, div(head, where(eq(size, 0), 1, size)))
        v = add(column, where(eq(rows, j), mul(turn, length), 0))
        weight = sum(mul(v, conj(v)), -1, keepdims=True)
        scale = expand_dims(where(eq(weight, 0), 0, div(2, where(eq(weight, 0), 1, weight))), -1)
        out, back = expand_dims(v, -1), expand_dims(conj(v), -2)
        r = sub(r, mul(scale, mul(out, matmul(back, r))))
        return r, sub(q, mul(scale, mul(matmul(q, out), back)))

    square = broadcast(eye(m, dtype=x.dtype), (*batch, m, m))
    steps = min(m if x.dtype.kind == "c" else m - 1, n)
    r, q = fori_loop(0, steps, step, (x, square))
    zero = (0,) * len(batch)
    r = triu(slice_(r, (*zero, 0, 0), (*batch, k, n)))
    return slice_(q, (*zero, 0, 0), (*batch, m, k)), r


@stands_for("tridiagonal_solve")
def _tridiagonal(low: Value, main: Value, up: Value, b: Value) -> Value:
    """The dense matrix: its elimination pivots, as LAPACK's does."""
    n = main.shape[-1]
    a = matrix_diag(main)
    if n > 1:
        zero = (0,) * (main.ndim - 1)
        batch = main.shape[:-1]
        a = add(a, matrix_diag(slice_(low, (*zero, 1), (*batch, n)), -1))
        a = add(a, matrix_diag(slice_(up, (*zero, 0), (*batch, n - 1)), 1))
    return _solved(a, b)


# Coefficients of the Pade approximant of degree 13 of exp, and the norm up to which it holds in f64
# (Higham, "The scaling and squaring method for the matrix exponential revisited", 2005).
_PADE = (
    64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800, 129060195264000,
    10559470521600, 670442572800, 33522128640, 1323241920, 40840800, 960960, 16380, 182, 1,
)  # fmt: skip
# Theta_13 of Higham (2005): the norm up to which the approximant of degree 13 has f64 accuracy.
_REACH = 5.37


@stands_for("expm")
def _expm(x: Value) -> Value:
    """Scaling and squaring; all matrices of a batch are squared as often as the largest."""
    if 0 in x.shape:
        return x
    size = max(sum(abs(x), -2))
    twice = cast_to(ceil(maximum(log2(div(size, _REACH)), 0)), i64)
    a = mul(x, cast_to(exp2(neg(cast_to(twice, x.dtype.real))), x.dtype))
    unit = broadcast(eye(x.shape[-1], dtype=x.dtype), x.shape)
    powers = [unit, matmul(a, a)]
    powers.append(matmul(powers[1], powers[1]))
    powers.append(matmul(powers[2], powers[1]))

    def series(first: int) -> Value:
        low = _weighted(powers, [_PADE[first + 2 * i] for i in range(4)])
        high = _weighted(powers[1:], [_PADE[first + 8 + 2 * i] for i in range(3)])
        return add(matmul(powers[3], high), low)

    odd, even = matmul(a, series(1)), series(0)
    y = _solved(sub(even, odd), add(even, odd))
    return fori_loop(0, twice, lambda i, m: matmul(m, m), y)  # type: ignore[no-any-return]


def _weighted(xs: list[Value], weights: list[int]) -> Value:
    total = mul(xs[0], float(weights[0]))
    for x, k in zip(xs[1:], weights[1:], strict=True):
        total = add(total, mul(x, float(k)))
    return total


@rule("polygamma")
def _polygamma(w: StableHloWriter, n: Node, x: Ssa) -> Any:
    at = wide(n.op, x.dtype)
    x = w.cast(x, at)
    y = w.op("chlo.polygamma", w.like(n.params["order"], x), x)
    return w.cast(y, n.results[0].dtype)
