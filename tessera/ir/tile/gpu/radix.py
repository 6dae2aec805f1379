"""radix: long lines of a tensor sorted by four bits of their elements at a time, the lowest first.

    y = sort(x[r, :])   ->   words = the bits of x[r, i] in the order of its dtype; below them, i or x[r, i]
                             for every four bits:
                               counts[digit, block] = how many words of a block have the digit
                               begins[digit, block] = sum of the counts before it, by digit and then by block
                               a word goes to begins[digit, block] + the words of its block before it that
                               have its digit

A word goes behind all that came before it with the same digit, so the order is stable.  Every pass takes the
same bits of a word and leaves the others moved down by four, so that passes share their code.

A thread has eight neighbours.  Its sixteen counts are the half-bytes of one number of 64 bits; four numbers
with fields of 16 bits, which hold the counts of every fourth digit, are summed over the threads.  Words are
written by neighbours in the order in which they came, since those with one digit then lie beside each other.

A line of one block needs no counts in memory: the sums of its threads are those of the line.  In a line whose
places are numbers of 16 bits every block sums the counts of all blocks for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tessera.core.dims import Size
from tessera.core.dtype import DType, bool_, i32, i64
from tessera.core.types import TensorType
from tessera.ir.schedule.gpu_blocks import power
from tessera.ir.tile.gpu.sorted_lines import SortedLines
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile
from tessera.ir.tile.launch import Expansion, Launch, Threads

BLOCK = 1024  # words of a block, of which at most 2^15 have counts of 16 bits
EACH = 8  # words of a thread: their counts have four bits
DIGIT = 4  # bits of a pass
VALUES = 1 << DIGIT  # of a digit
_FIELD = 16  # bits of a count of a block
_GROUPS = 4  # numbers that hold the counts of a block: of every fourth digit
_MASK = 0x000F_000F_000F_000F  # every fourth half-byte
SUMMED = 4096  # counts that are summed at a time
SHORT = 1 << 15  # words of a line, of which each block sums the counts


class Words(NamedTuple):
    """One word of each thread: what is left of the key, what it stands for, and whether it is in the line."""

    key: Tile
    load: Tile
    inside: Tile | None


class Ranks(NamedTuple):
    """The digit of each word, and how many of the words of its thread before it have the same."""

    digit: Tile
    before: Tile


class Radix(SortedLines):
    """The launches that sort the lines of a tensor."""

    def __init__(
        self, x: TensorType, axis: int, down: bool, wanted: Mapping[str, int],
        number: DType = i64, bits: int | None = None,
    ):  # fmt: skip
        """`wanted` says how many of the values, the indices or both are written; indices are of the dtype
        `number`.  Of whole numbers from 0 below 2^bits only these bits are looked at.
        """
        super().__init__(x, axis, down)
        self.wanted, self.number = wanted, number
        self.lines = self.outer * self.inner
        self.block = max(min(BLOCK, power(self.n)), EACH)
        self.blocks = -(-self.n // self.block)
        self.short = self.n <= SHORT or self.blocks == 1
        self.signed = bits is None and x.dtype is not bool_
        self.width = bits or (1 if x.dtype is bool_ else x.dtype.bits)
        self.count = -(-self.width // DIGIT)
        self.numbered = (
            "indices" in wanted or x.dtype.bits == 64
        )  # a word says where it was, not what
        narrow = not self.numbered and x.dtype.bits <= 16
        self.word = i32 if narrow else i64
        self.half = self.word.bits // 2  # of a word that has both
        self.parts = 2 if x.dtype.bits == 64 else 1
        self.threads = Threads(max(self.block // (32 * EACH), 1))

    def expansion(self, x: str, outs: Mapping[str, str]) -> Expansion:
        """The launches, and the words between them."""
        name = next(iter(outs.values()))
        kinds = [self.word, i32][: self.parts]
        places = [tuple(f"{name}_words{i}_{k}" for k in range(self.parts)) for i in (0, 1)]
        counts, begins = f"{name}_counts", f"{name}_begins"
        between: dict[str, TensorType] = {}
        if self.blocks > 1:
            rows = TensorType(i32, (self.lines, VALUES * self.blocks))
            between |= {counts: rows} if self.short else {counts: rows, begins: rows}
        launches: list[Launch] = []
        kernels: dict[tuple[bool, bool], Kernel] = {}
        countings: dict[bool, Kernel] = {}
        sums = self.summed() if self.blocks > 1 and not self.short else None
        for i in range(self.count):
            first, last = i == 0, i == self.count - 1
            source = (x,) if first else places[i % 2]
            between |= {} if first else dict(zip(source, self.types(kinds), strict=True))
            known: tuple[str, ...] = ()  # what blocks know of each other
            if self.blocks > 1:
                if first not in countings:
                    countings[first] = self.counted(first)
                launches.append(Launch(countings[first], source, (counts,), self.threads))
                known = (counts,)
            if sums is not None:
                threads = Threads(max(self.step // 512, 1))
                launches.append(Launch(sums, known, (begins,), threads))
                known = (begins,)
            if (first, last) not in kernels:
                kernels[first, last] = self.moved(first, last)
            again = (x,) if last and not first and self.read_again else ()
            target = tuple(outs.values()) if last else places[1 - i % 2]
            moved = Launch(kernels[first, last], (*again, *source, *known), target, self.threads)
            launches.append(moved)
        return Expansion(tuple(launches), between)

    def types(self, kinds: list[DType]) -> list[TensorType]:
        return [TensorType(d, (self.lines, self.n)) for d in kinds]

    @property
    def read_again(self) -> bool:
        """Whether values are read where the words say."""
        return self.numbered and "values" in self.wanted

    # Words

    def given_words(self, b: Builder, writable: bool = False) -> list[Memory]:
        name = "made" if writable else "words"
        kinds = self.types([self.word, i32][: self.parts])
        return [b.parameter(f"{name}{i}", t, writable) for i, t in enumerate(kinds)]

    def places(self, b: Builder, at: Size, apart: int = 1) -> list[Tile]:
        """Where the words of each thread lie in a line, so far apart: neighbours, or every so many."""
        thread = b.index(0, (self.holders,), 0)
        if apart == 1:
            thread = b.apply("mul", thread, b.full(i64, (1,), EACH))
        return [b.apply("add", thread, b.index(at + apart * j, (1,))) for j in range(EACH)]

    @property
    def holders(self) -> int:
        """Threads that have words."""
        return self.block // EACH

    def inside(self, b: Builder, place: Tile) -> Tile | None:
        if self.n % self.block == 0:
            return None
        return b.apply("lt", place, b.full(i64, (1,), self.n))

    def first_word(self, b: Builder, x: Memory, line: tuple[Size, Size, Size], at: Tile) -> Words:
        """Words of the elements of a line."""
        one = (1,)
        raw = b.gather(x, {1: at}, line, (1, 1, 1), (), (1,))
        key = self.ordered(b, raw)
        if self.parts == 2:
            key = b.apply("xor", key, b.full(i64, one, -(1 << 63)))
            return Words(key, b.cast(at, i32), self.inside(b, at))
        key = b.cast(key, self.word)
        if self.signed:
            key = b.apply("add", key, b.full(self.word, one, 1 << self.width - 1))
        else:
            key = b.apply("and", key, b.full(self.word, one, (1 << self.width) - 1))
        key = b.apply("shift_left", key, b.full(self.word, one, self.half))
        load = at if self.numbered else b.cast(raw, self.word)
        low = b.full(self.word, one, (1 << self.half) - 1)
        word = b.apply("or", key, b.apply("and", load, low))
        return Words(word, word, self.inside(b, at))

    def read_words(
        self, b: Builder, words: list[Memory], line: Size, places: list[Tile]
    ) -> list[Words]:
        """Words of a pass before."""
        out = []
        for p in places:
            found = [b.gather(m, {1: p}, (line, 0), (1, 1), (), (1,)) for m in words]
            out.append(Words(found[0], found[-1], self.inside(b, p)))
        return out

    def left(self, b: Builder, w: Words) -> list[Tile]:
        """Words without the digit."""
        key = b.apply("shift_right", w.key, b.full(self.word, (1,), DIGIT))
        if self.parts == 2:
            return [key, w.load]
        low = (1 << self.half) - 1
        high = b.apply("and", key, b.full(self.word, (1,), ~low))
        return [b.apply("or", high, b.apply("and", w.load, b.full(self.word, (1,), low)))]

    # Counts

    def ranked(self, b: Builder, words: list[Words]) -> tuple[list[Ranks], list[Tile]]:
        """The digits of the words, and the counts of each thread, of every fourth digit each."""
        total, out, one = b.full(i64, (1,), 0), [], (1,)
        for w in words:
            digit = w.key
            if self.parts == 1:
                digit = b.apply("shift_right", digit, b.full(self.word, one, self.half))
            digit = b.cast(b.apply("and", digit, b.full(self.word, one, VALUES - 1)), i64)
            shift = b.apply("mul", digit, b.full(i64, one, DIGIT))
            before = b.apply("and", b.apply("shift_right", total, shift), b.full(i64, one, 15))
            added = b.apply("shift_left", b.full(i64, one, 1), shift)
            if w.inside is not None:
                added = b.apply("where", w.inside, added, b.full(i64, one, 0))
            out.append(Ranks(digit, before))
            total = b.apply("add", total, added)
        counts = []
        for g in range(_GROUPS):
            # A count of eight is the sign of the last half-byte; the mask drops what that fills in.
            moved = b.apply("shift_right", total, b.full(i64, one, DIGIT * g))
            counts.append(b.apply("and", moved, b.full(i64, one, _MASK)))
        return out, counts

    def by_digit(self, b: Builder, sums: list[Tile]) -> Tile:
        """The counts of a block, by digit."""
        digit = b.index(0, (VALUES,), 0)
        group = b.apply("and", digit, b.full(i64, (1,), _GROUPS - 1))
        return b.cast(self.field(b, sums, group, digit), i32)

    def field(self, b: Builder, sums: list[Tile], group: Tile, digit: Tile) -> Tile:
        """The count of each digit."""
        found = sums[0]
        for g in range(1, _GROUPS):
            here = b.apply("eq", group, b.full(i64, (1,), g))
            found = b.apply("where", here, sums[g], found)
        high = b.apply("shift_right", digit, b.full(i64, (1,), _GROUPS.bit_length() - 1))
        shift = b.apply("mul", high, b.full(i64, (1,), _FIELD))
        mask = b.full(i64, (1,), (1 << _FIELD) - 1)
        return b.apply("and", b.apply("shift_right", found, shift), mask)

    def counted(self, first: bool) -> Kernel:
        """How many words of each block have which digit."""
        b = Builder("radix_count")
        x = self.given(b) if first else None
        words = [] if first else self.given_words(b)
        kind = TensorType(i32, (self.lines, VALUES, self.blocks))
        counts = b.parameter("counts", kind, writable=True)
        o, c, block = b.program(self.outer), b.program(self.inner), b.program(self.blocks)
        line, at = o * self.inner + c, block * self.block
        places = self.places(b, at, apart=self.holders)
        found = (
            [self.first_word(b, x, (o, 0, c), p) for p in places]
            if x
            else self.read_words(b, words, line, places)
        )
        sums = [b.fold("add", t, 0) for t in self.ranked(b, found)[1]]
        b.store(counts, self.by_digit(b, sums), (line, 0, block), (1, VALUES, 1), (1,))
        return b.finish()

    def summed(self) -> Kernel:
        """Where the words of each digit of each block begin: a digit is a program."""
        b, n = Builder("radix_begins"), self.blocks
        kind = TensorType(i32, (self.lines, VALUES * n))
        counts, begins = b.parameter("counts", kind), b.parameter("begins", kind, writable=True)
        line, digit = b.program(self.lines), b.program(VALUES)
        step, nothing = self.step, b.full(i32, (1,), 0)
        with b.loop(0, digit * n, step, [nothing]) as loop:
            found = self.counts_below(b, counts, line, loop.variable, digit * n)
            loop.carry(b.apply("add", loop.carried[0], b.fold("add", found, 0)))
        end = digit * n + n
        with b.loop(digit * n, end, step, [loop.results[0]]) as loop:
            found = self.counts_below(b, counts, line, loop.variable, end)
            upto = b.apply("add", b.scan("add", found, 0), loop.carried[0])
            place = b.index(loop.variable, (step,), 0)
            inside = b.apply("lt", place, b.index(end, (1,)))
            place = b.apply("where", inside, place, b.full(i64, (1,), VALUES * n))
            before = b.apply("sub", upto, found)
            b.scatter(begins, before, {1: place}, (line, 0), (1, 1), (), (1,), distinct=True)
            loop.carry(b.apply("add", loop.carried[0], b.fold("add", found, 0)))
        return b.finish()

    @property
    def step(self) -> int:
        """Counts that are summed at a time."""
        return min(power(self.blocks), SUMMED)

    def counts_below(self, b: Builder, counts: Memory, line: Size, at: Size, end: Size) -> Tile:
        """Counts from a place on, and nothing from another one on."""
        place = b.index(at, (self.step,), 0)
        inside = b.apply("lt", place, b.index(end, (1,)))
        found = b.gather(counts, {1: place}, (line, 0), (1, 1), (), (1,))
        return b.apply("where", inside, found, b.full(i32, (1,), 0))

    # Passes

    def moved(self, first: bool, last: bool) -> Kernel:
        """Each word in its place by the digit; what it stands for in the last pass."""
        b = Builder("radix_last" if last else "radix_move")
        x = self.given(b) if first or (last and self.read_again) else None
        words = [] if first else self.given_words(b)
        known = None
        if self.blocks > 1:
            kind = TensorType(i32, (self.lines, VALUES, self.blocks))
            known = b.parameter("counts" if self.short else "begins", kind)
        outs = self.made(b, self.wanted, self.number) if last else {}
        made = [] if last else self.given_words(b, True)
        o, c, block = b.program(self.outer), b.program(self.inner), b.program(self.blocks)
        line, places = o * self.inner + c, self.places(b, block * self.block)
        if first:
            assert x is not None
            found = [self.first_word(b, x, (o, 0, c), p) for p in places]
        else:
            found = self.read_words(b, words, line, places)
        target = self.in_order(b, self.targets(b, found, known, line, block))
        if not last:
            for m, *tiles in zip(made, *(self.left(b, w) for w in found), strict=True):
                value = self.in_order(b, tiles)
                b.scatter(m, value, {1: target}, (line, 0), (1, 1), (), (1,), distinct=True)
            return b.finish()
        load = b.cast(self.in_order(b, [w.load for w in found]), i64)
        if self.parts == 1:
            load = b.apply("and", load, b.full(i64, (1,), (1 << self.half) - 1))
        for name, m in outs.items():
            value = b.cast(load, m.type.dtype)
            if name == "values" and self.numbered:
                assert x is not None
                value = b.gather(x, {1: load}, (o, 0, c), (1, 1, 1), (), (1,))
            b.scatter(m, value, {1: target}, (o, 0, c), (1, 1, 1), (), (1,), distinct=True)
        return b.finish()

    def in_order(self, b: Builder, tiles: list[Tile]) -> Tile:
        """The words of all threads in the order in which they came."""
        column = b.index(0, (1, EACH), 1)
        rows = [b.reshape(t, (self.holders, 1)) for t in tiles]
        out = b.broadcast(rows[0], (self.holders, EACH))
        for j in range(1, EACH):
            here = b.apply("eq", column, b.full(i64, (1, 1), j))
            out = b.apply("where", here, rows[j], out)
        return b.reshape(out, (self.block,))

    def targets(
        self, b: Builder, words: list[Words], known: Memory | None, line: Size, block: Size
    ) -> list[Tile]:
        """Where each word goes; behind the line for what is none."""
        ranks, counts = self.ranked(b, words)
        before = [b.apply("sub", b.scan("add", t, 0), t) for t in counts]
        if self.short:
            if known is None:
                start = self.starts(b, self.by_digit(b, [b.fold("add", t, 0) for t in counts]))
            else:
                start = self.starts_among(b, known, line, block)
            fields = self.in_fields(b, b.cast(start, i64))
            before = [b.apply("add", t, f) for t, f in zip(before, fields, strict=True)]
        out = []
        for w, r in zip(words, ranks, strict=True):
            group = b.apply("and", r.digit, b.full(i64, (1,), _GROUPS - 1))
            place = b.apply("add", r.before, self.field(b, before, group, r.digit))
            if not self.short:
                assert known is not None
                begin = b.gather(known, {1: r.digit}, (line, 0, block), (1, 1, 1), (), (1,))
                place = b.apply("add", place, b.cast(begin, i64))
            if w.inside is not None:
                place = b.apply("where", w.inside, place, b.full(i64, (1,), self.n))
            out.append(place)
        return out

    def starts(self, b: Builder, counts: Tile) -> Tile:
        """Where each digit of a line begins."""
        return b.apply("sub", b.scan("add", counts, 0), counts)

    def starts_among(self, b: Builder, counts: Memory, line: Size, block: Size) -> Tile:
        """Where each digit of a block begins, by the counts of all blocks."""
        n = power(self.blocks)
        masked = (2,) if self.blocks % n else ()
        found = b.load(counts, (line, 0, 0), (1, VALUES, n), (1, 2), masked)
        earlier = b.apply("lt", b.index(0, (1, n), 1), b.index(block, (1, 1)))
        mine = b.apply("where", earlier, found, b.full(i32, (1, 1), 0))
        total, above = (b.reshape(b.fold("add", t, 1), (VALUES,)) for t in (found, mine))
        return b.apply("add", self.starts(b, total), above)

    def in_fields(self, b: Builder, start: Tile) -> list[Tile]:
        """Numbers of each digit in fields as counts are."""
        digit = b.index(0, (VALUES,), 0)
        group = b.apply("and", digit, b.full(i64, (1,), _GROUPS - 1))
        high = b.apply("shift_right", digit, b.full(i64, (1,), _GROUPS.bit_length() - 1))
        field = b.apply("shift_left", start, b.apply("mul", high, b.full(i64, (1,), _FIELD)))
        out = []
        for g in range(_GROUPS):
            mine = b.apply("eq", group, b.full(i64, (1,), g))
            out.append(b.fold("add", b.apply("where", mine, field, b.full(i64, (1,), 0)), 0))
        return out
