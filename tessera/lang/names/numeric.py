"""Elementwise and vector functions of NumPy: closeness, angles, interpolation, convolution of sequences."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

from tessera.core.constraints import require, same
from tessera.core.errors import DTypeError, OperandError, ShapeError
from tessera.core.promotion import promote
from tessera.ir.graph.ir import Value
from tessera.lang.names.together import floats, together
from tessera.ops.accumulate import cumsum, diff
from tessera.ops.arrange import broadcast_arrays
from tessera.ops.contraction import matmul, tensordot
from tessera.ops.control import while_loop
from tessera.ops.convolution import conv1d
from tessera.ops.creation import full, full_like, iota, ones_like, zeros_like
from tessera.ops.define import ArrayLike, as_value, cast_to, floating, public
from tessera.ops.elementwise import abs as abs_
from tessera.ops.elementwise import (
    add,
    atan2,
    clip,
    conj,
    copysign,
    div,
    eq,
    exp2,
    floor_divide,
    gt,
    imag,
    isfinite,
    isinf,
    isnan,
    le,
    logaddexp,
    logical_and,
    logical_not,
    logical_or,
    lt,
    maximum,
    minimum,
    mul,
    ne,
    real,
    remainder,
    sin,
    sub,
    trunc,
    where,
)
from tessera.ops.elementwise import complex as complex_
from tessera.ops.elementwise import pow as pow_
from tessera.ops.gather import take
from tessera.ops.reduction import all as all_
from tessera.ops.reduction import any as any_
from tessera.ops.reduction import sum as sum_
from tessera.ops.shape import concat, expand_dims, flip, moveaxis, pad, reshape, squeeze
from tessera.ops.sorting import searchsorted


@public
def isclose(
    x: ArrayLike, y: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Value:
    """Where |x - y| <= atol + rtol |y|; infinities are close to themselves."""
    a, b = together(x, y)
    near = le(abs_(sub(a, b)), add(atol, mul(rtol, abs_(b))))
    close = logical_or(eq(a, b), logical_and(near, isfinite(b)))
    return logical_or(close, logical_and(isnan(a), isnan(b))) if equal_nan else close


@public
def allclose(
    x: ArrayLike, y: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Value:
    """Whether all elements are close, see isclose."""
    return all_(isclose(x, y, rtol, atol, equal_nan))


@public
def array_equal(x: ArrayLike, y: ArrayLike, equal_nan: bool = False) -> Value:
    """Whether two tensors have the same shape and elements."""
    a, b = as_value(x), as_value(y)
    if a.shape != b.shape:
        return full((), False)
    same = eq(a, b)
    if equal_nan and a.dtype.kind in "fc" and b.dtype.kind in "fc":
        same = logical_or(same, logical_and(isnan(a), isnan(b)))
    return all_(same)


@public
def array_equiv(x: ArrayLike, y: ArrayLike) -> Value:
    """Whether two tensors have the same elements after broadcasting."""
    return all_(eq(x, y))


@public
def nan_to_num(
    x: ArrayLike, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Value:
    """x with NaN and infinities replaced; infinities by the ends of the dtype where nothing is given."""
    v = as_value(x)
    if v.dtype.kind not in "fc":
        return v
    if v.dtype.kind == "c":
        return complex_(
            nan_to_num(real(v), nan, posinf, neginf), nan_to_num(imag(v), nan, posinf, neginf)
        )
    top = v.dtype.largest
    up, down = top if posinf is None else posinf, -top if neginf is None else neginf
    ended = where(isinf(v), where(gt(v, 0), full_like(v, up), full_like(v, down)), v)
    return where(isnan(v), full_like(v, nan), ended)


@public
def isposinf(x: ArrayLike) -> Value:
    """Where x is positive infinity."""
    return (
        eq(as_value(x), float("inf"))
        if as_value(x).dtype.kind == "f"
        else full(as_value(x).shape, False)
    )


@public
def isneginf(x: ArrayLike) -> Value:
    """Where x is negative infinity."""
    return (
        eq(as_value(x), float("-inf"))
        if as_value(x).dtype.kind == "f"
        else full(as_value(x).shape, False)
    )


@public
def isreal(x: ArrayLike) -> Value:
    """Where the imaginary part is 0."""
    v = as_value(x)
    return eq(imag(v), 0) if v.dtype.kind == "c" else full(v.shape, True)


@public
def iscomplex(x: ArrayLike) -> Value:
    """Where the imaginary part is not 0."""
    return logical_not(isreal(x))


@public
def fmax(x: ArrayLike, y: ArrayLike) -> Value:
    """The larger of two, and the number where one is NaN."""
    a, b = (
        together(x, y)
        if "f" in (as_value(x).dtype.kind, as_value(y).dtype.kind)
        else (as_value(x), as_value(y))
    )
    return (
        where(isnan(a), b, where(isnan(b), a, maximum(a, b)))
        if a.dtype.kind == "f"
        else maximum(a, b)
    )


@public
def fmin(x: ArrayLike, y: ArrayLike) -> Value:
    """The smaller of two, and the number where one is NaN."""
    a, b = (
        together(x, y)
        if "f" in (as_value(x).dtype.kind, as_value(y).dtype.kind)
        else (as_value(x), as_value(y))
    )
    return (
        where(isnan(a), b, where(isnan(b), a, minimum(a, b)))
        if a.dtype.kind == "f"
        else minimum(a, b)
    )


@public
def deg2rad(x: ArrayLike) -> Value:
    """Degrees as radians."""
    return mul(floating(as_value(x)), math.pi / 180)


@public
def rad2deg(x: ArrayLike) -> Value:
    """Radians as degrees."""
    return mul(floating(as_value(x)), 180 / math.pi)


@public
def angle(z: ArrayLike, deg: bool = False) -> Value:
    """The argument of complex numbers."""
    v = as_value(z)
    turned = (
        atan2(imag(v), real(v))
        if v.dtype.kind == "c"
        else where(lt(v, 0), math.pi, where(ne(v, v), floating(v), 0))
    )
    return rad2deg(turned) if deg else turned


@public
def heaviside(x: ArrayLike, at_zero: ArrayLike) -> Value:
    """0 below zero, 1 above, and at_zero there."""
    a, b = together(x, at_zero)
    step = where(lt(a, 0), zeros_like(a), where(eq(a, 0), b, ones_like(a)))
    return where(isnan(a), a, step)


@public
def sinc(x: ArrayLike) -> Value:
    """sin(pi x) / (pi x), 1 at 0."""
    v = floating(as_value(x))
    safe = mul(where(eq(v, 0), full_like(v, 1), v), math.pi)
    return where(eq(v, 0), ones_like(v), div(sin(safe), safe))


@public
def float_power(x: ArrayLike, y: ArrayLike) -> Value:
    """x to the power y in floating point."""
    a, b = together(x, y)
    return pow_(a, b)


@public
def logaddexp2(x: ArrayLike, y: ArrayLike) -> Value:
    """log2(2^x + 2^y)."""
    a, b = together(x, y)
    return mul(logaddexp(mul(a, math.log(2)), mul(b, math.log(2))), 1 / math.log(2))


@public
def ldexp(x: ArrayLike, exponent: ArrayLike) -> Value:
    """x times 2 to an integer power."""
    v, e = floating(as_value(x)), as_value(exponent)
    if e.dtype.kind not in "iu":
        raise DTypeError(f"ldexp: exponent is {e.type}, expected integers")
    half = floor_divide(e, 2)
    return mul(mul(v, exp2(cast_to(half, v.dtype))), exp2(cast_to(sub(e, half), v.dtype)))


@public
def modf(x: ArrayLike) -> tuple[Value, Value]:
    """The fraction and the whole part, both with the sign of x."""
    v = floating(as_value(x))
    whole = trunc(v)
    return copysign(where(isinf(v), zeros_like(v), sub(v, whole)), v), whole


@public
def divmod(x: ArrayLike, y: ArrayLike) -> tuple[Value, Value]:
    """floor_divide and remainder."""
    return floor_divide(x, y), remainder(x, y)


@public
def gcd(x: ArrayLike, y: ArrayLike) -> Value:
    """The greatest common divisor of integers."""
    return _euclid("gcd", x, y)[0]


@public
def lcm(x: ArrayLike, y: ArrayLike) -> Value:
    """The least common multiple of integers."""
    common, a, b = _euclid("lcm", x, y)
    return where(eq(common, 0), zeros_like(common), mul(floor_divide(a, maximum(common, 1)), b))


def _euclid(op: str, x: ArrayLike, y: ArrayLike) -> tuple[Value, Value, Value]:
    a, b = broadcast_arrays(abs_(as_value(x)), abs_(as_value(y)))
    wide = promote(a.dtype, b.dtype)
    if wide.kind not in "iu":
        raise DTypeError(f"{op}: got {a.type} and {b.type}, expected integers")
    a, b = cast_to(a, wide), cast_to(b, wide)

    def step(pair: tuple[Value, Value]) -> tuple[Value, Value]:
        u, v = pair
        safe = where(eq(v, 0), ones_like(v), v)
        return where(eq(v, 0), u, v), where(eq(v, 0), v, remainder(u, safe))

    found, _ = while_loop(lambda pair: any_(ne(pair[1], 0)), step, (a, b))
    return found, a, b


# Vectors ----------------------------------------------------------------------------------------


@public
def dot(x: ArrayLike, y: ArrayLike) -> Value:
    """The sum of products over the last axis of x and the last but one of y (the only one of a vector)."""
    a, b = as_value(x), as_value(y)
    if a.ndim == 0 or b.ndim == 0:
        return mul(a, b)
    return tensordot(a, b, ((-1,), (-1 if b.ndim == 1 else -2,)))


@public
def inner(x: ArrayLike, y: ArrayLike) -> Value:
    """The sum of products over the last axes."""
    a, b = as_value(x), as_value(y)
    return mul(a, b) if a.ndim == 0 or b.ndim == 0 else tensordot(a, b, ((-1,), (-1,)))


@public
def vdot(x: ArrayLike, y: ArrayLike) -> Value:
    """The sum of products of all elements, those of x conjugated."""
    return sum_(mul(conj(reshape(as_value(x), (-1,))), reshape(as_value(y), (-1,))))


@public
def matvec(a: ArrayLike, x: ArrayLike) -> Value:
    """Matrices times vectors, over the last axes."""
    return squeeze(matmul(a, expand_dims(x, -1)), -1)


@public
def vecmat(x: ArrayLike, a: ArrayLike) -> Value:
    """Conjugated vectors times matrices, over the last axes."""
    return squeeze(matmul(conj(expand_dims(x, -2)), a), -2)


@public
def multi_dot(xs: Sequence[ArrayLike]) -> Value:
    """A product of several matrices in the order that takes the fewest operations."""
    parts = [as_value(x) for x in xs]
    if len(parts) < 2:
        raise OperandError(f"multi_dot: got {len(parts)} matrices, expected 2 or more")
    first, last = parts[0].ndim == 1, parts[-1].ndim == 1
    if first:
        parts[0] = expand_dims(parts[0], 0)
    if last:
        parts[-1] = expand_dims(parts[-1], 1)
    sizes = [p.shape[0] for p in parts] + [parts[-1].shape[1]]
    out = _product(parts, _cuts(sizes), 0, len(parts))
    out = squeeze(out, 0) if first else out
    return squeeze(out, -1) if last else out


def _cuts(sizes: Sequence[Any]) -> dict[tuple[int, int], int]:
    """Where to cut each run of a chain of products; from the left where sizes are symbolic."""
    n, best, cut = len(sizes) - 1, dict[tuple[int, int], int](), dict[tuple[int, int], int]()
    if not all(isinstance(s, int) for s in sizes):
        return {(i, j): j - 1 for i in range(n) for j in range(i + 2, n + 1)}
    for length in range(1, n + 1):
        for i in range(n - length + 1):
            j = i + length
            costs = {
                k: best[i, k] + best[k, j] + sizes[i] * sizes[k] * sizes[j] for k in range(i + 1, j)
            }
            cut[i, j] = builtins.min(costs, key=costs.__getitem__) if costs else i
            best[i, j] = builtins.min(costs.values(), default=0)
    return cut


def _product(parts: Sequence[Value], cut: dict[tuple[int, int], int], i: int, j: int) -> Value:
    if j - i == 1:
        return parts[i]
    return matmul(_product(parts, cut, i, cut[i, j]), _product(parts, cut, cut[i, j], j))


@public
def convolve(x: ArrayLike, y: ArrayLike, mode: str = "full") -> Value:
    """The convolution of two vectors; mode: full, same or valid."""
    return _sequences("convolve", x, y, mode, turned=True)


@public
def correlate(x: ArrayLike, y: ArrayLike, mode: str = "valid") -> Value:
    """The cross-correlation of two vectors: sums of x[n + k] conj(y[n])."""
    return _sequences("correlate", x, y, mode, turned=False)


def _sequences(op: str, x: ArrayLike, y: ArrayLike, mode: str, turned: bool) -> Value:
    a, b = as_value(x), as_value(y)
    if a.ndim != 1 or b.ndim != 1 or a.shape[0] == 0 or b.shape[0] == 0:
        raise ShapeError(f"{op}: got {a.type} and {b.type}, expected two vectors with elements")
    wide = promote(a.dtype, b.dtype)
    a, b = cast_to(a, wide), cast_to(b, wide)
    if not turned:
        b = conj(b)
    swapped = not require(
        "at_least", a.shape[0], b.shape[0], f"{op}: the length of the first vector"
    )
    long, short = (b, a) if swapped else (a, b)
    n = short.shape[0]
    if mode == "full":
        width = (n - 1, n - 1)
    elif mode == "same":
        width = (n // 2, (n - 1) // 2)
    elif mode == "valid":
        width = (0, 0)
    else:
        raise OperandError(f"{op}: mode is {mode!r}, expected full, same or valid")
    window = flip(short, 0) if turned else short
    line, weights = pad(long, (width,)), window
    if not turned and swapped:  # the roles of a correlation's operands turn it around
        line, weights = pad(flip(long, 0), (width[::-1],)), flip(short, 0)
    if wide.kind == "f":
        out = reshape(conv1d(reshape(line, (1, 1, -1)), reshape(weights, (1, 1, -1))), (-1,))
    else:
        count = line.shape[0] - n + 1
        places = add(expand_dims(iota((count,), 0), 1), expand_dims(iota((n,), 0), 0))
        out = matmul(take(line, places, 0), weights)
    return out


@public
def interp(
    x: ArrayLike, xp: ArrayLike, fp: ArrayLike, left: ArrayLike = None, right: ArrayLike = None
) -> Value:
    """fp at x, linear between the rising points xp; beyond them its ends, or left and right."""
    v, points, values = (floats(t) for t in (x, xp, fp))
    if points.ndim != 1 or values.ndim != 1 or same(points.shape[0], values.shape[0]) is False:
        raise ShapeError(
            f"interp: xp is {points.type} and fp is {values.type}, expected two vectors of one length"
        )
    n = points.shape[0]
    i = clip(
        searchsorted(points, v, "right"), 1, builtins.max(n - 1, 1) if isinstance(n, int) else n - 1
    )
    low, high = (take(points, sub(i, k), 0) for k in (1, 0)) if n != 1 else (points[0], points[0])
    a, b = (take(values, sub(i, k), 0) for k in (1, 0)) if n != 1 else (values[0], values[0])
    wide = sub(high, low)
    part = div(sub(v, low), where(eq(wide, 0), ones_like(wide), wide))
    out = add(a, mul(sub(b, a), part))
    out = where(
        lt(v, points[0]), values[0] if left is None else cast_to(as_value(left), out.dtype), out
    )
    out = where(
        gt(v, points[-1]), values[-1] if right is None else cast_to(as_value(right), out.dtype), out
    )
    out = where(eq(v, points[-1]), values[-1], out)
    return where(isnan(v), v, out)


@public
def trapezoid(y: ArrayLike, x: ArrayLike = None, dx: float = 1.0, axis: int = -1) -> Value:
    """The integral by trapezoids along an axis."""
    v: Any = moveaxis(floating(as_value(y)), axis, -1)
    middle = mul(add(v[..., 1:], v[..., :-1]), 0.5)
    if x is None:
        return mul(sum_(middle, -1), dx)
    at = as_value(x)
    steps = diff(moveaxis(at, axis, -1) if at.ndim > 1 else at)
    return sum_(mul(middle, steps), -1)


@public
def unwrap(
    x: ArrayLike, discont: float | None = None, axis: int = -1, period: float = 2 * math.pi
) -> Value:
    """Angles without jumps of more than half a period along an axis."""
    v: Any = moveaxis(floating(as_value(x)), axis, -1)
    gap, limit = diff(v), builtins.max(discont or period / 2, period / 2)
    turned = sub(remainder(add(gap, period / 2), period), period / 2)
    turned = where(logical_and(eq(turned, -period / 2), gt(gap, 0)), period / 2, turned)
    change = where(lt(abs_(gap), limit), zeros_like(gap), sub(turned, gap))
    return moveaxis(concat([v[..., :1], add(v[..., 1:], cumsum(change, -1))], -1), -1, axis)


@public
def ediff1d(x: ArrayLike, to_end: ArrayLike = None, to_begin: ArrayLike = None) -> Value:
    """Differences of neighbours of all elements, between what is given for both ends."""
    gaps = diff(reshape(as_value(x), (-1,)))
    ends = [to_begin, gaps, to_end]
    return concat(
        [reshape(cast_to(as_value(e), gaps.dtype), (-1,)) for e in ends if e is not None], 0
    )
