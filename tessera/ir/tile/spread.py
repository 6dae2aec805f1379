"""spread: few and long rows as several launches, so that instances share a row.

    t[] = add over c<N of x[c]   ->   program b: parts[b] = lanes of leaves 64b to 64b + 63 of x
                                      program:   t = fold of the tree over parts

An instance folds a subtree of the tree of leaves, and a second launch joins the subtrees, so the order
is that of core/folds.py.  Passes over the columns run one after another, each in launches of its own;
what they hand on lies in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.core.dims import Size, smaller
from tessera.core.folds import LANES, LEAF
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Kernel as Nest
from tessera.ir.schedule.ir import Stage, reads
from tessera.ir.tile.ir import Tile
from tessera.ir.tile.launch import Expansion, Launch
from tessera.ir.tile.rows import Rows, has_few_rows, passes

_LANE_LEAVES = 64  # of a subtree: 32768 elements of a row
_CHAIN_LEAVES = 4  # the same for columns: 2048 elements of each
_MOST_COLUMNS = 2048  # more of them are work enough for all threads


def spread_rows(kernel: Nest, types: Mapping[str, TensorType]) -> Expansion | None:
    """The launches of a kernel whose folds are long and whose rows are few; None for any other."""
    folds = [s for s in kernel.stages if s.combine]
    if not (has_few_rows(kernel) and any(_is_long(s, kernel.rows) for s in folds)):
        return None
    parts = _by_pass(kernel)
    if not all(map(_is_uniform, parts)):
        return None
    made: list[Launch] = []
    between = {s.name: s.type for p in parts for s in p.stages if s.name in p.outputs}
    known = {**types, **between}
    for p in parts:
        if not any(_is_long(s, p.rows) for s in p.stages):
            made.append(Launch(Rows(p, known).kernel(), tuple(p.inputs()), p.outputs))
            continue
        first = _Parts(p, known)
        between |= first.parts
        made += [first.launch(), _Rest(p, known, first).launch()]
    kept = {n: t for n, t in between.items() if n not in kernel.outputs}
    return Expansion(tuple(made), kept)


def _is_lanes(s: Stage, rows: int) -> bool:
    return s.combine is not None and len(s.axes) == rows


def _is_long(s: Stage, rows: int) -> bool:
    """Whether a fold has more than one subtree, or may have."""
    if s.combine is None:
        return False
    if _is_lanes(s, rows):
        return _is_over(s.reduced[0].size, 2 * _LANE_LEAVES * LEAF)
    columns = s.axes[-1].size
    few = isinstance(columns, int) and columns <= _MOST_COLUMNS
    return few and _is_over(s.reduced[0].size, 2 * _CHAIN_LEAVES * LEAF)


def _is_over(size: Size, limit: int) -> bool:
    return not isinstance(size, int) or size >= limit


def _by_pass(kernel: Nest) -> list[Nest]:
    """A kernel for each pass over the columns, with the numbers of a row that follow from it."""
    levels, rows = passes(kernel), kernel.rows
    groups: dict[int, list[Stage]] = {}
    for s in kernel.stages:
        plain = not s.axes[rows:] and not s.reduced
        groups.setdefault(levels[s.name] - plain, []).append(s)
    parts = []
    for level in sorted(groups):
        later = {r.source for n in groups if n > level for s in groups[n] for r in reads(s.term)}
        wanted = {*later, *kernel.outputs}
        outputs = tuple(s.name for s in groups[level] if s.name in wanted)
        parts.append(Nest(kernel.name, rows, tuple(groups[level]), outputs))
    return parts


def _is_uniform(part: Nest) -> bool:
    """Whether what a pass folds is of one length and in one order, so that instances can share it."""
    folds = [s for s in part.stages if s.combine]
    orders = {_is_lanes(s, part.rows) for s in folds}
    if not orders:
        return True
    if orders == {False}:
        plain = len(folds) == len(part.stages)
        return plain and len({(s.axes[-1].size, s.reduced[0].size) for s in folds}) == 1
    columns = {(*s.axes[part.rows :], *s.reduced)[0].size for s in part.stages
               if s.axes[part.rows :] or s.reduced}  # fmt: skip
    return len(orders) == 1 and len(columns) == 1


class _Parts(Rows):
    """The first launch of a pass: each instance folds a subtree of leaves."""

    def __init__(self, part: Nest, types: Mapping[str, TensorType]):
        rows, folds = part.rows, [s for s in part.stages if s.combine]
        columns = tuple(s for s in part.stages if s.axes[rows:] or s.reduced)
        self.size = folds[0].reduced[0].size
        self.leaves_each = _LANE_LEAVES if _is_lanes(folds[0], rows) else _CHAIN_LEAVES
        self.parts = {part_name(s): self.part_type(s, rows) for s in folds}
        outputs = tuple(s.name for s in columns if not s.combine and s.name in part.outputs)
        super().__init__(Nest(part.name, rows, columns, outputs), types)
        self.kept = {n: self.b.parameter(n, t, writable=True) for n, t in self.parts.items()}

    @property
    def blocks(self) -> Size:
        each = self.leaves_each * LEAF
        return (self.size + each - 1) // each

    def part_type(self, s: Stage, rows: int) -> TensorType:
        shape = s.type.shape
        return TensorType(s.dtype, (*shape[:rows], self.blocks, *(shape[rows:] or (LANES,))))

    def launch(self) -> Launch:
        made = self.kernel()
        return Launch(made, tuple(self.k.inputs()), (*self.k.outputs, *self.parts))

    def split_columns(self) -> None:
        super().split_columns()
        self.block = self.b.program(self.blocks)

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

    def __init__(self, part: Nest, types: Mapping[str, TensorType], first: _Parts):
        self.parts, self.blocks, rows = first.parts, first.blocks, part.rows
        stages = tuple(s for s in part.stages if s.combine or not s.axes[rows:])
        outputs = tuple(s.name for s in stages if s.name in part.outputs)
        plain = [s for s in stages if not s.combine]
        own = {s.name for s in stages}
        read = dict.fromkeys(r.source for s in plain for r in reads(s.term) if r.source not in own)
        self.reads = (*read, *self.parts)
        super().__init__(
            Nest(part.name, rows, stages, outputs), {**types, **self.parts}, self.reads
        )

    def launch(self) -> Launch:
        return Launch(self.kernel(), self.reads, self.k.outputs)

    def do_pass(self, stages: Sequence[Stage]) -> None:
        for s in stages:
            if _is_lanes(s, self.k.rows):
                self.end_fold(s, self.joined(s, 0, LANES, False))
            elif s.combine is not None:
                self.columns_joined(s)
        super().do_pass([s for s in stages if s.combine is None])

    def columns_joined(self, s: Stage) -> None:
        for start, stop, width, tail in self.spans(s.axes[-1].size):
            with self.b.loop(start, stop, width) as columns:
                self.at, self.width, self.tail = columns.variable, width, tail
                self.end_chain(s, self.joined(s, self.at, width, tail))

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
        return self.join(s, kept, self.blocks, self.blocks)


def part_name(s: Stage) -> str:
    """The buffer that holds the subtrees of a fold."""
    return f"{s.name}_parts"
