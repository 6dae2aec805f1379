"""Boxes: a part of a large tile in registers, computed from the same part of what it is made of.

A value that is not kept in scratch is computed wherever it is read.  A box says where a part begins
along each axis and how far it goes; the tile in registers has the axes that are asked for, of the
extent of the box or of 1, or no axes at all where all its elements are one number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tessera.core.approximate import FUNCTIONS
from tessera.core.dims import Size
from tessera.ir.tile.cpu.legalize.copy import Copy
from tessera.ir.tile.cpu.legalize.large import size_of
from tessera.ir.tile.cpu.legalize.ranges import range_of
from tessera.ir.tile.ir import Kernel, Memory, Operation, Tile

Part = tuple[Size, int]  # where a box begins along an axis, and how far it goes
Box = tuple[Part, ...]
Axes = tuple[int, ...]

_HEAVY = {"div": 4, "sqrt": 4, "rsqrt": 6, "mod": 8, "floor_div": 8, "pow": 30}
_FUNCTION = 15  # vector instructions of an approximation, about


@dataclass(frozen=True)
class ScratchTile:
    """A tile in scratch: the axes of the memory are those of the tile in this order."""

    memory: Memory
    order: Axes


@dataclass(frozen=True)
class MemoryEnd:
    """Of a memory along an axis: where something begins, the size, and what is known to be inside."""

    first: Size
    size: Size
    inside: int


class Boxes(Copy):
    """Reads parts of tiles."""

    def __init__(self, kernel: Kernel):
        super().__init__(kernel)
        self.kept: dict[Tile, ScratchTile] = {}  # tiles in scratch of their own
        self.made: dict[Tile, Operation] = {}  # tiles that are computed where they are read
        self.indices: dict[Tile, Size] = {}  # single positions, which are in registers
        self.facts: list[MemoryEnd] = []  # of open loops
        self.seen: list[dict[tuple[Tile, Box, Axes], Tile]] = []  # what each open loop has read

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is read inside is not known outside."""
        self.seen.append({})
        yield
        self.seen.pop()

    def read(self, t: Tile, box: Box, keep: Axes) -> Tile:
        """A part of a tile with the axes `keep`, in that order; the others have an extent of 1."""
        if t in self.tiles:
            return self.b.reshape(self.tiles[t], ())
        key = (t, box, keep)
        for known in self.seen:
            if key in known:
                return known[key]
        if t in self.kept:
            x = self.load_box(self.kept[t].memory, *self.in_scratch(self.kept[t], box, keep), (), 0)
        else:
            op = self.made[t]
            x = getattr(self, f"read_{op.name}")(op, box, keep)
        self.seen[-1][key] = x
        return x

    def read_whole(self, t: Tile, box: Box, keep: Axes) -> Tile:
        """A part of a tile in its full extent."""
        return self.b.broadcast(self.read(t, box, keep), [box[i][1] for i in keep])

    def operand(self, t: Tile, box: Box, keep: Axes) -> Tile:
        """The part of an operand that broadcasts to a part of the result."""
        if not t.shape:
            return self.read(t, (), ())
        own = tuple((0, 1) if n == 1 else part for n, part in zip(t.shape, box, strict=True))
        return self.read(t, own, keep)

    # Memory

    def in_scratch(
        self, k: ScratchTile, box: Box, keep: Axes
    ) -> tuple[list[Size], list[int], Axes]:
        """Where a part of a tile lies in its scratch, and the axes of the part there."""
        at, extent = [box[i][0] for i in k.order], [box[i][1] for i in k.order]
        return at, extent, tuple(k.order.index(i) for i in keep)

    def load_box(
        self, m: Memory, at: Sequence[Size], extent: Sequence[int], axes: Axes,
        masked: Sequence[int], fill: float,
    ) -> Tile:  # fmt: skip
        """A box of memory; rows that become columns are turned in registers."""
        masked = [i for i in masked if not self.is_inside(at[i], extent[i], m.type.shape[i])]
        if _is_turned(m, extent, axes):
            return self.b.transpose(self.b.load(m, at, extent, axes[::-1], masked, fill))
        return self.b.load(m, at, extent, axes, masked, fill)

    def store_box(
        self, m: Memory, x: Tile, at: Sequence[Size], extent: Sequence[int], axes: Axes,
        masked: Sequence[int],
    ) -> None:  # fmt: skip
        """A tile to a box of memory, as `load_box` would read it."""
        masked = [i for i in masked if not self.is_inside(at[i], extent[i], m.type.shape[i])]
        if _is_turned(m, extent, axes):
            self.b.store(m, self.b.transpose(x), at, extent, axes[::-1], masked)
        else:
            self.b.store(m, x, at, extent, axes, masked)

    def is_inside(self, at: Size, extent: int, size: Size) -> bool:
        """Whether a box is known to lie in the memory along an axis."""
        for fact in self.facts:
            low, high = range_of(at - fact.first, self.ranges)
            if fact.size == size and low >= 0 and high + extent <= fact.inside:
                return True
        room, _ = range_of(size - at - extent, self.ranges)
        return self.begins_inside(at) and room >= 0

    def begins_inside(self, at: Size) -> bool:
        """Whether a position is known not to be below 0."""
        return range_of(at, self.ranges)[0] >= 0

    def place(self, op: Operation, box: Box) -> tuple[list[Size], list[int]]:
        """Where in memory a part of the tile of a load or store lies."""
        at, axes = list(self.moved(op.attributes["at"])), op.attributes["axes"]
        extent = [1] * len(at)
        for axis, (start, n) in zip(axes, box, strict=True):
            if op.attributes["extent"][axis] > 1:  # what is picked may have more elements there
                at[axis], extent[axis] = at[axis] + start, n
        return at, extent

    def read_load(self, op: Operation, box: Box, keep: Axes) -> Tile:
        a = op.attributes
        at, extent = self.place(op, box)
        axes = tuple(a["axes"][i] for i in keep)
        return self.load_box(self.memories[memory_of(op)], at, extent, axes, a["masked"], a["fill"])

    def reaches_out(self, op: Operation) -> bool:
        """Whether a load may reach out of its memory."""
        a, shape = op.attributes, memory_of(op).type.shape
        at = self.moved(a["at"])
        return any(not self.is_inside(at[i], a["extent"][i], shape[i]) for i in a["masked"])

    def read_gather(self, op: Operation, box: Box, keep: Axes) -> Tile:
        a = op.attributes
        picked = {
            axis: self.operand(t, box, keep)
            for axis, t in zip(a["picked"], op.operands, strict=True)
        }
        own: Box = box if a["axes"] else ()
        at, extent = self.place(op, own)
        axes = [a["axes"][i] for i in keep] if a["axes"] else []
        return self.b.gather(
            self.memories[memory_of(op)], picked, at, extent, axes, a["masked"], a["fill"]
        )

    # Values

    def read_full(self, op: Operation, box: Box, keep: Axes) -> Tile:
        return self.b.full(op.results[0].dtype, (), op.attributes["value"])

    def read_index(self, op: Operation, box: Box, keep: Axes) -> Tile:
        at, axis = self.moved(op.attributes["at"]), op.attributes["axis"]
        if axis is None:
            return self.b.index(at)
        start, n = box[axis]
        if axis not in keep or n == 1:
            return self.b.index(at + start)
        return self.b.index(at + start, [n if i == axis else 1 for i in keep], keep.index(axis))

    def read_apply(self, op: Operation, box: Box, keep: Axes) -> Tile:
        if op.attributes["scalar"] == "where" and self.holds(op.operands[0], box):
            return self.operand(op.operands[1], box, keep)
        inner = [self.operand(t, box, keep) for t in op.operands]
        return self.b.apply(op.attributes["scalar"], *inner)

    def holds(self, t: Tile, box: Box) -> bool:
        """Whether a comparison with the end of an axis is known to hold for a part."""
        op = self.made.get(t)
        if op is None or t in self.kept or op.name != "apply" or op.attributes["scalar"] != "lt":
            return False
        low, high = (self.made.get(x) for x in op.operands)
        if low is None or low.name != "index" or low.attributes["axis"] is None:
            return False
        size = self.indices.get(op.operands[1]) if high is None else _number(high)
        if size is None:
            return False
        start, extent = box[low.attributes["axis"]]
        at = self.moved(low.attributes["at"]) + start
        return self.is_inside(at, extent, self.moved(size))

    def read_cast(self, op: Operation, box: Box, keep: Axes) -> Tile:
        return self.b.cast(self.read(op.operands[0], box, keep), op.results[0].dtype)

    def read_dot_parts(self, op: Operation, box: Box, keep: Axes) -> Tile:
        x, y, acc = op.operands
        return self.b.dot_parts(
            self.operand(x, box, keep), self.operand(y, box, keep),
            self.read_whole(acc, box, keep), op.attributes["parts"],
        )  # fmt: skip

    # Shapes

    def read_broadcast(self, op: Operation, box: Box, keep: Axes) -> Tile:
        return self.operand(op.operands[0], box, keep)

    def read_reshape(self, op: Operation, box: Box, keep: Axes) -> Tile:
        """Axes of size 1 come and go; other reshapes are kept in scratch."""
        x, t = op.operands[0], op.results[0]
        of = dict(zip(wide_axes(t.shape), wide_axes(x.shape), strict=True))
        own: list[Part] = [(0, 1)] * len(x.shape)
        for axis, here in of.items():
            own[here] = box[axis]
        kept = [axis for axis in keep if axis in of]
        part = self.read(x, tuple(own), tuple(of[axis] for axis in kept))
        if not part.shape:
            return part
        sizes = dict(zip(kept, part.shape, strict=True))
        return self.b.reshape(part, [sizes.get(axis, 1) for axis in keep])

    def read_transpose(self, op: Operation, box: Box, keep: Axes) -> Tile:
        return self.read(op.operands[0], box[::-1], tuple(1 - i for i in keep))

    # What a value is made of

    def loads_beside(self, t: Tile) -> Iterator[Operation]:
        """The loads that a tile is made of element by element, without those that are spread."""
        todo, found = [t], {t}
        while todo:
            x = todo.pop()
            if x not in self.made or x in self.kept:
                continue
            op = self.made[x]
            if op.name == "load":
                yield op
            elif op.name in ("apply", "cast", "broadcast"):
                new = [y for y in op.operands if y.shape == t.shape and y not in found]
                found.update(new)
                todo += new

    def leaves(self, t: Tile) -> Iterator[Tile]:
        """The tiles that reading a tile reads or computes, itself among them."""
        todo, found = [t], {t}
        while todo:
            x = todo.pop()
            yield x
            if x in self.made and x not in self.kept:
                new = [y for y in self.made[x].operands if y not in found]
                found.update(new)
                todo += new

    def memories_of(self, t: Tile) -> set[Memory]:
        """The memories of the kernel that reading a tile reads."""
        return {
            m
            for x in self.leaves(t)
            if x in self.made and x not in self.kept
            if (m := self.made[x].memory) is not None
        }

    def cost(self, t: Tile) -> float:
        """About how many vector instructions computing a part of a tile takes."""
        total = 0.0
        for x in self.leaves(t):
            if x in self.kept or x not in self.made:
                total += 0.5
                continue
            op = self.made[x]
            if op.name == "apply":
                name = op.attributes["scalar"]
                heavy = name in FUNCTIONS and x.dtype.kind == "f"
                total += _FUNCTION if heavy else _HEAVY.get(name, 1)
            else:
                total += {"gather": 10, "load": 1, "cast": 1, "transpose": 3}.get(op.name, 0)
        return total

    def fast_axes(self, t: Tile, known: dict[Tile, set[int]] | None = None) -> set[int]:
        """The axes of a tile along which what it is read from lies in vectors."""
        known = {} if known is None else known
        if t not in known:
            known[t] = self.fast_axes_of(t, known)
        return known[t]

    def fast_axes_of(self, t: Tile, known: dict[Tile, set[int]]) -> set[int]:
        if size_of(t) == 1 or t in self.tiles:
            return set()
        if t in self.kept:
            wide = [i for i in self.kept[t].order if t.shape[i] > 1]
            return set(wide[-1:])
        if t not in self.made:  # what a nest is yet to fold
            return set(wide_axes(t.shape)[-1:])
        op = self.made[t]
        if op.traits.reads:
            last = memory_of(op).type.rank - 1
            axes = op.attributes["axes"]
            return {i for i, axis in enumerate(axes) if axis == last and t.shape[i] > 1}
        # A line that is spread over others is read element by element, however it lies.
        lines = [x for x in op.operands if len(wide_axes(x.shape)) == len(wide_axes(t.shape))]
        found = {i for x in lines for i in self.fast_axes(x, known)}
        if op.name == "transpose":
            return {1 - i for i in found}
        if op.name == "reshape":
            x = op.operands[0]
            of = dict(zip(wide_axes(x.shape), wide_axes(t.shape), strict=True))
            return {of[i] for i in found}
        return found


def wide_axes(shape: Sequence[int]) -> list[int]:
    """The axes with more than one element."""
    return [i for i, n in enumerate(shape) if n != 1]


def _number(op: Operation) -> Size | None:
    """The one number that an index is."""
    found: Size | None = op.attributes["at"] if op.name == "index" else None
    return None if op.attributes.get("axis") is not None else found


def _is_turned(m: Memory, extent: Sequence[int], axes: Axes) -> bool:
    """Whether the rows of memory are the columns of a tile."""
    return (
        len(axes) == 2
        and axes[0] == m.type.rank - 1
        and extent[axes[0]] > 1
        and extent[axes[1]] > 1
    )


def memory_of(op: Operation) -> Memory:
    """The memory of an operation that has one."""
    assert op.memory is not None, op
    return op.memory
