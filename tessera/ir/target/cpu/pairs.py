"""Loads and stores of pairs: two parts that alternate in memory, such as those of complex numbers.

tile[part, i] = memory[i, part]   ->   one load of neighbours, and a shuffle for each part
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tessera.ir.target.cpu.memory import MemoryWriter, strides
from tessera.ir.target.cpu.types import (
    align_of,
    chunks,
    indices,
    memory_type,
    vector_of,
    widths_of,
)
from tessera.ir.tile.ir import Operation, Tile


class PairWriter(MemoryWriter):
    """Writes what moves pairs; all else is moved as before."""

    def _load(self, op: Operation) -> None:
        axis = _pair_axis(op)
        if axis is None:
            super()._load(op)
            return
        t = op.results[0]
        kind, names = memory_type(t.dtype), [""] * len(widths_of(t.type))
        for low, high, pointer, width, mask in self.runs(op, t, axis):
            raw = self.load_chunk(op, pointer, 2 * width, mask, None)
            for name, part in ((low, 0), (high, 1)):
                names[name] = self.picked(kind, 2 * width, raw, raw, range(part, 2 * width, 2))
        self.tiles[t] = names

    def _store(self, op: Operation) -> None:
        axis = _pair_axis(op)
        if axis is None:
            super()._store(op)
            return
        t = op.operands[0]
        names, kind = self.tiles[t], memory_type(t.dtype)
        for low, high, pointer, width, mask in self.runs(op, t, axis):
            order = [i // 2 + i % 2 * width for i in range(2 * width)]
            both = self.picked(kind, width, names[low], names[high], order)
            wide = vector_of(kind, 2 * width)
            if mask is None:
                self.do(f"store {wide} {both}, ptr {pointer}, align {align_of(t.dtype)}")
            else:
                self.masked_store(wide, 2 * width, kind, both, pointer, mask, t.dtype)

    def runs(
        self, op: Operation, t: Tile, axis: int
    ) -> Iterator[tuple[int, int, str, int, str | None]]:
        """Each run of pairs: its two chunks in the tile, pointer, width, mask of its elements."""
        rows = {lead: r for r, lead in enumerate(indices(t.shape[:-1]))}
        count, places = len(chunks(t.shape[-1])), self.places(op, t)
        for lead, row in rows.items():
            if lead[axis]:
                continue
            upper = rows[(*lead[:axis], 1, *lead[axis + 1 :])]
            for c in range(count):
                pointer, width, mask, _ = places[row * count + c]
                twice = [i // 2 for i in range(2 * width)]
                both = None if mask is None else self.picked("i1", width, mask, mask, twice)
                yield row * count + c, upper * count + c, pointer, width, both

    def picked(self, kind: str, width: int, a: str, b: str, lanes: Sequence[int]) -> str:
        """Lanes of two vectors, counted through both; a vector of one lane is a scalar."""
        if width == 1:
            a, b = (
                self.put(f"insertelement <1 x {kind}> undef, {kind} {x}, i32 0") for x in (a, b)
            )
        t, mask = f"<{width} x {kind}>", ", ".join(f"i32 {i}" for i in lanes)
        v = self.put(f"shufflevector {t} {a}, {t} {b}, <{len(lanes)} x i32> <{mask}>")
        return v if len(lanes) > 1 else self.put(f"extractelement <1 x {kind}> {v}, i32 0")


def _pair_axis(op: Operation) -> int | None:
    """Which axis of a tile is the two neighbours that its last axis steps over, if one is."""
    a, m = op.attributes, op.memory
    assert m is not None
    kept, steps = a["axes"], strides(m.type.shape)
    if m.type.dtype.kind == "b" or len(kept) < 2 or steps[kept[-1]] != 2:
        return None
    if set(a["masked"]) - {kept[-1]}:
        return None
    found = [i for i, x in enumerate(kept[:-1]) if steps[x] == 1 and a["extent"][x] == 2]
    return found[0] if found else None
