"""rows: a kernel of loop nests as a Tile program, row by row.

    t[r] = add over c of x[r, c]   ->   program r: for c by 16: acc += load(x, r, c); store(fold(acc))

Stages are grouped in passes: a pass is one loop over the columns that computes every stage whose
folds are ready.  The order of a fold is that of core/folds.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

from tessera.core.approximate import FUNCTIONS
from tessera.core.dims import (
    Dim,
    Size,
    larger,
    smaller,
    split_terms,
    substitute,
    symbols,
)
from tessera.core.dtype import bool_
from tessera.core.evaluate import identity
from tessera.core.folds import LANES, LEAF, LEVELS, WHOLE
from tessera.core.types import TensorType
from tessera.ir.schedule import ir as schedule
from tessera.ir.schedule.index import Wrap
from tessera.ir.schedule.ir import ANY, Stage, reads
from tessera.ir.schedule.nests.choose import default_nest
from tessera.ir.schedule.nests.nest import NestLoop
from tessera.ir.schedule.sweeps import has_columns_alone, passes
from tessera.ir.tile.cpu.positions import ColumnLine, counts_along, moves_by_one
from tessera.ir.tile.cpu.wraps import Stretch, cut_at_ends, side_of, wrap_along
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile

_ANY_ORDER = ("max", "min")  # folds that give the same bits in any order
_ABREAST = 4 * LANES  # columns that are folded at once
_LINES = 16  # rows of a strip
_CHEAP = 8  # scalar ops of a pass that waits for memory rather than for arithmetic


def is_cheap(stages: Sequence[Stage]) -> bool:
    """Whether a pass consists of folds that wait for memory."""
    terms = [t for s in stages for t in schedule.walk(s.term)]
    applied = [t.scalar for t in terms if isinstance(t, schedule.Apply)]
    return (
        all(s.combine for s in stages)
        and len(applied) <= _CHEAP
        and not FUNCTIONS.keys() & set(applied)
    )


class Rows:
    """A kernel being written: an instance computes a row of it, or the rows that its nest says."""

    alone = True  # whether an instance folds a whole row

    def __init__(
        self,
        kernel: schedule.Kernel,
        types: Mapping[str, TensorType],
        inputs: Sequence[str] | None = None,
        builder: Builder | None = None,
    ):
        self.k, self.b = kernel, builder or Builder("kernel")
        self.stages = {s.name: s for s in kernel.stages}
        self.memory: dict[str, Memory] = {}
        for name in kernel.inputs() if inputs is None else inputs:
            self.memory[name] = self.b.parameter(name, types[name])
        outputs = kernel.outputs if builder is None else ()
        self.out = {n: self.b.parameter(n, types[n], writable=True) for n in outputs}
        self.nest = kernel.nest or default_nest(kernel)
        self.loose = self.alone and kernel.order == ANY
        self.leaf = WHOLE if self.loose else LEAF
        widths = self.nest.steps("c", "serial") or [LANES]
        self.chain_width, self.chunk_width = widths[0], widths[-1]
        self.side_by_side = sum(self.nest.steps("l")) or 1  # leaves that a fold reads at once
        self.env: dict[str, Size] = {}
        self.levels = passes(kernel)
        self.row: dict[str, Tile] = {}  # stages that are one number a row
        self.column: dict[str, Tile] = {}  # stages of this pass, at the chunk being computed
        self.at: Size = 0  # first column of that chunk
        self.width, self.tail = LANES, False
        self.span: tuple[Size, Size] | None = None  # columns of this instance; None: all
        self.stretch: Stretch = (0, None)  # what the chunk being computed lies in

    def kernel(self) -> Kernel:
        rows = {f"r{i}": a for i, a in enumerate(self.k.stages[0].axes[: self.k.rows])}
        for name, a in rows.items():
            if not self.nest.steps(name):
                self.env[a.name] = self.b.program(a.size)
        spans: dict[str, tuple[Size, Size]] = {}
        with ExitStack() as inside:
            for x in self.nest.loops:
                if x.axis not in rows:
                    self.share(x)
                    continue
                a = rows[x.axis]
                if x.kind == "parallel" and x.step == 1:
                    self.env[a.name] = self.b.program(a.size)
                elif x.kind == "parallel":
                    start = self.b.program((a.size + x.step - 1) // x.step) * x.step
                    spans[x.axis] = (start, smaller(start + x.step, a.size))
                elif x.kind == "unroll":
                    self.take(spans[x.axis][0], self.nest.steps(x.axis)[0])
                elif a.name not in self.env:
                    loop = self.b.loop(*spans.get(x.axis, (0, a.size)))
                    self.env[a.name] = inside.enter_context(loop).variable
            self.allocate()
            self.do_passes()
        return self.b.finish()

    def take(self, first: Size, height: int) -> None:
        """Begin with so many rows, which go through passes together."""
        raise AssertionError(f"{self.k.name}: {height} rows go together by abreast.py alone")

    def share(self, x: NestLoop) -> None:
        """A loop over columns or over what is folded for each of them, if instances share it."""
        if x.kind == "parallel" and x.axis == "c":
            self.share_columns(x.step)

    def do_passes(self) -> None:
        """Pass after pass over the columns."""
        for level in range(max(self.levels.values()) + 1):
            self.do_pass([s for s in self.k.stages if self.levels[s.name] == level])

    # Passes

    def columns(self, s: Stage) -> tuple[schedule.Axis, ...]:
        """The axes of a stage beyond the rows: none or one, and a reduced one."""
        return s.axes[self.k.rows :] + s.reduced

    def share_columns(self, block: int) -> None:
        """Instances share the columns, unless a fold runs over them."""
        if not has_columns_alone(self.k):
            return
        size = self.k.stages[0].axes[-1].size
        if isinstance(size, int) and size <= block:
            return
        start = self.b.program((size + block - 1) // block) * block
        self.span = (start, smaller(start + block, size))

    def columns_of(self, size: Size) -> tuple[Size, Size]:
        """The columns that this instance computes, of so many."""
        return (0, size) if self.span is None else self.span

    def allocate(self) -> None:
        """Scratch for columns that a later pass reads."""
        for s in self.k.stages:
            later = any(
                self.levels[t.name] > self.levels[s.name] and r.source == s.name
                for t in self.k.stages
                for r in reads(t.term)
            )
            if later and self.k.rows < len(s.axes):
                self.memory[s.name] = self.b.alloc(s.dtype, (s.axes[-1].size,))

    def do_pass(self, stages: Sequence[Stage]) -> None:
        scalars = [s for s in stages if not self.columns(s)]
        for s in scalars:
            self.row[s.name] = self.term(s.term, None)
            self.store_row(s)
        chains = [s for s in stages if s.combine and self.k.rows < len(s.axes)]
        for s in chains:
            self.chain(s)
        rest = [s for s in stages if self.columns(s) and s not in chains]
        for size in dict.fromkeys(self.columns(s)[0].size for s in rest):
            self.column_loop([s for s in rest if self.columns(s)[0].size == size], size)

    def column_loop(self, stages: Sequence[Stage], size: Size) -> None:
        folds = self.folds(stages)
        if not folds:
            self.chunks(stages, *self.columns_of(size), self.chunk_width, [])
            return
        one_leaf = isinstance(size, int) and size <= LEAF
        if self.in_any_order(stages, folds, size):
            width = LANES * self.side_by_side  # so that a step need not wait for the one before it
            accs = self.chunks(stages, 0, size, width, [self.identity(s, width) for s in folds])
        elif one_leaf:
            accs = self.chunks(stages, 0, size, LANES, [self.identity(s, LANES) for s in folds])
        else:
            accs = self.leaves(stages, folds, size)
        self.end_folds(folds, accs)

    def folds(self, stages: Sequence[Stage]) -> list[Stage]:
        """What a loop over columns carries: the folds of a pass."""
        return [s for s in stages if s.combine]

    def end_folds(self, folds: Sequence[Stage], accs: Sequence[Tile]) -> None:
        """What becomes of the lanes that a loop over columns has carried."""
        for s, acc in zip(folds, accs, strict=True):
            self.end_fold(s, acc)

    def in_any_order(self, stages: Sequence[Stage], folds: Sequence[Stage], size: Size) -> bool:
        """Whether a fold runs over all columns at once: its bits allow it, and it waits for no memory."""
        if self.alone and all(s.combine in _ANY_ORDER for s in folds):
            return True
        long = not isinstance(size, int) or size > self.side_by_side * LEAF
        return self.loose and not (long and is_cheap(stages))

    def end_fold(self, s: Stage, lanes: Tile) -> None:
        """What becomes of the lanes of a row: they are folded."""
        assert s.combine is not None
        self.row[s.name] = self.b.fold(s.combine, lanes, 0)
        self.store_row(s)

    def identity(self, s: Stage, width: int) -> Tile:
        assert s.combine is not None
        return self.b.full(s.dtype, (width,), identity(s.combine, s.dtype))

    def chunks(
        self, stages: Sequence[Stage], start: Size, stop: Size, width: int, accs: Sequence[Tile]
    ) -> Sequence[Tile]:
        """Whole chunks, then the masked rest."""
        self.width = width
        whole = (stop - start) // width * width + start
        for low, high in self.stretches(stages, start, width):
            first = larger(start, low) if low else start
            last = whole if high is None else smaller(whole, high)
            self.stretch = low, high
            with self.b.loop(first, last, width, accs) as main:
                main.carry(*self.chunk(stages, main.variable, stop, False, main.carried))
            accs = main.results
        self.stretch = 0, None
        if whole == stop:
            return accs
        with self.b.loop(whole, stop, width, accs) as rest:
            rest.carry(*self.chunk(stages, rest.variable, stop, True, rest.carried))
        return rest.results

    def chunk(
        self, stages: Sequence[Stage], at: Dim, stop: Size, tail: bool, accs: Sequence[Tile]
    ) -> list[Tile]:
        self.at, self.tail, self.column = at, tail, {}
        left, out = list(accs), []
        for s in stages:
            (axis,) = self.columns(s)
            value = self.spread(self.term(s.term, axis.name))
            if s.combine is None:
                self.column[s.name] = value
                self.store_column(s, value)
                continue
            if tail:
                position = self.b.index(at, (self.width,), 0)
                inside = self.b.apply("lt", position, self.b.index(stop, (1,)))
                value = self.b.apply("where", inside, value, self.identity(s, 1))
            out.append(self.b.apply(s.combine, left.pop(0), value))
        return out

    def spread(self, t: Tile) -> Tile:
        """A tile of the chunk's width."""
        if t.shape == (self.width,):
            return t
        if t.dtype is bool_:
            return self.b.apply("or", t, self.b.full(bool_, (self.width,), False))
        zero = self.b.index(0, (self.width,))
        yes = self.b.apply("eq", zero, self.b.index(0, (1,)))
        return self.b.apply("where", yes, t, t)

    def leaf_range(self, count: Size) -> tuple[Size, Size, Size]:
        """The first leaf that this instance folds, the one after the last, and how many at most."""
        return 0, count, count

    def leaves(self, stages: Sequence[Stage], folds: Sequence[Stage], size: Size) -> list[Tile]:
        """Folds of more than one leaf: each leaf by itself, then the leaves as a tree."""
        # N - 1 may be 0: the one leaf of no elements is then the identity.
        first, last, room = self.leaf_range(larger((size + LEAF - 1) // LEAF, 1))
        kept = [self.b.alloc(s.dtype, (room, LANES)) for s in folds]
        streamed = self.side_by_side > 1 and is_cheap(stages)
        begin = self.streams(folds, kept, first, last, size) if streamed else first
        with self.b.loop(begin, last) as leaf:
            start = leaf.variable * LEAF
            stop = smaller(start + LEAF, size)
            accs = self.chunks(stages, start, stop, LANES, [self.identity(s, LANES) for s in folds])
            for m, acc in zip(kept, accs, strict=True):
                self.keep(m, acc, leaf.variable - first)
        count = last - first
        return [self.join(s, m, count, room, LANES) for s, m in zip(folds, kept, strict=True)]

    def keep(self, m: Memory, acc: Tile, at: Size, column: Size = 0) -> None:
        """Put lanes or columns of a leaf in their place."""
        self.b.store(m, acc, (at, column), (1, *acc.shape), axes=(1,))

    def leaf_kept(self, m: Memory, at: Size, width: int, column: Size = 0) -> Tile:
        """Lanes or columns of a leaf."""
        return self.b.load(m, (at, column), (1, width), axes=(1,))

    def streams(
        self, folds: Sequence[Stage], kept: Sequence[Memory], first: Size, last: Size, size: Size
    ) -> Size:
        """Whole leaves, several far ones side by side; the first leaf that is left."""
        self.width = LANES
        apart = (smaller(last, size // LEAF) - first) // self.side_by_side
        with self.b.loop(0, apart) as leaf:
            numbers = [leaf.variable + i * apart for i in range(self.side_by_side)]
            begin = [self.identity(s, LANES) for s in folds] * self.side_by_side
            with self.b.loop(0, LEAF, LANES, begin) as chunk:
                accs: list[Tile] = []
                for i, n in enumerate(numbers):
                    at = (first + n) * LEAF + chunk.variable
                    own = chunk.carried[i * len(folds) : (i + 1) * len(folds)]
                    accs += self.chunk(folds, at, 0, False, own)
                chunk.carry(*accs)
            for i, acc in enumerate(chunk.results):
                self.keep(kept[i % len(folds)], acc, numbers[i // len(folds)])
        return first + apart * self.side_by_side

    def join(
        self, s: Stage, m: Memory, count: Size, room: Size, width: int, column: Size = 0
    ) -> Tile:
        """The leaves as a tree: neighbours first."""
        assert s.combine is not None
        levels = (room - 1).bit_length() if isinstance(room, int) else LEVELS
        for level in range(levels):
            step = 1 << level
            with self.b.loop(0, larger(count - step, 0), 2 * step) as pair:
                i = pair.variable
                low, high = (self.leaf_kept(m, at, width, column) for at in (i, i + step))
                self.keep(m, self.b.apply(s.combine, low, high), i, column)
        return self.leaf_kept(m, 0, width, column)

    def chain(self, s: Stage) -> None:
        """A fold over an axis that is not the last: a chain for each column, block by block of them."""
        over = s.reduced[0]
        leaves = self.leaf_range(larger((over.size + self.leaf - 1) // self.leaf, 1))
        size = s.axes[-1].size
        first, stop = self.columns_of(size)
        with self.b.loop(first, stop, self.chain_width) as block:
            end: Size = block.variable + self.chain_width
            if not isinstance(size, int) or size % self.chain_width:
                end = smaller(end, stop)
            self.chain_block(s, over, leaves, block.variable, end)

    def chain_block(
        self, s: Stage, over: schedule.Axis, leaves: tuple[Size, Size, Size], low: Dim, high: Size
    ) -> None:
        """Columns that are folded line by line of a strip: memory sends several long runs at once."""
        first, last, room = leaves
        assert s.combine is not None
        kept = self.b.alloc(s.dtype, (room, self.chain_width))
        with self.b.loop(first, last) as leaf:
            own, begin = leaf.variable - first, leaf.variable * self.leaf
            end = smaller(begin + self.leaf, over.size)
            for at in self.pieces(low, high):
                self.keep(kept, self.identity(s, self.width), own, at)
            with self.b.loop(begin, end, _LINES) as strip:
                below = smaller(strip.variable + _LINES, end)
                for at in self.pieces(low, high):
                    acc = self.leaf_kept(kept, own, self.width, at)
                    with self.b.loop(strip.variable, below, 1, [acc]) as line:
                        self.env[over.name] = line.variable
                        value = self.spread(self.term(s.term, s.axes[-1].name))
                        line.carry(self.b.apply(s.combine, line.carried[0], value))
                    self.keep(kept, line.results[0], own, at)
        for at in self.pieces(low, high):
            self.end_chain(s, self.join(s, kept, last - first, room, self.width, at))

    def pieces(self, low: Size, high: Size) -> Iterator[Size]:
        """Columns of a block: several vectors at once, then vectors, then masked; where each begins in it."""
        start = low
        for width, tail in (
            (min(_ABREAST, self.chain_width), False),
            (LANES, False),
            (LANES, True),
        ):
            stop = high if tail else (high - low) // width * width + low
            if start != stop:
                with self.b.loop(start, stop, width) as columns:
                    self.at, self.width, self.tail = columns.variable, width, tail
                    yield columns.variable - low
            start = stop

    def end_chain(self, s: Stage, columns: Tile) -> None:
        """What becomes of folded columns: they are stored."""
        self.store_column(s, columns)

    # Stores

    def store_row(self, s: Stage) -> None:
        if s.name in self.out:
            at = [self.env[a.name] for a in s.axes]
            value = self.b.reshape(self.row[s.name], ())
            self.b.store(self.out[s.name], value, at, (1,) * len(at), axes=())

    def store_column(self, s: Stage, value: Tile) -> None:
        if s.name in self.memory:
            self.b.store(
                self.memory[s.name], value, (self.at,), (self.width,),
                masked=(0,) if self.tail else (),
            )  # fmt: skip
        if s.name in self.out:
            rows = [self.env[a.name] for a in s.axes[:-1]]
            last = len(rows)
            self.b.store(
                self.out[s.name], value, (*rows, self.at), (*(1 for _ in rows), self.width),
                axes=(last,), masked=(last,) if self.tail else (),
            )  # fmt: skip

    # Terms

    def term(self, t: schedule.Term, column: str | None) -> Tile:
        """The tile of a term at the chunk being computed, or one number when it has no column."""
        match t:
            case schedule.Literal():
                return self.b.full(t.dtype, (1,), t.value)
            case schedule.Position():
                return self.position(t.value, column)
            case schedule.Cast():
                return self.b.cast(self.term(t.operand, column), t.dtype)
            case schedule.Apply():
                return self.b.apply(t.scalar, *(self.term(o, column) for o in t.operands))
            case schedule.Read():
                return self.read(t, column)
        raise AssertionError(t)

    def place(self, x: Size, column: str | None) -> Size:
        """A position in terms of grid and loop variables."""
        env = dict(self.env)
        if column is not None:
            env[column] = self.at
        return substitute(x, env)

    def position(self, x: Size, column: str | None) -> Tile:
        at = self.place(x, column)
        if column is None or column not in symbols(x):
            return self.b.index(at, (1,))
        if not moves_by_one(x, column):
            return self.numbers(x, column)
        return self.b.index(at, (self.width,), 0)

    def read(self, r: schedule.Read, column: str | None) -> Tile:
        if r.source in self.row:
            return self.row[r.source]
        if r.source in self.column:
            return self.column[r.source]
        memory = self.memory[r.source]
        if r.source in self.stages:  # a column of this row, kept from an earlier pass
            return self.b.load(memory, (self.at,), (self.width,), masked=(0,) if self.tail else ())
        wrap = None if column is None else wrap_along(r, self.axis_of(column))
        if wrap is not None:
            return self.wrapped(r, *wrap)
        picked, along = self.places(r, memory, column)
        at = [0 if i in picked else self.place(x, column) for i, x in enumerate(r.index)]
        extent = [self.width if i in along else 1 for i in range(len(at))]
        masked = along if self.tail else []
        if picked:
            return self.b.gather(memory, picked, at, extent, along, masked)
        if not along:
            return self.b.reshape(self.b.load(memory, at, extent, axes=()), (1,))
        return self.b.load(memory, at, extent, axes=along, masked=masked)

    def stretches(self, stages: Sequence[Stage], start: Size, width: int) -> list[Stretch]:
        """The columns cut where reads go around an end; all of them together if none does."""
        if split_terms(start, width)[1] != 0:
            return [(0, None)]
        size = self.columns(stages[0])[0].size
        found = [wrap_along(r, self.columns(s)[0]) for s in stages for r in reads(s.term)]
        return cut_at_ends([w for _, w in filter(None, found)], size, width)

    def wrapped(self, r: schedule.Read, axis: int, wrap: Wrap) -> Tile:
        """A chunk of an axis that goes around an end; one that may lie at both is chosen by place."""
        memory = self.memory[r.source]
        at = [0 if i == axis else self.place(x, None) for i, x in enumerate(r.index)]
        extent = [self.width if i == axis else 1 for i in range(len(at))]
        before, size, after = (self.place(x, None) for x in wrap[1:])
        first = self.at + before
        side = side_of(wrap, self.stretch)
        if side is not None and not self.tail:
            at[axis] = first + after - (size if side else 0)
            return self.b.load(memory, at, extent, axes=[axis])
        parts = []
        for begin in (first, first - size):
            at[axis] = begin + after
            parts.append(self.b.load(memory, at, extent, axes=[axis], masked=[axis]))
        place = self.b.index(first, (self.width,), 0)
        near = self.b.apply("lt", place, self.b.index(size, (1,)))
        return self.b.apply("where", near, *parts)

    def axis_of(self, column: str) -> schedule.Axis:
        """The axis that columns of a name go along."""
        axes = (a for s in self.k.stages for a in (*s.axes, *s.reduced))
        return next(a for a in axes if a.name == column)

    def places(
        self, r: schedule.Read, memory: Memory, column: str | None
    ) -> tuple[dict[int, Tile], list[int]]:
        """Axes that a tile of numbers picks, and the axis that runs along with the columns, if any."""
        picked: dict[int, Tile] = {}
        along: list[int] = []
        for i, x in enumerate(r.index):
            if isinstance(x, schedule.Term):
                picked[i] = self.term(x, column)
                if column is not None and counts_along(x, column):
                    picked[i] = self.clamped(picked[i], memory.type.shape[i])
            elif column is None or column not in symbols(x):
                continue
            elif not along and moves_by_one(x, column):
                along.append(i)
            else:
                picked[i] = self.clamped(self.numbers(x, column), memory.type.shape[i])
        return picked, along

    def clamped(self, x: Tile, size: Size) -> Tile:
        """Numbers that lie inside an axis also where a chunk reaches past the last column."""
        return self.line("").clamped(x, size) if self.tail else x

    def numbers(self, x: Size, column: str) -> Tile:
        """The values of a polynomial at the columns of the chunk."""
        return self.line(column).numbers(x)

    def line(self, column: str) -> ColumnLine:
        return ColumnLine(self.b, column, self.at, self.width, self.env)
