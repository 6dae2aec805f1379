"""Curves given by samples or coefficients: interpolation, integration, polynomials, convolution of vectors."""

from __future__ import annotations

from tessera.core.errors import OperandError, ShapeError
from tessera.core.promotion import promote
from tessera.ir.graph.ir import Value
from tessera.ops.convolution import conv
from tessera.ops.define import ArrayLike, as_value, axis_of, cast_to, floating, meet, public
from tessera.ops.elementwise import add, clip, conj, div, eq, gt, lt, mul, sub, where
from tessera.ops.gather import take
from tessera.ops.reduction import sum
from tessera.ops.shape import flip, moveaxis, reshape, slice_, stack
from tessera.ops.sorting import searchsorted


@public
def interp(x: ArrayLike, xp: ArrayLike, fp: ArrayLike) -> Value:
    """The polygon through the points (xp, fp), xp ascending, at x; constant beyond its ends."""
    at, px, py = (floating(as_value(v, "interp")) for v in (x, xp, fp))
    n = px.shape[0]
    k = clip(sub(searchsorted(px, at, "right"), 1), 0, n - 2)
    left, right = take(px, k, 0), take(px, add(k, 1), 0)
    low, high = take(py, k, 0), take(py, add(k, 1), 0)
    width = sub(right, left)
    share = div(sub(at, left), where(eq(width, 0), 1, width))
    y = add(low, mul(share, sub(high, low)))
    return where(
        lt(at, take(px, 0, 0)),
        take(py, 0, 0),
        where(gt(at, take(px, n - 1, 0)), take(py, n - 1, 0), y),
    )


@public
def trapezoid(y: ArrayLike, x: ArrayLike | None = None, dx: float = 1.0, axis: int = -1) -> Value:
    """The integral of samples y at x, or at distances dx, by trapezoids along an axis."""
    v = floating(as_value(y, "trapezoid"))
    k = axis_of("trapezoid", axis, v.ndim)
    last = moveaxis(v, k, -1)
    n = last.shape[-1]
    zero = (0,) * (v.ndim - 1)
    pairs = add(
        slice_(last, (*zero, 1), last.shape), slice_(last, (*zero, 0), (*last.shape[:-1], n - 1))
    )
    if x is None:
        return mul(sum(pairs, -1), dx / 2)
    places = floating(as_value(x, "trapezoid"))
    if places.ndim > 1:
        places = moveaxis(places, k, -1)
    m = places.ndim - 1
    step = sub(
        slice_(places, (*(0,) * m, 1), places.shape),
        slice_(places, (0,) * (m + 1), (*places.shape[:-1], n - 1)),
    )
    return mul(sum(mul(pairs, step), -1), 0.5)


def polyval(p: ArrayLike, x: ArrayLike) -> Value:
    """The polynomial with coefficients p, the highest power first, at x."""
    c = as_value(p, "polyval")
    if c.ndim != 1:
        raise ShapeError(f"polyval: the coefficients are {c.type}, expected one axis")
    first, v = meet("polyval", (take(c, 0, 0), x))
    out = first
    for i in range(1, int(c.shape[0])):
        out = add(mul(out, v), cast_to(take(c, i, 0), out.dtype))
    return out


def convolve(x: ArrayLike, y: ArrayLike, mode: str = "full") -> Value:
    """The discrete convolution of two vectors: "full", "same" or "valid"."""
    a, b = meet_vectors("convolve", x, y)
    n, m = a.shape[0], b.shape[0]
    if n < m:
        a, b, n, m = b, a, m, n
    whole = conv(reshape(a, (1, 1, n)), reshape(flip(b, 0), (1, 1, m)), padding=((m - 1, m - 1),))
    y_ = reshape(whole, (n + m - 1,))
    if mode == "full":
        return y_
    if mode not in ("same", "valid"):
        raise OperandError(f"convolve: mode is {mode!r:.40}, expected 'full', 'same' or 'valid'")
    start, count = ((m - 1) // 2, n) if mode == "same" else (m - 1, n - m + 1)
    return slice_(y_, (start,), (start + count,))


def meet_vectors(op: str, x: ArrayLike, y: ArrayLike) -> tuple[Value, Value]:
    """Two vectors of one dtype."""
    a, b = as_value(x, op), as_value(y, op)
    if a.ndim != 1 or b.ndim != 1 or 0 in (*a.shape, *b.shape):
        raise ShapeError(f"{op}: operands {a.type}, {b.type}, expected two vectors with elements")
    dtype = promote(a.dtype, b.dtype)
    return cast_to(a, dtype), cast_to(b, dtype)


def correlate(x: ArrayLike, y: ArrayLike, mode: str = "valid") -> Value:
    """The cross-correlation of two vectors: the convolution with the conjugate of y turned around."""
    return convolve(x, flip(conj(as_value(y, "correlate")), 0), mode)


@public
def vander(x: ArrayLike, n: int | None = None, increasing: bool = False) -> Value:
    """The powers of a vector as the columns of a matrix, the highest first."""
    v = as_value(x, "vander")
    count = int(v.shape[0]) if n is None else int(n)
    powers = [add(mul(v, 0), 1)]
    for _ in range(count - 1):
        powers.append(mul(powers[-1], v))
    return stack(powers if increasing else powers[::-1], -1)
