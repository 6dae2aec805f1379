"""Loads and stores of tiles: pointers, masks, vectors or single elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tessera.core.dims import Dim, Shape, Size, Terms, product, symbols
from tessera.core.dtype import DType, u8
from tessera.ir.target.cpu.types import (
    LANES,
    TYPES,
    align_of,
    chunks,
    constant,
    indices,
    memory_type,
    suffix,
    vector_of,
    vector_type,
)
from tessera.ir.target.cpu.writer import LlvmWriter
from tessera.ir.tile.ir import Memory, Operation, Tile

_LINE = 64  # bytes that a prefetch brings, and the longest vectors


def strides(shape: Shape) -> list[Size]:
    """How many elements apart neighbours along each axis lie, in row-major order."""
    return [product(shape[i + 1 :]) for i in range(len(shape))]


class TileChunk(NamedTuple):
    """A chunk of a tile in memory."""

    pointer: str
    width: int
    mask: str | None  # which elements are there
    step: str | None  # how far apart they lie; None: they are neighbours


class MemoryWriter(LlvmWriter):
    """Writes what moves tiles between memory and registers."""

    def _load(self, op: Operation) -> None:
        names = []
        for p in self.places(op, op.results[0]):
            pieces = self.accesses(op, p, op.results[0].dtype)
            loaded = [self.load_chunk(op, *x) for x in pieces]
            names.append(self.one_vector(loaded, [x.width for x in pieces], op.results[0].dtype))
        self.tiles[op.results[0]] = names

    def accesses(self, op: Operation, p: TileChunk, dtype: DType) -> list[TileChunk]:
        """The accesses of a chunk: one, or those of at most so many elements as the operation says."""
        most = op.attributes.get("vector")
        if most is None or p.width <= most or p.step is not None:
            return [p]
        out = []
        for at in range(0, p.width, most):
            n = min(most, p.width - at)
            mask = None if p.mask is None else self.elements_from(p.mask, "i1", p.width, at, n)
            here = p.pointer if at == 0 else self.element(p.pointer, memory_type(dtype), None, at)
            out.append(TileChunk(here, n, mask, None))
        return out

    def elements_from(self, x: str, kind: str, width: int, at: int, count: int) -> str:
        """Elements of a vector from `at` on: one alone is a scalar."""
        if count == width:
            return x
        if count == 1:
            return self.put(f"extractelement <{width} x {kind}> {x}, i32 {at}")
        picked = ", ".join(f"i32 {at + i}" for i in range(count))
        return self.put(
            f"shufflevector <{width} x {kind}> {x}, <{width} x {kind}> poison, "
            f"<{count} x i32> <{picked}>"
        )

    def one_vector(self, names: Sequence[str], widths: Sequence[int], dtype: DType) -> str:
        """Vectors one behind the other as one vector."""
        total, done, kind = names[0], widths[0], TYPES[dtype.name]
        if len(names) == 1:
            return total
        whole = sum(widths)
        for i, (x, n) in enumerate(zip(names, widths, strict=True)):
            if n == 1:
                before = "poison" if i == 0 else total
                total = self.put(
                    f"insertelement <{whole} x {kind}> {before}, {kind} {x}, i32 {i and done}"
                )
                done += n if i else 0
                continue
            # Both sides of a shuffle have one type: the new part is widened first.
            spread = ", ".join(f"i32 {j}" if j < n else "i32 poison" for j in range(whole))
            wide = self.put(
                f"shufflevector <{n} x {kind}> {x}, <{n} x {kind}> poison, "
                f"<{whole} x i32> <{spread}>"
            )
            if i == 0:
                total = wide
                continue
            picked = (j if j < done else whole + j - done for j in range(done + n))
            order = [f"i32 {j}" for j in picked] + ["i32 poison"] * (whole - done - n)
            total = self.put(
                f"shufflevector <{whole} x {kind}> {total}, <{whole} x {kind}> {wide}, "
                f"<{whole} x i32> <{', '.join(order)}>"
            )
            done += n
        return total

    def load_chunk(
        self, op: Operation, pointer: str, width: int, mask: str | None, step: str | None
    ) -> str:
        """`width` elements from a pointer: in one piece, or element by element `step` apart."""
        dtype = op.results[0].dtype
        memory, t = memory_type(dtype), vector_type(dtype, width)
        fill = constant(op.attributes["fill"], dtype, width)
        if width > 1 and step is None:
            wide = f"<{width} x {memory}>"
            if mask is None:
                raw = self.put(f"load {wide}, ptr {pointer}, align {align_of(dtype)}")
            else:
                stored = constant(op.attributes["fill"], u8 if dtype.kind == "b" else dtype, width)
                raw = self.put(
                    f"call {wide} @llvm.masked.load.v{width}{suffix(memory)}.p0(ptr {pointer}, "
                    f"i32 {align_of(dtype)}, <{width} x i1> {mask}, {wide} {stored})"
                )
            return self.put(f"trunc {wide} {raw} to {t}") if dtype.kind == "b" else raw
        return self.gather(dtype, pointer, width, mask, step, fill)

    def gather(
        self, dtype: DType, pointer: str, width: int, mask: str | None, step: str | None, fill: str
    ) -> str:
        memory, t, scalar = memory_type(dtype), vector_type(dtype, width), TYPES[dtype.name]
        total = "undef"
        for i in range(width):
            at = pointer if i == 0 else self.element(pointer, memory, step, i)
            ok = None if mask is None else (
                mask if width == 1 else self.put(f"extractelement <{width} x i1> {mask}, i32 {i}")
            )  # fmt: skip
            raw = self.guarded_load(memory, at, ok, dtype)
            value = self.put(f"trunc i8 {raw} to i1") if dtype.kind == "b" else raw
            total = (
                value
                if width == 1
                else self.put(f"insertelement {t} {total}, {scalar} {value}, i32 {i}")
            )
        if mask is None:
            return total
        return self.put(f"select {vector_of('i1', width)} {mask}, {t} {total}, {t} {fill}")

    def guarded_load(self, memory: str, at: str, ok: str | None, dtype: DType) -> str:
        if ok is None:
            return self.put(f"load {memory}, ptr {at}, align {align_of(dtype)}")
        return self.put(f"load {memory}, ptr {self.safe(at, ok)}, align {align_of(dtype)}")

    def safe(self, pointer: str, ok: str) -> str:
        """The pointer, or one to a spare word where it must not be used: cheaper than a branch."""
        return self.put(f"select i1 {ok}, ptr {pointer}, ptr %spare")

    def element(self, pointer: str, memory: str, step: str | None, i: int) -> str:
        far = str(i) if step is None else self.put(f"mul i64 {step}, {i}")
        return self.put(f"getelementptr {memory}, ptr {pointer}, i64 {far}")

    def _store(self, op: Operation) -> None:
        value = op.operands[0]
        names, places = self.tiles[value], self.places(op, value)
        if value.dtype.kind == "b":
            names = [
                self.put(f"zext {vector_of('i1', p.width)} {name} to {vector_of('i8', p.width)}")
                for name, p in zip(names, places, strict=True)
            ]
        past = self.may_bypass(op, places)
        if past is None:
            names, places = self.split_store(op, value.dtype, names, places)
            self.store_all(value.dtype, names, places)
            return
        beyond, usual, done = (f"{k}{self.count}" for k in ("beyond", "usual", "stored"))
        self.do(f"br i1 {past}, label %{beyond}, label %{usual}")
        self.start(beyond)
        for name, p in zip(names, places, strict=True):
            self.store_past(value.dtype, name, p)
        self.do(f"br label %{done}")
        self.start(usual)
        self.store_all(value.dtype, names, places)
        self.do(f"br label %{done}")
        self.start(done)

    def split_store(
        self, op: Operation, dtype: DType, names: Sequence[str], places: Sequence[TileChunk]
    ) -> tuple[list[str], list[TileChunk]]:
        """What a store writes and where, in the accesses that it may have."""
        kind, parts, out = memory_type(dtype), [], []
        for name, p in zip(names, places, strict=True):
            at = 0
            for x in self.accesses(op, p, dtype):
                parts.append(self.elements_from(name, kind, p.width, at, x.width))
                out.append(x)
                at += x.width
        return parts, out

    def store_all(self, dtype: DType, names: Sequence[str], places: Sequence[TileChunk]) -> None:
        memory = memory_type(dtype)
        for name, (pointer, width, mask, step) in zip(names, places, strict=True):
            if width > 1 and step is None:
                wide = f"<{width} x {memory}>"
                if mask is None:
                    self.do(f"store {wide} {name}, ptr {pointer}, align {align_of(dtype)}")
                else:
                    self.masked_store(wide, width, memory, name, pointer, mask, dtype)
                continue
            self.scatter(dtype, name, pointer, width, mask, step)

    def may_bypass(self, op: Operation, places: Sequence[TileChunk]) -> str | None:
        """An i1 that tells whether a store goes past the caches; None: it never does.

        Such an instruction writes whole vectors that lie at multiples of their size.
        """
        least, m = op.attributes.get("bypass"), op.memory
        assert m is not None
        if (
            least is None
            or "vector" in op.attributes
            or any(p != (p.pointer, LANES, None, None) for p in places)
        ):
            return None
        size = align_of(m.type.dtype)
        each = op.operands[0].shape[-1] // LANES  # neighbours: all are aligned if the first is
        whole, *others = (self.put(f"ptrtoint ptr {p.pointer} to i64") for p in places[::each])
        for more in others:
            whole = self.put(f"or i64 {whole}, {more}")
        rest = self.put(f"and i64 {whole}, {min(LANES * size, _LINE) - 1}")
        aligned = self.put(f"icmp eq i64 {rest}, 0")
        bytes_ = product(m.type.shape) * size
        if isinstance(bytes_, int):
            return aligned if bytes_ >= least else None
        return self.both(aligned, self.put(f"icmp sge i64 {self.size(bytes_)}, {least}"))

    def store_past(self, dtype: DType, name: str, p: TileChunk) -> None:
        wide, align = f"<{p.width} x {memory_type(dtype)}>", min(LANES * align_of(dtype), _LINE)
        self.do(f"store {wide} {name}, ptr {p.pointer}, align {align}, !nontemporal !0")
        self.bypasses = True

    def masked_store(
        self, wide: str, width: int, memory: str, name: str, pointer: str, mask: str, dtype: DType
    ) -> None:
        ok = self.hidden(mask, width) if align_of(dtype) < 4 else mask
        text = (
            f"call void @llvm.masked.store.v{width}{suffix(memory)}.p0({wide} {name}, "
            f"ptr {pointer}, i32 {align_of(dtype)}, <{width} x i1> {ok})"
        )
        self.do(text)
        self.declare(text)

    def hidden(self, mask: str, width: int) -> str:
        """A mask that LLVM cannot know: of a narrow vector with one element that is known it stores 32
        bits (22.1).
        """
        self.hides = True
        bits = self.put(f"trunc i64 %every to i{width}")
        ones = self.put(f"bitcast i{width} {bits} to <{width} x i1>")
        return self.put(f"and <{width} x i1> {mask}, {ones}")

    def scatter(
        self, dtype: DType, name: str, pointer: str, width: int, mask: str | None, step: str | None
    ) -> None:
        memory = memory_type(dtype)
        for i in range(width):
            at = pointer if i == 0 else self.element(pointer, memory, step, i)
            value = name if width == 1 else self.put(
                f"extractelement {vector_of(memory, width)} {name}, i32 {i}"
            )  # fmt: skip
            if mask is None:
                self.do(f"store {memory} {value}, ptr {at}, align {align_of(dtype)}")
                continue
            ok = mask if width == 1 else self.put(f"extractelement <{width} x i1> {mask}, i32 {i}")
            place = self.safe(at, ok)
            self.do(f"store {memory} {value}, ptr {place}, align {align_of(dtype)}")

    def _prefetch(self, op: Operation) -> None:
        m, a = op.memory, op.attributes
        assert m is not None
        steps, size = strides(m.type.shape), align_of(m.type.dtype)
        base: Size = 0
        for at, s in zip(a["at"], steps, strict=True):
            base = base + at * s
        extent, near = a["extent"], 2 if a.get("far") else 3
        for lead in indices(extent[:-1]):
            offset = base
            for i, s in zip(lead, steps, strict=False):
                offset = offset + i * s
            for at in range(0, extent[-1] if extent else 1, max(_LINE // size, 1)):
                place = self.size(offset + at)
                pointer = self.put(
                    f"getelementptr {memory_type(m.type.dtype)}, ptr {self.pointers[m]}, i64 {place}"
                )
                self.do(
                    f"call void @llvm.prefetch.p0(ptr {pointer}, i32 {int(a['write'])}, i32 {near}, i32 1)"
                )
                self.declared["llvm.prefetch.p0"] = (
                    "declare void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)"
                )

    def places(self, op: Operation, t: Tile) -> list[TileChunk]:
        """Pointer, width, mask and step of each chunk of a tile in memory."""
        a, m = op.attributes, op.memory
        assert m is not None
        steps, kept = strides(m.type.shape), a["axes"]
        base: Size = 0
        for at, s in zip(a["at"], steps, strict=True):
            base = base + at * s
        memory = memory_type(t.dtype)
        dropped_ok = self.dropped_mask(op)
        out: list[TileChunk] = []
        last = kept[-1] if kept else None
        contiguous = last is None or steps[last] == 1
        step = None if last is None or contiguous else self.size(steps[last])
        for lead in indices(t.shape[:-1]):
            offset, ok = base, dropped_ok
            for axis, i in zip(kept[:-1], lead, strict=True):
                offset = offset + i * steps[axis]
                ok = self.both(ok, self.inside(op, axis, i))
            at = 0
            for width in chunks(t.shape[-1] if t.shape else 1):
                here = offset if last is None else offset + at * steps[last]
                pointer = self.address(m, memory, here)
                mask = self.chunk_mask(op, last, at, width, ok)
                out.append(TileChunk(pointer, width, mask, step))
                at += width
        return out

    def address(self, m: Memory, kind: str, at: Size) -> str:
        """A pointer to an element of a memory.

        In a loop it is a pointer to where the loop begins, which LLVM must not look into, and what the loop
        adds.  LLVM searches for the cheapest way to write addresses in loops, among all sums of their
        terms: that was half of the time in which it writes machine code, and gave the same inner loops.
        """
        moving, still, constant = self.parts(at)
        begin = self.pointers[m]
        if not moving:
            return self.put(f"getelementptr {kind}, ptr {begin}, i64 {self.size(at)}")
        if still:
            begin = self.put(f"getelementptr {kind}, ptr {begin}, i64 {self.size(Dim(still))}")
        here = self.put(
            f"getelementptr {kind}, ptr {self.closed(begin)}, i64 {self.size(Dim(moving))}"
        )
        return self.put(f"getelementptr {kind}, ptr {here}, i64 {constant}") if constant else here

    def parts(self, at: Size) -> tuple[Terms, Terms, int]:
        """The terms of a size that change in the innermost loop, those that do not, and its constant."""
        if isinstance(at, int):
            return (), (), at
        moving = tuple(t for t in at.terms if self.loop in symbols(Dim((t,))))
        still = tuple(t for t in at.terms if t[0] and t not in moving)
        return moving, still, next((factor for monomial, factor in at.terms if not monomial), 0)

    def dropped_mask(self, op: Operation) -> str | None:
        ok = None
        for axis in op.attributes["masked"]:
            if axis not in op.attributes["axes"]:
                ok = self.both(ok, self.inside(op, axis, 0))
        return ok

    def inside(self, op: Operation, axis: int, i: int) -> str | None:
        """An i1 that tells whether the i-th element along an axis is in the memory."""
        if axis not in op.attributes["masked"]:
            return None
        assert op.memory is not None
        place = op.attributes["at"][axis] + i
        at, n = self.size(place), self.size(op.memory.type.shape[axis])
        if self.natural(place):
            return self.put(f"icmp slt i64 {at}, {n}")
        return self.put(f"icmp ult i64 {at}, {n}")  # a position below 0 is a large number

    def both(self, a: str | None, b: str | None) -> str | None:
        return b if a is None else a if b is None else self.put(f"and i1 {a}, {b}")

    def chunk_mask(
        self, op: Operation, axis: int | None, at: int, width: int, ok: str | None
    ) -> str | None:
        if axis is None or axis not in op.attributes["masked"]:
            return None if ok is None else self.splat(ok, "i1", width)
        if width == 1:
            return self.both(ok, self.inside(op, axis, at))
        assert op.memory is not None
        start, n = op.attributes["at"][axis] + at, op.memory.type.shape[axis]
        limit = self.splat(self.size(n - start), "i64", width)
        lanes = f"<{', '.join(f'i64 {i}' for i in range(width))}>"
        mask = self.put(f"icmp slt <{width} x i64> {lanes}, {limit}")
        if not self.natural(start):
            first = self.splat(self.size(0 - start), "i64", width)
            begun = self.put(f"icmp sge <{width} x i64> {lanes}, {first}")
            mask = self.put(f"and <{width} x i1> {mask}, {begun}")
        return (
            mask
            if ok is None
            else self.put(f"and <{width} x i1> {mask}, {self.splat(ok, 'i1', width)}")
        )
