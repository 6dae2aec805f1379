"""spread: long folds as several launches, so that instances share a row.

    t[] = add over c<N of x[c]   ->   program b: parts[b] = lanes of leaves 64b to 64b + 63 of x
                                      program:   t = fold of the tree over parts

An instance folds a subtree of the tree of leaves, and a second launch joins the subtrees, so the order
is that of core/folds.py.  Passes over the columns run one after another, each in launches of its own;
what they hand on lies in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tessera.core.dims import Size, larger, smaller
from tessera.core.folds import LANES, LEAF
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Kernel, Stage, reads
from tessera.ir.schedule.nests.choose import default_nest
from tessera.ir.schedule.nests.nest import NestLoop
from tessera.ir.schedule.sweeps import by_pass, folds_lanes, shares_folds
from tessera.ir.tile.cpu.rows import Rows
from tessera.ir.tile.ir import Tile
from tessera.ir.tile.launch import Expansion, Launch


def spread_rows(kernel: Kernel, types: Mapping[str, TensorType]) -> Expansion | None:
    """The launches of a kernel whose folds are shared among instances; None for any other."""
    nest = kernel.nest or default_nest(kernel)
    if not shares_folds(kernel, nest):
        return None
    parts = by_pass(replace(kernel, nest=nest))
    made: list[Launch] = []
    between = {s.name: s.type for p in parts for s in p.stages if s.name in p.outputs}
    known = {**types, **between}
    for p in parts:
        if not _leaves_each(p):
            made.append(Launch(Rows(p, known).kernel(), tuple(p.inputs()), p.outputs))
            continue
        first = _Parts(p, known)
        between |= first.parts
        made += [first.launch(), _Rest(p, known, first).launch()]
    kept = {n: t for n, t in between.items() if n not in kernel.outputs}
    return Expansion(tuple(made), kept)


def _leaves_each(part: Kernel) -> int:
    """The leaves of a fold that an instance takes; 0 when the folds of a pass are not shared."""
    assert part.nest is not None
    folds = [s for s in part.stages if s.combine]
    if not folds:
        return 0
    axis = "c" if folds_lanes(folds[0], part.rows) else "k"
    return sum(part.nest.steps(axis, "parallel")) // LEAF


class _Parts(Rows):
    """The first launch of a pass: each instance folds a subtree of leaves."""

    alone = False

    def __init__(self, part: Kernel, types: Mapping[str, TensorType]):
        rows, folds = part.rows, [s for s in part.stages if s.combine]
        columns = tuple(s for s in part.stages if s.axes[rows:] or s.reduced)
        self.size = folds[0].reduced[0].size
        self.leaves_each = _leaves_each(part)
        self.shared = "c" if folds_lanes(folds[0], rows) else "k"
        self.parts = {part_name(s): self.part_type(s, rows) for s in folds}
        outputs = tuple(s.name for s in columns if not s.combine and s.name in part.outputs)
        super().__init__(replace(part, stages=columns, outputs=outputs), types)
        self.kept = {n: self.b.parameter(n, t, writable=True) for n, t in self.parts.items()}

    @property
    def blocks(self) -> Size:
        each = self.leaves_each * LEAF
        return larger((self.size + each - 1) // each, 1)

    def part_type(self, s: Stage, rows: int) -> TensorType:
        shape = s.type.shape
        return TensorType(s.dtype, (*shape[:rows], self.blocks, *(shape[rows:] or (LANES,))))

    def launch(self) -> Launch:
        made = self.kernel()
        return Launch(made, tuple(self.k.inputs()), (*self.k.outputs, *self.parts))

    def share(self, x: NestLoop) -> None:
        if x.kind == "parallel" and x.axis == self.shared:
            self.block = self.b.program(self.blocks)
        else:
            super().share(x)

    def leaf_range(self, count: Size) -> tuple[Size, Size, Size]:
        first = self.block * self.leaves_each
        return first, smaller(first + self.leaves_each, count), self.leaves_each

    def end_fold(self, s: Stage, lanes: Tile) -> None:
        self.put(s, lanes, 0, LANES, False)

    def end_chain(self, s: Stage, columns: Tile) -> None:
        self.put(s, columns, self.at, self.width, self.tail)

    def put(self, s: Stage, value: Tile, at: Size, width: int, tail: bool) -> None:
        rows = [self.env[a.name] for a in s.axes[: self.k.rows]]
        last = len(rows) + 1
        self.b.store(
            self.kept[part_name(s)], value, (*rows, self.block, at), (*(1 for _ in rows), 1, width),
            axes=(last,), masked=(last,) if tail else (),
        )  # fmt: skip


class _Rest(Rows):
    """The second launch: the tree over the subtrees, and what follows for a row."""

    def __init__(self, part: Kernel, types: Mapping[str, TensorType], first: _Parts):
        self.parts, self.blocks, rows = first.parts, first.blocks, part.rows
        stages = tuple(s for s in part.stages if s.combine or not s.axes[rows:])
        outputs = tuple(s.name for s in stages if s.name in part.outputs)
        plain = [s for s in stages if not s.combine]
        own = {s.name for s in stages}
        read = dict.fromkeys(r.source for s in plain for r in reads(s.term) if r.source not in own)
        self.reads = (*read, *self.parts)
        rest = replace(part, stages=stages, outputs=outputs)
        super().__init__(rest, {**types, **self.parts}, self.reads)

    def launch(self) -> Launch:
        return Launch(self.kernel(), self.reads, self.k.outputs)

    def do_pass(self, stages: Sequence[Stage]) -> None:
        for s in stages:
            if folds_lanes(s, self.k.rows):
                self.end_fold(s, self.joined(s, 0, LANES, False))
            elif s.combine is not None:
                self.columns_joined(s)
        super().do_pass([s for s in stages if s.combine is None])

    def columns_joined(self, s: Stage) -> None:
        first, stop = self.columns_of(s.axes[-1].size)
        for _ in self.pieces(first, stop):
            self.end_chain(s, self.joined(s, self.at, self.width, self.tail))

    def joined(self, s: Stage, at: Size, width: int, tail: bool) -> Tile:
        """The tree over the subtrees of a row, or of some columns of it."""
        rows = [self.env[a.name] for a in s.axes[: self.k.rows]]
        last = len(rows) + 1
        kept = self.b.alloc(s.dtype, (self.blocks, width))
        with self.b.loop(0, self.blocks) as block:
            part = self.b.load(
                self.memory[part_name(s)], (*rows, block.variable, at),
                (*(1 for _ in rows), 1, width), axes=(last,), masked=(last,) if tail else (),
            )  # fmt: skip
            self.keep(kept, part, block.variable)
        return self.join(s, kept, self.blocks, self.blocks, width)


def part_name(s: Stage) -> str:
    """The buffer that holds the subtrees of a fold."""
    return f"{s.name}_parts"
