"""Intrinsics that move elements within tiles: slices, flips, gathers, joins, transposes, sorts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.dims import Dim, Size
from tessera.core.dtype import DType, as_dtype, bool_, i64
from tessera.core.errors import AxisError, DTypeError, ShapeError
from tessera.core.scalar import REINTERPRETS
from tessera.ir.tile.ir import Tile
from tessera.lang.kernel.scratch import keep, picked, unplaced, whole
from tessera.lang.kernel.table import IntrinsicContext, intrinsic
from tessera.lang.kernel.values import Axes, AxisElements, KernelError, TileValue
from tessera.lang.kernel.writer import KernelWriter

_OUTSIDE = 1 << 40  # added to the numbers of elements that are none


def _axis(x: TileValue, axis: Any, name: str) -> int:
    if not isinstance(axis, int) or not -x.rank <= axis < x.rank:
        raise AxisError(f"{name}: axis {axis!r} is no axis of {x.type}")
    return axis % x.rank


def item(w: KernelWriter, x: TileValue, key: Sequence[Any]) -> TileValue:
    """x[1:3, None, i]: slices, places and new axes; a place outside of the tile reads 0."""
    key = _whole_key(x, key)
    used = [k for k in key if k is not None]
    if all(isinstance(k, slice) and k == slice(None) for k in used):
        return _axes_added(w, x, key)
    m = keep(w, x.tile)
    at: list[Size] = []
    extent, kept, axes, moves = (
        list[int](),
        list[int](),
        list[AxisElements | None](),
        dict[int, Tile](),
    )
    for i, k in enumerate(used):
        n = x.shape[i]
        if isinstance(k, slice):
            first, length = _bounds(k, n)
            kept.append(i)
            axes.append(_shifted(x.axes[i], first, length, n))
            at.append(first)
        else:
            length = 1
            at.append(_place(w, k, n, moves, i))
        extent.append(length)
    masked = [i for i, s in enumerate(at) if i in moves or isinstance(s, Dim)]
    t = (
        w.b.gather(m, moves, at, extent, kept, masked)
        if moves
        else w.b.load(m, at, extent, kept, masked)
    )
    pads = tuple(x.pads[i] for i in kept)
    shape = TileValue(t, tuple(axes), pads, x.constant)
    return _axes_added(w, shape, [slice(None) if isinstance(k, slice) else k for k in key
                                  if k is None or isinstance(k, slice)])  # fmt: skip


def _whole_key(x: TileValue, key: Sequence[Any]) -> list[Any]:
    dots = [i for i, k in enumerate(key) if k is Ellipsis]
    if dots:
        kept = sum(k is not None and k is not Ellipsis for k in key)
        key = [*key[: dots[0]], *[slice(None)] * (x.rank - kept), *key[dots[0] + 1 :]]
    count = sum(k is not None for k in key)
    if count > x.rank:
        raise ShapeError(f"{x.type} has {x.rank} axes, but the index has more")
    return [*key, *[slice(None)] * (x.rank - count)]


def _bounds(k: slice, n: int) -> tuple[int, int]:
    given = (k.start, k.stop, k.step)
    if any(not isinstance(v, int | None) for v in given):
        raise KernelError(
            "a slice of a tile has bounds that are numbers; tile.gather takes indices"
        )
    start, stop, step = k.indices(n)
    if step != 1:
        raise KernelError(f"a slice of a tile has the step {step}, expected 1; use tile.gather")
    if stop <= start:
        raise KernelError(f"a slice of {n} elements from {start} to {stop} is empty")
    return start, stop - start


def _place(w: KernelWriter, k: Any, n: int, moves: dict[int, Tile], axis: int) -> Size:
    k = w.known(k)
    if isinstance(k, TileValue):
        if k.dtype.kind not in "iu" or any(s != 1 for s in k.shape):
            raise KernelError(
                f"a tile is indexed by {k.type}, expected one integer; use tile.gather for several"
            )
        moves[axis] = w.cast(w.reshape(w.plain(k.tile), ()), i64).tile
        return 0
    if isinstance(k, Dim):
        return k
    if isinstance(k, bool) or not isinstance(k, int):
        raise KernelError(f"a tile is indexed by numbers, slices and None, got {k!r:.40}")
    if not -n <= k < n:
        raise KernelError(f"index {k} lies outside of an axis of {n} elements")
    return k % n


def _shifted(a: AxisElements | None, start: int, length: int, n: int) -> AxisElements | None:
    """The place of a slice; one of a whole axis is a tile of its own."""
    if a is None or length == n:
        return a
    if a.exact and a.lost is None and a.moved is None and a.first == 0 and a.size == n:
        return None
    return AxisElements(a.size, a.first + start, a.exact, a.lost, a.moved)


def _axes_added(w: KernelWriter, x: TileValue, key: Sequence[Any]) -> TileValue:
    sizes, axes, pads = iter(x.shape), iter(x.axes), iter(x.pads)
    shape = tuple(1 if k is None else next(sizes) for k in key)
    return TileValue(
        w.b.reshape(x.tile, shape),
        tuple(None if k is None else next(axes) for k in key),
        tuple(None if k is None else next(pads) for k in key),
        x.constant,
    )


@intrinsic(np.flip)
def flip(p: IntrinsicContext, x: Any, axis: int = -1) -> TileValue:
    """The elements along an axis in the other order."""
    t = p.w.tile(x)
    a = _axis(t, axis, "flip")
    n = t.shape[a]
    shape = [n if i == a else 1 for i in range(t.rank)]
    back = p.w.b.apply("sub", p.w.b.full(i64, (), n - 1), p.w.b.index(0, shape, a))
    made = picked(p.w, keep(p.w, t.tile), {a: back}, t.shape)
    axes = tuple(unplaced(v, "flip", n) if i == a else v for i, v in enumerate(t.axes))
    return TileValue(made, axes, (None,) * t.rank)


@intrinsic(np.take_along_axis)
def gather(p: IntrinsicContext, x: Any, index: Any, axis: int = -1) -> TileValue:
    """Elements of a tile at the places of an axis that a tile of integers says; 0 outside.

    The indices have the sizes of the tile along all other axes, as for NumPy's take_along_axis.
    """
    t, at = p.w.tile(x), p.w.tile(index)
    a = _axis(t, axis, "gather")
    if at.dtype.kind not in "iu":
        raise DTypeError(f"gather: indices are {at.type}, expected a tile of integers")
    if at.rank == 1 and t.rank > 1:
        at = p.w.reshape(at, [at.shape[0] if i == a else 1 for i in range(t.rank)])
    fits = at.rank == t.rank and all(
        i == a or n in (1, m) for i, (n, m) in enumerate(zip(at.shape, t.shape, strict=True))
    )
    if not fits:
        raise ShapeError(f"gather: indices of {at.type} do not fit {t.type} along axis {a}")
    shape = tuple(at.shape[a] if i == a else n for i, n in enumerate(t.shape))
    unplaced_at = unplaced(t.axes[a], "gather", t.shape[a])
    if unplaced_at is not None:
        t = p.w.masked(t, a, 0)
    made = picked(p.w, keep(p.w, t.tile), {a: p.w.cast(at, i64).tile}, shape)
    axes = tuple(at.axes[a] if i == a else v for i, v in enumerate(t.axes))
    return TileValue(made, axes, (None,) * t.rank)


def _tiles(p: IntrinsicContext, xs: Any, name: str) -> list[TileValue]:
    if not isinstance(xs, tuple | list) or not xs:
        raise KernelError(f"{name}: got {xs!r:.40}, expected tiles in a tuple")
    tiles = [p.w.tile(x) for x in xs]
    if any(x.dtype is not tiles[0].dtype or x.rank != tiles[0].rank for x in tiles):
        listed = ", ".join(str(x.type) for x in tiles)
        raise ShapeError(f"{name}: tiles {listed} differ in dtype or rank; cast or reshape before")
    return tiles


@intrinsic(lambda xs, axis=0: np.concatenate(xs, axis))
def concat(p: IntrinsicContext, xs: Any, axis: int = 0) -> TileValue:
    """Tiles one after the other along an axis."""
    w, tiles = p.w, _tiles(p, xs, "concat")
    a = _axis(tiles[0], axis, "concat")
    others = [tuple(n for i, n in enumerate(x.shape) if i != a) for x in tiles]
    if any(s != others[0] for s in others):
        raise ShapeError(f"concat: {', '.join(str(x.type) for x in tiles)} differ beside axis {a}")
    total = sum(x.shape[a] for x in tiles)
    m = w.b.alloc(
        tiles[0].dtype, tuple(total if i == a else n for i, n in enumerate(tiles[0].shape))
    )
    start = 0
    for x in tiles:
        w.b.store(m, x.tile, [start if i == a else 0 for i in range(x.rank)], x.shape)
        start += x.shape[a]
    axes: Axes = w.meeting(
        "concat", [TileValue(x.tile, _without(x.axes, a), x.pads) for x in tiles]
    )
    lost = next((v for x in tiles if (v := unplaced(x.axes[a], "concat", total))), None)
    axes = tuple(lost if i == a else v for i, v in enumerate(axes))
    return TileValue(whole(w, m), axes, (None,) * len(axes))


def _without(axes: Axes, a: int) -> Axes:
    return tuple(None if i == a else v for i, v in enumerate(axes))


@intrinsic(lambda xs, axis=0: np.stack(xs, axis))
def stack(p: IntrinsicContext, xs: Any, axis: Any = 0) -> TileValue:
    """Tiles side by side along a new axis."""
    tiles = _tiles(p, xs, "stack")
    rank = tiles[0].rank + 1
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise AxisError(f"stack: axis {axis!r} is no axis of a tile of rank {rank}")
    a = axis % rank
    grown = [_axes_added(p.w, x, [*[slice(None)] * a, None, *[slice(None)] * (rank - 1 - a)])
             for x in tiles]  # fmt: skip
    made: TileValue = concat.emit(p, grown, a)
    return made


@intrinsic(lambda x, y: np.stack((x, y), -1))
def join(p: IntrinsicContext, x: Any, y: Any) -> TileValue:
    """Two tiles side by side along a new last axis."""
    made: TileValue = stack.emit(p, (x, y), -1)
    return made


@intrinsic(lambda x, parts=2, axis=-1: tuple(np.split(x, parts, axis)))
def split(p: IntrinsicContext, x: Any, parts: Any = 2, axis: int = -1) -> tuple[TileValue, ...]:
    """A tile in so many equal parts along an axis."""
    t = p.w.tile(x)
    a = _axis(t, axis, "split")
    if not isinstance(parts, int) or parts < 1 or t.shape[a] % parts:
        raise ShapeError(f"split: axis {a} of {t.type} has no {parts} equal parts")
    n = t.shape[a] // parts
    keys = [[slice(i * n, (i + 1) * n) if j == a else slice(None) for j in range(t.rank)]
            for i in range(parts)]  # fmt: skip
    return tuple(item(p.w, t, k) for k in keys)


def permuted(p: IntrinsicContext, x: TileValue, order: Sequence[int]) -> TileValue:
    """The axes of a tile in another order."""
    if sorted(i % x.rank for i in order) != list(range(x.rank)):
        raise AxisError(f"transpose: axes {list(order)} are not those of {x.type} in some order")
    order = [i % x.rank for i in order]
    if order == list(range(x.rank)):
        return x
    w = p.w
    t = w.b.transpose(x.tile) if x.rank == 2 else w.b.load(
        keep(w, x.tile), (0,) * x.rank, x.shape, order
    )  # fmt: skip
    return TileValue(
        t, tuple(x.axes[i] for i in order), tuple(x.pads[i] for i in order), x.constant
    )


_OF_BITS = {8: ("i8", "u8"), 16: ("i16", "u16"), 32: ("i32", "u32"), 64: ("i64", "u64")}


@intrinsic(lambda x, dtype: x.view(dtype))
def bitcast(p: IntrinsicContext, x: Any, dtype: Any) -> TileValue:
    """The bits of a tile as another dtype of as many bits: f32, f64, and integers."""
    w, t, to = p.w, p.w.tile(x), as_dtype(dtype)
    if t.dtype is to:
        return t
    if t.dtype.bits != to.bits or not (_has_bits(t.dtype) and _has_bits(to)):
        raise DTypeError(f"bitcast: the bits of {t.dtype} are no {to}")
    if t.dtype.kind == "f":
        t = _plain(t, w.b.apply("bits", t.tile))
    if to.kind == "f":
        unsigned = w.cast(t, as_dtype(_OF_BITS[to.bits][1]))
        return _plain(t, w.b.apply("from_bits", unsigned.tile))
    return w.cast(t, to)


def _has_bits(d: DType) -> bool:
    return d.kind in "iu" or d.name in REINTERPRETS["bits"]


def _plain(like: TileValue, t: Tile) -> TileValue:
    return TileValue(t, like.axes, (None,) * like.rank)


# Sorting


@intrinsic(
    lambda x, axis=-1, descending=False: -np.sort(-x, axis) if descending else np.sort(x, axis)
)
def sort(p: IntrinsicContext, x: Any, axis: int = -1, descending: bool = False) -> TileValue:
    """The elements along an axis in ascending order, or descending; NaN is larger than every number.

    Elements past the end of a tensor stay behind the others.
    """
    return _sorted(p, p.w.tile(x), axis, descending)[0]


@intrinsic(lambda x, axis=-1: np.argsort(x, axis, kind="stable"))
def argsort(p: IntrinsicContext, x: Any, axis: int = -1, descending: bool = False) -> TileValue:
    """The places of the sorted elements in the tile; of equal ones the first comes first."""
    return _sorted(p, p.w.tile(x), axis, descending)[1]


@intrinsic()
def topk(p: IntrinsicContext, x: Any, k: int, axis: int = -1) -> tuple[TileValue, TileValue]:
    """The k largest elements along an axis, the largest first, and their places in the tile."""
    t = p.w.tile(x)
    a = _axis(t, axis, "topk")
    k = p.places.number(k, "topk: k")
    if not 1 <= k <= t.shape[a]:
        raise KernelError(f"topk: k is {k}, expected 1 to {t.shape[a]}")
    key = [slice(0, k) if i == a else slice(None) for i in range(t.rank)]
    values, places = (item(p.w, v, key) for v in _sorted(p, t, axis, True))
    return values, places


def _sorted(
    p: IntrinsicContext, x: TileValue, axis: int, descending: bool
) -> tuple[TileValue, TileValue]:
    """Bitonic sort of pairs of an element and its number, so that equal elements keep their order."""
    w, a = p.w, _axis(x, axis, "sort")
    n, place = x.shape[a], x.axes[a]
    size = 1 << (n - 1).bit_length()
    shape = tuple(size if i == a else m for i, m in enumerate(x.shape))
    along = [size if i == a else 1 for i in range(x.rank)]
    at = w.b.index(0, along, a)
    own = w.b.index(0, [n if i == a else 1 for i in range(x.rank)], a)
    if place is not None and not place.exact:
        far = w.b.apply("add", own, w.b.full(i64, (), _OUTSIDE))
        own = w.b.apply("where", w.inside(x, a, place), own, far)
    number = w.b.broadcast(own, x.shape)
    keys, numbers = x.tile, number
    if size != n:
        keys = _padded(w, keys, shape, 0)
        numbers = _padded(w, number, shape, _OUTSIDE)
    spaces = [w.b.alloc(t.dtype, shape) for t in (keys, numbers)]

    def body(_: Size, state: Sequence[Tile]) -> list[Tile]:
        pair, (k, j) = state[:2], state[2:]
        for m, t in zip(spaces, pair, strict=True):
            w.b.store(m, t, (0,) * len(shape), shape)
        w.b.barrier()
        there = w.b.apply("xor", at, j)
        other = [picked(w, m, {a: there}, shape) for m in spaces]
        w.b.barrier()
        first = _before(w, pair, other, descending)
        zero = w.b.full(i64, (), 0)
        rising, lower = (w.b.apply("eq", w.b.apply("and", at, s), zero) for s in (k, j))
        stays = w.b.apply("eq", first, w.b.broadcast(w.b.apply("eq", rising, lower), shape))
        kept = [w.b.apply("where", stays, x, y) for x, y in zip(pair, other, strict=True)]
        one = w.b.full(i64, (), 1)
        ends = w.b.apply("eq", j, one)
        wider = w.b.apply("mul", k, w.b.full(i64, (), 2))
        k = w.b.apply("where", ends, wider, k)
        half = w.b.apply("floor_div", w.b.apply("where", ends, wider, j), w.b.full(i64, (), 2))
        return [*kept, k, half]

    steps = (size.bit_length() - 1) * size.bit_length() // 2
    two, one = w.b.full(i64, (), 2), w.b.full(i64, (), 1)
    state = w.turns(0, steps, [keys, numbers, two, one], body)
    axes = tuple(v for v in x.axes)
    made = [TileValue(t, axes, (None,) * x.rank) for t in state[:2]]
    if size != n:
        key = [slice(0, n) if i == a else slice(None) for i in range(x.rank)]
        made = [TileValue(item(w, _plain_tile(t.tile), key).tile, axes, t.pads) for t in made]
    return made[0], made[1]


def _plain_tile(t: Tile) -> TileValue:
    return TileValue(t, (None,) * len(t.shape), (None,) * len(t.shape))


def _padded(w: KernelWriter, t: Tile, shape: Sequence[int], value: int) -> Tile:
    filled = w.b.full(t.dtype, shape, bool(value) if t.dtype is bool_ else value)
    m = keep(w, filled)
    w.b.store(m, t, (0,) * len(shape), t.shape)
    return whole(w, m)


def _before(w: KernelWriter, a: Sequence[Tile], b: Sequence[Tile], descending: bool) -> Tile:
    """Whether the pair a comes before b: elements that are none are last, equal ones by their number."""
    (x, i), (y, j) = a, b
    less, more = (y, x) if descending else (x, y), (x, y) if descending else (y, x)
    far = w.b.full(i64, (), _OUTSIDE)
    out, away = (w.b.apply("ge", t, far) for t in (i, j))
    tie = w.b.apply("logical_and", w.b.apply("logical_not", _less(w, *more)), w.b.apply("lt", i, j))
    order = w.b.apply("logical_or", _less(w, *less), tie)
    return w.b.apply("where", w.b.apply("ne", out, away), away, order)


def _less(w: KernelWriter, x: Tile, y: Tile) -> Tile:
    found = w.b.apply("lt", x, y)
    if x.dtype.kind != "f":
        return found
    plain = w.b.apply("logical_not", w.b.apply("is_nan", x))
    last = w.b.apply("logical_and", w.b.apply("is_nan", y), plain)
    return w.b.apply("logical_or", found, last)
