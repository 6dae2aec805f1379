"""Intrinsics that compute: elementwise functions, dot, folds, scans, shapes, attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.core.dims import Size
from tessera.core.dtype import DType, as_dtype, bool_, f32
from tessera.core.errors import AxisError, ShapeError
from tessera.core.evaluate import identity
from tessera.core.scalar import SCALARS
from tessera.lang.kernel.by_function import fold_by, scan_by
from tessera.lang.kernel.parts import permuted
from tessera.lang.kernel.table import INTRINSICS, IntrinsicContext, intrinsic
from tessera.lang.kernel.values import KernelError, TileValue
from tessera.lang.kernel.within import starts_inside
from tessera.lang.kernel.writer import KernelWriter

# Scalar ops under the names that Python and NumPy have for them.
RENAMED = {
    "max": "maximum", "min": "minimum", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "invert": "bitwise_not",
}  # fmt: skip
_ELSEWHERE = ("where", "real", "imag", "conj", "logaddexp", "philox_low", "philox_high")


def _elementwise(scalar: str) -> None:
    row, name = SCALARS[scalar], RENAMED.get(scalar, scalar)

    def emit(p: IntrinsicContext, *xs: Any) -> Any:
        if len(xs) != row.arity:
            raise KernelError(f"{name}: got {len(xs)} operands, expected {row.arity}")
        return p.w.apply(scalar, *xs)

    emit.__doc__ = f"The scalar op {scalar} on every element."
    intrinsic(row.numpy, name)(emit)


for _name in SCALARS:
    if _name not in _ELSEWHERE:
        _elementwise(_name)


@intrinsic(np.where)
def where(p: IntrinsicContext, condition: Any, x: Any, y: Any) -> Any:
    """x where a condition holds, y elsewhere."""
    if isinstance(condition, bool):
        chosen = x if condition else y
        if _alike(x, y):
            return chosen
        condition = p.w.full(bool_, (), condition)  # the result has the shape and dtype of both
    return p.w.apply("where", condition, x, y)


def _alike(x: Any, y: Any) -> bool:
    """Whether neither of two values is a tile, or both are of one type."""
    tiles = [v for v in (x, y) if isinstance(v, TileValue)]
    return not tiles or (len(tiles) == 2 and tiles[0].type == tiles[1].type)


@intrinsic(np.logaddexp)
def logaddexp(p: IntrinsicContext, x: Any, y: Any) -> Any:
    """log(exp(x) + exp(y)) without overflow."""
    apply = p.w.apply
    apart = apply("neg", apply("abs", apply("sub", x, y)))
    other = apply("add", apply("max", x, y), apply("log1p", apply("exp", apart)))
    same = apply("add", apply("mul", apply("add", x, y), 0.5), math.log(2))
    return apply("where", apply("eq", x, y), same, other)  # infinities of one sign have no distance


@intrinsic(lambda x, dtype: x.astype(dtype))
def cast(p: IntrinsicContext, x: Any, dtype: Any) -> TileValue:
    """A tile in another dtype, rounded to nearest."""
    return p.w.cast(p.w.tile(x), as_dtype(dtype))


# Products


def _dot_reference(a: Any, b: Any, acc: Any = 0) -> Any:
    return acc + a @ b


@intrinsic(_dot_reference)
def dot(p: IntrinsicContext, a: Any, b: Any, acc: Any = None) -> TileValue:
    """The product of two matrices, added to acc: one chain of fused multiply-adds for each element."""
    start = None if acc is None else p.w.tile(acc)
    return p.w.dot(p.w.tile(a), p.w.tile(b), start)


@intrinsic(_dot_reference)
def mma(p: IntrinsicContext, a: Any, b: Any, acc: Any) -> TileValue:
    """As dot, with a sum to add to."""
    return p.w.dot(p.w.tile(a), p.w.tile(b), p.w.tile(acc))


# Folds


def _axes(x: TileValue, axis: Any) -> list[int]:
    given = range(x.rank) if axis is None else axis if isinstance(axis, tuple | list) else (axis,)
    out = []
    for a in given:
        if not isinstance(a, int) or not -x.rank <= a < x.rank:
            raise AxisError(f"axis {a} is no axis of {x.type}")
        out.append(a % x.rank)
    return sorted(set(out), reverse=True)


def squeezed(w: KernelWriter, x: TileValue, axes: Sequence[int]) -> TileValue:
    shape = tuple(n for i, n in enumerate(x.shape) if i not in axes)
    made = w.b.reshape(x.tile, shape)
    kept = [i for i in range(x.rank) if i not in axes]
    return TileValue(
        made, tuple(x.axes[i] for i in kept), tuple(x.pads[i] for i in kept), x.constant
    )


_FOLDS: dict[str, tuple[str, Any]] = {  # the scalar op, and NumPy's function
    "add": ("add", np.sum), "sum": ("add", np.sum), "mul": ("mul", np.prod), "prod": ("mul", np.prod),
    "max": ("max", np.max), "min": ("min", np.min), "and": ("and", np.bitwise_and.reduce),
    "or": ("or", np.bitwise_or.reduce), "xor": ("xor", np.bitwise_xor.reduce),
    "any": ("logical_or", np.any), "all": ("logical_and", np.all),
    "logaddexp": ("logaddexp", np.logaddexp.reduce),
}  # fmt: skip


def _folded(p: IntrinsicContext, x: Any, how: Any, axis: Any, keepdims: bool) -> TileValue:
    if how not in _FOLDS:
        raise KernelError(f"reduce: got {how!r}, expected one of {', '.join(_FOLDS)}")
    scalar, t = _FOLDS[how][0], p.w.tile(x)
    if scalar.startswith("logical") and t.dtype is not bool_:
        t = p.w.condition(t)
    kept: DType = t.dtype
    if scalar in ("add", "mul", "logaddexp"):
        t = p.w.cast(t, wide(t.dtype))
    axes = _axes(t, axis)
    for a in axes:
        t = _log_sum(p.w, t, a) if scalar == "logaddexp" else p.w.fold(scalar, t, a)
    t = t if t.dtype.kind != kept.kind or t.dtype.kind != "f" else p.w.cast(t, kept)
    return t if keepdims else squeezed(p.w, t, axes)


def _log_sum(w: KernelWriter, x: TileValue, axis: int) -> TileValue:
    """log(sum(exp(x))) by way of the largest element, where that is finite."""
    top = w.fold("max", x, axis)
    base = w.apply("where", w.apply("is_finite", top), top, 0.0)
    total = w.fold("add", w.apply("exp", w.apply("sub", x, base)), axis)
    made: TileValue = w.apply("add", w.apply("log", total), base)
    return made


def wide(dtype: DType) -> DType:
    """What sums of a dtype add up in."""
    if dtype is bool_:
        return as_dtype("i64")
    return dtype.accum.compute if dtype.accum.is_narrow else dtype.accum


def _reduce_reference(x: Any, how: str, axis: Any = None, keepdims: bool = False) -> Any:
    return _FOLDS[how][1](x, axis=axis, keepdims=keepdims)


@intrinsic(_reduce_reference)
def reduce(
    p: IntrinsicContext,
    x: Any,
    how: Any = "add",
    axis: Any = None,
    keepdims: bool = False,
    init: Any = None,
) -> Any:
    """A fold along axes, or all of them, without what lies past the end of a tensor.

    `how` may be a function of two elements, and x a tuple of tiles: then the function takes and gives
    tuples, and folds the elements of one axis one after the other, from `init` on if that is given.
    """
    if isinstance(how, str) and init is None:
        return _folded(p, x, how, axis, keepdims)
    if not isinstance(axis, int):
        raise KernelError(f"reduce: axis is {axis!r}, expected the one axis that a function folds")
    return fold_by(p, x, _function(p, how), axis, keepdims, init)


def _function(p: IntrinsicContext, how: Any) -> Any:
    """What combines two elements: a scalar op by its name, or a function."""
    return INTRINSICS[RENAMED.get(_FOLDS[how][0], _FOLDS[how][0])] if isinstance(how, str) else how


def _fold_named(name: str) -> None:
    def emit(p: IntrinsicContext, x: Any, axis: Any = None, keepdims: bool = False) -> TileValue:
        return _folded(p, x, name, axis, keepdims)

    def reference(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return _reduce_reference(x, name, axis, keepdims)

    emit.__doc__ = f"reduce(x, {name!r}, axis)."
    intrinsic(reference, name)(emit)


for _name in ("sum", "prod", "max", "min", "any", "all"):
    _fold_named(_name)


def _count(p: IntrinsicContext, x: TileValue, axes: Sequence[int]) -> Any:
    """How many elements a fold is over, those of the tensor alone."""
    count: Any = 1
    for a in axes:
        place = x.axes[a]
        if place is None or place.exact:
            count = count * x.shape[a]
        else:
            inside = _inside(p, x, a)
            count = p.w.apply("mul", count, p.w.cast(inside, f32))
    return count


def _inside(p: IntrinsicContext, x: TileValue, axis: int) -> TileValue:
    """How many elements of a block lie inside of the tensor."""
    place = x.axes[axis]
    assert place is not None
    if place.moved is not None:
        inside_it = p.w.cast(p.w.plain(p.w.inside(x, axis, place)), as_dtype("i64"))
        return p.w.reshape(p.w.fold("add", inside_it, axis), ())
    left: Size = place.size - place.start
    found: TileValue = p.w.apply("min", p.w.tile(left), x.shape[axis])
    if starts_inside(place.start):
        return found
    before: TileValue = p.w.apply("max", p.w.tile(0 - place.start), 0)
    inside: TileValue = p.w.apply("max", p.w.apply("sub", found, before), 0)
    return inside


@intrinsic(np.mean)
def mean(p: IntrinsicContext, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The mean along axes, of the elements that a tensor has."""
    t = p.w.tile(x)
    t = t if t.dtype.kind == "f" else p.w.cast(t, f32)
    total = _folded(p, p.w.cast(t, wide(t.dtype)), "add", axis, keepdims)
    return p.w.cast(p.w.apply("div", total, _count(p, t, _axes(t, axis))), t.dtype)


def _arg(name: str, largest: str, reference: Callable[..., Any]) -> None:
    def emit(p: IntrinsicContext, x: Any, axis: int = -1, keepdims: bool = False) -> TileValue:
        t = p.w.tile(x)
        (a,) = _axes(t, axis)
        t = p.w.masked(t, a, identity(largest, t.dtype))
        best = p.w.fold(largest, t, a)
        place = t.axes[a]
        held = tuple(place if i == a else None for i in range(t.rank))
        at = TileValue(p.w.position(t.shape, a, place), held, (None,) * t.rank)
        hit = p.w.apply("eq", t, best)
        if t.dtype.kind == "f":
            hit = p.w.apply("logical_or", hit, p.w.apply("is_nan", t))
        first = p.w.fold("min", p.w.apply("where", hit, at, (1 << 62)), a)
        return first if keepdims else squeezed(p.w, first, [a])

    emit.__doc__ = f"The position of the {largest} along an axis, the first of several."
    intrinsic(reference, name)(emit)


_arg("argmax", "max", np.argmax)
_arg("argmin", "min", np.argmin)

_SCANS: dict[str, Callable[..., Any]] = {
    "add": np.cumsum, "mul": np.cumprod, "max": np.maximum.accumulate, "min": np.minimum.accumulate
}  # fmt: skip


def _scan_reference(x: Any, how: str = "add", axis: int = -1) -> Any:
    return _SCANS[how](x, axis=axis)


@intrinsic(_scan_reference)
def scan(
    p: IntrinsicContext, x: Any, how: Any = "add", axis: int = -1, *, reverse: bool = False,
    exclusive: bool = False, init: Any = None,
) -> Any:  # fmt: skip
    """The folds up to each element along an axis, one after the other; from the end on if it is reverse.

    An exclusive one folds the elements before each.  `how` may be a function of two elements, and x a tuple
    of tiles: then the function takes and gives tuples.  `init` is what the fold begins with.
    """
    if not isinstance(how, str):
        return scan_by(p, x, how, axis, reverse, exclusive, init)
    if how not in _SCANS:
        raise KernelError(f"scan: got {how!r}, expected one of {', '.join(_SCANS)}")
    t = p.w.tile(x)
    (a,) = _axes(t, axis)
    summed = wide(t.dtype) if t.dtype.kind == "f" else t.dtype
    t, kept = p.w.cast(t, summed), t.dtype
    if not (reverse or exclusive or init is not None):
        return p.w.cast(p.w.scan(how, t, a), kept)
    start = identity(how, summed) if exclusive and init is None else init
    return p.w.cast(scan_by(p, t, _function(p, how), a, reverse, exclusive, start), kept)


# Shapes


@intrinsic(np.transpose)
def transpose(p: IntrinsicContext, x: Any, axes: Any = None) -> TileValue:
    """Rows as columns; of other ranks, the axes in another order."""
    t = p.w.tile(x)
    return p.w.transpose(t) if axes is None else permuted(p, t, axes)


@intrinsic(np.broadcast_to)
def broadcast(p: IntrinsicContext, x: Any, shape: Any) -> TileValue:
    """A tile repeated along its axes of size 1."""
    return p.w.broadcast(p.w.tile(x), _sizes(p, shape))


@intrinsic(np.reshape)
def reshape(p: IntrinsicContext, x: Any, shape: Any) -> TileValue:
    """The same elements in another shape; one size may be -1."""
    t, sizes = p.w.tile(x), list(shape) if isinstance(shape, tuple | list) else [shape]
    if sizes.count(-1) == 1:
        rest = math.prod(n for n in sizes if n != -1)
        sizes[sizes.index(-1)] = math.prod(t.shape) // rest if rest else 0
    numbers = _sizes(p, tuple(sizes))
    if math.prod(numbers) != math.prod(t.shape):
        raise ShapeError(f"reshape: {t.type} does not have the elements of shape {numbers}")
    return p.w.reshape(t, numbers)


@intrinsic(lambda x, like=None: x)
def place(p: IntrinsicContext, x: Any, like: Any = None) -> TileValue:
    """A tile at the places of another one of its shape, whose edges folds leave out; without one, at no
    place.

    At no place every element counts, also those that were loaded from outside of a tensor.
    """
    t = p.w.tile(x)
    if like is None:
        return TileValue(t.tile, (None,) * t.rank, (None,) * t.rank, t.constant)
    other = p.w.tile(like)
    if other.shape != t.shape:
        raise ShapeError(
            f"place: {t.type} has another shape than {other.type}, at which it is placed"
        )
    return TileValue(t.tile, other.axes, (None,) * t.rank, t.constant)


@intrinsic(np.expand_dims)
def expand(p: IntrinsicContext, x: Any, axis: int) -> TileValue:
    """A tile with one more axis, of size 1."""
    t = p.w.tile(x)
    at = axis % (t.rank + 1)
    made = p.w.b.expand(t.tile, at)
    axes, pads = list(t.axes), list(t.pads)
    axes.insert(at, None)
    pads.insert(at, None)
    return TileValue(made, tuple(axes), tuple(pads), t.constant)


def _sizes(p: IntrinsicContext, shape: Any) -> tuple[int, ...]:
    listed = shape if isinstance(shape, tuple | list) else (shape,)
    return tuple(p.places.number(n, "a size") for n in listed)
