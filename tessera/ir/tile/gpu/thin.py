"""A matrix times a vector, which every instance makes for itself: the rows of the matrix stream by it.

    t = add over k of x[k] x[k]; y[k] = x[k] rsqrt(t); z[m] = add over k of w[m, k] y[k]
->  block (m by 16): y in shared memory; for k by 512: acc = dot(y[k], load(w, m, k)^T, acc)

What comes before the product is a vector of a few thousand numbers, or folds of it: to compute it in every
block takes less time than a launch, and the matrix is fetched meanwhile.  The sum over k is the chain that
every product has, so the bits are those of separate kernels.

A matrix of many rows is taken in blocks of 64, and rows that are read in pairs, z[m] and z[m + n], in two
of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.core.dims import Size, substitute
from tessera.core.types import TensorType
from tessera.ir.schedule.factors import bare, factors
from tessera.ir.schedule.gpu_blocks import MULTIPROCESSORS
from tessera.ir.schedule.ir import Read, Stage, reads
from tessera.ir.schedule.thin_products import COLUMNS, WIDE, Thin, are_many
from tessera.ir.tile.gpu.folds import row_tree
from tessera.ir.tile.gpu.terms import AxisLine, Terms, parameters
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile
from tessera.ir.tile.launch import Threads

_MOST = 2 * MULTIPROCESSORS  # instances, each of which makes the vector once


class ThinWriter:
    """A thin product being written."""

    def __init__(self, t: Thin, types: Mapping[str, TensorType]):
        self.t, self.b = t, Builder("thin")
        k = t.kernel
        self.memory = parameters(self.b, k.inputs(), types)
        self.out = parameters(self.b, k.outputs, types, writable=True)
        (self.m, self.n), (self.over,) = t.heads[0].axes, t.heads[0].reduced
        self.vector = bare(factors(t.heads[0])[1])
        self.depth = int(self.over.size)
        self.rows = WIDE if are_many(int(self.m.size) * t.parts) else COLUMNS
        self.values: dict[str, Tile] = {}
        self.loaded: dict[Any, Tile] = {}

    @property
    def blocks(self) -> int:
        """How many blocks the product has."""
        return int(self.m.size) // self.rows

    @property
    def step(self) -> int:
        """Numbers of k at once."""
        return 128 if self.rows == WIDE else min(512, self.depth // 4)

    @property
    def threads(self) -> Threads:
        """What a ring of so many steps holds is fetched before all else; each of them costs a little to
        begin.
        """
        stages = 2 + 2 * self.t.parts if self.rows == WIDE else 3
        return Threads(4, min(self.depth // self.step, stages), roles=True)

    def kernel(self) -> Kernel:
        number = self.b.program(min(self.blocks, _MOST))
        first = self.t.kernel.stages[: self.t.before]
        made = {s.name for s in first}
        for s in first:  # everything is loaded before the first number is computed
            for r in reads(s.term):
                if r.source not in made:
                    self.at(s).load(r)
        for s in first:
            self.values[s.name] = self.stage(s)
        shared = self.share()
        self.keep(number)
        with self.b.loop(number, self.blocks, min(self.blocks, _MOST)) as loop:
            sums = self.product(loop.variable * self.rows, shared)
            self.finish(sums, loop.variable * self.rows)
        return self.b.finish()

    def at(self, s: Stage) -> Terms:
        """Where a stage of vectors is computed: everywhere."""
        where = _Vectors(self)
        for a in (*s.axes, *s.reduced):
            if a.size == 1:
                where.env[a.name] = 0
            else:
                where.lines[a.name] = AxisLine(1, 0, self.depth, self.depth)
        return where

    def stage(self, s: Stage) -> Tile:
        where = self.at(s)
        value = where.term(s.term)
        if s.combine is None:
            return value
        return row_tree(self.b, s.combine, where.spread(value), 1, s.reduced[0].size)

    def share(self) -> Memory:
        """The vector, where all threads can read it."""
        where = _Vectors(self)
        where.env[self.n.name] = 0
        where.lines[self.over.name] = AxisLine(1, 0, self.depth, self.depth)
        y = where.spread(where.term(self.vector))
        shared = self.b.alloc(self.vector.dtype, (self.depth,), "shared")
        whole = self.b.reshape(y, (self.depth,))
        self.b.store(shared, whole, (0,), (self.depth,))
        self.b.barrier()
        return shared

    def keep(self, number: Size) -> None:
        """The first instance stores what others want of the vectors."""
        kept = [s for s in self.t.kernel.stages[: self.t.before] if s.name in self.out]
        if kept:
            with self.b.loop(number, 1):
                for s in kept:
                    index = [a.variable for a in s.axes]
                    self.at(s).store(self.out[s.name], index, self.values[s.name])

    def product(self, m: Size, shared: Memory) -> tuple[Tile, ...]:
        """The sums of a block of rows, of each part."""
        zeros = [self.b.full(s.dtype, (1, self.rows), 0) for s in self.t.heads]
        with self.b.loop(0, self.depth, self.step, zeros) as loop:
            part = self.b.load(shared, (loop.variable,), (self.step,))
            rows = [self.matrix(s, m, loop.variable) for s in self.t.heads]
            left = self.b.reshape(part, (1, self.step))
            sums = zip(rows, loop.carried, strict=True)
            loop.carry(*(self.b.dot(left, right, acc) for right, acc in sums))
        return tuple(loop.results)

    def matrix(self, s: Stage, m: Size, k: Size) -> Tile:
        """Rows of the matrix, as columns."""
        read = bare(factors(s)[0])
        assert isinstance(read, Read)
        first = substitute(read.index[0], {self.m.name: m})
        memory = self.memory[read.source]
        return self.b.load(memory, (first, k), (self.rows, self.step), (1, 0))

    def finish(self, sums: Sequence[Tile], m: Size) -> None:
        """The stages that follow the product, and what is stored."""
        where = Terms(self.b, self.memory, self.values.get)
        where.lines[self.m.name] = AxisLine(1, m, self.rows, self.m.size)
        found = dict(zip((s.name for s in self.t.heads), sums, strict=True))
        for s in self.t.kernel.stages[self.t.before :]:
            where.env.update({a.name: 0 for a in s.axes if a.size == 1})
            self.values[s.name] = found[s.name] if s.name in found else where.term(s.term)
            if s.name in self.out:
                where.store(self.out[s.name], [a.variable for a in s.axes], self.values[s.name])


class _Vectors(Terms):
    """Terms on whole vectors; what was loaded stays."""

    def __init__(self, w: ThinWriter):
        super().__init__(w.b, w.memory, w.values.get)
        self.w = w

    def load(self, r: Read) -> Tile:
        key = (r.source, *((self.place(x), bool(self.moving(x))) for x in r.index))
        if key not in self.w.loaded:
            self.w.loaded[key] = super().load(r)
        return self.w.loaded[key]
