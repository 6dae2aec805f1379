"""Places: which elements of a tensor a program instance works on, and the grid that follows from it.

A block size of the schedule names an axis of the grid: `rows=T.m` is block `_m` of the rows.  Axes before the
last two are batch axes; together they are the grid axis `_b`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tessera.core.dims import Dim, Size, product, substitute, symbol, symbols, unflattened
from tessera.core.dtype import i64
from tessera.core.errors import ShapeError
from tessera.ir.tile.ir import Memory, Tile
from tessera.lang.kernel.access import BoxAccess, TensorBox
from tessera.lang.kernel.values import (
    AxisSpan,
    BlockSize,
    KernelArray,
    KernelError,
    Moved,
    NeedNumber,
    TileValue,
)
from tessera.lang.kernel.within import covers
from tessera.lang.kernel.writer import KernelWriter
from tessera.lang.schedule import Schedule

Place = Any  # a Block, a Span, a number of elements, a tile of indices, or None


@dataclass(frozen=True)
class EqualSizes:
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
    own: dict[str, Size] = field(default_factory=dict)  # tile.program(count): variable and count

    def axes(self) -> tuple[tuple[str, Size], ...]:
        """Variable and count of each axis, outermost first."""
        out = [] if self.batch is None else [("_b", self.batch)]
        for role in ("m", "n"):
            if role in self.roles:
                size, block = self.roles[role]
                out.append((f"_{role}", (size + block - 1) // block))
        return (*out, *self.own.items())


class TilePlaces(BoxAccess):
    """Where the tiles of one program instance lie."""

    def forget_reports(self, count: int, memories: int) -> None:
        """Drop what is said after the first reports, which was a trial."""
        for m in self.hidden[memories:]:
            self.w.b.parameters.remove(m)
        del self.hidden[memories:], self.reports[count:]

    def __init__(self, writer: KernelWriter, schedule: Schedule, first: KernelArray | None):
        self.w, self.schedule, self.first = writer, schedule, first
        self.grid, self.equal = Grid(), list[EqualSizes]()
        self.on_gpu = False  # whether the kernel is made for one
        self.serial = False  # whether instances run one after the other
        self.ahead: int | None = None  # rounds that loads look ahead where they say nothing
        self.widths: dict[str, int] = {}  # elements of an access at most, by memory
        self.known_grid: tuple[tuple[str, Size], ...] | None = None  # of a parse before this one
        self.speaks = False  # whether it prints or checks
        self.hidden: list[Memory] = []  # what prints and checks store to
        self.reports: list[Any] = []  # what is said of them
        self.live: Any = None  # who says it at once, where a kernel is stepped through
        self.partial: set[str] = set()  # results of which some elements may stay 0
        self.loops: dict[str, tuple[Size, Size]] = {}  # of counters of loops: start and stop
        self.rounds: dict[
            str, tuple[int, int | None]
        ] = {}  # their step, and how far tiles are asked for

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

    def block(self, role: str) -> BlockSize:
        """The block size of an axis: m, n, k or d."""
        if role == "d":
            return BlockSize(self._depth(), "d")
        size = {"m": self.schedule.m, "n": self.schedule.n, "k": self.schedule.depth}[role]
        return BlockSize(size, role)

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

    def role(self, role: str, size: Size, block: int) -> AxisSpan:
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
        return AxisSpan(size, self.instance(role) * block, block, exact)

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
        self.equal.append(EqualSizes(a, b, what))

    def span(self, array: KernelArray, axis: int, place: Place, default: str | None) -> AxisSpan:
        """The elements along an axis that a place means."""
        size = array.shape[axis]
        if isinstance(place, AxisSpan):
            if place.size != size:
                self._agree(f"axis {axis} of {array.name}", place.size, size)
            return AxisSpan(size, place.start, place.length, place.exact, place.moved)
        if isinstance(place, BlockSize) and place.role in ("m", "n"):
            return self.role(place.role, size, place)
        if isinstance(place, BlockSize) and place.role == "k":
            raise KernelError(
                f"axis {axis} of {array.name}: blocks of k are walked by a loop; write "
                f"for kb in tile.range_k({array.name}.shape, T.k) and load at kb"
            )
        if place is None and default is not None:
            block = self.block(default)
            return self.role(default, size, block)
        n = self.number(size if place is None else place, f"axis {axis} of {array.name}")
        return AxisSpan(size, 0, n, isinstance(size, int) and n <= size)

    def whole(self, array: KernelArray, axis: int) -> AxisSpan:
        """All elements of an axis."""
        return self.span(array, axis, None, None)

    def covers(self, start: Size, length: int, size: Size) -> bool:
        """Whether elements from start on all lie on an axis, for every instance and round."""
        grid: dict[str, tuple[Size, Size]] = {n: (0, count) for n, count in self.grid.axes()}
        return covers(start, length, size, grid | self.loops)

    def at(
        self, array: KernelArray, starts: Sequence[Any], lengths: Sequence[int]
    ) -> list[AxisSpan]:
        """Elements from these positions on; those that may lie outside are masked."""
        return [
            self.from_(array, start, n, size)
            for size, start, n in zip(array.shape, starts, lengths, strict=False)
        ]

    def from_(self, array: KernelArray, start: Any, length: int, size: Size) -> AxisSpan:
        """So many elements of an axis from a number, a counter, or a tile of one integer on."""
        key = start
        if isinstance(start, TileValue):
            start = self.w.known(self.one(start, f"{array.name}: a place"))
        if isinstance(start, TileValue):
            return AxisSpan(size, 0, length, False, Moved(start.tile, None, key.tile))
        if isinstance(start, bool) or not isinstance(start, int | Dim):
            raise KernelError(
                f"{array.name}: a place is {start!r:.40}, expected a number, a counter or a tile of "
                "one integer"
            )
        return AxisSpan(size, start, length, self.covers(start, length, size))

    def one(self, x: TileValue, what: str) -> TileValue:
        """A tile of one integer as an i64 number."""
        if x.dtype.kind not in "iu" or any(n != 1 for n in x.shape):
            raise KernelError(f"{what} is {x.type}, expected one integer")
        return self.w.cast(self.w.reshape(self.w.plain(x.tile), ()), i64)

    # Boxes

    def box(self, array: KernelArray, rows: Place, cols: Place, batch: Any = None) -> TensorBox:
        """The part of a tensor at these rows and columns, in the batch of this instance."""
        spans: list[Any] = []
        rank = array.ndim
        if rank == 0:
            return TensorBox((), (), (), (), ())
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

    def _line(self, array: KernelArray, place: Place) -> Any:
        """The elements of a tensor of rank 1: rows of the grid if they are the rows, or all of them."""
        if isinstance(place, TileValue):
            return place
        return self.span(array, 0, place, None if place is not None else self._own_rows(array))

    def _own_rows(self, array: KernelArray) -> str | None:
        """Which axis of the grid the rows of a tensor are by default."""
        size, known = array.shape[max(array.ndim - 2, 0)], self.grid.roles
        for role in ("m", "n"):
            if role in known and known[role][0] == size:
                return role
        alone = self.first is None or self.first.ndim == 1
        if array.ndim == 1 and not alone:
            return None
        return "m" if "m" not in known or array.ndim == 1 else None

    def batch(self, array: KernelArray, count: int, batch: Any) -> list[AxisSpan]:
        """The place of this instance along the batch axes of a tensor."""
        sizes = array.shape[:count]
        if batch is not None:
            one = not isinstance(batch, tuple) and (count == 1 or isinstance(batch, TileValue))
            listed = (batch,) if one else batch
            listed = listed if isinstance(listed, tuple) else unflattened(listed, sizes)
            if len(listed) != count:
                raise KernelError(
                    f"{array.name} has {count} batch axes, but batch has {len(listed)} places"
                )
            return self.at(array, listed, (1,) * count)
        total = product(sizes)
        if total == 1:
            return [AxisSpan(n, 0, 1, True) for n in sizes]
        if self.grid.batch is None:
            self.grid.batch, self.grid.shape = total, sizes
        elif self.grid.batch != total:
            self._agree(f"the batch axes of {array.name}", self.grid.batch, total)
        places = unflattened(self.instance("b"), sizes)
        return [AxisSpan(n, at, 1, True) for n, at in zip(sizes, places, strict=True)]

    def boxed(self, lead: Sequence[AxisSpan], spans: Sequence[Any]) -> TensorBox:
        """A box of one element along leading axes, and of spans, or indices, along the others."""
        n, every = len(lead), [*lead, *spans]
        picked = {i: s for i, s in enumerate(every) if isinstance(s, TileValue)}
        at = tuple(0 if isinstance(s, TileValue) else s.start for s in every)
        extent = tuple(1 if isinstance(s, TileValue) else s.length for s in every)
        kept = tuple(n + i for i, s in enumerate(spans) if isinstance(s, AxisSpan))
        masked = tuple(i for i, s in enumerate(every) if not getattr(s, "exact", False))
        axes = tuple(s.axis for s in spans if isinstance(s, AxisSpan))
        return TensorBox(at, extent, kept, axes, masked, picked, moves_of(every))

    def pointed(self, array: KernelArray, at: Sequence[Any]) -> TensorBox:
        """The elements that tiles of indices name together, one entry for each axis of the tensor."""
        picked = {i: x for i, x in enumerate(at) if is_line(x)}
        spans = [AxisSpan(1, 0, 1) if is_line(x) else x for x in at]
        spans = [s if isinstance(s, AxisSpan) else self.from_(array, s, 1, n)
                 for s, n in zip(spans, array.shape, strict=True)]  # fmt: skip
        masked = tuple(i for i, s in enumerate(spans) if not s.exact)
        starts = tuple(s.start for s in spans)
        return TensorBox(starts, (1,) * len(spans), (), (), masked, picked, moves_of(spans), True)

    def ask(self, array: KernelArray, box: TensorBox, ahead: int | None) -> None:
        """Prefetch the box that a load will read some rounds of its innermost counter later."""
        moving = {n for at in box.at for n in symbols(at)}
        inner = next((n for n in reversed(self.rounds) if n in moving), None)
        step, own = (1, None) if inner is None else self.rounds[inner]
        far = next((n for n in (ahead, own, self.ahead) if n is not None), None)
        if inner is None:  # of the next instances
            inner = next((n for n, _ in reversed(self.grid.axes()) if n in moving), None)
        if not far or inner is None or box.picked:
            return
        later = {inner: symbol(inner) + far * step}
        self.w.b.prefetch(array.memory, [substitute(at, later) for at in box.at], box.extent)

    def narrow(self, array: KernelArray, width: int | None) -> None:
        """Access a tensor at most so many elements at once."""
        if width is not None:
            name = array.memory.name
            self.widths[name] = min(width, self.widths.get(name, width))


def is_line(x: Any) -> bool:
    """Whether x is a tile of more than one element, or of one along axes."""
    return isinstance(x, TileValue) and bool(x.rank)


def moves_of(spans: Sequence[Any]) -> dict[int, Tile]:
    """The numbers that move spans, by axis."""
    found = {
        i: s.moved for i, s in enumerate(spans) if isinstance(s, AxisSpan) and s.moved is not None
    }
    return {i: m.by for i, m in found.items() if m.by is not None}
