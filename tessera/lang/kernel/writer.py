"""Operations on the tiles of a kernel: broadcasting, promotion, places and what is past the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from tessera.core.dims import Dim, Size
from tessera.core.dtype import DType, as_dtype, bool_, f32, i64
from tessera.core.errors import DTypeError, ShapeError
from tessera.core.evaluate import identity, scalar
from tessera.core.flags import flags
from tessera.core.promotion import meet_scalar, promote_all
from tessera.core.rounding import round_to
from tessera.core.scalar import SCALARS, TESTS, Number
from tessera.core.source import Location
from tessera.ir.tile.ir import Builder, Loop, Operation, Tile
from tessera.ir.tile.rules import KINDS, STORAGE
from tessera.lang.kernel.reshaping import reshaped
from tessera.lang.kernel.values import (
    Axes,
    AxisElements,
    KernelError,
    NeedEqual,
    RunTimeCount,
    TileValue,
    meet,
)
from tessera.lang.kernel.within import starts_inside

Operand = TileValue | Number | Dim


@dataclass(frozen=True)
class Around:
    """A loop that is being written: when it began, and how its counter runs."""

    tick: int
    counter: Dim
    start: Size
    stop: Size
    step: int

    @property
    def turn(self) -> Size:
        """The number of a turn, from 0 on."""
        found: Size = (self.counter - self.start) // self.step
        return found

    @property
    def turns(self) -> Size:
        """How many turns there are at most."""
        found: Size = (self.stop - self.start + self.step - 1) // self.step
        return found


class _Builder(Builder):
    """A builder that can try things out, and tell when an operation was written."""

    after: Callable[[], None] | None = None

    def __init__(self, name: str):
        super().__init__(name)
        self.around: list[Around] = []  # the loops that are being written, outermost first
        self.ticks = 0

    def tick(self) -> int:
        """A number larger than those before."""
        self.ticks += 1
        return self.ticks

    @contextmanager
    def loop(
        self, start: Size, stop: Size, step: int = 1, carried: Sequence[Tile] = (),
        bound: Tile | None = None, going: bool = False, like: Operation | None = None,
    ) -> Iterator[Loop]:  # fmt: skip
        """A loop, as the builder has it; one with a bound is written as one that carries it."""
        with super().loop(start, stop, step, carried, bound, going, like) as inner:
            if bound is not None:
                yield inner
                return
            self.around.append(Around(self.tick(), inner.variable, start, stop, step))
            try:
                yield inner
            finally:
                self.around.pop()

    def _append(
        self, name: str, operands: Any, attributes: Any, memory: Any = None, stated: Any = None
    ) -> tuple[Tile, ...]:
        said = {k: _plain(x) for k, x in attributes.items()}
        made = super()._append(name, operands, said, memory, stated)
        if self.after is not None:
            self.after()
        return made

    def forget(self) -> None:
        """Drop the operations of the block being written."""
        self._blocks[-1].clear()

    @contextmanager
    def trial(self) -> Iterator[None]:
        """What is written in the block is forgotten after it."""
        blocks, count = [list(x) for x in self._blocks], self._count
        yield
        self._blocks, self._count = blocks, count

    def written(self) -> list[Operation]:
        """The operations of the block being written."""
        return list(self._blocks[-1])


class KernelWriter:
    """Writes operations on tiles."""

    def __init__(self, name: str, unnamed: frozenset[str] = frozenset()):
        self.b = _Builder(name)
        self.unnamed = unnamed  # sizes that no annotation names
        self.exact = flags().numerics != "fast"  # whether bits may not depend on the schedule

    def at(self, location: Location | None) -> None:
        """Say which line of the user's the operations that follow come from."""
        self.b.location = location

    # Making tiles

    def full(self, dtype: DType, shape: Sequence[int], value: Number) -> TileValue:
        """A tile of one number."""
        demand_fit(value, dtype)
        t = self.b.full(dtype, shape, value)
        kept = round_to(np.asarray(value), dtype).item()
        return TileValue(t, (None,) * len(shape), (kept,) * len(shape), kept)

    def index(
        self, at: Size, shape: Sequence[int] = (), axis: int | None = None,
        place: AxisElements | None = None,
    ) -> TileValue:  # fmt: skip
        """Positions as i64: `at`, plus the element's own number along an axis."""
        t = self.b.index(at, shape, axis)
        axes = tuple(place if i == axis else None for i in range(len(shape)))
        return TileValue(t, axes, (None,) * len(shape))

    def plain(self, tile: Tile, like: TileValue | None = None) -> TileValue:
        """A tile of which nothing more is known, at the places of another one."""
        axes = (None,) * len(tile.shape) if like is None else like.axes
        return TileValue(tile, axes, (None,) * len(tile.shape))

    def tile(self, x: Operand, dtype: DType | None = None) -> TileValue:
        """A number or a position as a tile, of a dtype if one is given."""
        if isinstance(x, TileValue):
            return x if dtype is None else self.cast(x, dtype)
        if isinstance(x, Dim):
            made = self.index(x)
            return made if dtype is None else self.cast(made, dtype)
        x = plain_number(x)
        if not isinstance(x, bool | int | float):
            raise KernelError(f"got {_kind(x)}, expected a tile or a number")
        plain = next(k for k in (bool, int, float) if isinstance(x, k))
        return self.full(as_dtype(plain) if dtype is None else dtype, (), x)

    # Elementwise

    def apply(self, name: str, *operands: Operand) -> Any:
        """A scalar op on every element; on numbers alone it is computed now."""
        operands = tuple(_operand(name, x) for x in operands)
        numbers = [x for x in operands if isinstance(x, bool | int | float)]
        if len(numbers) == len(operands):
            return _number(name, numbers)
        xs = self.spread(name, self.alike(name, operands))
        t = self.b.apply(name, *(x.tile for x in xs))
        axes = self.meeting(name, xs)
        pads = tuple(
            None if a is not None and a.lost else self._pad(name, xs, i, t.dtype)
            for i, a in enumerate(axes)
        )
        return TileValue(t, axes, pads)

    def alike(self, name: str, operands: Sequence[Operand]) -> list[TileValue]:
        """The operands as tiles of one dtype, which the scalar op takes."""
        given = operands[1:] if name == "where" else operands
        known = [_computed(x.dtype) for x in given if _has_dtype(x)]
        if known:
            dtype = promote_all(known)
            for x in given:
                if not _has_dtype(x):
                    whole = isinstance(x, Dim | RunTimeCount)
                    dtype = meet_scalar(dtype, 0 if whole else _checked(name, x))
        else:
            numbers = [
                i64 if isinstance(x, Dim | RunTimeCount) else as_dtype(type(x)) for x in given
            ]
            dtype = promote_all(numbers)
        kinds = KINDS.get(name, "f") if name != "where" else "buif"
        if dtype.kind not in kinds:
            if kinds != "f":
                raise DTypeError(f"{name}: takes no {dtype}")
            dtype = f32
        made = [self.tile(x, dtype) for x in given]
        if name == "where":
            made.insert(0, self.condition(operands[0]))
        return made

    def condition(self, x: Operand) -> TileValue:
        """An operand as bools."""
        t = self.tile(x)
        return t if t.dtype is bool_ else self.apply("ne", t, 0)

    def spread(self, name: str, xs: Sequence[TileValue]) -> list[TileValue]:
        """Tiles of one rank, by axes of size 1 in front; scalars stay."""
        rank = max(x.rank for x in xs)
        return [self.lead(x, rank) if x.rank else x for x in xs]

    def lead(self, x: TileValue, rank: int) -> TileValue:
        """A tile with axes of size 1 in front, up to a rank."""
        n = rank - x.rank
        if not n:
            return x
        t = self.b.reshape(x.tile, (*(1,) * n, *x.shape))
        return TileValue(t, (*(None,) * n, *x.axes), (*(None,) * n, *x.pads), x.constant)

    def meeting(self, name: str, xs: Sequence[TileValue]) -> Axes:
        """The places of the elements of what is computed from these tiles."""
        rank = max(x.rank for x in xs)
        out: list[AxisElements | None] = []
        for i in range(rank):
            full = [x for x in xs if x.rank and x.shape[i] != 1] or [x for x in xs if x.rank]
            found: AxisElements | None = None
            for x in full:
                found = self.same_axis(name, found, x.axes[i])
            out.append(found)
        return tuple(out)

    def same_axis(
        self, name: str, a: AxisElements | None, b: AxisElements | None
    ) -> AxisElements | None:
        """The place that two axes agree on."""
        if a is None or b is None:
            return a or b
        if a.size != b.size and a.lost is None and b.lost is None:
            if not (a.exact and b.exact and isinstance(a.size, int) and isinstance(b.size, int)):
                self.require_equal(name, a.size, b.size)
        return meet(a, b)

    def require_equal(self, name: str, a: Size, b: Size) -> None:
        """Two sizes must be one; those without a name are taken to be."""
        if a == b:
            return
        for x, y in ((b, a), (a, b)):
            if isinstance(x, Dim) and str(x) in self.unnamed:
                raise NeedEqual(str(x), y)
        raise ShapeError(f"{name}: one axis is of size {a}, the other of size {b}")

    def _pad(self, name: str, xs: Sequence[TileValue], i: int, dtype: DType) -> Number | None:
        """What lies past the end of axis i, if that follows from the operands."""
        values = []
        for x in xs:
            if x.constant is not None:
                pad: Number | None = x.constant
            elif x.rank and x.shape[i] != 1:
                pad = x.pads[i]
            else:
                pad = None
            if pad is None:
                return None
            values.append(round_to(np.asarray(pad), x.dtype))
        with np.errstate(all="ignore"):
            found: Number = np.asarray(scalar(name, values, dtype)).item()
        return found

    def cast(self, x: TileValue, dtype: DType) -> TileValue:
        """A tile in another dtype."""
        if x.dtype is dtype:
            return x
        t = self.b.cast(x.tile, dtype)
        pads = tuple(None if p is None else _cast_number(p, dtype) for p in x.pads)
        constant = None if x.constant is None else _cast_number(x.constant, dtype)
        return TileValue(t, x.axes, pads, constant)

    # Past the end

    def masked(self, x: TileValue, axis: int, value: Number) -> TileValue:
        """A tile that holds a number past the end of an axis."""
        place = x.axes[axis]
        if place is None or place.exact or _same(x.pads[axis], value):
            return x
        if x.constant is not None and _same(x.constant, value):
            return x
        inside = self.inside(x, axis, place)
        t = self.b.apply("where", inside, x.tile, self.b.full(x.dtype, (), value))
        pads = tuple(value if i == axis else p for i, p in enumerate(x.pads))
        return TileValue(t, x.axes, pads)

    def inside(self, x: TileValue, axis: int, place: AxisElements) -> Tile:
        """Which elements along an axis lie on it, neither past its end nor before its start."""
        at = self.position(x.shape, axis, place)
        found = self.b.apply("lt", at, self.b.index(place.size))
        if place.moved is not None and place.moved.until is not None:
            before = self.b.apply("lt", at, place.moved.until)
            found = self.b.apply("logical_and", found, before)
        if place.moved is None and starts_inside(place.start):
            return found
        return self.b.apply("logical_and", found, self.b.apply("ge", at, self.b.index(0)))

    def position(self, sizes: Sequence[int], axis: int, place: AxisElements | None) -> Tile:
        """The numbers along an axis, which keeps its size where the others have 1; from 0 on without a
        place.
        """
        shape = [1] * len(sizes)
        shape[axis] = sizes[axis]
        if place is None:
            return self.b.index(0, shape, axis)
        if place.moved is None or place.lost is not None:
            return self.b.index(place.start, shape, axis)
        at = self.b.index(place.first, shape, axis)
        return at if place.moved.by is None else self.b.apply("add", at, place.moved.by)

    # Shapes

    def reshape(self, x: TileValue, shape: Sequence[int]) -> TileValue:
        """The same elements in another shape, at the same places where the new axes have them."""
        axes, pads = reshaped(x, shape)
        return TileValue(self.b.reshape(x.tile, shape), axes, pads, x.constant)

    def broadcast(self, x: TileValue, shape: Sequence[int]) -> TileValue:
        """A tile repeated along its axes of size 1."""
        x = self.lead(x, len(shape)) if x.rank else x
        t = self.b.broadcast(x.tile, shape)
        if not x.rank:
            return TileValue(t, (None,) * len(shape), (x.constant,) * len(shape), x.constant)
        grown = [n != m for n, m in zip(x.shape, shape, strict=True)]
        axes = tuple(None if g else a for g, a in zip(grown, x.axes, strict=True))
        pads = tuple(x.constant if g else p for g, p in zip(grown, x.pads, strict=True))
        return TileValue(t, axes, pads, x.constant)

    def transpose(self, x: TileValue) -> TileValue:
        """Rows as columns."""
        if x.rank != 2:
            raise ShapeError(f"transpose: {x.type} has rank {x.rank}, expected 2")
        return TileValue(self.b.transpose(x.tile), x.axes[::-1], x.pads[::-1], x.constant)

    # Folds

    def fold(self, name: str, x: TileValue, axis: int) -> TileValue:
        """A fold along an axis, without what lies past the end; the axis stays, with size 1."""
        x = self.masked(x, axis, identity(name, x.dtype))
        t = self.b.fold(name, x.tile, axis)
        axes = tuple(None if i == axis else a for i, a in enumerate(x.axes))
        return TileValue(t, axes, (None,) * x.rank)

    def scan(self, name: str, x: TileValue, axis: int) -> TileValue:
        """Folds up to each element along an axis, without what lies before its start."""
        place = x.axes[axis]
        if place is not None and not place.exact and not self.begins_inside(place):
            x = self.masked(x, axis, identity(name, x.dtype))
        return TileValue(self.b.scan(name, x.tile, axis), x.axes, (None,) * x.rank)

    def begins_inside(self, place: AxisElements) -> bool:
        """Whether no element of an axis lies before its start."""
        return place.moved is None and starts_inside(place.start)

    def each(self, count: int, body: Callable[[Size], None]) -> None:
        """Run a body for 0, 1, ... count - 1, in a loop."""

        def run(i: Size, _: Sequence[Tile]) -> list[Tile]:
            body(i)
            return []

        self.turns(0, count, [], run)

    def turns(
        self, start: int, stop: int, state: Sequence[Tile],
        body: Callable[[Size, Sequence[Tile]], list[Tile]],
    ) -> list[Tile]:  # fmt: skip
        """Run a body from start to stop - 1 in a loop that carries tiles: what they are at the end."""
        with self.b.loop(start, stop, 1, state) as loop:
            loop.carry(*body(loop.variable, loop.carried))
        return list(loop.results)

    def known(self, x: Any) -> Any:
        """A whole number in place of a tile that has its number already, as when a kernel is stepped
        through.
        """
        return x

    def dot(self, a: TileValue, b: TileValue, acc: TileValue | None) -> TileValue:
        """acc + a b, without what lies past the end of the axis that is summed."""
        if a.rank != 2 or b.rank != 2 or a.shape[1] != b.shape[0]:
            raise ShapeError(f"dot: {a.type} and {b.type} are not (m, k) and (k, n)")
        dtype = promote_all([_computed(a.dtype), _computed(b.dtype)])
        if dtype.kind == "b":
            raise DTypeError(f"dot: takes no {dtype}; cast to integers or floats before")
        a, b = self.cast(a, dtype), self.cast(b, dtype)
        a, b = self._inner(a, 1, b.axes[0]), self._inner(b, 0, a.axes[1])
        wide = dtype.accum if not dtype.accum.is_narrow else dtype.accum.compute
        if acc is None:
            start = self.full(wide, (a.shape[0], b.shape[1]), 0)
        else:
            start = acc
            if acc.dtype.kind != dtype.kind or acc.dtype.bits < dtype.bits:
                raise DTypeError(f"dot: products of {dtype} do not add up in {acc.dtype}")
        t = self.b.dot(a.tile, b.tile, start.tile)
        axes = tuple(
            self.same_axis("dot", x, y) for x, y in zip((a.axes[0], b.axes[1]), start.axes, strict=True)
        )  # fmt: skip
        return TileValue(t, axes, (None, None))

    def _inner(self, x: TileValue, axis: int, other: AxisElements | None) -> TileValue:
        """A factor with zeros where it, or the other factor, lies outside along the summed axis."""
        own = x.axes[axis]
        self.same_axis("dot", own, other)
        x = self.masked(x, axis, 0)
        if other is None or other.exact or (own is not None and own == other):
            return x
        moved = _placed(x, axis, other) if own is None else _placed(_padless(x), axis, other)
        return self.masked(moved, axis, 0)


def _has_dtype(x: Any) -> TypeGuard[TileValue]:
    """Whether x is a tile that does not take the dtype of others."""
    return isinstance(x, TileValue) and not isinstance(x, RunTimeCount)


def _plain(x: Any) -> Any:
    """An attribute in which numbers that know more, such as block sizes, are numbers."""
    if isinstance(x, tuple):
        return tuple(map(_plain, x))
    return int(x) if isinstance(x, int) and type(x) is not bool else x


def _placed(x: TileValue, axis: int, place: AxisElements | None) -> TileValue:
    axes: Axes = tuple(place if i == axis else a for i, a in enumerate(x.axes))
    return TileValue(x.tile, axes, x.pads, x.constant)


def _padless(x: TileValue) -> TileValue:
    return TileValue(x.tile, x.axes, (None,) * x.rank, x.constant)


def _computed(dtype: DType) -> DType:
    """The dtype that elements are computed in."""
    rounds = dtype.policy.saturate or dtype.policy.stochastic_round
    return dtype.base.compute if dtype.name in STORAGE or rounds else dtype


def demand_fit(value: Number, dtype: DType, what: str = "") -> None:
    """Raise DTypeError unless an integer, or a bool, holds a number as it is."""
    if dtype.kind not in "iub" or isinstance(value, bool | complex):
        return
    kept = round_to(np.asarray(value), dtype).item() if math.isfinite(value) else None
    if kept != value and not (dtype.kind == "b" and value in (0, 1)):
        kind = "integer" if isinstance(value, int) else "number"
        raise DTypeError(f"{what}the {kind} {value} does not fit {dtype}; cast the tile before")


def _checked(name: str, x: Any) -> Number:
    if not isinstance(x, bool | int | float):
        raise KernelError(f"{name}: got {_kind(x)}, expected a tile or a number")
    return x


def _operand(name: str, x: Any) -> Any:
    """An operand of an op; an error that names what it is where it is none."""
    made = plain_number(x)
    return made if isinstance(made, TileValue | Dim) else _checked(name, made)


def plain_number(x: Any) -> Any:
    """A number of NumPy as Python's, which takes the dtype of the tiles beside it."""
    if isinstance(x, np.generic | np.ndarray) and x.ndim == 0 and x.dtype.kind in "biuf":
        return x.item()
    return x


def _kind(x: Any) -> str:
    return f"{x!r:.40}" if isinstance(x, str | type(None) | tuple) else f"a {type(x).__name__}"


def _number(name: str, operands: Sequence[float]) -> Number:
    """A scalar op of numbers, in double precision."""
    floats = KINDS.get(name, "f") == "f" and name != "where"
    xs = [np.float64(x) if floats else x for x in operands]
    try:
        with np.errstate(all="ignore"):
            found: Number = np.asarray(SCALARS[name].numpy(*xs)).item()
    except TypeError as e:
        raise KernelError(f"{name}: {e}") from None
    return bool(found) if name in TESTS else found


def _cast_number(value: Number, dtype: DType) -> Number:
    x = np.asarray(value)
    found: Number = bool(x != 0) if dtype.kind == "b" else round_to(x, dtype).item()
    return found


def _same(a: Number | None, b: Number) -> bool:
    if isinstance(a, float) and isinstance(b, int | float):
        return a == b and math.copysign(1, a) == math.copysign(1, b)
    return a == b
