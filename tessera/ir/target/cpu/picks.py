"""Gathers and scatters: elements whose place in memory is data.

Where one number moves a whole box, the box is loaded or stored in vectors from another pointer; where
every element has a number of its own, elements are moved one by one, in ascending order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tessera.core.dims import Size
from tessera.ir.target.cpu.memory import strides
from tessera.ir.target.cpu.types import align_of, chunks, constant, indices, memory_type
from tessera.ir.target.cpu.values import ValueWriter
from tessera.ir.tile.ir import Operation, Tile

Place = tuple[str, str | None]  # a pointer, and whether it may be used


class PickWriter(ValueWriter):
    """Writes what moves tiles between registers and places that are data."""

    def _gather(self, op: Operation) -> None:
        t = op.results[0]
        if _is_box(op, op.operands, t):
            with self.moved(op, op.operands):
                self._load(op)
            return
        fill = constant(op.attributes["fill"], t.dtype, 1)
        self.tiles[t] = [
            self.vector([self.element_at(p, t, fill) for p in places], t.dtype)
            for places in self.places_of(op, op.operands, t)
        ]

    def _scatter(self, op: Operation) -> None:
        value, *picked = op.operands
        if _is_box(op, picked, value):
            with self.moved(op, picked):
                self._store(op)
            return
        dtype = value.dtype
        memory = memory_type(dtype)
        for name, places in zip(self.tiles[value], self.places_of(op, picked, value), strict=True):
            for e, (pointer, ok) in zip(
                self.elements(name, dtype, len(places)), places, strict=True
            ):
                stored = self.put(f"zext i1 {e} to i8") if dtype.kind == "b" else e
                place = pointer if ok is None else self.safe(pointer, ok)
                self.do(f"store {memory} {stored}, ptr {place}, align {align_of(dtype)}")

    def element_at(self, place: Place, t: Tile, fill: str) -> str:
        pointer, ok = place
        raw = self.guarded_load(memory_type(t.dtype), pointer, ok, t.dtype)
        value = self.put(f"trunc i8 {raw} to i1") if t.dtype.kind == "b" else raw
        if ok is None:
            return value
        kind = "i1" if t.dtype.kind == "b" else memory_type(t.dtype)
        return self.put(f"select i1 {ok}, {kind} {value}, {kind} {fill}")

    # One number for the whole box

    @contextmanager
    def moved(self, op: Operation, picked: Sequence[Tile]) -> Iterator[None]:
        """The memory of an operation as if it began where the picked numbers say."""
        m = op.memory
        assert m is not None
        steps, before = strides(m.type.shape), self.pointers[m]
        self.numbers = {
            axis: self.tiles[t][0] for axis, t in zip(op.attributes["picked"], picked, strict=True)
        }
        total = "0"
        for axis, number in self.numbers.items():
            far = self.put(f"mul i64 {number}, {self.size(steps[axis])}")
            total = self.put(f"add i64 {total}, {far}")
        kind = memory_type(m.type.dtype)
        self.pointers[m] = self.put(f"getelementptr {kind}, ptr {before}, i64 {total}")
        yield
        self.pointers[m], self.numbers = before, {}

    def inside(self, op: Operation, axis: int, i: int) -> str | None:
        number = self.numbers.get(axis)
        if number is None or axis not in op.attributes["masked"]:
            return super().inside(op, axis, i)
        return self.within(op, axis, op.attributes["at"][axis] + i, number)

    def chunk_mask(
        self, op: Operation, axis: int | None, at: int, width: int, ok: str | None
    ) -> str | None:
        number = None if axis is None else self.numbers.get(axis)
        if axis is None or number is None or width == 1 or axis not in op.attributes["masked"]:
            return super().chunk_mask(op, axis, at, width, ok)
        assert op.memory is not None
        start = self.put(f"add i64 {self.size(op.attributes['at'][axis] + at)}, {number}")
        lanes = f"<{', '.join(f'i64 {i}' for i in range(width))}>"
        kind = f"<{width} x i64>"
        place = self.put(f"add {kind} {self.splat(start, 'i64', width)}, {lanes}")
        size = self.splat(self.size(op.memory.type.shape[axis]), "i64", width)
        mask = self.put(f"icmp ult {kind} {place}, {size}")  # one below 0 is a large number
        return (
            mask
            if ok is None
            else self.put(f"and <{width} x i1> {mask}, {self.splat(ok, 'i1', width)}")
        )

    def within(self, op: Operation, axis: int, at: Size, number: str) -> str:
        """An i1 that tells whether a picked place is in the memory; one below 0 is a large number."""
        assert op.memory is not None
        place = self.put(f"add i64 {self.size(at)}, {number}")
        return self.put(f"icmp ult i64 {place}, {self.size(op.memory.type.shape[axis])}")

    # A number for every element

    def places_of(self, op: Operation, picked: Sequence[Tile], t: Tile) -> Iterator[list[Place]]:
        """The places of the elements of a tile, vector by vector."""
        numbers = [self.spread(x, t.shape) for x in picked]
        vector = 0
        for lead in indices(t.shape[:-1]):
            at = 0
            for width in chunks(t.shape[-1] if t.shape else 1):
                lanes = [
                    self.elements(n[vector], x.dtype, width)
                    for n, x in zip(numbers, picked, strict=True)
                ]
                yield [
                    self.place_of(op, (*lead, at + i), [lane[i] for lane in lanes])
                    for i in range(width)
                ]
                at += width
                vector += 1

    def place_of(self, op: Operation, element: tuple[int, ...], numbers: Sequence[str]) -> Place:
        a, m = op.attributes, op.memory
        assert m is not None
        steps = strides(m.type.shape)
        # Along an axis of one element only the picked number moves, however wide the tile is there.
        own = {
            axis: e if a["extent"][axis] > 1 else 0
            for axis, e in zip(a["axes"], element, strict=False)
        }
        moved = dict(zip(a["picked"], numbers, strict=True))
        base: Size = 0
        ok: str | None = None
        for axis, at in enumerate(a["at"]):
            here = at + own.get(axis, 0)
            base = base + here * steps[axis]
            if axis in moved and axis in a["masked"]:
                ok = self.both(ok, self.within(op, axis, here, moved[axis]))
            else:
                ok = self.both(ok, self.inside(op, axis, own.get(axis, 0)))
        total = self.size(base)
        for axis, number in moved.items():
            step = steps[axis]
            far = number if step == 1 else self.put(f"mul i64 {number}, {self.size(step)}")
            total = self.put(f"add i64 {total}, {far}")
        kind = memory_type(m.type.dtype)
        return self.put(f"getelementptr {kind}, ptr {self.pointers[m]}, i64 {total}"), ok


def _is_box(op: Operation, picked: Sequence[Tile], t: Tile) -> bool:
    """Whether the elements lie together: every picked tile is one number."""
    single = all(n == 1 for x in picked for n in x.shape)
    return single and (len(op.attributes["axes"]) == len(t.shape) or len(t.shape) <= 1)
