"""Iterations that keep their basis: GMRES, and the processes of Lanczos and Arnoldi."""

from __future__ import annotations

from typing import NamedTuple

from tessera.algebra.solvers.closed import Apply
from tessera.algebra.solvers.implicit import SolverSettings, length, norm, widened
from tessera.algebra.solvers.loop import iterate, judged
from tessera.algebra.solvers.outcome import RUNNING, SINGULAR, STAGNATED
from tessera.ir.graph.ir import Value
from tessera.ops.arrange import eye
from tessera.ops.contraction import matmul
from tessera.ops.control import fori_loop, while_loop
from tessera.ops.creation import iota, zeros_like
from tessera.ops.define import full_of
from tessera.ops.dynamic_slice import dynamic_update_slice
from tessera.ops.elementwise import abs as absolute
from tessera.ops.elementwise import (
    conj,
    div,
    eq,
    gt,
    le,
    logical_and,
    lt,
    mul,
    real,
    sqrt,
    square,
    where,
)
from tessera.ops.gather import take
from tessera.ops.linalg import epsilon
from tessera.ops.shape import expand_dims, matrix_transpose, slice_, squeeze
from tessera.ops.solve import triangular_solve

Found = tuple[Value, Value, Value]  # x, steps, reason


def _conj(x: Value) -> Value:
    return conj(x) if x.dtype.kind == "c" else x


def orthogonal(basis: Value, w: Value) -> tuple[Value, Value]:
    """What is left of w beside the rows of a basis, and its coefficients: Gram-Schmidt, twice."""
    total = None
    for _ in range(2):
        h = matmul(_conj(basis), w)
        w = w - matmul(h, basis)
        total = h if total is None else total + h
    assert total is not None
    return w, total


def put_row(x: Value, row: Value, i: Value) -> Value:
    """x with row i replaced."""
    return dynamic_update_slice(x, expand_dims(row, 0), (i, 0))


# GMRES --------------------------------------------------------------------------------------------


class _Cycle(NamedTuple):
    j: Value
    basis: Value  # rows, m + 1 of them
    turn: Value  # the product of all rotations
    upper: Value  # columns of the triangle, as rows
    size: Value
    reason: Value


class _GMRES(NamedTuple):
    step: Value
    x: Value
    r: Value
    size: Value
    reason: Value


def gmres(
    a: Apply, m: Apply, b: Value, x0: Value | None, wanted: Value, s: SolverSettings
) -> Found:
    """Saad and Schultz (1986), preconditioned from the right and restarted: any A."""
    most = min(s.more["restart"], b.shape[0])
    x, r = (zeros_like(b), b) if x0 is None else (x0, b - a(x0))

    def body(c: _GMRES) -> _GMRES:
        dx, steps, reason = _cycle(a, m, c, most, wanted, s)
        x = c.x + dx
        r = b - a(x)
        size = norm(r)
        idle = logical_and(gt(size, mul(c.size, 1 - 1e-6)), eq(reason, RUNNING))
        reason = where(idle, STAGNATED, reason)
        return _GMRES(c.step + steps, x, r, size, judged(size, wanted, reason))

    size = norm(r)
    reason = judged(size, wanted)
    start = _GMRES(full_of((), 0, reason.dtype), x, r, size, reason)
    last = iterate(body, start, wanted, s)
    return last.x, last.step, last.reason


def _cycle(
    a: Apply, m: Apply, c: _GMRES, most: int, wanted: Value, s: SolverSettings
) -> tuple[Value, Value, Value]:
    """The change of x after up to `most` steps from the residual c.r, the steps, and a reason."""
    dtype, tiny = c.r.dtype, epsilon(c.r.dtype)
    n = c.r.shape[0]
    at = iota((most + 1,), 0)

    def body(k: _Cycle) -> _Cycle:
        w = a(m(take(k.basis, k.j, 0)))
        before = norm(w)
        w, h = orthogonal(k.basis, w)
        below = norm(w)
        last = le(below, mul(before, 10 * tiny))
        below = where(last, 0, below)
        column = matmul(k.turn, h)
        here, next_ = take(column, k.j, 0), widened(below, w)
        rho = sqrt(square(absolute(here)) + square(below))
        flat = le(rho, mul(before, 10 * tiny))
        scale = div(1.0, widened(where(flat, 1, rho), w))
        row, new = take(k.turn, k.j, 0), take(k.turn, k.j + 1, 0)
        up = (_conj(here) * row + next_ * new) * scale
        down = (here * new - next_ * row) * scale
        turn = put_row(put_row(k.turn, up, k.j), down, k.j + 1)
        column = where(eq(at, k.j), widened(rho, w), where(lt(at, k.j), column, 0))
        size = mul(c.size, absolute(take(down, full_of((), 0, k.j.dtype), 0)))
        reason = where(flat, SINGULAR, judged(size, wanted))
        basis = put_row(k.basis, div(w, widened(where(last, 1, below), w)), k.j + 1)
        upper = put_row(k.upper, column, k.j)
        return _Cycle(
            where(flat, k.j, k.j + 1), basis, turn, upper, where(flat, k.size, size), reason
        )

    def going(k: _Cycle) -> Value:
        inside = logical_and(lt(k.j, most), lt(c.step + k.j, s.limit))
        return logical_and(inside, eq(k.reason, RUNNING))

    first = full_of((), 0, c.step.dtype)
    basis = full_of((most + 1, n), 0, dtype)
    basis = put_row(basis, div(c.r, widened(c.size, c.r)), first)
    start = _Cycle(
        first, basis, eye(most + 1, dtype=dtype), full_of((most, most + 1), 0, dtype), c.size,
        full_of((), RUNNING, c.reason.dtype),
    )  # fmt: skip
    k = while_loop(going, body, start)
    y = _triangle(k, most, widened(c.size, c.r))
    return (
        m(matmul(y, slice_(k.basis, (0, 0), (most, n)))), k.j,
        where(eq(k.reason, SINGULAR), SINGULAR, RUNNING),
    )  # fmt: skip


def _triangle(k: _Cycle, most: int, size: Value) -> Value:
    """The coefficients of the solution in the basis, zeros where it was not reached."""
    used = lt(iota((most,), 0), k.j)
    first = squeeze(slice_(k.turn, (0, 0), (most, 1)), 1)
    right = where(used, mul(first, size), 0)
    upper = slice_(matrix_transpose(k.upper), (0, 0), (most, most))
    unused = where(expand_dims(used, 0), 0, eye(most, dtype=upper.dtype))
    return triangular_solve(upper + unused, right, lower=False)


# Lanczos and Arnoldi ------------------------------------------------------------------------------


class Lanczos(NamedTuple):
    """A Q = Q T + a rest: T is tridiagonal, and columns of Q are zero once the space is whole."""

    basis: Value  # Q, columns
    diagonal: Value
    beside: Value  # next to the diagonal, and last the length of the rest


class Arnoldi(NamedTuple):
    """A Q = Q H + a rest: H has one diagonal below its upper triangle."""

    basis: Value  # Q, columns
    hessenberg: Value
    rest: Value  # the length of the rest


def lanczos_process(a: Apply, v: Value, steps: int) -> Lanczos:
    """Steps of Lanczos from v, each vector orthogonal to all before it.

    Where the space ends, the diagonal goes on with its first element, apart from the rest of T.
    """
    tiny, n = epsilon(v.dtype), v.shape[0]
    rows = full_of((steps + 1, n), 0, v.dtype)
    size = length(v)
    unit = div(v, widened(where(gt(size, 0), size, 1), v))
    empty = full_of((steps,), 0, v.dtype.real)
    first = full_of((), 0, v.dtype.real)
    rows = put_row(rows, unit, full_of((), 0, iota((1,), 0).dtype))

    def body(j: Value, c: tuple[Value, ...]) -> tuple[Value, ...]:
        rows, diagonal, beside, alive, first = c
        q = take(rows, j, 0)
        w = a(q)
        before = length(w)
        w, h = orthogonal(rows, w)
        d = real(take(h, j, 0))
        first = where(eq(j, 0), d, first)
        left = length(w)
        on = logical_and(alive, gt(left, mul(before, 10 * tiny)))
        nxt = where(on, div(w, widened(where(on, left, 1), w)), 0)
        diagonal = _put(diagonal, where(alive, d, first), j)
        beside = _put(beside, where(on, left, 0), j)
        return put_row(rows, nxt, j + 1), diagonal, beside, on, first

    start = (rows, empty, empty, gt(size, 0), first)
    rows, diagonal, beside, _, _ = fori_loop(0, steps, body, start)
    return Lanczos(matrix_transpose(slice_(rows, (0, 0), (steps, n))), diagonal, beside)


def _put(x: Value, value: Value, i: Value) -> Value:
    return where(eq(iota(x.shape, 0), i), value, x)


def tridiagonal(t: Lanczos) -> Value:
    """T as a matrix."""
    m = t.diagonal.shape[0]
    row, column = iota((m, m), 0), iota((m, m), 1)
    upper = where(eq(column, row + 1), expand_dims(t.beside, 1), 0)
    return upper + matrix_transpose(upper) + where(eq(row, column), expand_dims(t.diagonal, 1), 0)


def arnoldi_process(a: Apply, v: Value, steps: int) -> Arnoldi:
    """Steps of Arnoldi from v; columns are zero once the space is whole."""
    tiny, n = epsilon(v.dtype), v.shape[0]
    size = length(v)
    zero = full_of((), 0, iota((1,), 0).dtype)
    unit = div(v, widened(where(gt(size, 0), size, 1), v))
    rows = put_row(full_of((steps + 1, n), 0, v.dtype), unit, zero)

    def body(j: Value, c: tuple[Value, ...]) -> tuple[Value, ...]:
        rows, columns, _ = c
        w = a(take(rows, j, 0))
        before = length(w)
        w, h = orthogonal(rows, w)
        left = length(w)
        on = gt(left, mul(before, 10 * tiny))
        left = where(on, left, 0)
        nxt = where(on, div(w, widened(where(on, left, 1), w)), 0)
        h = where(eq(iota((steps + 1,), 0), j + 1), widened(left, w), h)
        return put_row(rows, nxt, j + 1), put_row(columns, h, j), left

    start = (rows, full_of((steps, steps + 1), 0, v.dtype), full_of((), 0, v.dtype.real))
    rows, columns, rest = fori_loop(0, steps, body, start)
    hessenberg = slice_(matrix_transpose(columns), (0, 0), (steps, steps))
    return Arnoldi(matrix_transpose(slice_(rows, (0, 0), (steps, n))), hessenberg, rest)
