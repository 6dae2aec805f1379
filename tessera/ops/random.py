"""op.random: tensors drawn from distributions, as pure functions of a key.

All are written with random_bits and ordinary ops, so they compile like anything else and
differentiate in their parameters while the random numbers behind them stay fixed.
"""

from __future__ import annotations

import math
from typing import Any

from tessera.core.constraints import require, unify
from tessera.core.dims import Dim, Shape, Size, product
from tessera.core.dtype import DType, as_dtype, f32, f64, i64, u32, u64
from tessera.core.errors import DTypeError, OperandError, ShapeError
from tessera.core.promotion import holds
from tessera.ir.graph.ir import Value
from tessera.ops import elementwise
from tessera.ops.creation import dim
from tessera.ops.define import (
    ArrayLike,
    as_value,
    axis_of,
    broadcast,
    cast_to,
    floating,
    full_of,
    public,
    shape_of,
)
from tessera.ops.elementwise import (
    add,
    clip,
    cos,
    div,
    eq,
    erfc,
    erfcinv,
    ge,
    gt,
    log,
    log1p,
    lt,
    maximum,
    minimum,
    mul,
    neg,
    nextafter,
    remainder,
    sin,
    sqrt,
    sub,
    where,
)
from tessera.ops.gather import take
from tessera.ops.random_bits import (
    bits,
    blocks,
    fine,
    float_dtype,
    fold_in,
    key,
    placed,
    shape_for,
    split,
    two_blocks,
    unit,
    wide_of,
)
from tessera.ops.random_gamma import beta, dirichlet, gamma, loggamma, poisson
from tessera.ops.reduction import argmax
from tessera.ops.shape import reshape, slice_
from tessera.ops.sorting import argsort

__all__ = ["beta", "bits", "dirichlet", "fold_in", "gamma", "key", "loggamma", "poisson", "split"]


def _word(dtype: DType) -> DType:
    return u64 if dtype is f64 else u32


def _is(x: ArrayLike, number: float) -> bool:
    return isinstance(x, int | float) and x == number


def _moved(op: str, x: Value, scale: ArrayLike, shift: ArrayLike, dtype: DType) -> Value:
    """shift + scale x, made in the dtype of x and rounded to the dtype of the result."""
    y = x if _is(scale, 1) else mul(x, placed(op, scale, x.shape, x.dtype))
    return cast_to(y if _is(shift, 0) else add(y, placed(op, shift, x.shape, x.dtype)), dtype)


def _ordered(op: str, low: ArrayLike, high: ArrayLike) -> None:
    if isinstance(low, int | float) and isinstance(high, int | float) and not low < high:
        raise OperandError(f"{op}: low is {low} and high is {high}, expected low < high")


# Uniform ----------------------------------------------------------------------------------------


@public
def uniform(
    key: ArrayLike, shape: Any, low: ArrayLike = 0.0, high: ArrayLike = 1.0, dtype: Any = f32
) -> Value:
    """Numbers evenly spread over [low, high)."""
    d, sizes = float_dtype("uniform", dtype), shape_of("uniform", shape)
    _ordered("uniform", low, high)
    wide = wide_of(d)
    if _is(low, 0) and _is(high, 1):
        return unit(blocks("uniform", key, sizes, _word(wide)), d)
    u = unit(blocks("uniform", key, sizes, _word(wide)), wide)
    lo, hi = (cast_to(placed("uniform", x, sizes, d), wide) for x in (low, high))
    y = add(lo, mul(u, sub(hi, lo)))
    # Rounding may reach high, which is excluded.
    last = nextafter(cast_to(hi, d), cast_to(lo, d))
    return minimum(cast_to(y, d), last)


@public
def bernoulli(key: ArrayLike, p: ArrayLike = 0.5, shape: Any = None) -> Value:
    """True with probability p."""
    _probability("bernoulli", p)
    sizes = shape_for("bernoulli", shape, p)
    wide = wide_of(as_value(p, "bernoulli").dtype)
    return lt(
        unit(blocks("bernoulli", key, sizes, _word(wide)), wide),
        placed("bernoulli", p, sizes, wide),
    )


def _probability(op: str, p: ArrayLike) -> None:
    if isinstance(p, int | float) and not 0 <= p <= 1:
        raise OperandError(f"{op}: p is {p}, expected a probability between 0 and 1")


@public
def randint(key: ArrayLike, shape: Any, low: ArrayLike, high: ArrayLike, dtype: Any = i64) -> Value:
    """Integers of [low, high), each as likely as another to within (high - low) / 2**64."""
    d, sizes = as_dtype(dtype), shape_of("randint", shape)
    if d.kind not in "iu":
        raise DTypeError(f"randint: dtype is {d}, expected an integer one such as i64")
    _ordered("randint", low, high)
    first, last = _integer(low, sizes, d), _integer(high, sizes, d, past=1)
    # All modulo 2**64, which is right for every integer dtype; a count of 0 is all of 2**64.
    count = add(sub(last, first), 1)
    signed = i64 if d.kind == "i" else u64
    count = where(lt(cast_to(last, signed), cast_to(first, signed)), 1, count)
    word = blocks("randint", key, sizes, u64)
    offset = where(eq(count, 0), word, remainder(word, maximum(count, 1)))
    return cast_to(add(first, offset), d)


def _integer(x: ArrayLike, shape: Shape, dtype: DType, past: int = 0) -> Value:
    """A bound less `past` as u64, negative ones by two's complement."""
    if isinstance(x, int) and not isinstance(x, bool):
        if not holds(dtype, x - past):
            raise OperandError(f"randint: the bound {x} does not fit {dtype}")
        return full_of(shape, (x - past) % 2**64, u64)
    v = as_value(x, "randint")
    if v.dtype.kind not in "iu":
        raise DTypeError(f"randint: a bound is {v.type}, expected integers")
    return broadcast(sub(cast_to(v, u64), past), shape)


# Normal and other closed forms ------------------------------------------------------------------


@public
def normal(
    key: ArrayLike, shape: Any, mean: ArrayLike = 0.0, std: ArrayLike = 1.0, dtype: Any = f32
) -> Value:
    """Normal numbers by Box-Muller, out to 6.7 deviations in f32 and 9.4 in f64.

    Of complex dtypes both parts are normal, with half the variance each.
    """
    d, sizes = as_dtype(dtype), shape_of("normal", shape)
    if d.kind not in "fc":
        raise DTypeError(f"normal: dtype is {d}, expected a floating-point one such as f32")
    wide = wide_of(d)
    first, second = two_blocks("normal", key, sizes, wide)
    angle = mul(unit(second, wide), 2 * math.pi)
    radius = sqrt(mul(log(fine(first, wide)), -1.0 if d.kind == "c" else -2.0))
    x = mul(radius, cos(angle))
    if d.kind == "c":
        x = elementwise.complex(x, mul(radius, sin(angle)))
    return _moved("normal", x, std, mean, d)


@public
def truncated_normal(
    key: ArrayLike, low: ArrayLike, high: ArrayLike, shape: Any = None, dtype: Any = f32
) -> Value:
    """Normal numbers restricted to [low, high], precise far out in the tails too."""
    d, sizes = (
        float_dtype("truncated_normal", dtype),
        shape_for("truncated_normal", shape, low, high),
    )
    _ordered("truncated_normal", low, high)
    lo, hi = (placed("truncated_normal", x, sizes, f64) for x in (low, high))
    # The probabilities of the left tail are precise, so an interval on the right is mirrored.
    flip = gt(add(lo, hi), 0.0)
    a, b = where(flip, neg(hi), lo), where(flip, neg(lo), hi)
    left, right = (erfc(mul(x, -math.sqrt(0.5))) for x in (a, b))
    u = fine(blocks("truncated_normal", key, sizes, u64), f64)
    x = mul(erfcinv(add(left, mul(u, sub(right, left)))), -math.sqrt(2))
    return cast_to(clip(where(flip, neg(x), x), lo, hi), d)


@public
def exponential(key: ArrayLike, shape: Any, scale: ArrayLike = 1.0, dtype: Any = f32) -> Value:
    """Exponential numbers of this mean."""
    d, sizes = float_dtype("exponential", dtype), shape_of("exponential", shape)
    wide = wide_of(d)
    u = fine(blocks("exponential", key, sizes, _word(wide)), wide)
    return _moved("exponential", neg(log(u)), scale, 0.0, d)


@public
def laplace(
    key: ArrayLike, shape: Any, mean: ArrayLike = 0.0, scale: ArrayLike = 1.0, dtype: Any = f32
) -> Value:
    """Laplace numbers: exponential on both sides of the mean."""
    d, sizes = float_dtype("laplace", dtype), shape_of("laplace", shape)
    wide = wide_of(d)
    first, second = two_blocks("laplace", key, sizes, wide)
    x = log(fine(first, wide))
    return _moved("laplace", where(lt(unit(second, wide), 0.5), x, neg(x)), scale, mean, d)


@public
def gumbel(
    key: ArrayLike, shape: Any, mean: ArrayLike = 0.0, scale: ArrayLike = 1.0, dtype: Any = f32
) -> Value:
    """Gumbel numbers: the limit law of maxima."""
    d, sizes = float_dtype("gumbel", dtype), shape_of("gumbel", shape)
    wide = wide_of(d)
    u = fine(blocks("gumbel", key, sizes, _word(wide)), wide)
    # log1p(-u) rather than log(u): the large values come from where u is dense.
    return _moved("gumbel", neg(log(neg(log1p(neg(u))))), scale, mean, d)


# Choices ----------------------------------------------------------------------------------------


@public
def categorical(key: ArrayLike, logits: ArrayLike, axis: int = -1, shape: Any = None) -> Value:
    """Indices along an axis, with probabilities softmax(logits), as i64.

    shape may put more axes in front of those that logits has without the axis.
    """
    x = floating(as_value(logits, "categorical"))
    k = axis_of("categorical", axis, x.ndim)
    rest = (*x.shape[:k], *x.shape[k + 1 :])
    sizes = rest if shape is None else shape_of("categorical", shape)
    front = len(sizes) - len(rest)
    if front < 0 or not all(
        unify(a, b, "categorical: shape") for a, b in zip(sizes[front:], rest, strict=True)
    ):
        raise ShapeError(
            f"categorical: shape {list(sizes)} does not end in {list(rest)}, the shape of the "
            f"logits {x.type} without axis {k}"
        )
    noisy = (*sizes[:front], *x.shape)
    noise = gumbel(key, noisy, dtype=wide_of(x.dtype))
    return argmax(add(noise, broadcast(cast_to(x, noise.dtype), noisy)), front + k)


@public
def permutation(key: ArrayLike, x: ArrayLike | Size, axis: int = 0) -> Value:
    """The numbers below an integer x, or the slices of a tensor x along an axis, in random order."""
    if isinstance(x, Dim) or (hasattr(x, "__index__") and not isinstance(x, Value)):
        (n,) = shape_of("permutation", x)
        return _order(key, n)
    v = as_value(x, "permutation")
    k = axis_of("permutation", axis, v.ndim)
    return take(v, _order(key, v.shape[k]), axis=k)


def _order(key: ArrayLike, n: Size) -> Value:
    return argsort(blocks("permutation", key, (n,), u64))


@public
def choice(
    key: ArrayLike,
    x: ArrayLike | Size,
    shape: Any = (),
    replace: bool = True,
    p: ArrayLike | None = None,
    axis: int = 0,
) -> Value:
    """Picks among the numbers below an integer x, or among the slices of a tensor x along an axis.

    p gives the probability of each; without replacement no pick repeats.
    """
    sizes = shape_of("choice", shape)
    number = isinstance(x, Dim) or (hasattr(x, "__index__") and not isinstance(x, Value))
    v = None if number else as_value(x, "choice")
    k = 0 if v is None else axis_of("choice", axis, v.ndim)
    (n,) = shape_of("choice", x) if v is None else (v.shape[k],)
    picks = _picks(key, n, sizes, replace, p)
    return picks if v is None else take(v, picks, axis=k)


def _picks(key: ArrayLike, n: Size, shape: Shape, replace: bool, p: ArrayLike | None) -> Value:
    logits = None if p is None else log(floating(as_value(p, "choice")))
    if logits is not None and (logits.ndim != 1 or not unify(logits.shape[0], n, "choice: p")):
        raise ShapeError(
            f"choice: p has shape {list(logits.shape)}, expected [{n}], one per choice"
        )
    if replace:
        if logits is not None:
            return categorical(key, logits, shape=shape)
        return randint(key, shape, 0, dim(n) if isinstance(n, Dim) else n)
    count = product(shape)
    if not require("at_least", n, count, "choice without replacement"):
        raise OperandError(f"choice: {count} picks from {n} need replace=True")
    if logits is None:
        order = _order(key, n)
    else:  # the largest of logits + Gumbel noise, one after the other
        order = argsort(neg(add(logits, gumbel(key, (n,), dtype=logits.dtype))))
    return reshape(slice_(order, (0,), (count,)), shape)


# Dropout ----------------------------------------------------------------------------------------


@public
def dropout(key: ArrayLike, x: ArrayLike, p: Any = 0.5, training: bool = True) -> Value:
    """x with elements set to 0 with probability p and the others divided by 1 - p."""
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p <= 1:
        raise OperandError(f"dropout: p is {p!r}, expected a probability between 0 and 1")
    if isinstance(x, int | float):
        raise OperandError(
            f"dropout: x is {type(x).__name__} {x!r:.40}; the order is dropout(key, x, p)"
        )
    v = floating(as_value(x, "dropout"))
    if not training or p == 0:
        return v
    keep = ge(unit(blocks("dropout", key, v.shape, u32), f32), p)
    wide = v.dtype.compute
    scaled = cast_to(div(cast_to(v, wide), 1 - p), v.dtype) if p < 1 else v
    return where(keep, scaled, 0)
