"""Turns of the loop of a product: a row of a packed factor is read while the row before it is used.

    a0 = load, b0 = load, s1 = fma(a0, b0, s0), a1 = load, b1 = load, s2 = fma(a1, b1, s1)
->  b0 = load; for each element of a0: a vector of b1 = load, fma; for each element of a1: fma

A core on which another thread runs has half as many places for instructions that wait.  What comes from the
second cache must be asked for earlier then: as many vectors of the next row as there are registers left,
the others when their registers are free.  LLVM moves a load to its use; one that is volatile stays where it
is between the other loads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tessera.core.dtype import DType
from tessera.core.processor import SETS
from tessera.ir.target.cpu.memory import TileChunk
from tessera.ir.target.cpu.tiles import MatrixLoop, TileWriter
from tessera.ir.target.cpu.types import LANES, align_of, memory_type, vector_type
from tessera.ir.tile.ir import Operation

_SET = "avx512f"
_SPLATS = 2  # registers for elements of the left factor


class ColumnProduct(NamedTuple):
    """A column of the left factor times a row of the right one, added to sums."""

    left: Operation
    right: Operation
    fma: Operation
    length: int  # how many operations it is made of


class Iteration(NamedTuple):
    """Steps of which each adds to the sums of the one before."""

    steps: tuple[ColumnProduct, ...]


class TurnWriter(TileWriter):
    """Writes turns."""

    def selected(
        self, operations: Sequence[Operation]
    ) -> Iterator[Operation | MatrixLoop | Iteration]:
        """Operations of a block, in which products and turns are one each."""
        i = first = 0
        while i < len(operations):
            steps = self.steps_from(operations, i)
            if len(steps) < 2:
                i += 1
                continue
            yield from self.grouped(operations[first:i])
            yield Iteration(steps)
            i += sum(s.length for s in steps)
            first = i
        yield from self.grouped(operations[first:])

    def steps_from(self, operations: Sequence[Operation], i: int) -> tuple[ColumnProduct, ...]:
        """The steps that begin with an operation and follow each other."""
        found: list[ColumnProduct] = []
        while (s := self.step(operations[i : i + 4])) is not None:
            if found and not self.follows(s, found[-1]):
                break
            found.append(s)
            i += s.length
        return tuple(found)

    def follows(self, s: ColumnProduct, before: ColumnProduct) -> bool:
        """Whether a step is all that adds to the sums of another one, and is like it."""
        total = before.fma.results[0]
        alike = s.fma.results[0].type == total.type
        return alike and s.fma.operands[2] is total and self.uses[total] == 1

    def step(self, ops: Sequence[Operation]) -> ColumnProduct | None:
        """The step that the first of these operations are."""
        turned = [op.name for op in ops[1:2]] == ["reshape"]  # a column that was read as a row
        names = ["load", *["reshape"] * turned, "load", "apply"]
        if [op.name for op in ops[: len(names)]] != names:
            return None
        left, shaped, right, fma = ops[0], ops[turned], ops[1 + turned], ops[2 + turned]
        column, row = shaped.results[0], right.results[0]
        if fma.attributes["scalar"] != "fma" or fma.operands[:2] != (column, row):
            return None
        rows, columns = fma.results[0].shape
        own = not turned or shaped.operands == left.results
        shapes = column.shape == (rows, 1) and row.shape == (1, columns) and columns % LANES == 0
        once = all(self.uses[t] == 1 for t in (left.results[0], column, row))
        inside = not left.attributes["masked"] and not right.attributes["masked"]
        fits = own and shapes and once and inside and self.is_packed(right)
        return ColumnProduct(left, right, fma, len(names)) if fits and self.early(fma) else None

    def is_packed(self, right: Operation) -> bool:
        """Whether a row lies in scratch, where nothing but this thread writes."""
        return right.memory is not None and right.memory.space == "private"

    def early(self, fma: Operation) -> int:
        """How many vectors of the next row registers can hold beside the sums and this row."""
        t = fma.results[0]
        rows, columns = t.shape
        each = LANES * t.dtype.bits // 8 // SETS[_SET].bytes
        if _SET not in self.features or not each:
            return 0
        across = columns // LANES
        return min(max((SETS[_SET].total - _SPLATS) // each - (rows + 1) * across, 0), across)

    def turn(self, t: Iteration) -> None:
        """Steps, each of which reads the row of the next one."""
        first = t.steps[0].fma
        sums = list(self.tiles[first.operands[2]])
        rights = [self.places(s.right, s.right.results[0]) for s in t.steps]
        row = [self.load_vector(first.results[0].dtype, p) for p in rights[0]]
        for s, after in zip(t.steps, [*rights[1:], None], strict=True):
            row = self.add_products(s, sums, row, after)
        self.tiles[t.steps[-1].fma.results[0]] = sums

    def add_products(
        self, s: ColumnProduct, sums: list[str], row: list[str], after: list[TileChunk] | None
    ) -> list[str]:
        """The products of a step added to sums; the result is the next row."""
        dtype, across, early = s.fma.results[0].dtype, len(row), self.early(s.fma)
        elements = self.elements_of(s.left)
        following = list(row)
        for r, element in enumerate(elements):
            value = self.put(f"load {memory_type(dtype)}, ptr {element}, align {align_of(dtype)}")
            x = self.splat(value, memory_type(dtype), LANES)
            if after is not None:
                for j in range(early):
                    if j * len(elements) // early == r:
                        following[j] = self.load_vector(dtype, after[j])
            last = r == len(elements) - 1
            for j in (*range(early, across), *range(early)) if last else range(across):
                total = sums[r * across + j]
                sums[r * across + j] = self.multiply_add(x, row[j], total, dtype, LANES)
                if last and j >= early and after is not None:  # its register is free from here on
                    following[j] = self.load_vector(dtype, after[j])
        return following

    def elements_of(self, left: Operation) -> list[str]:
        """Pointers to the elements of a column."""
        t = left.results[0]
        return [
            self.element(p.pointer, memory_type(t.dtype), p.step, i) if i else p.pointer
            for p in self.places(left, t)
            for i in range(p.width)
        ]

    def load_vector(self, dtype: DType, p: TileChunk) -> str:
        """A vector that is read here, not later."""
        kind = vector_type(dtype, p.width)
        return self.put(f"load volatile {kind}, ptr {p.pointer}, align {align_of(dtype)}")
