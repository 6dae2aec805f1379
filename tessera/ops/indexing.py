"""x[key] and x.at[key].set(value): a key of NumPy's kind as slices, then one gather or scatter.

A key becomes a list of parts, one per axis of x and one per new axis.  Cuts (numbers and slices)
lower to views; picks (integer tensors, masks) to a gather on what the cuts leave.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from tessera.core.constraints import require, unify
from tessera.core.dims import Dim, Shape, Size, bounds
from tessera.core.dtype import bool_, i64
from tessera.core.errors import AxisError, OperandError, TesseraError, TraceError
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Value, concrete, current_builder, host_data
from tessera.ir.graph.known import known
from tessera.ops.define import ArrayLike, as_value, full_of, public
from tessera.ops.dynamic_slice import dynamic_update_slice
from tessera.ops.elementwise import add, maximum, minimum, mul, where
from tessera.ops.gather import OPS, fitting, gather, together
from tessera.ops.places import in_bounds
from tessera.ops.shape import flip, pad, reshape, slice_, transpose


@dataclass(frozen=True)
class AxisCut:
    """An axis cut by a slice or, when it is dropped, by a number.

    With `reverse` the axis is flipped first; start, stop and step are then counted from its end.
    """

    size: Size
    start: Size
    stop: Size
    step: int = 1
    reverse: bool = False
    dropped: bool = False

    @property
    def count(self) -> Size:
        return (self.stop - self.start + self.step - 1) // self.step

    @property
    def whole(self) -> bool:
        return self.step == 1 and self.start == 0 and self.stop == self.size


@dataclass(frozen=True)
class AxisPick:
    """An axis of x, or a new one (for a mask of no axes), taken at the places of an index tensor."""

    size: Size
    index: Value
    new: bool = False


class New:
    """A new axis of size 1."""


class Gap:
    """A '...' that stands for no axes; it still parts the picks on its two sides."""


Part = AxisCut | AxisPick | New | Gap
_NEW, _GAP, _WHOLE = New(), Gap(), builtins.slice(None)
_UPDATES = {"add": add, "multiply": mul, "max": maximum, "min": minimum}
_SCATTERS = {
    "set": "scatter",
    "add": "scatter_add",
    "multiply": "scatter_mul",
    "max": "scatter_max",
    "min": "scatter_min",
}


@public
def index(x: Value, key: Any) -> Value:
    """x[key]: numbers, slices, new axes, integer tensors and masks, as in NumPy."""
    if isinstance(x.storage, np.ndarray) and current_builder() is None and _is_plain(key):
        try:
            return concrete(x.storage[key], x.dtype, x.device)
        except (IndexError, ValueError):
            pass  # what follows says what is wrong with the key
    known_form = _form_of(x, key)
    if known_form is not None:
        return _by_form(x, *known_form)
    parts = _parse(x, key)
    y = _cut(x, parts)
    picks = [p for p in parts if isinstance(p, AxisPick)]
    if not picks:
        return y
    indices = together("index", [p.index for p in picks])
    out = gather.bind(y, *indices, axes=_pick_axes(parts))
    order = _placement(parts, indices[0].ndim, out.ndim)
    return transpose(out, order)


@public
def update(x: Value, key: Any, value: ArrayLike, how: str) -> Value:
    """x with x[key] set to a value, or combined with it by add, multiply, max or min."""
    found = _form_of(x, key)
    if found is not None and found[0].whole and found[0].picks:
        return _scattered(x, *found, value, how)
    mask = _lone_mask(x, key)
    if mask is not None and np.ndim(value) <= x.ndim - mask.ndim:
        return _masked(x, mask, value, how)
    parts = _parse(x, key)
    picks = [p for p in parts if isinstance(p, AxisPick)]
    if not picks:
        return _paste(x, parts, fitting(f"at.{how}", x, value, _cut_shape(parts)), how)
    y = _cut(x, parts)
    indices = together("index", [p.index for p in picks])
    axes = _pick_axes(parts)
    shape = (*indices[0].shape, *(n for a, n in enumerate(y.shape) if a not in axes))
    order = _placement(parts, indices[0].ndim, len(shape))
    v = fitting(f"at.{how}", x, value, tuple(shape[a] for a in order))
    back = tuple(np.argsort(order).tolist())
    y = OPS[_SCATTERS[how]].bind(y, transpose(v, back), *indices, axes=axes)
    return _paste(x, parts, y, "set")


# Keys


def _is_plain(key: Any) -> bool:
    """Whether a key is of numbers, slices of numbers, '...' and None: a view of the data."""
    return all(
        type(k) is int
        or k is None
        or k is Ellipsis
        or (type(k) is slice and all(type(n) in _NUMBERS for n in (k.start, k.stop, k.step)))
        for k in (key if isinstance(key, tuple) else (key,))
    )


_NUMBERS = (int, type(None))


# Keys that come again: what a key of numbers, slices and index tensors means is found once for each shape of
# x, and kept.


_PICK: Any = object()  # an index tensor, whichever it is


class _Blank(NamedTuple):
    """What a key asks of the tensor that it indexes."""

    type: TensorType
    shape: Shape
    ndim: int


class KeyForm(NamedTuple):
    """What a key means for a shape, whatever its index tensors hold."""

    picks: tuple[
        tuple[int, int], ...
    ]  # items of the key that are index tensors, and their axes of x
    axes: tuple[int, ...]  # of what the cuts leave, that the picks index
    before: int  # axes of the result in front of those of the indices
    backward: tuple[int, ...]
    sliced: tuple[tuple[Size, ...], tuple[Size, ...], tuple[int, ...]] | None
    shape: Shape  # that the cuts leave

    @property
    def whole(self) -> bool:
        """Whether nothing is cut."""
        return not self.backward and self.sliced is None


def _form_of(x: Value, key: Any) -> tuple[KeyForm, list[Any]] | None:
    """The form of a key of plain items, and these; None for any other key and for one that does not fit."""
    if not x.type.static:
        return None
    kinds: list[Any] = []
    items = list(key) if type(key) is tuple else [key]
    for i, k in enumerate(items):
        if type(k) is np.ndarray and k.dtype.kind in "iu" and k.ndim:
            k = items[i] = as_value(k, "index")
        if isinstance(k, Value):
            if k.dtype.kind not in "iu" or k.weak or (not k.shape and k.storage is not None):
                return None
            kinds.append(_PICK)
        elif k is None or k is Ellipsis or type(k) is int:
            kinds.append(k)
        elif type(k) is slice:
            ends = (k.start, k.stop, k.step)
            if not all(type(n) in _NUMBERS for n in ends):
                return None
            kinds.append(ends)
        else:
            return None
    form = _known_form(x.shape, tuple(kinds))
    return None if form is None else (form, items)


@lru_cache(4096)
def _known_form(shape: tuple[int, ...], kinds: tuple[Any, ...]) -> KeyForm | None:
    x = _Blank(TensorType(i64, shape), shape, len(shape))
    key = tuple(builtins.slice(*k) if isinstance(k, tuple) else k for k in kinds)
    try:
        parts = _parse(x, key)
    except TesseraError:
        return None  # the way of any key says what is wrong
    cuts, taken = _cuts(parts), iter(i for i, k in enumerate(kinds) if k is _PICK)
    picks = tuple(
        (next(taken), axis)
        for axis, p in enumerate(p for p in parts if not isinstance(p, New | Gap))
        if isinstance(p, AxisPick)
    )
    left = _cut_shape(parts)
    order = _placement(parts, 1, len(left) - len(picks) + 1) if picks else (0,)
    return KeyForm(
        picks,
        _pick_axes(parts),
        order.index(0),
        tuple(a for a, c in enumerate(cuts) if c.reverse),
        None
        if all(c.whole for c in cuts)
        else (
            tuple(c.start for c in cuts),
            tuple(c.stop for c in cuts),
            tuple(c.step for c in cuts),
        ),
        left,
    )


def _indices(x: Value, form: KeyForm, items: Sequence[Any]) -> list[Value]:
    return [in_bounds("index", items[i], x, axis) for i, axis in form.picks]


def _cut_by(x: Value, form: KeyForm) -> Value:
    y = flip.bind(x, axes=form.backward) if form.backward else x
    if form.sliced is not None:
        start, stop, step = form.sliced
        y = slice_.bind(y, start=start, stop=stop, step=step)
    return y if y.shape == form.shape else reshape.bind(y, shape=form.shape)


def _by_form(x: Value, form: KeyForm, items: Sequence[Any]) -> Value:
    """x[key]."""
    indices = _indices(x, form, items)
    y = _cut_by(x, form)
    if not indices:
        return y
    indices = together("index", indices)
    out = gather.bind(y, *indices, axes=form.axes)
    if not form.before:
        return out
    rank = indices[0].ndim
    rest = range(rank, out.ndim)
    return transpose(out, (*rest[: form.before], *range(rank), *rest[form.before :]))


def _scattered(x: Value, form: KeyForm, items: Sequence[Any], value: ArrayLike, how: str) -> Value:
    """x with the elements at its picks replaced or combined, where nothing is cut."""
    indices = _indices(x, form, items)
    y = _cut_by(x, form)
    indices = together("index", indices)
    rank, before = indices[0].ndim, form.before
    left = [n for a, n in enumerate(y.shape) if a not in form.axes]
    v = fitting(f"at.{how}", x, value, (*left[:before], *indices[0].shape, *left[before:]))
    if before:
        back = (*range(before, before + rank), *range(before), *range(before + rank, v.ndim))
        v = transpose(v, back)
    y = OPS[_SCATTERS[how]].bind(y, v, *indices, axes=form.axes)
    return y if y.shape == x.shape else reshape(y, x.shape)


def _parse(x: Any, key: Any) -> list[Part]:
    items = [_item(k) for k in (key if isinstance(key, tuple) else (key,))]
    takes = [_axes_taken(k) for k in items]
    dots = [i for i, k in enumerate(items) if k is Ellipsis]
    if len(dots) > 1:
        raise AxisError("index: a key can hold only one '...'")
    missing = x.ndim - builtins.sum(takes)
    if missing < 0:
        raise AxisError(
            f"index: {builtins.sum(takes)} indices for {x.type}, which has rank {x.ndim}"
        )
    at = dots[0] if dots else len(items)
    if missing:
        items[at : at + len(dots)] = [_WHOLE] * missing
    parts: list[Part] = []
    axis = 0
    for k in items:
        parts += _parts(x, axis, k)
        axis += _axes_taken(k)
    return parts


def _is_empty(k: list[Any]) -> bool:
    """Whether nested lists hold no element."""
    return all(isinstance(x, list) and _is_empty(x) for x in k)


def _item(k: Any) -> Any:
    """One element of a key as a number, a size, a slice, None, Ellipsis or an index tensor."""
    if k is None or k is Ellipsis or k is _PICK or isinstance(k, builtins.slice | Dim):
        return k
    if isinstance(k, int) and not isinstance(k, bool):
        return k
    if isinstance(k, list) and _is_empty(k):
        return concrete(np.zeros(np.shape(k), np.int64))
    v = as_value(k, "index")
    if v.dtype.kind not in "biu":
        raise OperandError(
            f"index: cannot index with {v.type}; use integers, slices, None, ..., integer tensors or "
            "masks"
        )
    return int(v.storage) if v.ndim == 0 and v.storage is not None and v.dtype.kind != "b" else v


def _axes_taken(k: Any) -> int:
    if k is None or k is Ellipsis:
        return 0
    return k.ndim if isinstance(k, Value) and k.dtype.kind == "b" else 1


def _parts(x: Any, axis: int, k: Any) -> list[Part]:
    if k is _PICK:
        return [AxisPick(x.shape[axis], k)]
    if k is None or k is Ellipsis:
        return [_GAP if k is Ellipsis else _NEW]
    if isinstance(k, builtins.slice):
        return [_slice_part(x, axis, k)]
    if not isinstance(k, Value):
        return [_number_part(x, axis, k)]
    if k.dtype.kind == "b":
        return _mask_parts(x, axis, k)
    return [AxisPick(x.shape[axis], in_bounds("index", k, x, axis))]


def _number_part(x: Any, axis: int, k: Size) -> AxisCut:
    n = x.shape[axis]
    at = k + n if _negative(k) else k
    if isinstance(n, int) and isinstance(at, int) and 0 <= at < n:
        return AxisCut(n, at, at + 1, dropped=True)
    why = f"index: {k} along axis {axis} of {x.type}"
    if not (require("at_least", at, 0, why) and require("at_least", n, at + 1, why)):
        raise AxisError(
            f"index: {k} is out of range for axis {axis} of {x.type}"
            + (f", which has size {n}; use {-n} to {n - 1}" if n else ", which has size 0")
        )
    return AxisCut(n, at, at + 1, dropped=True)


def _negative(k: Size) -> bool:
    return k < 0 if isinstance(k, int) else bounds(k)[1] < 0


def _slice_part(x: Any, axis: int, s: builtins.slice) -> AxisCut:
    n = x.shape[axis]
    if s == _WHOLE:
        return AxisCut(n, 0, n)
    start, stop, step = (_bound(x, axis, b) for b in (s.start, s.stop, s.step))
    if isinstance(step, Dim) or step == 0:
        raise AxisError(f"index: the step of a slice of axis {axis} of {x.type} is {step}")
    step = 1 if step is None else step
    if all(isinstance(b, int | None) for b in (n, start, stop)):
        start, stop, step = builtins.slice(start, stop, step).indices(n)
    else:
        start, stop = _symbolic_ends(x, axis, start, stop, step)
    if step < 0:
        start, stop = n - 1 - start, n - 1 - stop
    if isinstance(start, int) and isinstance(stop, int):
        stop = builtins.max(start, stop)
    return AxisCut(n, start, stop, builtins.abs(step), reverse=step < 0)


def _bound(x: Any, axis: int, b: Any) -> Size | None:
    if b is None or isinstance(b, Dim):
        return b
    if isinstance(b, Value) and b.storage is None:
        raise TraceError(
            f"index: a slice of axis {axis} of {x.type} has the traced bound {b.type}, so its size "
            "is not known; use op.dynamic_slice(x, start, sizes)"
        )
    if not hasattr(b, "__index__"):
        raise OperandError(
            f"index: {b!r:.60} in a slice of axis {axis} of {x.type} is not an integer"
        )
    return int(b)


def _symbolic_ends(
    x: Value, axis: int, start: Size | None, stop: Size | None, step: int
) -> tuple[Size, Size]:
    """Ends of a slice counted from the front; a guard keeps a call's sizes from clipping it."""
    n = x.shape[axis]
    why = f"index: a slice of axis {axis} of {x.type}"
    first, last = (0, n) if step > 0 else (n - 1, -1)
    a = first if start is None else start + n if _negative(start) else start
    b = last if stop is None else stop + n if _negative(stop) else stop
    low, high = (a, b) if step > 0 else (b, a)
    for large, small in (
        (low, 0 if step > 0 else -1),
        (high, low),
        (n, high if step > 0 else high + 1),
    ):
        if not require("at_least", large, small, why):
            raise AxisError(f"{why} from {a} to {b} does not lie in it for any sizes")
    return a, b


def _mask_parts(x: Value, axis: int, given: Value) -> list[Part]:
    mask = known(given)
    if mask is None:
        raise TraceError(
            f"index: the mask {given.type} is traced, so how many elements it picks is not known; use "
            "op.where(mask, x, other), or op.nonzero(mask, size=...)"
        )
    _check_mask(x, axis, mask)
    if mask.ndim == 0:
        return [AxisPick(1, concrete(np.flatnonzero(host_data(mask)), i64), new=True)]
    places = np.nonzero(host_data(mask))
    return [AxisPick(x.shape[axis + i], concrete(p, i64)) for i, p in enumerate(places)]


# Cuts


def _cut_shape(parts: Sequence[Part]) -> Shape:
    """The shape that the cuts leave: picked axes whole, new ones of size 1."""
    out: list[Size] = []
    for p in parts:
        if isinstance(p, AxisCut):
            out += [] if p.dropped else [p.count]
        elif not isinstance(p, Gap):
            out.append(p.size if isinstance(p, AxisPick) else 1)
    return tuple(out)


def _cuts(parts: Sequence[Part]) -> list[AxisCut]:
    """One cut per axis of x."""
    return [
        AxisCut(p.size, 0, p.size) if isinstance(p, AxisPick) else p
        for p in parts
        if isinstance(p, AxisCut) or (isinstance(p, AxisPick) and not p.new)
    ]


def _cut(x: Value, parts: Sequence[Part]) -> Value:
    cuts = _cuts(parts)
    backward = tuple(a for a, c in enumerate(cuts) if c.reverse)
    y = flip.bind(x, axes=backward) if backward else x
    if not all(c.whole for c in cuts):
        y = slice_.bind(
            y,
            start=tuple(c.start for c in cuts),
            stop=tuple(c.stop for c in cuts),
            step=tuple(c.step for c in cuts),
        )
    shape = _cut_shape(parts)
    return y if y.shape == shape else reshape.bind(y, shape=shape)


def _paste(x: Value, parts: Sequence[Part], value: Value, how: str) -> Value:
    """x with the part that _cut(x) reads replaced by a value of its shape, or combined with it."""
    cuts = _cuts(parts)
    if how != "set":
        value = _UPDATES[how](_cut(x, parts), value)
    if value.type.size == 0:
        return x
    v = reshape(value, tuple(c.count for c in cuts))
    backward = [a for a, c in enumerate(cuts) if c.reverse]
    v = flip(v, backward) if backward else v
    starts = [_forward_start(c) for c in cuts]
    if all(c.step == 1 for c in cuts):
        if v.shape == x.shape:
            return v
        return dynamic_update_slice.bind(x, v, *(as_value(s) for s in starts))
    ends = {
        "low": tuple(starts),
        "high": tuple(
            c.size - s - (c.count - 1) * c.step - 1 for s, c in zip(starts, cuts, strict=True)
        ),
        "inner": tuple(c.step - 1 for c in cuts),
    }
    here = pad.bind(full_of(v.shape, True, bool_), full_of((), False, bool_), **ends)
    return where(here, pad.bind(v, full_of((), 0, v.dtype), **ends), x)


def _forward_start(c: AxisCut) -> Size:
    return c.size - 1 - c.start - (c.count - 1) * c.step if c.reverse else c.start


# Picks


def _pick_axes(parts: Sequence[Part]) -> tuple[int, ...]:
    """The axes of _cut(x) that the picks index."""
    left = [p for p in parts if not (isinstance(p, Gap) or (isinstance(p, AxisCut) and p.dropped))]
    return tuple(i for i, p in enumerate(left) if isinstance(p, AxisPick))


def _placement(parts: Sequence[Part], rank: int, total: int) -> tuple[int, ...]:
    """The order of the axes of a gather in the result: in place of the picks when they (and numbers
    beside them) are next to each other, in front otherwise."""
    advanced = [
        i
        for i, p in enumerate(parts)
        if isinstance(p, AxisPick) or (isinstance(p, AxisCut) and p.dropped)
    ]
    apart = advanced[-1] - advanced[0] >= len(advanced)
    before = 0 if apart else len(_cut_shape(parts[: advanced[0]]))
    rest = range(rank, total)
    return (*rest[:before], *range(rank), *rest[before:])


# Masks


def _lone_mask(x: Value, key: Any) -> Value | None:
    if isinstance(key, bool | Value | np.ndarray | list):
        mask = _item(key)
        if isinstance(mask, Value) and mask.dtype.kind == "b" and mask.ndim <= x.ndim:
            return mask
    return None


def _check_mask(x: Value, axis: int, mask: Value) -> None:
    """A mask has the sizes of the axes it covers; one of size 0 fits any, as it picks nothing."""
    for i, m in enumerate(mask.shape):
        n = x.shape[axis + i]
        if m != 0 and not unify(n, m, f"index: axis {i} of the mask {mask.type}"):
            raise AxisError(
                f"index: axis {i} of the mask {mask.type} is {m}, but axis {axis + i} of {x.type} is "
                f"{n}"
            )


def _masked(x: Value, mask: Value, value: ArrayLike, how: str) -> Value:
    _check_mask(x, 0, mask)
    if 0 in mask.shape:
        return x
    v = fitting(f"at.{how}", x, value, x.shape)
    inside = reshape(mask, (*mask.shape, *(1,) * (x.ndim - mask.ndim)))
    return where(inside, v if how == "set" else _UPDATES[how](x, v), x)
