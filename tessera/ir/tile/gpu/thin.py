"""A matrix times a vector, which every instance makes for itself: the rows of the matrix stream by it.

    t = add over k of x[k] x[k]; y[k] = x[k] rsqrt(t); z[m] = add over k of w[m, k] y[k]
->  block (m by 16): y in shared memory; for k by 256: acc = dot(y[k], load(w, m, k)^T, acc)

What comes before the product is a vector of a few thousand numbers, or folds of it: to compute it in every
block takes less time than a launch, and the matrix is fetched meanwhile.  The sum over k is the chain that
every product has, so the bits are those of separate kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tessera.core.dims import Size, symbols
from tessera.core.dtype import bf16, f16
from tessera.core.types import TensorType
from tessera.ir.schedule import ir as schedule
from tessera.ir.schedule.factors import factors
from tessera.ir.schedule.ir import Read, Stage, Term, reads
from tessera.ir.tile.gpu.blocks import MULTIPROCESSORS, power
from tessera.ir.tile.gpu.contraction import bare
from tessera.ir.tile.gpu.folds import tree
from tessera.ir.tile.gpu.terms import Line, Terms, parameters
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile
from tessera.ir.tile.launch import Threads

COLUMNS = 16  # rows of the matrix that a block takes: columns of what a matrix instruction makes
_SHORTEST, _LONGEST = 1024, 4096  # vectors; longer ones have too few blocks for their chains
_FEWEST = 1024  # rows of a matrix that is worth it
_MOST = 2 * MULTIPROCESSORS  # instances, each of which makes the vector once


@dataclass(frozen=True)
class Thin:
    """A product, and the stages that make its vector: one kernel, whose `before` first stages are those."""

    kernel: schedule.Kernel
    before: int

    @property
    def head(self) -> Stage:
        """The product."""
        return self.kernel.stages[self.before]


def is_thin(k: schedule.Kernel) -> bool:
    """Whether a kernel is a matrix times a vector of narrow floats, in whole blocks."""
    if not k.contracts or k.seen or len(k.stages[0].axes) != 2:
        return False
    head = k.stages[0]
    (m, n), (over,) = head.axes, head.reduced
    matrix, vector = (bare(t) for t in factors(head))
    if not isinstance(matrix, Read) or n.size != 1:
        return False
    rows, depth = int(m.size), int(over.size)
    return (
        matrix.dtype is vector.dtype
        and matrix.dtype in (bf16, f16)
        and matrix.index == (m.variable, over.variable)
        and all(_is_box(r, [over], None) for r in reads(vector))
        and rows % COLUMNS == 0 and rows >= _FEWEST
        and depth == power(depth) and _SHORTEST <= depth <= _LONGEST
        and all(s.axes == head.axes and s.combine is None for s in k.stages[1:])
    )  # fmt: skip


def makes_vectors(k: schedule.Kernel, n: int) -> bool:
    """Whether a kernel makes vectors of n numbers from vectors, and folds of them."""
    made = {s.name: s for s in k.stages}
    return not k.contracts and all(_is_vector(s, n, made) for s in k.stages)


def _is_vector(s: Stage, n: int, made: Mapping[str, Stage]) -> bool:
    long = [a for a in (*s.axes, *s.reduced) if a.size != 1]
    if len(long) > 1 or any(a.size != n for a in long) or s.dtype.bits < 16:
        return False
    if (s.combine is None) == bool(s.reduced) or (s.reduced and s.reduced[0] not in long):
        return False
    return all(_is_box(r, long, made.get(r.source)) for r in reads(s.term))


def _is_box(r: Read, long: list[schedule.Axis], source: Stage | None) -> bool:
    """Whether a read is of a number, or of neighbours along the axis; and of a stage where it stands."""
    if any(isinstance(x, Term) for x in r.index):
        return False
    moving = [x for x in r.index if long and long[0].name in symbols(x)]
    if len(moving) > 1 or any(long[0].name in symbols(x - long[0].variable) for x in moving):
        return False
    return source is None or all(x == long[0].variable for x in moving)


class Writer:
    """A thin product being written."""

    def __init__(self, t: Thin, types: Mapping[str, TensorType]):
        self.t, self.b = t, Builder("thin")
        k = t.kernel
        self.memory = parameters(self.b, k.inputs(), types)
        self.out = parameters(self.b, k.outputs, types, writable=True)
        (self.m, self.n), (self.over,) = t.head.axes, t.head.reduced
        self.matrix, self.vector = (bare(x) for x in factors(t.head))
        self.depth = int(self.over.size)
        self.values: dict[str, Tile] = {}
        self.loaded: dict[Any, Tile] = {}

    @property
    def blocks(self) -> int:
        """How many blocks the product has."""
        return int(self.m.size) // COLUMNS

    @property
    def step(self) -> int:
        """Numbers of k at once."""
        return 512 if self.depth >= 8192 else 256

    @property
    def threads(self) -> Threads:
        """What a ring of so many steps holds is fetched before all else."""
        return Threads(4, min(self.depth // self.step, 8 if self.step == 256 else 6), roles=True)

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
            acc = self.product(loop.variable * COLUMNS, shared)
            self.finish(acc, loop.variable * COLUMNS)
        return self.b.finish()

    def at(self, s: Stage) -> Terms:
        """Where a stage of vectors is computed: everywhere."""
        where = _Vectors(self)
        for a in (*s.axes, *s.reduced):
            if a.size == 1:
                where.env[a.name] = 0
            else:
                where.lines[a.name] = Line(1, 0, self.depth, self.depth)
        return where

    def stage(self, s: Stage) -> Tile:
        where = self.at(s)
        value = where.term(s.term)
        return value if s.combine is None else tree(self.b, s.combine, where.spread(value), 1)

    def share(self) -> Memory:
        """The vector, where all threads can read it."""
        where = _Vectors(self)
        where.env[self.n.name] = 0
        where.lines[self.over.name] = Line(1, 0, self.depth, self.depth)
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

    def product(self, m: Size, shared: Memory) -> Tile:
        assert isinstance(self.matrix, Read)
        memory = self.memory[self.matrix.source]
        acc = self.b.full(self.t.head.dtype, (1, COLUMNS), 0)
        with self.b.loop(0, self.depth, self.step, [acc]) as loop:
            part = self.b.load(shared, (loop.variable,), (self.step,))
            rows = self.b.load(memory, (m, loop.variable), (COLUMNS, self.step), (1, 0))
            left = self.b.reshape(part, (1, self.step))
            loop.carry(self.b.dot(left, rows, loop.carried[0]))
        return loop.results[0]

    def finish(self, acc: Tile, m: Size) -> None:
        """The stages that follow the product, and what is stored."""
        where = Terms(self.b, self.memory, self.values.get)
        where.env[self.n.name] = 0
        where.lines[self.m.name] = Line(1, m, COLUMNS, self.m.size)
        for s in self.t.kernel.stages[self.t.before :]:
            self.values[s.name] = acc if s is self.t.head else where.term(s.term)
            if s.name in self.out:
                where.store(self.out[s.name], [a.variable for a in s.axes], self.values[s.name])


class _Vectors(Terms):
    """Terms on whole vectors; what was loaded stays."""

    def __init__(self, w: Writer):
        super().__init__(w.b, w.memory, w.values.get)
        self.w = w

    def load(self, r: Read) -> Tile:
        key = (r.source, *((self.place(x), bool(self.moving(x))) for x in r.index))
        if key not in self.w.loaded:
            self.w.loaded[key] = super().load(r)
        return self.w.loaded[key]
