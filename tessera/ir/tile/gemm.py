"""Contractions as Tile programs: packed factors, register blocks of the result.

    t[m, n] = add over k of a[m, k] * b[k, n]
->  program (rows, columns): pack a[rows, :]; for each panel of columns: pack b[:, panel];
    for m by MR: for k: acc = fma(a[m:m+MR, k], b[k, panel], acc)

The sum over k is one chain of fused multiply-adds in each leaf of 512, and leaves join as a tree, as
core/folds.py has it.  Stages that follow the contraction are computed on the block in registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tessera.core.dims import Size, smaller, substitute, symbols
from tessera.core.folds import LEAF, LEVELS
from tessera.core.types import TensorType
from tessera.ir.schedule import ir as schedule
from tessera.ir.schedule.ir import Axis, Read, Stage
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile


@dataclass(frozen=True)
class Blocks:
    """Sizes of a contraction's blocks."""

    m: int = 6  # rows of the register block
    n: int = 64  # columns of the register block, and of a packed panel
    rows: int = 216  # rows of the result that one instance computes
    columns: int = 512  # columns of the result that one instance computes
    narrow: int = 256  # the same when there is no second chunk of rows to share the work
    few: int = 4  # up to so many rows, the right factor is read where it lies
    wide: int = 256  # elements of the register block then

    def fitting(self, size: Size) -> Blocks:
        """These blocks, or lower and wider ones where they waste fewer of so many rows."""
        if (
            not isinstance(size, int)
            or size > self.rows
            or -(-size // self.m) * self.m <= 1.05 * size
        ):
            return self
        return replace(self, m=8, n=48)


DEFAULT = Blocks()


def lower_contraction(
    kernel: schedule.Kernel, types: Mapping[str, TensorType], blocks: Blocks
) -> Kernel:
    """The Tile program of a contraction and of the stages that follow it."""
    return _Contraction(kernel, types, blocks).kernel()


@dataclass(frozen=True)
class _Sources:
    """Where a register block finds its factors; None: where they lie in memory."""

    left: Memory | None
    panel: Size
    right: Memory | None


class _Contraction:
    def __init__(self, kernel: schedule.Kernel, types: Mapping[str, TensorType], blocks: Blocks):
        self.k, self.b = kernel, Builder("kernel")
        self.memory = {n: self.b.parameter(n, types[n]) for n in kernel.inputs()}
        self.out = {n: self.b.parameter(n, types[n], writable=True) for n in kernel.outputs}
        self.head = kernel.stages[0]
        self.m, self.n = self.head.axes[-2:]
        (self.over,) = self.head.reduced
        self.left, self.right = self.factors(self.head)
        blocks = blocks.fitting(self.m.size)
        few = isinstance(self.m.size, int) and self.m.size <= blocks.few
        self.packs = not (few and self.lies_along_n())
        self.mr = max(min(blocks.m, self.m.size) if isinstance(self.m.size, int) else blocks.m, 1)
        width = blocks.n if self.packs else blocks.wide // self.mr // 16 * 16
        if isinstance(self.n.size, int):
            width = min(width, -(-max(self.n.size, 1) // 16) * 16)
        self.nr, self.rows = width, max(blocks.rows // self.mr, 1) * self.mr
        one_chunk = isinstance(self.m.size, int) and self.m.size <= self.rows
        columns = blocks.narrow if one_chunk else blocks.columns
        self.columns = max(columns // width, 1) * width if self.packs else width
        self.env: dict[str, Size] = {}

    def factors(self, s: Stage) -> tuple[schedule.Term, schedule.Term]:
        """The factor that varies along m, and the one that varies along n."""
        assert isinstance(s.term, schedule.Apply)
        a, b = s.term.operands
        swapped = any(self.n.name in symbols(i) for i in _read(a).index) or any(
            self.m.name in symbols(i) for i in _read(b).index
        )
        return (b, a) if swapped else (a, b)

    def lies_along_n(self) -> bool:
        """Whether neighbours along n are neighbours in the memory of the right factor."""
        index = _read(self.right).index
        return bool(index) and self.n.name in symbols(index[-1])

    def kernel(self) -> Kernel:
        for a in self.head.axes[:-2]:
            self.env[a.name] = self.b.program(a.size)
        chunk = self.b.program((self.m.size + self.rows - 1) // self.rows)
        group = self.b.program((self.n.size + self.columns - 1) // self.columns)
        first, stop = self.span(chunk, self.rows, self.m.size)
        left = self.pack_left(first, stop) if self.packs else None
        start, end = self.span(group, self.columns, self.n.size)
        right = self.b.alloc(self.head.dtype, (self.over.size, self.nr)) if self.packs else None
        with self.b.loop(start, end, self.nr) as panel:
            if right is not None:
                self.pack_right(right, panel.variable)
            self.blocks(first, stop, panel.variable, left, right)
        return self.b.finish()

    def span(self, number: Size, step: int, size: Size) -> tuple[Size, Size]:
        """Where a chunk begins and ends."""
        if isinstance(size, int) and size <= step:
            return 0, size
        return number * step, smaller(number * step + step, size)

    def blocks(
        self, first: Size, stop: Size, n: Size, left: Memory | None, right: Memory | None
    ) -> None:
        """The register blocks of one panel: whole ones, then the masked rest."""
        for start, end, tail in self.parts(first, stop):
            with self.b.loop(start, end, self.mr) as rows:
                panel = (rows.variable - first) // self.mr
                self.block(rows.variable, n, _Sources(left, panel, right), tail)

    def parts(self, first: Size, stop: Size) -> list[tuple[Size, Size, bool]]:
        """The rows of whole register blocks, and the rest if there can be one."""
        whole = (stop - first) // self.mr * self.mr + first
        if isinstance(self.m.size, int) and self.m.size % self.mr == 0:
            return [(first, stop, False)]
        return [(first, whole, False), (whole, stop, True)]

    def pack_left(self, first: Size, stop: Size) -> Memory:
        """The rows of the left factor in scratch, block by block, in the order they are read."""
        count = self.rows // self.mr
        packed = self.b.alloc(self.head.dtype, (count, self.over.size, self.mr))
        for start, end, tail in self.parts(first, stop):
            with self.b.loop(start, end, self.mr) as rows:
                panel = (rows.variable - first) // self.mr
                with self.b.loop(0, self.over.size) as step:
                    self.env[self.over.name] = step.variable
                    a = self.load(self.left, self.m, rows.variable, self.mr, tail, vector=False)
                    place = (panel, step.variable, 0)
                    self.b.store(packed, a, place, (1, 1, self.mr), axes=(2, 1))
        return packed

    def pack_right(self, packed: Memory, at: Size) -> None:
        """A panel of the right factor in scratch, in the dtype that it is multiplied in."""
        with self.b.loop(0, self.over.size) as step:
            self.env[self.over.name] = step.variable
            row = self.load(self.right, self.n, at, self.nr, True, vector=True)
            self.b.store(packed, row, (step.variable, 0), (1, self.nr))

    def block(self, m: Size, n: Size, sources: _Sources, tail: bool) -> None:
        """One register block: every leaf of the sum, then the stages that follow."""
        size = self.over.size
        if isinstance(size, int) and size <= LEAF:
            total = self.leaf(m, n, sources, 0, size)
        else:
            total = self.leaves(m, n, sources)
        self.finish(total, m, n, tail)

    def leaf(self, m: Size, n: Size, sources: _Sources, start: Size, stop: Size) -> Tile:
        zero = self.b.full(self.head.dtype, (self.mr, self.nr), 0.0)
        with self.b.loop(start, stop, 1, [zero]) as step:
            k = step.variable
            self.env[self.over.name] = k
            if sources.left is None or sources.right is None:
                a = self.load(self.left, self.m, m, self.mr, False, vector=False)
                b = self.load(self.right, self.n, n, self.nr, True, vector=True)
            else:
                a = self.b.load(sources.left, (sources.panel, k, 0), (1, 1, self.mr), axes=(2, 1))
                b = self.b.load(sources.right, (k, 0), (1, self.nr))
            step.carry(self.b.apply("fma", a, b, step.carried[0]))
        return step.results[0]

    def leaves(self, m: Size, n: Size, sources: _Sources) -> Tile:
        size = self.over.size
        count = (size + LEAF - 1) // LEAF
        shape = (1, self.mr, self.nr)
        kept = self.b.alloc(self.head.dtype, (count, self.mr, self.nr))
        with self.b.loop(0, count) as leaf:
            start = leaf.variable * LEAF
            total = self.leaf(m, n, sources, start, smaller(start + LEAF, size))
            self.b.store(kept, total, (leaf.variable, 0, 0), shape, axes=(1, 2))
        levels = (count - 1).bit_length() if isinstance(count, int) else LEVELS
        for level in range(levels):
            step = 1 << level
            with self.b.loop(0, count - step, 2 * step) as pair, self.b.loop(0, self.mr) as row:
                i, r = pair.variable, row.variable
                low, high = (
                    self.b.load(kept, (at, r, 0), (1, 1, self.nr), axes=(1, 2))
                    for at in (i, i + step)
                )
                total = self.b.apply("add", low, high)
                self.b.store(kept, total, (i, r, 0), (1, 1, self.nr), axes=(1, 2))
        return self.b.load(kept, (0, 0, 0), shape, axes=(1, 2))

    def finish(self, total: Tile, m: Size, n: Size, tail: bool) -> None:
        """The stages on one block, and their stores."""
        if len(self.k.stages) == 1:
            self.store(self.head, total, m, n, self.mr, tail)
            return
        # Row by row: a long chain of operations on the whole block would not fit the registers.
        block = self.b.alloc(self.head.dtype, (self.mr, self.nr))
        self.b.store(block, total, (0, 0), (self.mr, self.nr))
        stop = smaller(self.m.size - m, self.mr) if tail else self.mr
        with self.b.loop(0, stop) as row:
            values = {self.head.name: self.b.load(block, (row.variable, 0), (1, self.nr))}
            for s in self.k.stages:
                if s is not self.head:
                    values[s.name] = self.spread(self.term(s.term, values, m + row.variable, n))
                self.store(s, values[s.name], m + row.variable, n, 1, False)

    def store(self, s: Stage, value: Tile, m: Size, n: Size, height: int, tail: bool) -> None:
        """A block of a stage in its output, if it has one."""
        if s.name in self.out:
            rows = [self.env[a.name] for a in s.axes[:-2]]
            last = len(rows)
            self.b.store(
                self.out[s.name], value, (*rows, m, n), (*(1 for _ in rows), height, self.nr),
                axes=(last, last + 1), masked=(last, last + 1) if tail else (last + 1,),
            )  # fmt: skip

    def spread(self, t: Tile) -> Tile:
        """A tile of a row of the block."""
        return t if t.shape == (1, self.nr) else self.b.broadcast(t, (1, self.nr))

    # Terms

    def term(self, t: schedule.Term, values: Mapping[str, Tile], m: Size, n: Size) -> Tile:
        """A term of a following stage on the row m of the block, from column n on."""
        match t:
            case schedule.Literal():
                return self.b.full(t.dtype, (1, 1), t.value)
            case schedule.Cast():
                return self.b.cast(self.term(t.operand, values, m, n), t.dtype)
            case schedule.Apply():
                inner = [self.term(o, values, m, n) for o in t.operands]
                return self.b.apply(t.scalar, *inner)
            case schedule.Position():
                along = self.n.name in symbols(t.value)
                at = self.place(t.value, {self.m.name: m, self.n.name: n})
                return self.b.index(at, (1, self.nr if along else 1), 1 if along else None)
            case schedule.Read():
                return values[t.source] if t.source in values else self.read(t, m, n)
        raise AssertionError(t)

    def place(self, x: Size, more: Mapping[str, Size]) -> Size:
        return substitute(x, {**self.env, **more})

    def read(self, r: Read, m: Size, n: Size) -> Tile:
        """A row of a tensor that a following stage reads."""
        at = [self.place(i, {self.m.name: m, self.n.name: n}) for i in r.index]
        along = [i for i, x in enumerate(r.index) if self.n.name in symbols(x)]
        extent = [self.nr if i in along else 1 for i in range(len(at))]
        line = self.b.load(self.memory[r.source], at, extent, axes=along, masked=along)
        return self.b.reshape(line, (1, self.nr if along else 1))

    def load(
        self, t: schedule.Term, axis: Axis, at: Size, width: int, masked: bool, vector: bool
    ) -> Tile:
        """A factor at one k: a row (1, width) when vector, else a column (width, 1)."""
        if isinstance(t, schedule.Cast):
            inner = self.load(t.operand, axis, at, width, masked, vector)
            return self.b.cast(inner, t.dtype)
        r = _read(t)
        place = [self.place(i, {axis.name: at}) for i in r.index]
        found = [i for i, x in enumerate(r.index) if axis.name in symbols(x)]
        if not found:  # an axis of one element
            value = self.b.load(self.memory[r.source], place, [1] * len(place), axes=())
            return self.b.broadcast(value, (1, width) if vector else (width, 1))
        (along,) = found
        extent = [width if i == along else 1 for i in range(len(place))]
        mask = (along,) if masked else ()
        line = self.b.load(self.memory[r.source], place, extent, axes=(along,), masked=mask)
        return self.b.reshape(line, (1, width) if vector else (width, 1))


def _read(t: schedule.Term) -> Read:
    while isinstance(t, schedule.Cast):
        t = t.operand
    assert isinstance(t, Read), t
    return t
