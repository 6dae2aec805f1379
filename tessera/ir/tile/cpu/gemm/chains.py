"""The chain of a block of a contraction: its products added up in ascending k, some of them in every turn
of a loop.

    for k: acc = fma(a[m:m+6, k], b[k, n:n+64], acc)
->  for row: for turn: ask for a piece of a row; acc = fma(...) for 8 k

A loop of hundreds of turns ends with a jump that the processor does not foresee, and each turn has some work
of its own: 8 k a turn are faster by a twentieth than single ones.  A processor has few places for lines
that are on their way, so each turn asks for a piece of what the block will be written to and read with, and
of the rows that the next block begins with.  Where the other hardware thread of a core works too, every
instruction of a turn counts: with a loop for each row of pieces their places are an addition, else shifts,
a minimum and a product.
"""

from __future__ import annotations

from dataclasses import replace

from tessera.core.dims import Size, smaller, symbols
from tessera.ir.schedule import ir as schedule
from tessera.ir.schedule.factors import read_of
from tessera.ir.schedule.ir import Axis, Read, Stage
from tessera.ir.tile.cpu.gemm import prefetch
from tessera.ir.tile.cpu.gemm.nest_cursor import NestCursor, PointRange
from tessera.ir.tile.cpu.gemm.reading import Reading
from tessera.ir.tile.ir import Memory, Tile

_AHEAD = 8  # rows of a factor that are asked for before they are read
_BYTES_AHEAD = 2048  # the same in bytes, if that is more
_FAR = 96  # the same for those that come to the second cache
_TURN = 8  # k of a turn
_MANY = 1024  # bytes of sums in registers: fewer leave no room for what such a turn reads ahead


class Chains(Reading):
    """What adds up the products of blocks."""

    k: schedule.Kernel
    out: dict[str, Memory]
    head: Stage
    n: Axis
    left: schedule.Term
    right: schedule.Term
    high: int
    leaf: int
    nr: int

    def chain(self, at: NestCursor, first: Tile, height: int) -> Tile:
        """The products of a block added to what it begins with, in ascending k."""
        begin = [first]
        if self.parts.biased:
            begin.append(self.b.full(self.head.dtype, (1, self.nr), 0))
        groups, each = self.groups(at.k), self.words_of_turn(at, height)
        sums = self.turns(at, groups // each, height, begin)
        rest = groups % each
        if not isinstance(rest, int) or rest:
            with self.b.loop(groups - rest, groups, 1, sums) as one:
                one.carry(*self.add_products(at, one.variable, height, list(one.carried)))
            sums = list(one.results)
        return self.b.apply("sub", *sums) if self.parts.biased else sums[0]

    def turns(self, at: NestCursor, count: Size, height: int, begin: list[Tile]) -> list[Tile]:
        """So many turns that ask for the pieces of a block: a loop for each row, or one for all.

        Blocks whose turns are single words are few: a second loop would take longer to compile than it saves.
        """
        each = self.words_of_turn(at, height)
        known = [n // each for n in self.lengths(at)]
        across = prefetch.turns_of_row(height, self.nr, known)
        if across == 1 or each <= self.period:
            least = min(known, default=self.groups(PointRange(0, at.k.most, 0)) // each)
            pieces = prefetch.pieces(height, self.nr, least)
            with self.b.loop(0, count, 1, begin) as turn:
                self.ask(at, pieces.of_turn(turn.variable))
                turn.carry(*self.add_turn(at, turn.variable, height, list(turn.carried)))
            return list(turn.results)
        wide = self.nr // across
        with self.b.loop(0, count // across, 1, begin) as row:
            line = smaller(row.variable, height - 1)
            with self.b.loop(0, across, 1, list(row.carried)) as turn:
                piece = prefetch.BlockPart(line, turn.variable * wide, 1, wide)
                self.ask(at, piece)
                self.ask_next(at, piece, height)
                number = row.variable * across + turn.variable
                turn.carry(*self.add_turn(at, number, height, list(turn.carried)))
            row.carry(*turn.results)
        return list(row.results)

    def lengths(self, at: NestCursor) -> list[int]:
        """How many words the k of a place may have, if that is known: those of a leaf, or of the last one."""
        count, size, kept = self.groups(at.k), self.over.size, at.leaves
        if isinstance(count, int):
            return [count]
        if kept is None or kept.begun or self.k.seen or not isinstance(size, int):
            return []
        ends = [k for k in (self.leaf, size % self.leaf) if k]
        return [n for k in ends if isinstance(n := self.groups(PointRange(0, k, k)), int)]

    def add_turn(self, at: NestCursor, turn: Size, height: int, sums: list[Tile]) -> list[Tile]:
        """The products of the words of a turn added to sums."""
        each = self.words_of_turn(at, height)
        for i in range(each):
            sums = self.add_products(at, turn * each + i, height, sums)
        return sums

    def words_of_turn(self, at: NestCursor, height: int) -> int:
        """How many words of k a turn of the loop takes: many of what is packed, in the usual blocks."""
        most = self.groups(PointRange(0, at.k.most, 0))
        short = isinstance(most, int) and most < _TURN
        packed = at.right is not None and at.right.filled
        many = height * self.nr * self.head.dtype.bits >= 8 * _MANY
        if packed and many and height == self.high and not short:
            return _TURN
        return 1 if packed else self.period

    def add_products(self, at: NestCursor, word: Size, height: int, sums: list[Tile]) -> list[Tile]:
        """The products of one word of k added to sums."""
        k = word * self.parts.count + at.k.start
        a = self.left_column(at, at.m.start, k, height)
        b = self.right_row(at, at.n.start, k)
        made = [self.multiply_add(a, b, sums[0])]
        if self.parts.biased:
            bias = self.parts.bias(self.b, self.head.dtype)
            made.append(self.multiply_add(bias, b, sums[1]))
        return made

    def ask(self, at: NestCursor, piece: prefetch.BlockPart) -> None:
        """Ask for a piece of what a block is finished with.

        Before the last leaf that is always one of the first row: a jump would cost more.
        """
        kept = at.leaves
        if kept is not None and not kept.joined:
            return
        env = {**self.env, self.m.name: at.m.start, self.n.name: at.n.start}
        piece = piece if kept is None else replace(piece, row=piece.row * kept.last)
        for x in prefetch.asks(self.k, self.memory, self.out, env):
            x.piece(self.b, piece, far=True)

    def ask_next(self, at: NestCursor, piece: prefetch.BlockPart, height: int) -> None:
        """Ask for a piece of the rows of the left factor that the next block begins with.

        Where they go on the processor foresees itself, but not that other rows follow.
        """
        right, r = at.right, read_of(self.left)
        if right is None or not right.filled or height < self.high or at.left is not None:
            return
        if r.index[-1:] == (self.over.variable,):
            m, k = at.m.start + height + piece.row, right.k + piece.column
            place = self.places(r, self.m, m, k)
            extent = (*(1 for _ in place[1:]), piece.columns)
            self.b.prefetch(self.memory[r.source], place, extent, far=True)

    def groups(self, k: PointRange) -> Size:
        """How many words of factors along k there are."""
        count = self.parts.count
        return (k.stop - k.start + count - 1) // count

    def multiply_add(self, a: Tile, b: Tile, total: Tile) -> Tile:
        if self.parts.count > 1:
            return self.b.dot_parts(a, b, total, self.parts.count)
        if self.head.dtype.kind == "f":
            return self.b.apply("fma", a, b, total)
        return self.b.apply("add", total, self.b.apply("mul", a, b))

    def left_column(self, at: NestCursor, m: Size, k: Size, height: int) -> Tile:
        p = at.left
        if p is None:
            return self.words(self.left, self.m, m, height, k, False, vector=False)
        block, inside = (m - p.first) // p.width, (m - p.first) % p.width
        whole = height == p.width
        place = (block, (k - p.k) // self.parts.count, 0 if whole else inside)
        return self.b.load(p.memory, place, (1, 1, height), axes=(2, 1))

    def right_row(self, at: NestCursor, n: Size, k: Size) -> Tile:
        p = at.right
        if p is None:
            if self.begins(k):
                self.ask_for(self.right, self.n, n, k, rows=self.ahead(read_of(self.right)))
            return self.words(self.right, self.n, n, self.nr, k, True, vector=True)
        place = ((n - p.first) // p.width, (k - p.k) // self.parts.count, 0)
        if p.filled:
            return self.b.load(p.memory, place, (1, 1, self.nr), axes=(1, 2))
        self.ask_for(self.right, self.n, n, k, far=True)
        row = self.words(self.right, self.n, n, self.nr, k, False, vector=True)
        self.b.store(p.memory, row, place, (1, 1, self.nr), axes=(1, 2))
        return row

    def ask_for(
        self, t: schedule.Term, axis: Axis, at: Size, k: Size, width: int | None = None,
        far: bool = False, rows: int = _AHEAD,
    ) -> None:  # fmt: skip
        """Have a later row of a factor come while this one is used."""
        r = read_of(t)
        if r.index and axis.name in symbols(r.index[-1]):
            place = self.places(r, axis, at, k + (_FAR if far else rows))
            extent = [(width or self.nr) if axis.name in symbols(x) else 1 for x in r.index]
            self.b.prefetch(self.memory[r.source], place, extent, far=far)

    def begins(self, k: Size) -> bool:
        """Whether k may be the first of those that share an element."""
        rest = k % self.period
        return not isinstance(rest, int) or rest == 0

    def ahead(self, r: Read) -> int:
        """How far ahead of its use a row of a factor is asked for: rows, or bytes where they are short."""
        columns = self.memory[r.source].type.shape[-1]
        if not isinstance(columns, int) or not columns:
            return _AHEAD
        return max(_AHEAD, _BYTES_AHEAD * 8 // (columns * r.dtype.bits) * self.period)
