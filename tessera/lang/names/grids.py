"""Indices, grids and windows: tri, tril_indices, indices, unravel_index, logspace, hamming and their kin."""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.core.dtype import f32, f64, i64
from tessera.core.errors import OperandError
from tessera.core.promotion import promote
from tessera.ir.graph.ir import Value
from tessera.lang.names.bessel import i0
from tessera.lang.vmap import vmap
from tessera.ops.arrange import broadcast_arrays, linspace, tril
from tessera.ops.arrange import eye as eye_tensor
from tessera.ops.batching import spread_behind
from tessera.ops.creation import full, iota, ones
from tessera.ops.define import ArrayLike, as_value, axis_of, cast_to, floating, public
from tessera.ops.elementwise import abs as abs_
from tessera.ops.elementwise import (
    add,
    clip,
    cos,
    div,
    eq,
    exp,
    floor_divide,
    log,
    logical_and,
    lt,
    maximum,
    mul,
    remainder,
    sqrt,
    square,
    sub,
    where,
)
from tessera.ops.elementwise import pow as pow_
from tessera.ops.gather import take_along_axis
from tessera.ops.sets import nonzero
from tessera.ops.shape import expand_dims, moveaxis, reshape, squeeze, stack
from tessera.ops.sorting import argsort, sort


@public
def identity(n: Any, dtype: Any = f32) -> Value:
    """The identity matrix as a tensor."""
    return eye_tensor(n, dtype=dtype)


@public
def tri(n: int, m: int | None = None, k: int = 0, dtype: Any = f32) -> Value:
    """Ones on and below the k-th diagonal."""
    return tril(ones((n, n if m is None else m), dtype), k)


@public
def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Value, Value]:
    """The rows and columns of the lower triangle."""
    return _indices(np.tril_indices(n, k, m))


@public
def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Value, Value]:
    """The rows and columns of the upper triangle."""
    return _indices(np.triu_indices(n, k, m))


def _indices(found: tuple[Any, ...]) -> tuple[Value, Value]:
    rows, columns = (as_value(np.asarray(i, np.int64)) for i in found)
    return rows, columns


@public
def diag_indices(n: int, ndim: int = 2) -> tuple[Value, ...]:
    """The places of the main diagonal of an array with ndim axes of size n."""
    return (iota((n,), 0),) * ndim


@public
def indices(shape: Sequence[int]) -> Value:
    """The index along each axis of every element of a shape, one after another."""
    return stack([iota(tuple(shape), i) for i in range(len(shape))], 0)


@public
def unravel_index(index: ArrayLike, shape: int | Sequence[int]) -> tuple[Value, ...]:
    """The places of flat indices in a shape."""
    if isinstance(shape, int):
        shape = (shape,)
    rest, out = as_value(index), list[Value]()
    for n in reversed(tuple(shape)):
        out.append(remainder(rest, n))
        rest = floor_divide(rest, n)
    return tuple(reversed(out))


@public
def ravel_multi_index(places: Sequence[ArrayLike], shape: Sequence[int]) -> Value:
    """The flat indices of places in a shape."""
    if len(places) != len(shape) or not shape:
        raise OperandError(
            f"ravel_multi_index: got {len(places)} indices for the {len(shape)} axes of {tuple(shape)}"
        )
    total = as_value(places[0])
    for i, n in zip(places[1:], tuple(shape)[1:], strict=True):
        total = add(mul(total, n), i)
    return total


@public
def logspace(
    start: ArrayLike, stop: ArrayLike, num: Any = 50, endpoint: bool = True, base: float = 10.0
) -> Value:
    """base to evenly spaced powers."""
    powers = linspace(start, stop, num, endpoint=endpoint)
    return pow_(full((), base, powers.dtype), powers)


@public
def geomspace(start: ArrayLike, stop: ArrayLike, num: Any = 50, endpoint: bool = True) -> Value:
    """Numbers with even ratios from start to stop, both positive or both negative."""
    low, high = floating(as_value(start)), floating(as_value(stop))
    turn = where(logical_and(lt(low, 0), lt(high, 0)), -1, 1)
    powers = linspace(log(mul(low, turn)), log(mul(high, turn)), num, endpoint=endpoint)
    found = mul(exp(powers), turn)
    at = spread_behind(iota((found.shape[0],), 0), found.ndim)
    if endpoint and num != 1:
        found = where(eq(at, found.shape[0] - 1), high, found)
    return where(eq(at, 0), low, found)


@public
def hamming(n: int) -> Value:
    """The Hamming window of n points."""
    return _cosines(n, (0.54, -0.46))


@public
def hanning(n: int) -> Value:
    """The Hann window of n points, both ends 0."""
    return _cosines(n, (0.5, -0.5))


@public
def blackman(n: int) -> Value:
    """The Blackman window of n points."""
    return _cosines(n, (0.42, -0.5, 0.08))


def _cosines(n: int, factors: Sequence[float]) -> Value:
    if n <= 1:
        return ones((builtins.max(n, 0),))
    turn = mul(cast_to(iota((n,), 0), f64), 2 * math.pi / (n - 1))
    terms = [mul(cos(mul(turn, k)), c) for k, c in enumerate(factors)]
    return cast_to(functools.reduce(add, terms), f32)


@public
def bartlett(n: int) -> Value:
    """The triangular window of n points, both ends 0."""
    if n <= 1:
        return ones((builtins.max(n, 0),))
    at = cast_to(iota((n,), 0), f32)
    return sub(1, abs_(sub(mul(at, 2 / (n - 1)), 1)))


@public
def kaiser(n: int, beta: float) -> Value:
    """The Kaiser window of n points."""
    if n <= 1:
        return ones((builtins.max(n, 0),))
    at = sub(mul(cast_to(iota((n,), 0), f64), 2 / (n - 1)), 1)
    inside = mul(sqrt(maximum(sub(1, square(at)), 0)), beta)
    return cast_to(div(i0(inside), i0(as_value(np.float64(beta)))), f32)


@public
def argwhere(x: ArrayLike, size: Any = None, fill: int = 0) -> Value:
    """The places of the elements that are not 0, one a row; inside jit give size=."""
    return stack(list(nonzero(x, size, fill)), -1)


@public
def flatnonzero(x: ArrayLike, size: Any = None, fill: int = 0) -> Value:
    """The flat indices of the elements that are not 0; inside jit give size=."""
    return nonzero(reshape(as_value(x), (-1,)), size, fill)[0]


@public
def lexsort(keys: Sequence[ArrayLike], axis: int = -1) -> Value:
    """The order by the last key, ties by the one before, and so on."""
    given = [as_value(k) for k in keys]
    order = argsort(given[0], axis)
    for k in given[1:]:
        order = take_along_axis(order, argsort(take_along_axis(k, order, axis), axis), axis)
    return order


@public
def partition(x: ArrayLike, kth: int, axis: int = -1) -> Value:
    """x sorted: smaller elements before the kth, larger ones after it."""
    return sort(_holding("partition", x, kth, axis), axis)


@public
def argpartition(x: ArrayLike, kth: int, axis: int = -1) -> Value:
    """The order of partition."""
    return argsort(_holding("argpartition", x, kth, axis), axis)


def _holding(op: str, x: ArrayLike, kth: int, axis: int) -> Value:
    """x, whose axis has a kth element."""
    v = as_value(x)
    n = v.shape[axis_of(op, axis, v.ndim)]
    if isinstance(n, int) and not -n <= kth < n:
        raise OperandError(f"{op}: kth is {kth}, out of range of axis {axis} of size {n}")
    return v


@public
def choose(index: ArrayLike, choices: Sequence[ArrayLike]) -> Value:
    """For every element, that of the choice that index names; an index out of range takes the nearest."""
    parts = [as_value(c) for c in choices]
    wide = functools.reduce(promote, (p.dtype for p in parts))
    i, *parts = broadcast_arrays(as_value(index), *(cast_to(p, wide) for p in parts))
    whole = stack(parts, 0)
    at = expand_dims(clip(i, 0, len(parts) - 1), 0)
    return squeeze(take_along_axis(whole, cast_to(at, i64), 0), 0)


@public
def piecewise(x: ArrayLike, conditions: Sequence[ArrayLike], functions: Sequence[Any]) -> Value:
    """The function, or number, of the last condition that holds; one more is for the rest, else 0."""
    v, rest = as_value(x), list(functions)
    if len(rest) not in (len(conditions), len(conditions) + 1):
        raise OperandError(
            f"piecewise: got {len(rest)} functions for {len(conditions)} conditions, expected as many or "
            "one more"
        )
    otherwise = rest.pop() if len(rest) > len(conditions) else 0
    out = _applied(otherwise, v)
    for c, f in zip(conditions, rest, strict=True):
        out = where(c, _applied(f, v), out)
    return out


def _applied(f: Any, v: Value) -> Value:
    return as_value(f(v)) if callable(f) else cast_to(full(v.shape, f), v.dtype)


@public
def fill_diagonal(x: ArrayLike, value: ArrayLike) -> Value:
    """x with value on its main diagonal, as a new tensor."""
    v = as_value(x)
    places = [iota(v.shape, i) for i in range(v.ndim)]
    on = functools.reduce(logical_and, (eq(places[0], p) for p in places[1:]))
    return where(on, cast_to(as_value(value), v.dtype), v)


@public
def apply_along_axis(f: Callable[[Any], Any], axis: int, x: ArrayLike) -> Any:
    """f of each vector along an axis; what it gives takes the place of that axis."""
    v = as_value(x)
    axis = axis_of("apply_along_axis", axis, v.ndim)
    rows, mapped = moveaxis(v, axis, -1), f
    for _ in range(v.ndim - 1):
        mapped = vmap(mapped)
    out = as_value(mapped(rows))
    more = out.ndim - (v.ndim - 1)
    return (
        moveaxis(out, tuple(range(v.ndim - 1, out.ndim)), tuple(range(axis, axis + more)))
        if more
        else out
    )
