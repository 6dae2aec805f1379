"""Intrinsics that move data and make tiles: load, store, zeros, ranges, indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.dims import Dim, Size, product, smaller
from tessera.core.dtype import DType, as_dtype, f32, i64
from tessera.core.types import TensorType
from tessera.ir.tile.ir import Memory
from tessera.lang.kernel.access import TensorBox
from tessera.lang.kernel.accumulate import fold_atomically, fold_into
from tessera.lang.kernel.data_ranges import data_blocks, data_range
from tessera.lang.kernel.hints import note
from tessera.lang.kernel.places import is_line, moves_of
from tessera.lang.kernel.table import IntrinsicContext, intrinsic
from tessera.lang.kernel.values import (
    AxisElements,
    AxisSpan,
    BlockSize,
    KernelArray,
    KernelError,
    LoopRange,
    TileValue,
)

SPACES = {"shared": "shared", "private": "private", "register": "private"}


class ScheduleView:
    """The schedule of a kernel, as a kernel sees it: T.m, T.n, T.k, T.d, T.vector ..."""

    def __init__(self, p: IntrinsicContext):
        self._p = p

    def __getattr__(self, name: str) -> Any:
        p = self.__dict__["_p"]
        if name in ("m", "n", "k", "d"):
            return p.places.block(name)
        if name in ("vector", "warps", "stages", "swizzle"):
            return getattr(p.places.schedule, name)
        raise KernelError(
            f"the context has no {name!r}; it has m, n, k, d, vector, warps, stages and swizzle"
        )


@intrinsic()
def context(p: IntrinsicContext) -> ScheduleView:
    """The schedule of this kernel: block sizes m, n, k, d, and hints."""
    return ScheduleView(p)


def array(x: Any, what: str) -> KernelArray:
    """An argument that must be a tensor."""
    if not isinstance(x, KernelArray):
        got = f"a {x!r}" if isinstance(x, TileValue) else f"{x!r:.40}"
        raise KernelError(f"{what}: got {got}, expected a tensor that the kernel is called with")
    return x


def _box(
    p: IntrinsicContext, x: KernelArray, rows: Any, cols: Any, batch: Any, at: Any, shape: Any
) -> TensorBox:
    if at is None and shape is None:
        return p.places.box(x, rows, cols, batch)
    at = (0,) * x.ndim if at is None else tuple(map(p.w.known, _listed(at)))
    if shape is None and any(map(is_line, at)):
        _demand_axes(x, at, at)
        return p.places.pointed(x, at)
    lengths = _listed(shape if shape is not None else (1,) * x.ndim)
    _demand_axes(x, at, lengths)
    sizes = [p.places.number(n, "shape") for n in lengths]
    spans = p.places.at(x, at, sizes)
    axes = tuple(s.axis for s in spans)
    masked = tuple(i for i, s in enumerate(spans) if not s.exact)
    starts, kept = tuple(s.start for s in spans), tuple(range(x.ndim))
    return TensorBox(starts, tuple(sizes), kept, axes, masked, {}, moves_of(spans))


def _demand_axes(x: KernelArray, at: Sequence[Any], lengths: Sequence[Any]) -> None:
    if len(at) != x.ndim or len(lengths) != x.ndim:
        raise KernelError(
            f"{x.name} has {x.ndim} axes, but `at` has {len(at)} places and shape {len(lengths)} sizes"
        )


def _listed(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, tuple | list) else (x,)


@intrinsic()
def load(
    p: IntrinsicContext, x: Any, rows: Any = None, cols: Any = None, *, batch: Any = None, at: Any = None,
    shape: Any = None, mask: Any = None, fill: Any = 0, unchecked: bool = False, **hints: Any,
) -> TileValue:  # fmt: skip
    """A tile of a tensor: blocks of the grid (rows=T.m), spans of a loop, or a box of any place.

    Outside of the tensor lies `fill`, also where tiles of indices point; `unchecked=True` promises that
    they do not.
    """
    ahead = note(p, hints)
    source = array(x, "load")
    p.places.narrow(source, hints.get("vector"))
    box = _box(p, source, rows, cols, batch, at, shape)
    if unchecked and not box.picked:
        raise KernelError("load: unchecked is about tiles of indices, and rows and cols are none")
    p.places.ask(source, box, ahead)
    found = p.places.load(source, box, fill, unchecked)
    if mask is None:
        return found
    chosen: TileValue = p.w.apply("where", mask, found, p.w.tile(fill, found.dtype))
    return chosen


def element(p: IntrinsicContext, x: KernelArray, key: Sequence[Any]) -> TileValue:
    """x[i, j]: one element, or those that tiles of indices name together; 0 outside of the tensor."""
    key = tuple(map(p.w.known, key))
    if len(key) != x.ndim or not all(isinstance(k, int | Dim | TileValue) for k in key):
        raise KernelError(
            f"{x.name} is indexed by one place for each of its {x.ndim} axes; use tile.load for tiles"
        )
    if any(map(is_line, key)):
        return p.places.load(x, p.places.pointed(x, key))
    spans = p.places.at(x, key, (1,) * x.ndim)
    masked = tuple(i for i, s in enumerate(spans) if not s.exact)
    starts, moves = tuple(s.start for s in spans), moves_of(spans)
    return p.places.load(x, TensorBox(starts, (1,) * x.ndim, (), (), masked, {}, moves))


@intrinsic()
def store(
    p: IntrinsicContext, x: Any, value: Any, rows: Any = None, cols: Any = None, *, batch: Any = None,
    at: Any = None, shape: Any = None, mask: Any = None, distinct: bool = False, **hints: Any,
) -> None:  # fmt: skip
    """Write a tile to a tensor, by default to where the tile's elements belong.

    Places that are data, tiles of indices or loaded numbers, need `distinct=True`: the promise that no two
    instances, and no two elements of a tile, write one place.  What lies outside of the tensor is dropped.
    """
    note(p, hints, ("vector",))
    target = array(x, "store")
    p.places.narrow(target, hints.get("vector"))
    made = p.w.tile(value)
    here = rows is None and cols is None and at is None
    box = _own(p, target, made, batch) if here else None
    if box is None:
        sizes = _led(target, made) if at is not None and shape is None else shape
        box = _box(p, target, rows, cols, batch, at, _extent(at, sizes))
    if box.is_data and not distinct:
        raise KernelError(
            f"store: {target.name} is written at places that are data; say distinct=True if no two of "
            "them are equal, or add up with tile.accumulate"
        )
    p.places.store(target, made, box, both(p, mask))


def _led(x: KernelArray, value: TileValue) -> tuple[int, ...]:
    """The shape of a tile with axes of one element in front, as many as a tensor has more."""
    return (*(1,) * (x.ndim - value.rank), *value.shape)


def _extent(at: Any, sizes: Any) -> Any:
    """The shape of a box, none where tiles of indices say it."""
    points = at is not None and any(map(is_line, _listed(at)))
    return None if points else sizes


_ACCUMULATES = ("add", "mul", "max", "min", "and", "or", "xor")


@intrinsic()
def accumulate(
    p: IntrinsicContext, x: Any, value: Any, rows: Any = None, cols: Any = None, *, batch: Any = None,
    at: Any = None, shape: Any = None, mask: Any = None, how: str = "add", atomic: bool = False,
) -> None:  # fmt: skip
    """Fold a tile into the elements of a tensor: x = x + value, or by another `how`.

    Instances do it one after the other in the order of the grid, and the elements of a tile in row-major
    order, so that the bits are those of this order on every machine.  Places are those of tile.store and
    may be equal.  Under ts.numerics("fast"), `atomic=True` has the instances of a GPU run side by side and
    fold by atomics, in any order; a CPU keeps the order.
    """
    if atomic and p.w.exact:
        raise KernelError(
            "accumulate: atomic=True folds in any order, so that bits change from run to run; call the "
            'kernel under ts.numerics("fast"), or leave it out'
        )
    if how not in _ACCUMULATES:
        raise KernelError(f"accumulate: got {how!r}, expected one of {', '.join(_ACCUMULATES)}")
    target, made = array(x, "accumulate"), p.w.tile(value)
    here = rows is None and cols is None and at is None
    box = _own(p, target, made, batch) if here else None
    if box is None:
        sizes = _led(target, made) if at is not None and shape is None else shape
        box = _box(p, target, rows, cols, batch, at, _extent(at, sizes))
    target.memory.writable = True
    if atomic and p.places.on_gpu:
        fold_atomically(p.places, target, made, box, both(p, mask), how)
        return
    p.places.serial = True
    fold_into(p.places, target, made, box, both(p, mask), how)


def both(p: IntrinsicContext, mask: Any) -> TileValue | None:
    """A mask under the condition of the if statements around."""
    given = None if mask is None else p.w.condition(mask)
    if p.condition is None or given is None:
        return p.condition if given is None else given
    both: TileValue = p.w.apply("logical_and", p.condition, given)
    return both


def _own(p: IntrinsicContext, x: KernelArray, value: TileValue, batch: Any) -> TensorBox | None:
    """Where a tile belongs in a tensor of the same sizes."""
    if value.rank > x.ndim or not value.rank:
        return None
    for lost in (a for a in value.axes if a is not None and a.lost is not None):
        lost.start  # noqa: B018  an error
    last = x.shape[x.ndim - value.rank :]
    spans = []
    for size, n, axis in zip(last, value.shape, value.axes, strict=True):
        if axis is None:
            if size != n:
                return None
            spans.append(AxisSpan(size, 0, n, True))
        else:
            if axis.size != size:
                return None
            spans.append(AxisSpan(size, axis.start, n, axis.exact))
    places = p.places
    lead = x.ndim - value.rank
    return places.boxed(places.batch(x, lead, batch) if lead else [], spans)


@intrinsic()
def alloc(p: IntrinsicContext, shape: Any, dtype: Any = f32, space: str = "shared") -> KernelArray:
    """Scratch memory of a program instance, in shared memory or registers."""
    if space not in SPACES:
        raise KernelError(f"alloc: space is {space!r}, expected one of {', '.join(SPACES)}")
    sizes = tuple(p.places.number(n, "alloc: a size") for n in _listed(shape))
    m = p.w.b.alloc(as_dtype(dtype), sizes, SPACES[space])
    return KernelArray(m.name, m, parameter=False)


@intrinsic()
def empty(
    p: IntrinsicContext, shape: Any, dtype: Any = f32, *, partial: bool = False
) -> KernelArray:
    """A tensor that the kernel makes: store its blocks, and return it.

    Elements that no instance writes are 0; `partial=True` says that this is meant, and ts.check is silent.
    """
    if p.depth:
        raise KernelError("empty: a kernel makes its tensors before any loop")
    t = TensorType(as_dtype(dtype), _listed(shape))
    m = Memory(f"made{len(p.w.b.parameters)}", t, "global", True)
    p.w.b.parameters.append(m)
    if partial:
        p.places.partial.add(m.name)
    return KernelArray(m.name, m, parameter=False)


@intrinsic()
def copy_async(
    p: IntrinsicContext, target: Any, source: Any, rows: Any = None, cols: Any = None, **hints: Any
) -> None:
    """Copy a tile of a tensor to scratch; it is there after tile.wait()."""
    ahead = note(p, hints)
    to = array(target, "copy_async")
    there = array(source, "copy_async")
    p.places.narrow(there, hints.get("vector"))
    box = p.places.box(there, rows, cols)
    p.places.ask(there, box, ahead)
    found = p.places.load(there, box, 0)
    if found.shape != to.shape:
        raise KernelError(f"copy_async: the tile is {found.type}, but {to} has other sizes")
    tile = p.w.cast(found, to.dtype).tile
    p.w.b.store_async(to.memory, tile, (0,) * to.ndim, found.shape)


@intrinsic()
def wait(p: IntrinsicContext, pending: int = 0) -> None:
    """Wait until all but the last `pending` asynchronous copies are there."""
    p.w.b.wait(pending)


@intrinsic()
def read(p: IntrinsicContext, x: Any) -> TileValue:
    """All of a scratch memory as a tile."""
    source = array(x, "read")
    sizes = tuple(p.places.number(n, "read") for n in source.shape)
    t = p.w.b.load(source.memory, (0,) * len(sizes), sizes)
    return p.w.plain(t)


@intrinsic()
def barrier(p: IntrinsicContext) -> None:
    """Every thread of an instance comes here before any goes on."""
    p.w.b.barrier()


@intrinsic()
def prefetch(
    p: IntrinsicContext, x: Any, rows: Any = None, cols: Any = None, write: bool = False
) -> None:
    """Say that a tile of a tensor will be read soon."""
    source = array(x, "prefetch")
    p.hints.append(("tile.prefetch", 1))
    box = p.places.box(source, rows, cols)
    p.w.b.prefetch(source.memory, box.at, box.extent, write)


# Making tiles


def _shape(p: IntrinsicContext, shape: Any) -> tuple[int, ...]:
    return tuple(p.places.number(n, "a size") for n in _listed(shape))


@intrinsic(lambda shape, dtype: np.zeros(shape, dtype))
def zeros(p: IntrinsicContext, shape: Any, dtype: Any = f32) -> TileValue:
    """A tile of zeros."""
    return p.w.full(as_dtype(dtype), _shape(p, shape), 0)


@intrinsic(lambda shape, dtype: np.ones(shape, dtype))
def ones(p: IntrinsicContext, shape: Any, dtype: Any = f32) -> TileValue:
    """A tile of ones."""
    return p.w.full(as_dtype(dtype), _shape(p, shape), 1)


@intrinsic(lambda shape, value, dtype: np.full(shape, value, dtype))
def full(p: IntrinsicContext, shape: Any, value: Any, dtype: Any = None) -> TileValue:
    """A tile of one number."""
    sizes, d = _shape(p, shape), None if dtype is None else as_dtype(dtype)
    if isinstance(value, TileValue | Dim):
        return p.w.broadcast(p.w.tile(value, d), sizes)
    default: DType = as_dtype(type(value)) if isinstance(value, bool | int) else f32
    return p.w.full(d or default, sizes, value)


@intrinsic(np.arange)
def arange(p: IntrinsicContext, n: Any, dtype: Any = i64) -> TileValue:
    """0, 1, ... n - 1."""
    if isinstance(dtype, int):
        raise KernelError(
            f"arange: the dtype is {dtype}; it begins at 0: write start + tile.arange(stop - start)"
        )
    size, d = p.places.number(n, "arange"), as_dtype(dtype)
    if d.kind in "iu" and size - 1 > np.iinfo(d.np).max:
        raise KernelError(f"arange: {size} numbers do not fit {d}; take a wider dtype, such as i64")
    return p.w.cast(p.w.index(0, (size,), 0), d)


# Loops and positions


def _size(extent: Any, axis: int) -> Size:
    """The size that a range runs over: an axis of a shape, or a size."""
    if isinstance(extent, KernelArray):
        extent = extent.shape
    if isinstance(extent, tuple | list):
        if not extent:
            raise KernelError("a range needs a shape with axes")
        size: Size = extent[axis if len(extent) > 1 else -1]
        return size
    if isinstance(extent, int | Dim):
        return extent
    raise KernelError(f"a range runs over a shape or a size, got {extent!r:.40}")


def _blocks(
    p: IntrinsicContext,
    axis: int,
    extent: Any,
    block: Any,
    start: Size,
    stop: Size | None,
    hints: Any,
) -> LoopRange:
    ahead = note(p, hints, ("stages", "prefetch"))
    size, step = _size(extent, axis), p.places.number(block, "the block of a range")
    if step < 1:
        raise KernelError(f"the block of a range is {step}, expected at least 1")
    if isinstance(start, TileValue) or isinstance(stop, TileValue):
        return data_blocks(p, size, start, size if stop is None else stop, step, ahead)
    last = size if stop is None else smaller(size, stop)
    aligned = start == 0 and stop is None
    exact = aligned and isinstance(size, int) and size % step == 0
    return LoopRange(start, last, step, lambda i: AxisSpan(size, i, step, exact), ahead)


@intrinsic()
def range_n(
    p: IntrinsicContext, extent: Any, block: Any, *, start: Any = 0, stop: Any = None, **hints: Any
) -> LoopRange:
    """Blocks of rows of a shape, or of a size, one after the other."""
    return _blocks(p, -2, extent, block, start, stop, hints)


@intrinsic()
def range_m(
    p: IntrinsicContext, extent: Any, block: Any, *, start: Any = 0, stop: Any = None, **hints: Any
) -> LoopRange:
    """As range_n."""
    return _blocks(p, -2, extent, block, start, stop, hints)


@intrinsic()
def range_k(
    p: IntrinsicContext, extent: Any, block: Any, *, start: Any = 0, stop: Any = None, **hints: Any
) -> LoopRange:
    """Blocks of columns of a shape, or of a size, one after the other."""
    return _blocks(p, -1, extent, block, start, stop, hints)


@intrinsic(name="range")
def range_(p: IntrinsicContext, *bounds: Any, **hints: Any) -> LoopRange:
    """Positions from a start to a stop in steps, as Python's range, in a loop that runs."""
    ahead = note(p, hints, ("stages", "prefetch"))
    bounds = tuple(map(p.w.known, bounds))
    if not 1 <= len(bounds) <= 3 or not all(isinstance(b, int | Dim | TileValue) for b in bounds):
        raise KernelError("range: expected a stop, or a start, a stop and a step")
    start, stop = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]
    step = p.places.number(bounds[2], "the step of a range") if len(bounds) == 3 else 1
    if step < 1:
        raise KernelError(f"the step of a range is {step}, expected at least 1")
    if isinstance(start, TileValue) or isinstance(stop, TileValue):
        return data_range(p, start, stop, step, ahead)
    return LoopRange(start, stop, step, lambda i: i, ahead)


@intrinsic()
def span(p: IntrinsicContext, extent: Any, start: Any, length: Any) -> AxisSpan:
    """`length` elements from a position on, of an axis of this size."""
    size, n = _size(extent, -2), p.places.number(length, "the length of a span")
    return AxisSpan(size, start, n, p.places.covers(start, n, size))


@intrinsic()
def program(p: IntrinsicContext, count: Any) -> Size:
    """A further axis of the grid with so many instances: the number of this one."""
    if p.depth or p.condition is not None:
        raise KernelError("program: the grid has its axes before any loop and any if")
    if isinstance(count, bool) or not isinstance(count, int | Dim):
        raise KernelError(f"program: the number of instances is {count!r:.40}, expected a size")
    own = p.places.grid.own
    name = f"_q{len(own)}"
    own[name] = count
    return p.places.counter(name)


@intrinsic()
def batch_index(p: IntrinsicContext) -> Size:
    """The number of this instance along the batch axes, all of them as one."""
    found: Size = 0 if p.places.grid.batch is None else p.places.instance("b")
    return found


@intrinsic()
def per_block(p: IntrinsicContext, x: Any) -> TileValue:
    """A tile with a new first axis: one element of it for each block of the grid.

    So partial results of instances are returned side by side, to be added up after the kernel.
    """
    w, t, grid = p.w, p.w.tile(x), p.places.grid.axes()
    counted = [(n, c) for n, c in grid if n != "_b"]
    if not counted:
        raise KernelError("per_block: the kernel has no blocks; load a block of T.m rows first")
    place: Size = 0
    for name, count in counted:
        place = place * count + p.places.counter(name)
    total = product(tuple(c for _, c in counted))
    made = w.b.expand(t.tile, 0)
    return TileValue(made, (AxisElements(total, place, True), *t.axes), (None, *t.pads))


@intrinsic()
def program_of(p: IntrinsicContext, role: str) -> Size:
    """The number of this instance along an axis of the grid that blocks of T.m or T.n make."""
    if role not in p.places.grid.roles:
        raise KernelError(f"nothing is cut in blocks of T.{role} yet; load a tile first")
    return p.places.instance(role)


@intrinsic()
def row_index(p: IntrinsicContext, rows: Any = None) -> TileValue:
    """The numbers of the rows of this block, as a column."""
    return _positions(p, rows, "m", 0)


@intrinsic()
def col_index(p: IntrinsicContext, cols: Any = None) -> TileValue:
    """The numbers of the columns of this block, or of a span, as a row."""
    return _positions(p, cols, "n", 1)


def _positions(p: IntrinsicContext, where: Any, role: str, axis: int) -> TileValue:
    if isinstance(where, KernelArray):
        where = p.places.role(role, where.shape[-2 + axis], p.places.block(role))
    if where is None or isinstance(where, BlockSize):
        known = p.places.grid.roles.get(role)
        if known is None:
            raise KernelError(
                f"nothing is cut in blocks of T.{role} yet; load a tile first, or give a span"
            )
        where = p.places.role(role, *known)
    if not isinstance(where, AxisSpan):
        name = ("row_index", "col_index")[axis]
        raise KernelError(
            f"{name}: got {where!r:.40}, expected a tensor or a span of a loop, or nothing for the "
            f"{('rows', 'columns')[axis]} of this block; the numbers 0, 1, ... of a tile are tile.arange(n)"
        )
    shape: Sequence[int] = (where.length, 1) if axis == 0 else (1, where.length)
    held = tuple(where.axis if i == axis else None for i in range(2))
    return TileValue(p.w.position(shape, axis, where.axis), held, (None, None))
