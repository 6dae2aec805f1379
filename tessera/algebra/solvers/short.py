"""Iterations with short recurrences: CG, MINRES, BiCGStab and Chebyshev.

Each is written for one vector; `x` starts at zero or at x0, and r is b - A x.
"""

from __future__ import annotations

from typing import NamedTuple

from tessera.algebra.solvers.closed import Apply
from tessera.algebra.solvers.implicit import SolverSettings, dot, norm, number, widened
from tessera.algebra.solvers.loop import iterate, judged
from tessera.algebra.solvers.outcome import (
    BREAKDOWN,
    DIVERGED,
    INDEFINITE,
    PRECONDITIONER,
    RUNNING,
    SINGULAR,
)
from tessera.ir.graph.ir import Value
from tessera.ops.creation import zeros_like
from tessera.ops.define import full_of
from tessera.ops.elementwise import abs as absolute
from tessera.ops.elementwise import (
    div,
    eq,
    gt,
    le,
    logical_and,
    logical_or,
    maximum,
    mul,
    real,
    sqrt,
    square,
    where,
)
from tessera.ops.linalg import epsilon

Found = tuple[Value, Value, Value]  # x, steps, reason


def _start(a: Apply, b: Value, x0: Value | None) -> tuple[Value, Value]:
    """x and b - A x."""
    return (zeros_like(b), b) if x0 is None else (x0, b - a(x0))


def _quotient(x: Value, y: Value, bad: Value) -> Value:
    """x / y, and 0 where it is bad."""
    return where(bad, 0, div(x, where(bad, 1, y)))


# Conjugate gradients ------------------------------------------------------------------------------


class _CG(NamedTuple):
    step: Value
    x: Value
    r: Value
    p: Value
    rz: Value  # r^H M r
    size: Value
    reason: Value


def cg(a: Apply, m: Apply, b: Value, x0: Value | None, wanted: Value, s: SolverSettings) -> Found:
    """Hestenes and Stiefel (1952): A and M positive definite."""
    x, r = _start(a, b, x0)
    z = m(r)
    size = norm(r)

    def body(c: _CG) -> _CG:
        ap = a(c.p)
        curve = real(dot(c.p, ap))
        bent = le(curve, 0)
        step = widened(_quotient(c.rz, curve, bent), b)
        x, r = c.x + step * c.p, c.r - step * ap
        z = m(r)
        size, rz = norm(r), real(dot(r, z))
        p = z + widened(div(rz, c.rz), b) * c.p
        reason = where(bent, INDEFINITE, where(le(rz, 0), PRECONDITIONER, RUNNING))
        return _CG(c.step + 1, x, r, p, rz, size, judged(size, wanted, reason))

    rz = real(dot(r, z))
    reason = judged(size, wanted, where(le(rz, 0), PRECONDITIONER, RUNNING))
    start = _CG(full_of((), 0, reason.dtype), x, r, z, rz, size, reason)
    last = iterate(body, start, wanted, s)
    return last.x, last.step, last.reason


# Minimal residuals --------------------------------------------------------------------------------


class _MINRES(NamedTuple):
    step: Value
    x: Value
    r: Value
    v: Value  # of the Lanczos process, times its length in the norm of M, g
    before: Value  # the one before it
    z: Value  # M v
    w: Value
    w_before: Value
    g: Value
    g_before: Value
    eta: Value
    cosine: Value
    c_before: Value
    sine: Value
    s_before: Value
    scale: Value  # the largest element of the tridiagonal matrix, a measure of A
    size: Value
    reason: Value


def minres(
    a: Apply, m: Apply, b: Value, x0: Value | None, wanted: Value, s: SolverSettings
) -> Found:
    """Paige and Saunders (1975): A self-adjoint, M positive definite."""
    x, r = _start(a, b, x0)
    z, size, one, zero = m(r), norm(r), number(1.0, b), number(0.0, b)
    gg = real(dot(r, z))
    g = sqrt(maximum(gg, 0))
    tiny = epsilon(b.dtype)

    def body(c: _MINRES) -> _MINRES:
        z = c.z / widened(c.g, b)
        az = a(z)
        d = real(dot(z, az))
        v = az - widened(d / c.g, b) * c.v - widened(c.g / c.g_before, b) * c.before
        mv = m(v)
        gg = real(dot(v, mv))
        g = sqrt(maximum(gg, 0))
        scale = maximum(c.scale, maximum(absolute(d), g))
        a0 = c.cosine * d - c.c_before * c.sine * c.g
        a1 = sqrt(square(a0) + square(g))
        a2, a3 = c.sine * d + c.c_before * c.cosine * c.g, c.s_before * c.g
        stuck = le(a1, 10 * tiny * scale)  # |A r| <= 10 eps |A| |r|: a least-squares solution
        cosine, sine = _quotient(a0, a1, stuck), _quotient(g, a1, stuck)
        w = (z - widened(a3, b) * c.w_before - widened(a2, b) * c.w) * widened(
            _quotient(one, a1, stuck), b
        )
        x = c.x + widened(cosine * c.eta, b) * w
        eta = -(sine * c.eta)
        last = le(g, tiny * scale)
        unit = v * widened(_quotient(one, g, last), b)
        r = widened(square(sine), b) * c.r + widened(cosine * eta, b) * unit
        r = where(stuck, c.r, r)
        size = norm(r)
        lost = where(last, SINGULAR, where(gg < 0, PRECONDITIONER, RUNNING))
        reason = judged(size, wanted, where(stuck, SINGULAR, lost))
        return _MINRES(
            c.step + 1, x, r, v, c.v, mv, w, c.w, where(last, 1, g), c.g, eta, cosine, c.cosine,
            sine, c.sine, scale, size, reason,
        )  # fmt: skip

    nothing = zeros_like(b)
    reason = judged(size, wanted, where(le(gg, 0), PRECONDITIONER, RUNNING))
    start = _MINRES(
        full_of((), 0, reason.dtype), x, r, r, nothing, z, nothing, nothing, g, one, g, one, one,
        zero, zero, zero, size, reason,
    )  # fmt: skip
    last = iterate(body, start, wanted, s)
    return last.x, last.step, last.reason


# Stabilised biconjugate gradients -----------------------------------------------------------------


class _BiCGStab(NamedTuple):
    step: Value
    x: Value
    r: Value
    p: Value
    rho: Value
    size: Value
    reason: Value


def bicgstab(
    a: Apply, m: Apply, b: Value, x0: Value | None, wanted: Value, s: SolverSettings
) -> Found:
    """Van der Vorst (1992), preconditioned from the right: any A."""
    x, shadow = _start(a, b, x0)
    size, tiny = norm(shadow), epsilon(b.dtype)
    first = size

    def small(x: Value, *sizes: Value) -> Value:
        least = number(tiny * tiny, b)
        for y in sizes:
            least = mul(least, y)
        return le(absolute(x), least)

    def body(c: _BiCGStab) -> _BiCGStab:
        y = m(c.p)
        v = a(y)
        across = dot(shadow, v)
        flat = small(across, first, norm(v))
        alpha = _quotient(c.rho, across, flat)
        half = c.r - alpha * v
        z = m(half)
        t = a(z)
        tt = real(dot(t, t))
        none = le(tt, 0)
        omega = _quotient(dot(t, half), widened(tt, b), none)
        x, r = c.x + alpha * y + omega * z, half - omega * t
        size, rho = norm(r), dot(shadow, r)
        still = logical_or(none, eq(omega, 0))
        over = logical_or(small(rho, first, size), logical_or(flat, still))
        beta = _quotient(rho * alpha, c.rho * omega, over)
        p = r + beta * (c.p - omega * v)
        return _BiCGStab(
            c.step + 1, x, r, p, rho, size, judged(size, wanted, where(over, BREAKDOWN, RUNNING))
        )

    reason = judged(size, wanted)
    rho = dot(shadow, shadow)
    start = _BiCGStab(full_of((), 0, reason.dtype), x, shadow, shadow, rho, size, reason)
    last = iterate(body, start, wanted, s)
    return last.x, last.step, last.reason


# Chebyshev ----------------------------------------------------------------------------------------


class _Chebyshev(NamedTuple):
    step: Value
    x: Value
    r: Value
    d: Value
    rho: Value
    size: Value
    reason: Value


def chebyshev(
    a: Apply, m: Apply, b: Value, x0: Value | None, wanted: Value, s: SolverSettings
) -> Found:
    """Golub and Varga (1961): the eigenvalues of M A lie within bounds = (low, high), low > 0."""
    low, high = s.more["bounds"]
    middle, half = (high + low) / 2, (high - low) / 2
    x, r = _start(a, b, x0)
    first = norm(r)
    ratio = middle / half if half else 0.0

    def body(c: _Chebyshev) -> _Chebyshev:
        x, r = c.x + c.d, c.r - a(c.d)
        size = norm(r)
        if not half:  # one eigenvalue
            d, rho = m(r) / middle, c.rho
        else:
            rho = 1 / (2 * ratio - c.rho)
            d = widened(rho * c.rho, b) * c.d + widened(rho * (2 / half), b) * m(r)
        grows = logical_and(gt(size, mul(first, 1e4)), gt(first, 0))
        reason = judged(size, wanted, where(grows, DIVERGED, RUNNING))
        return _Chebyshev(c.step + 1, x, r, d, rho, size, reason)

    reason = judged(first, wanted)
    rho = number(1 / ratio if half else 1.0, b)
    start = _Chebyshev(full_of((), 0, reason.dtype), x, r, m(r) / middle, rho, first, reason)
    last = iterate(body, start, wanted, s)
    return last.x, last.step, last.reason
