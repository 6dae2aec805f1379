"""Building blocks of models: experts, factors, convolutions by their spectrum, wavelets, checks."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from tessera.core.constraints import require, same
from tessera.core.dtype import f32, i64
from tessera.core.errors import OperandError, ShapeError
from tessera.ir.graph.ir import Value
from tessera.ops.callbacks import ensure
from tessera.ops.contraction import einsum, matmul
from tessera.ops.creation import iota
from tessera.ops.define import ArrayLike, as_value, axis_of, cast_to, full_of, public, size_value
from tessera.ops.elementwise import add, div, eq, floor_divide, isfinite, mul, remainder
from tessera.ops.fft import irfftn, rfftn
from tessera.ops.gather import take
from tessera.ops.reduction import sum as sum_
from tessera.ops.shape import concat, expand_dims, moveaxis, reshape
from tessera.ops.softmax import softmax
from tessera.ops.sorting import argsort, topk

# Experts ----------------------------------------------------------------------------------------


@public
def moe_router(scores: ArrayLike, top_k: int, normalise: bool = True) -> tuple[Value, Value]:
    """Weights and numbers (tokens, top_k) of the likeliest experts, of scores (tokens, experts)."""
    s = as_value(scores, "moe_router")
    if s.ndim != 2:
        raise ShapeError(f"moe_router: the scores are {s.type}, expected (tokens, experts)")
    chances = softmax(s if s.dtype.bits >= 32 else cast_to(s, f32), axis=-1)
    weights, chosen = topk(chances, top_k)
    if normalise:
        weights = div(weights, sum_(weights, axis=-1, keepdims=True))
    return weights, chosen


@public
def moe_dispatch(
    tokens: ArrayLike, chosen: ArrayLike, *, experts: int
) -> tuple[Value, Value, Value]:
    """Rows of tokens sorted by expert, how many each expert has, and the order for moe_combine."""
    t, c = as_value(tokens, "moe_dispatch"), as_value(chosen, "moe_dispatch")
    if (
        t.ndim != 2
        or c.ndim != 2
        or same(t.shape[0], c.shape[0]) is False
        or c.dtype.kind not in "iu"
    ):
        raise ShapeError(
            f"moe_dispatch: got tokens {t.type} and experts {c.type}, expected (tokens, width) and whole "
            "numbers (tokens, top_k)"
        )
    flat = reshape(c, (-1,))
    order = argsort(flat, stable=True)
    rows = take(t, floor_divide(order, c.shape[1]), axis=0)
    hit = eq(expand_dims(flat, 1), iota((experts,), 0, dtype=flat.dtype))
    return rows, sum_(cast_to(hit, i64), axis=0), order


@public
def moe_combine(rows: ArrayLike, order: ArrayLike, weights: ArrayLike) -> Value:
    """The rows of moe_dispatch in the order of tokens again, those of a token added with its weights."""
    y, w = as_value(rows, "moe_combine"), as_value(weights, "moe_combine")
    if y.ndim != 2 or w.ndim != 2 or same(y.shape[0], w.shape[0] * w.shape[1]) is False:
        raise ShapeError(
            f"moe_combine: got rows {y.type} and weights {w.type}, expected top_k rows of each token"
        )
    back = take(y, argsort(order, stable=True), axis=0)
    each = reshape(back, (w.shape[0], w.shape[1], y.shape[1]))
    return sum_(mul(each, expand_dims(cast_to(w, y.dtype), -1)), axis=1)


# Products ---------------------------------------------------------------------------------------


@public
def factorized_matmul(
    x: ArrayLike, u: ArrayLike, v: ArrayLike, s: ArrayLike | None = None
) -> Value:
    """The product of x with a matrix in factors, x @ (u * s) @ v, which is never formed."""
    a, left, right = (as_value(t, "factorized_matmul") for t in (x, u, v))
    if left.ndim != 2 or right.ndim != 2 or same(left.shape[1], right.shape[0]) is False:
        raise ShapeError(
            f"factorized_matmul: u is {left.type} and v {right.type}, expected (in, rank) and (rank, out)"
        )
    y = matmul(a, left)
    return matmul(y if s is None else mul(y, s), right)


_AXES = "xyz"


@public
def spectral_conv(x: ArrayLike, weights: ArrayLike) -> Value:
    """Convolve (batch, in, sizes) by complex weights (in, out, modes) of the lowest frequencies.

    The modes of the last axis are those of rfft; of every other axis the first half are the frequencies from
    zero up, the second half the negative ones below zero, as fft has them (Li et al. 2021).
    """
    v, w = as_value(x, "spectral_conv"), as_value(weights, "spectral_conv")
    rank = v.ndim - 2
    if not 1 <= rank <= 3 or w.ndim != v.ndim or w.dtype.kind != "c":
        raise ShapeError(
            f"spectral_conv: x is {v.type} and the weights {w.type}, expected (batch, in, sizes) of one to "
            "three axes and complex (in, out, modes)"
        )
    axes = tuple(range(2, v.ndim))
    f = rfftn(v, axes=axes)
    full = f.shape[2:]
    for i, a in enumerate(axes):
        modes, n = w.shape[a], full[i]
        halves = i < rank - 1
        if not all(isinstance(k, int) for k in (modes, n)) or modes > n or (halves and modes % 2):
            raise ShapeError(
                f"spectral_conv: {modes} modes for {n} frequencies along axis {a}, expected known sizes, at "
                f"most that many{', and an even number' if halves else ''}"
            )
        f = take(f, as_value(_kept(modes, n, halves)), axis=a)
    letters = _AXES[:rank]
    y = einsum(f"bi{letters},io{letters}->bo{letters}", f, w)
    for i, a in enumerate(axes):
        y = _spread(y, a, full[i], i < rank - 1)
    return irfftn(y, s=tuple(v.shape[2:]), axes=axes)


def _kept(modes: int, n: int, halves: bool) -> np.ndarray[Any, np.dtype[np.int64]]:
    if not halves:
        return np.arange(modes)
    return np.concatenate([np.arange(modes // 2), np.arange(n - modes // 2, n)])


def _spread(y: Value, axis: int, n: int, halves: bool) -> Value:
    """Put the modes of an axis back to where their frequencies are, with zeros between."""
    modes = y.shape[axis]
    if modes == n:
        return y
    shape = list(y.shape)
    shape[axis] = n - modes
    between = full_of(tuple(shape), 0, y.dtype)
    if not halves:
        return concat([y, between], axis=axis)
    half = modes // 2
    low, high = (take(y, as_value(p), axis=axis) for p in (np.arange(half), np.arange(half, modes)))
    return concat([low, between, high], axis=axis)


# Wavelets ---------------------------------------------------------------------------------------

_MOST_MOMENTS = 8  # db1 to db8 are served; the method has no such limit


@functools.cache
def daubechies(moments: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The low-pass filter of Daubechies with so many vanishing moments, by spectral factorisation."""
    p = moments
    # the polynomial of Daubechies 1992, 6.1: sum of binomial(p - 1 + k, k) y^k, y = (2 - z - 1 / z) / 4
    roots = []
    for y in np.roots([math.comb(p - 1 + k, k) for k in reversed(range(p))]):
        b = 1 - 2 * y
        pair = b + np.sqrt(b * b - 1 + 0j), b - np.sqrt(b * b - 1 + 0j)
        roots.append(min(pair, key=abs))
    h = np.real(np.poly([-1.0] * p + roots)) if roots else np.array([1.0, 1.0])
    made: np.ndarray[Any, np.dtype[np.float64]] = h * (math.sqrt(2) / h.sum())
    return made


def _filters(op: str, wavelet: str) -> tuple[Any, Any]:
    names = {"haar": 1, **{f"db{p}": p for p in range(1, _MOST_MOMENTS + 1)}}
    if wavelet not in names:
        raise OperandError(f"{op}: wavelet is {wavelet!r}, expected one of {', '.join(names)}")
    h = daubechies(names[wavelet])
    signs = np.where(np.arange(len(h)) % 2, -1.0, 1.0)
    return h, signs * h[::-1]


@public
def dwt(x: ArrayLike, wavelet: str = "haar", axis: int = -1) -> tuple[Value, Value]:
    """One level of the periodic wavelet transform: averages and details, each half as long; orthogonal."""
    v = as_value(x, "dwt")
    at = axis_of("dwt", axis, v.ndim)
    h, g = _filters("dwt", wavelet)
    n = v.shape[at]
    if v.dtype.kind != "f" or not require("divisible", n, 2, "dwt: the size of the axis"):
        raise ShapeError(f"dwt: x is {v.type}, expected floats with an even size along axis {axis}")
    half = n // 2
    starts = mul(iota((half,), 0, dtype=i64), 2)
    places = remainder(add(expand_dims(starts, 1), iota((len(h),), 0, dtype=i64)), size_value(n))
    parts = take(moveaxis(v, at, -1), places, axis=-1)
    low, high = (matmul(parts, cast_to(as_value(f), v.dtype)) for f in (h, g))
    return moveaxis(low, -1, at), moveaxis(high, -1, at)


@public
def idwt(low: ArrayLike, high: ArrayLike, wavelet: str = "haar", axis: int = -1) -> Value:
    """The inverse of dwt: what has these averages and details."""
    a, d = as_value(low, "idwt"), as_value(high, "idwt")
    if a.type != d.type or a.dtype.kind != "f":
        raise ShapeError(f"idwt: got {a.type} and {d.type}, expected floats of one type")
    at = axis_of("idwt", axis, a.ndim)
    h, g = _filters("idwt", wavelet)
    half, taps = a.shape[at], len(h) // 2
    steps = expand_dims(iota((half,), 0, dtype=i64), 1)
    places = remainder(add(steps, as_value(-np.arange(taps))), size_value(half))
    made = None
    for part, f in ((a, h), (d, g)):
        parts = take(moveaxis(part, at, -1), places, axis=-1)
        y = matmul(parts, cast_to(as_value(f.reshape(taps, 2)), a.dtype))
        made = y if made is None else add(made, y)
    assert made is not None
    return moveaxis(reshape(made, (*made.shape[:-2], 2 * half)), -1, at)


# Checks -----------------------------------------------------------------------------------------


@public
def check_numerics(x: ArrayLike, message: str = "") -> Value:
    """x, if every element is finite; else NumericalError with the message, in eager and compiled code."""
    v = as_value(x, "check_numerics")
    if v.dtype.kind not in "fc":
        return v
    whose = message.replace("{", "{{").replace("}", "}}") + ": " if message else ""
    return ensure(v, isfinite(v), v, message=f"check_numerics: {whose}{{}} is not finite")
