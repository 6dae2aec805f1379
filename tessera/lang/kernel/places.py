"""Places: which elements of a tensor a program instance works on, and the grid that follows from it.

A block size of the schedule names an axis of the grid: `rows=T.m` is block `_m` of the rows.  Axes before the
last two are batch axes; together they are the grid axis `_b`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tessera.core.dims import Dim, Size, bounds, product, symbol, symbols, unflattened
from tessera.core.dtype import i64
from tessera.core.errors import ShapeError
from tessera.ir.tile.rules import canonical
from tessera.lang.kernel.values import (
    Array,
    Axis,
    Block,
    KernelError,
    NeedNumber,
    Span,
    TileValue,
)
from tessera.lang.kernel.writer import Writer
from tessera.lang.schedule import Schedule

Place = Any  # a Block, a Span, a number of elements, a tile of indices, or None


@dataclass(frozen=True)
class Equal:
    """Two sizes that must agree in a call."""

    left: Size
    right: Size
    reason: str


@dataclass
class Grid:
    """The axes that program instances are numbered along."""

    batch: Size | None = None
    shape: tuple[Size, ...] = ()  # sizes of the batch axes, as results have them
    roles: dict[str, tuple[Size, int]] = field(default_factory=dict)  # size and block of m and n
    own: dict[Any, tuple[str, Size]] = field(default_factory=dict)  # tile.program(count), by line

    def axes(self) -> tuple[tuple[str, Size], ...]:
        """Variable and count of each axis, outermost first."""
        out = [] if self.batch is None else [("_b", self.batch)]
        for role in ("m", "n"):
            if role in self.roles:
                size, block = self.roles[role]
                out.append((f"_{role}", (size + block - 1) // block))
        return (*out, *self.own.values())


@dataclass(frozen=True)
class Box:
    """A part of a tensor: one entry for each of its axes."""

    at: tuple[Size, ...]
    extent: tuple[int, ...]
    kept: tuple[int, ...]  # axes that the tile has
    axes: tuple[Axis | None, ...]  # of the tile
    masked: tuple[int, ...]
    picked: Mapping[int, TileValue] = field(default_factory=dict)


class Places:
    """Where the tiles of one program instance lie."""

    def __init__(self, writer: Writer, schedule: Schedule, first: Array | None):
        self.w, self.schedule, self.first = writer, schedule, first
        self.grid, self.equal = Grid(), list[Equal]()

    # Sizes

    def number(self, size: Any, what: str) -> int:
        """A size that must be a number; a symbolic one makes the kernel be parsed for it."""
        if isinstance(size, bool) or not isinstance(size, int | Dim):
            raise KernelError(f"{what} is {size!r}, expected a whole number")
        if isinstance(size, int):
            return int(size)
        names = sorted(symbols(size))
        if any(n.startswith("_") for n in names):
            raise KernelError(
                f"{what} is {size}, which changes from one instance to the next; tiles have sizes "
                "that are numbers"
            )
        raise NeedNumber(names[0])

    def block(self, role: str) -> Block:
        """The block size of an axis: m, n, k or d."""
        if role == "d":
            return Block(self._depth(), "d")
        size = {"m": self.schedule.m, "n": self.schedule.n, "k": self.schedule.depth}[role]
        return Block(size, role)

    def _depth(self) -> int:
        """The whole last axis of the first tensor, which a block of d must cover."""
        if self.first is None or not self.first.ndim:
            raise KernelError("T.d is the last axis of the first tensor, and there is none")
        n = self.number(self.first.shape[-1], "T.d")
        limit = self.schedule.d
        if limit is not None and limit < n:
            raise KernelError(
                f"T.d covers the last axis of {self.first.name}, {n} elements, but the schedule has d={limit}"
            )
        return n

    def role(self, role: str, size: Size, block: int) -> Span:
        """The block of this program instance along an axis."""
        block = int(block)
        known = self.grid.roles.get(role)
        if known is None:
            self.grid.roles[role] = (size, block)
        else:
            if known[0] != size:
                self._agree(f"the {role} axis of the grid", known[0], size)
            if known[1] != block:
                raise KernelError(
                    f"the {role} axis of the grid is cut in blocks of {known[1]} and of {block}"
                )
        exact = block == 1 or (isinstance(size, int) and size % block == 0)
        return Span(size, self.instance(role) * block, block, exact)

    def instance(self, role: str) -> Size:
        """The number of this instance along the axis m, n or b of the grid."""
        return self.counter(f"_{role}")

    def counter(self, name: str) -> Size:
        """The number of this instance along an axis of the grid, by the name of its variable."""
        return symbol(name)

    def _agree(self, what: str, a: Size, b: Size) -> None:
        if isinstance(a, int) and isinstance(b, int):
            raise ShapeError(f"{what} is of size {a} here and {b} there")
        for x in (b, a):
            if isinstance(x, Dim) and str(x) in self.w.unnamed:
                self.w.require_equal(what, a, b)
        self.equal.append(Equal(a, b, what))

    def span(self, array: Array, axis: int, place: Place, default: str | None) -> Span:
        """The elements along an axis that a place means."""
        size = array.shape[axis]
        if isinstance(place, Span):
            if place.size != size:
                self._agree(f"axis {axis} of {array.name}", place.size, size)
            return Span(size, place.start, place.length, place.exact)
        if isinstance(place, Block) and place.role in ("m", "n"):
            return self.role(place.role, size, place)
        if isinstance(place, Block) and place.role == "k":
            raise KernelError(
                f"axis {axis} of {array.name}: blocks of k are walked by a loop; write "
                f"for kb in tile.range_k({array.name}.shape, T.k) and load at kb"
            )
        if place is None and default is not None:
            block = self.block(default)
            return self.role(default, size, block)
        n = self.number(size if place is None else place, f"axis {axis} of {array.name}")
        return Span(size, 0, n, isinstance(size, int) and n <= size)

    def whole(self, array: Array, axis: int) -> Span:
        """All elements of an axis."""
        return self.span(array, axis, None, None)

    # Boxes

    def box(self, array: Array, rows: Place, cols: Place, batch: Any = None) -> Box:
        """The part of a tensor at these rows and columns, in the batch of this instance."""
        spans: list[Any] = []
        rank = array.ndim
        if rank == 0:
            return Box((), (), (), (), ())
        if rank == 1:
            spans = [self._line(array, rows if cols is None else cols)]
        else:
            own = None if rows is not None else self._own_rows(array)
            spans = [
                rows if isinstance(rows, TileValue) else self.span(array, rank - 2, rows, own),
                cols if isinstance(cols, TileValue) else self.span(array, rank - 1, cols, None),
            ]
        lead = self.batch(array, rank - len(spans), batch) if rank > len(spans) else []
        return self.boxed(lead, spans)

    def _line(self, array: Array, place: Place) -> Any:
        """The elements of a tensor of rank 1: rows of the grid if they are the rows, or all of them."""
        if isinstance(place, TileValue):
            return place
        return self.span(array, 0, place, None if place is not None else self._own_rows(array))

    def _own_rows(self, array: Array) -> str | None:
        """Which axis of the grid the rows of a tensor are by default."""
        size, known = array.shape[max(array.ndim - 2, 0)], self.grid.roles
        for role in ("m", "n"):
            if role in known and known[role][0] == size:
                return role
        alone = self.first is None or self.first.ndim == 1
        if array.ndim == 1 and not alone:
            return None
        return "m" if "m" not in known or array.ndim == 1 else None

    def batch(self, array: Array, count: int, batch: Any) -> list[Size]:
        """The place of this instance along the batch axes of a tensor."""
        sizes = array.shape[:count]
        if isinstance(batch, int | Dim):
            return unflattened(batch, sizes)
        if isinstance(batch, tuple):
            if len(batch) != count:
                raise KernelError(
                    f"{array.name} has {count} batch axes, but batch has {len(batch)} places"
                )
            return list(batch)
        total = product(sizes)
        if total == 1:
            return [0] * count
        if self.grid.batch is None:
            self.grid.batch, self.grid.shape = total, sizes
        elif self.grid.batch != total:
            self._agree(f"the batch axes of {array.name}", self.grid.batch, total)
        return unflattened(self.instance("b"), sizes)

    def boxed(self, lead: Sequence[Size], spans: Sequence[Any]) -> Box:
        """A box of one element along leading axes, and of spans, or indices, along the others."""
        n = len(lead)
        picked = {n + i: s for i, s in enumerate(spans) if isinstance(s, TileValue)}
        at = [*lead, *(0 if isinstance(s, TileValue) else s.start for s in spans)]
        extent = [*(1 for _ in lead), *(1 if isinstance(s, TileValue) else s.length for s in spans)]
        kept = [n + i for i, s in enumerate(spans) if isinstance(s, Span)]
        masked = [n + i for i, s in enumerate(spans) if isinstance(s, Span) and not s.exact]
        axes = tuple(s.axis for s in spans if isinstance(s, Span))
        return Box(tuple(at), tuple(extent), tuple(kept), axes, tuple(masked), picked)

    # Memory

    def load(self, array: Array, box: Box, fill: Any = 0) -> TileValue:
        """The elements of a box; past the end lies `fill`."""
        m = array.memory
        if box.picked:
            return self._gather(array, box, fill)
        t = self.w.b.load(m, box.at, box.extent, box.kept, box.masked, fill)
        pad = canonical("load", fill, m.type.dtype)
        return TileValue(t, box.axes, (pad,) * len(box.axes))

    def _gather(self, array: Array, box: Box, fill: Any) -> TileValue:
        """Elements at the places that a tile of integers holds, which comes first."""
        from_front = [self.w.cast(x, i64) for x in box.picked.values()]
        rank = max(x.rank for x in from_front)
        wide = [self.w.reshape(x, (*x.shape, *(1,) * len(box.kept))) for x in from_front]
        kept = box.kept
        extent = list(box.extent)
        picks = dict(zip(box.picked, (x.tile for x in wide), strict=True))
        if rank == 0:
            picks = dict(zip(box.picked, (x.tile for x in from_front), strict=True))
            t = self.w.b.gather(array.memory, picks, box.at, extent, kept, box.masked, fill)
            return TileValue(t, box.axes, (None,) * len(box.axes))
        # The box must have the rank of the index tiles: batch axes of extent 1 serve, one for each.
        front = [i for i in range(len(extent)) if i not in kept]
        if len(front) < rank:
            raise KernelError(
                f"{array.name}: indices of rank {rank} need as many axes that are not kept"
            )
        order = (*front[len(front) - rank :], *kept)
        t = self.w.b.gather(array.memory, picks, box.at, extent, order, box.masked, fill)
        axes = (*from_front[0].axes, *box.axes)
        return TileValue(t, axes, (None,) * len(axes))

    def store(self, array: Array, value: TileValue, box: Box, mask: TileValue | None) -> None:
        """Write a tile to a box; under a mask only where it is true."""
        array.memory.writable = True
        value = self.w.cast(value, array.dtype)
        shape = tuple(box.extent[i] for i in box.kept)
        if value.shape != shape:
            if value.rank > len(shape):
                raise ShapeError(
                    f"store: the tile is {value.type}, but the place has shape {shape}"
                )
            value = self.w.broadcast(value, shape)
        if box.picked:
            raise KernelError(f"store: {array.name} is stored to in blocks, not at indices")
        if mask is None:
            self.w.b.store(array.memory, value.tile, box.at, box.extent, box.kept, box.masked)
            return
        self._scatter(array, value, box, mask)

    def _scatter(self, array: Array, value: TileValue, box: Box, mask: TileValue) -> None:
        """Where the mask is false an element is sent past the end, where it is dropped."""
        axis = box.kept[-1] if box.kept else len(box.at) - 1
        if axis < 0:
            raise KernelError(f"store: {array.name} has no axis, so a mask has no place")
        w, n = self.w, value.rank
        far = w.b.full(i64, (), _FAR)
        steps = w.b.full(i64, (), 0)
        if box.kept:
            ones = (*(1,) * (n - 1), box.extent[axis])
            steps = w.b.index(0, ones, n - 1)
        mask = w.lead(mask, n) if mask.rank else mask
        moved = w.b.apply("where", mask.tile, steps, far)
        kept, extent = box.kept[:-1], list(box.extent)
        extent[axis] = 1
        order = (*kept, axis) if box.kept else ()
        if box.kept:
            moved = w.b.broadcast(moved, value.shape)
        masked = tuple(sorted({*box.masked, axis}))
        places = {axis: moved}
        w.b.scatter(array.memory, value.tile, places, box.at, extent, order, masked, distinct=True)


def covers(start: Size, length: int, size: Size) -> bool:
    """Whether elements from start on all lie within a size, whatever the counters are."""
    return bounds(size - start - length)[0] >= 0


_FAR = 1 << 40
