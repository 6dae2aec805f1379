"""Distributions drawn by rejection: gamma and what is made of it, and Poisson.

Every element has a stream of its own: attempt t of element i reads the blocks of counter
i + t 2**48, so that a result does not depend on how often its neighbours were rejected.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.core.dims import Shape, product
from tessera.core.dtype import DType, as_dtype, bool_, f32, f64, i64, u64
from tessera.core.errors import DTypeError, OperandError, ShapeError
from tessera.core.host import scipy
from tessera.core.philox import random_words
from tessera.core.promotion import promote_all
from tessera.ir.graph.ir import Value
from tessera.ir.graph.op import Sample
from tessera.ops.control import while_loop
from tessera.ops.creation import iota
from tessera.ops.define import (
    ArrayLike,
    as_value,
    broadcast,
    cast_to,
    define,
    floating,
    full_of,
    public,
    shape_of,
)
from tessera.ops.elementwise import abs as absolute
from tessera.ops.elementwise import (
    add,
    cos,
    div,
    exp,
    floor,
    ge,
    gt,
    le,
    lgamma,
    log,
    log1p,
    logaddexp,
    logical_and,
    logical_not,
    logical_or,
    lt,
    maximum,
    mul,
    neg,
    sqrt,
    square,
    stop_gradient,
    sub,
    where,
)
from tessera.ops.random_bits import (
    fine,
    float_dtype,
    fold_in,
    key_words,
    placed,
    random_bits,
    shape_for,
    unit,
)
from tessera.ops.reduction import all as all_
from tessera.ops.reduction import any as any_
from tessera.ops.reduction import logsumexp
from tessera.ops.shape import reshape

ATTEMPTS = 64  # gamma accepts 95% of the attempts or more: 64 in a row fail with 1e-83
_STRIDE = 2**48  # counters between attempts: more elements than a tensor has


def _attempt(counter: Value, t: Value) -> Value:
    return add(counter, mul(broadcast(cast_to(t, u64), counter.shape), _STRIDE))


# Gamma: Marsaglia and Tsang, "A simple method for generating gamma variables" (2000), in logarithms
# so that small shapes do not underflow.  For alpha < 1 a draw of alpha + 1 is scaled by
# u**(1 / alpha).


def _loggamma(k0: Value, k1: Value, counter: Value, alpha: Value) -> Value:
    small = lt(alpha, 1.0)
    d = sub(where(small, add(alpha, 1.0), alpha), 1 / 3)
    c = div(1 / 3, sqrt(d))

    def pending(state: tuple[Value, Value, Value]) -> Value:
        t, done, _ = state
        return logical_and(lt(t, ATTEMPTS), logical_not(all_(done)))

    def body(state: tuple[Value, Value, Value]) -> tuple[Value, Value, Value]:
        t, done, kept = state
        i = _attempt(counter, t)
        u1, u2, u3 = (random_bits(k0, k1, i, draw=k, dtype=u64) for k in range(3))
        x = mul(sqrt(mul(log(fine(u1, f64)), -2.0)), cos(mul(unit(u2, f64), 2 * np.pi)))
        inside = gt(mul(c, x), -1.0)
        log_v = mul(log1p(where(inside, mul(c, x), 0.0)), 3.0)
        bound = add(mul(square(x), 0.5), mul(d, sub(add(log_v, 1.0), exp(log_v))))
        accept = logical_and(inside, lt(log(fine(u3, f64)), bound))
        return add(t, 1), logical_or(done, accept), where(done, kept, log_v)

    start = full_of((), 0, i64), full_of(alpha.shape, False, bool_), full_of(alpha.shape, 0.0, f64)
    _, _, log_v = while_loop(pending, body, start)
    log_u = log(fine(random_bits(k0, k1, counter, draw=3, dtype=u64), f64))
    return add(add(log(d), log_v), where(small, div(log_u, alpha), 0.0))


def _fine(words: Any) -> Any:
    return np.minimum((words.astype(np.float64) + 0.5) * 2.0**-64, 1 - 2.0**-53)


def _loggamma_reference(k0: Any, k1: Any, counter: Any, alpha: Any) -> Any:
    """Attempts only where the ones before were rejected."""
    small = alpha < 1
    d = np.where(small, alpha + 1, alpha) - 1 / 3
    log_v, left = np.zeros(alpha.shape), np.nonzero(np.ones(alpha.shape, bool))
    for t in range(ATTEMPTS):
        a, b, i, di = k0[left], k1[left], counter[left] + np.uint64(t * _STRIDE), d[left]
        u1, u2, u3 = (random_words(a, b, i, 2, draw, 0) for draw in range(3))
        angle = (u2 >> np.uint64(11)).astype(np.float64) * 2.0**-53 * (2 * np.pi)
        x = np.sqrt(np.log(_fine(u1)) * -2) * np.cos(angle)
        cx = x * (1 / 3 / np.sqrt(di))
        log_v[left] = 3 * np.log1p(np.where(cx > -1, cx, 0))
        bound = 0.5 * x * x + di * (log_v[left] + 1 - np.exp(log_v[left]))
        again = ~((cx > -1) & (np.log(_fine(u3)) < bound))
        left = tuple(axis[again] for axis in left)
        if not again.any():
            break
    log_u = np.log(_fine(random_words(k0, k1, counter, 2, 3, 0)))
    return np.log(d) + log_v + np.where(small, log_u / alpha, 0)


_COUNTER = np.arange(6, dtype=np.uint64)
_WORD = np.full(6, 5, np.uint32)


@define(
    signature="..., ..., ..., ... -> ...", decompose=_loggamma, numpy=_loggamma_reference,
    kinds=("u", "u", "u", "f"), result=f64,
    jvp=lambda n, ts: None if ts[3] is None else mul(
        loggamma_slope(n.operands[3], n.results[0]), ts[3]
    ),
    samples=(Sample(_WORD, _WORD, _COUNTER, (6,)), Sample(_WORD[:0], _WORD[:0], _COUNTER[:0], (0,))),
    domain=(0.2, 3.0),
)  # fmt: skip
def loggamma_sample(k0: ArrayLike, k1: ArrayLike, counter: ArrayLike, alpha: ArrayLike) -> Value:
    """Logarithm of a gamma variable of shape alpha for every element of a counter."""
    a = cast_to(floating(as_value(alpha, "loggamma_sample")), f64)
    words = [broadcast(as_value(k), a.shape) for k in (k0, k1, counter)]
    return loggamma_sample.bind(*words, a)


def _slope(alpha: Any, log_z: Any) -> Any:
    """d log z / d alpha with P(alpha, z) held, by a central difference of the inverse of P.

    Where z is tiny, P = z**alpha / Gamma(alpha + 1) and the derivative is written out.
    """
    sp, h = scipy("special"), 1e-5
    alpha, log_z = (np.asarray(v, np.float64) for v in (alpha, log_z))
    z = np.exp(log_z)
    tiny = z < 1e-9
    safe = np.where(tiny, alpha, z)
    lower, upper = sp.gammainc(alpha, safe), sp.gammaincc(alpha, safe)
    up, down = (
        np.where(
            lower < upper,
            sp.gammaincinv(alpha * s, lower),
            sp.gammainccinv(alpha * s, upper),
        )
        for s in (1 + h, 1 - h)
    )
    return np.where(
        tiny, (sp.digamma(alpha + 1) - log_z) / alpha, np.log(up / down) / (2 * alpha * h)
    )


@define(
    signature="..., ... -> ...", call="loggamma_slope", total=True, kinds="f", numpy=_slope,
    samples=(Sample((3,), (3,)), Sample((), ())), domain=(0.3, 2.0),
)  # fmt: skip
def loggamma_slope(alpha: ArrayLike, log_z: ArrayLike) -> Value:
    """How the logarithm of a gamma variable moves with its shape alpha at a fixed probability."""
    a, z = as_value(alpha, "loggamma_slope"), as_value(log_z, "loggamma_slope")
    return loggamma_slope.bind(cast_to(a, f64), cast_to(z, f64))


def _positive(op: str, name: str, x: ArrayLike) -> None:
    if isinstance(x, int | float) and not x > 0:
        raise OperandError(f"{op}: {name} is {x}, expected a positive number")


def _log_draws(op: str, key: ArrayLike, alpha: ArrayLike, sizes: Shape) -> Value:
    counter = reshape(iota((product(sizes),), 0, u64), sizes)
    return loggamma_sample(*key_words(op, key), counter, placed(op, alpha, sizes, f64))


def _dtype(op: str, dtype: Any, *parameters: ArrayLike) -> DType:
    """The dtype of the result: as given, or that of the parameters, f32 for plain numbers."""
    if dtype is not None:
        return float_dtype(op, dtype)
    floats = [p.dtype for p in parameters if isinstance(p, Value) and p.dtype.kind == "f"]
    return promote_all(floats) if floats else f32


@public
def loggamma(key: ArrayLike, alpha: ArrayLike, shape: Any = None, dtype: Any = None) -> Value:
    """Logarithm of gamma variables of shape alpha and scale 1; precise where those underflow."""
    _positive("loggamma", "alpha", alpha)
    d, sizes = _dtype("loggamma", dtype, alpha), shape_for("loggamma", shape, alpha)
    return cast_to(_log_draws("loggamma", key, alpha, sizes), d)


@public
def gamma(
    key: ArrayLike,
    alpha: ArrayLike,
    shape: Any = None,
    scale: ArrayLike = 1.0,
    dtype: Any = None,
) -> Value:
    """Gamma variables of shape alpha: density x**(alpha - 1) exp(-x) at x, times a scale."""
    _positive("gamma", "alpha", alpha)
    d, sizes = _dtype("gamma", dtype, alpha, scale), shape_for("gamma", shape, alpha, scale)
    z = exp(_log_draws("gamma", key, alpha, sizes))
    return cast_to(mul(z, placed("gamma", scale, sizes, f64)), d)


@public
def beta(key: ArrayLike, a: ArrayLike, b: ArrayLike, shape: Any = None, dtype: Any = None) -> Value:
    """Beta variables: density x**(a - 1) (1 - x)**(b - 1) between 0 and 1."""
    _positive("beta", "a", a)
    _positive("beta", "b", b)
    d, sizes = _dtype("beta", dtype, a, b), shape_for("beta", shape, a, b)
    x = _log_draws("beta", fold_in(key, 0), a, sizes)
    y = _log_draws("beta", fold_in(key, 1), b, sizes)
    return cast_to(exp(sub(x, logaddexp(x, y))), d)


@public
def dirichlet(key: ArrayLike, alpha: ArrayLike, shape: Any = None, dtype: Any = None) -> Value:
    """Points of the simplex along a last axis, of concentrations alpha; shape is that of the rest."""
    a = as_value(alpha, "dirichlet")
    if a.ndim == 0:
        raise ShapeError(f"dirichlet: alpha is {a.type}, expected one concentration per component")
    rest = a.shape[:-1] if shape is None else shape_of("dirichlet", shape)
    x = _log_draws("dirichlet", key, a, (*rest, a.shape[-1]))
    return cast_to(exp(sub(x, logsumexp(x, -1, keepdims=True))), _dtype("dirichlet", dtype, a))


# Poisson: by inversion below 10; above, Hormann, "The transformed rejection method for generating
# Poisson random variables" (1993), algorithm PTRS.


@public
def poisson(key: ArrayLike, rate: ArrayLike, shape: Any = None, dtype: Any = i64) -> Value:
    """Counts of events that happen at a rate: probability rate**k exp(-rate) / k!."""
    d = as_dtype(dtype)
    if d.kind not in "iu":
        raise DTypeError(f"poisson: dtype is {d}, expected an integer one such as i64")
    if isinstance(rate, int | float) and not rate >= 0:
        raise OperandError(f"poisson: rate is {rate}, expected a number that is not negative")
    sizes = shape_for("poisson", shape, rate)
    r = stop_gradient(placed("poisson", rate, sizes, f64))  # counts have no derivative
    counter = reshape(iota((product(sizes),), 0, u64), sizes)
    k0, k1 = key_words("poisson", key)
    small = lt(r, 10.0)
    low = _by_inversion(k0, k1, counter, where(small, r, 0.0))
    high = _by_rejection(k0, k1, counter, where(small, 10.0, r), small)
    return cast_to(where(small, low, high), d)


def _by_inversion(k0: Value, k1: Value, counter: Value, rate: Value) -> Value:
    """How many partial sums of the probabilities lie at or below a uniform number."""
    u = unit(random_bits(k0, k1, counter, dtype=u64), f64)

    def body(state: tuple[Value, ...]) -> tuple[Value, ...]:
        k, p, total, count = state
        k, more = add(k, 1.0), ge(u, total)
        p = div(mul(p, rate), k)
        return k, p, add(total, p), add(count, cast_to(more, f64))

    def more(state: tuple[Value, ...]) -> Value:
        return logical_and(lt(state[0], 200.0), any_(ge(u, state[2])))

    p = exp(neg(rate))
    start = full_of((), 0.0, f64), p, p, full_of(rate.shape, 0.0, f64)
    count: Value = while_loop(more, body, start)[3]
    return count


def _by_rejection(k0: Value, k1: Value, counter: Value, rate: Value, skip: Value) -> Value:
    b = add(mul(sqrt(rate), 2.53), 0.931)
    a = add(mul(b, 0.02483), -0.059)
    inverse = add(div(1.1328, sub(b, 3.4)), 1.1239)
    easy = sub(0.9277, div(3.6224, sub(b, 2.0)))

    def body(state: tuple[Value, ...]) -> tuple[Value, ...]:
        t, done, kept = state
        i = _attempt(counter, t)
        u = sub(fine(random_bits(k0, k1, i, draw=0, dtype=u64), f64), 0.5)
        v = fine(random_bits(k0, k1, i, draw=1, dtype=u64), f64)
        us = sub(0.5, absolute(u))
        k = floor(add(add(mul(add(div(mul(a, 2.0), us), b), u), rate), 0.43))
        bound = sub(sub(mul(k, log(rate)), rate), lgamma(add(maximum(k, 0.0), 1.0)))
        exact = le(log(div(mul(v, inverse), add(div(a, square(us)), b))), bound)
        far = logical_or(lt(k, 0.0), logical_and(lt(us, 0.013), gt(v, us)))
        near = logical_and(ge(us, 0.07), le(v, easy))
        accept = logical_or(near, logical_and(logical_not(far), exact))
        return add(t, 1), logical_or(done, accept), where(done, kept, k)

    def pending(state: tuple[Value, ...]) -> Value:
        return logical_and(lt(state[0], ATTEMPTS), logical_not(all_(state[1])))

    start = full_of((), 0, i64), skip, full_of(rate.shape, 0.0, f64)
    kept: Value = while_loop(pending, body, start)[2]
    return kept
