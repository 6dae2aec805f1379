"""sort: lines of a tensor sorted by a bitonic network in registers; longer ones digit by digit (radix.py).

    y = sort(x[r, :])   ->   words = number of x[r, i] in the order of its dtype, and i below it
                             runs of words, each sorted by a block
                             y[r, :] = x[r, words & low]

A word orders the bits of an element as a whole number, and i tells equal elements apart, so that the order
is stable.  Elements of 64 bits have their index beside them.

A network merges a run that ascends and one that descends.  Here the second holds inverted words, so that
every comparison is the same: the smaller first.

Most comparisons are of words that are near each other in the order that is made.  A word says where its
element was, so a tile may hold the line in any order: place t of it is place (t % lanes) * held + t // lanes
of the order, and threads, which have every lanes-th word of the tile, have `held` neighbours of the order.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tessera.core.dims import Size
from tessera.core.dtype import i64
from tessera.core.types import TensorType
from tessera.ir.schedule.gpu_blocks import power, warps_for
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.gpu.radix import Radix
from tessera.ir.tile.gpu.sorted_lines import SortedLines, is_sortable
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile
from tessera.ir.tile.launch import Expansion, Launch, Threads

_BLOCK = 1024  # words that a block sorts, of several lines
_LONGEST = 2048  # words of a line that a block sorts: longer ones are sorted by digits
_FEW = 1 << 15  # words of all lines that are few
_FEWEST = 32  # words of a block, a warp
_LOW = (1 << 32) - 1  # the low word

Words = list[Tile]  # elements to be ordered: one tile, or the elements and their indices


def sort(wanted: str, step: Primitive, types: Mapping[str, TensorType]) -> Expansion | None:
    """The launches; `wanted` says whether values, indices or both are written."""
    x, p = types[step.operands[0]], step.params
    if not is_sortable(x, p["axis"]):
        return None
    down = bool(p.get("descending", p.get("largest")))
    made = Sort(x, p["axis"], down)
    outs = dict(zip(wanted.split(), step.results, strict=True))
    counts = {n: int(types[y].shape[p["axis"]]) for n, y in outs.items()}
    if made.size <= _LONGEST:
        return Expansion((Launch(made.small(counts), step.operands, step.results, made.threads),))
    return Radix(x, p["axis"], down, counts).expansion(step.operands[0], outs)


class Sort(SortedLines):
    """The kernels of a sort in registers."""

    def __init__(self, x: TensorType, axis: int, down: bool):
        super().__init__(x, axis, down)
        self.size = power(self.n)
        self.parts = 2 if x.dtype.bits == 64 else 1
        lines = self.outer if self.inner == 1 else self.inner
        self.rows = max(min(_BLOCK // self.size, power(lines)), 1)
        while self.rows > 1 and self.rows * self.size > _FEWEST and lines < 2 * self.rows:
            self.rows //= 2
        # Words of one thread are compared without an exchange, and those of a warp without a barrier: of 1024
        # words a warp takes a fifth less instructions than four.  Few lines have more threads for each.
        few = self.size * self.outer * self.inner <= _FEW
        self.threads = Threads(warps_for((4 if few else self.parts) * self.rows * self.size))
        self.held = 1  # neighbours of the order in a thread

    @property
    def vector(self) -> int | None:
        """How many words are accessed at once: one, if those of a thread are no neighbours in the tile."""
        return 1 if self.held > 1 else None

    # Lines

    def lines(self, b: Builder) -> tuple[Size, Size]:
        """The first line of an instance that takes some of them."""
        rows = self.rows
        if self.inner == 1:
            return b.program(-(-self.outer // rows)) * rows, 0
        return b.program(self.outer), b.program(-(-self.inner // rows)) * rows

    def box(self, rows: int, n: int) -> tuple[tuple[int, int, int], tuple[int, int]]:
        """The extent of some lines of some elements, and the axes that make rows of them."""
        return ((rows, n, 1), (0, 1)) if self.inner == 1 else ((1, n, rows), (2, 1))

    # Words

    def words(self, b: Builder, raw: Tile, at: Size) -> Words:
        """The elements of lines from a place on, as what is compared."""
        place = b.index(at, (1, raw.shape[1]), 1)
        key = self.ordered(b, raw)
        inside = b.apply("lt", place, b.full(i64, (1, 1), self.n))
        last = b.full(i64, (1, 1), (1 << 63) - 1)
        if self.parts == 2:
            return [b.apply("where", inside, key, last), b.broadcast(place, raw.shape)]
        high = b.apply("mul", b.cast(key, i64), b.full(i64, (1, 1), 1 << 32))
        return [b.apply("where", inside, b.apply("or", high, place), last)]

    def place(self, b: Builder, words: Words) -> Tile:
        """The index that a word has; out of the line for what fills it up."""
        if self.parts == 2:
            return words[1]
        return b.apply("and", words[0], b.full(i64, (1, 1), _LOW))

    def unpack(
        self, b: Builder, words: Words, x: Memory, outs: Mapping[str, Memory],
        line: tuple[Size, Size], at: Size,
    ) -> None:  # fmt: skip
        """Write lines from a place on, and read the values that belong there."""
        rows, n = words[0].shape
        extent, axes = self.box(rows, n)
        place, start = self.place(b, words), (line[0], at, line[1])
        for name, m in outs.items():
            value = place
            if name == "values":
                first = b.index(line[0], (rows, 1), 0 if self.inner == 1 else None)
                second = b.index(line[1], (rows, 1), None if self.inner == 1 else 0)
                picked = {0: first, 1: place, 2: second}
                value = b.gather(x, picked, (0, 0, 0), (1, 1, 1), (), (0, 1, 2))
            b.store(m, value, start, extent, axes, (axes[0], 1), self.vector)

    # The network in registers

    def sorted(self, b: Builder, words: Words, run: Size, last: int) -> Words:
        """Lines whose runs of so many words are sorted, the odd ones as inverted words."""
        for k in _powers(2, last):
            words = self.merged(b, self.turned(b, words, k, run * (words[0].shape[1] // k)), k)
        return words

    def turned(self, b: Builder, words: Words, k: int, first: Size) -> Words:
        """Words inverted where a run of k is the second of two and its half is the first, or the other
        way round.
        """
        rows, n = words[0].shape
        if self.held > 1:
            return self.turned_apart(b, words, k)
        odd = b.apply("and", b.index(first, (1, n // k, 1, 1), 1), b.full(i64, (1, 1, 1, 1), 1))
        if k > 2:
            odd = b.apply("xor", odd, b.index(0, (1, 1, 2, 1), 2))
        mask = b.apply("neg", odd)
        shape = (rows, n // k, 2, k // 2)
        return [b.reshape(b.apply("xor", b.reshape(w, shape), mask), (rows, n)) for w in words]

    def turned_apart(self, b: Builder, words: Words, k: int) -> Words:
        """The same where threads hold neighbours of the order: by the place in it of each word of a line."""
        (_, n), one = words[0].shape, (1, 1)
        lanes = n // self.held
        tile = b.index(0, (1, n), 1)
        lane = b.apply("and", tile, b.full(i64, one, lanes - 1))
        held = b.apply("shift_right", tile, b.full(i64, one, lanes.bit_length() - 1))
        place = b.apply("add", b.apply("mul", lane, b.full(i64, one, self.held)), held)

        def bit(size: int) -> Tile:
            moved = b.apply("shift_right", place, b.full(i64, one, size.bit_length() - 1))
            return b.apply("and", moved, b.full(i64, one, 1))

        odd = b.apply("xor", bit(k), bit(k // 2)) if k > 2 else bit(k)
        mask = b.apply("neg", odd)
        return [b.apply("xor", w, mask) for w in words]

    def in_line(self, b: Builder, words: Words) -> Words:
        """Words in the order that was made."""
        if self.held == 1:
            return words
        _, n = words[0].shape
        tables = (b.reshape(w, (self.held, n // self.held)) for w in words)
        return [b.reshape(b.transpose(t), (1, n)) for t in tables]

    def merged(self, b: Builder, words: Words, k: int) -> Words:
        """Runs of k words sorted whose halves ascend and descend."""
        for stride in reversed(_powers(1, k // 2)):
            words = self.compared(b, words, stride)
        return words

    def compared(self, b: Builder, words: Words, stride: int) -> Words:
        """Of two words so far apart the smaller one first.

        Both are fetched at once, as what they differ in: a fold of each kind, of the smaller and of the
        larger, would exchange them twice.
        """
        rows, n = words[0].shape
        if self.held > 1:  # so far apart in the order
            stride = stride * (n // self.held) if stride < self.held else stride // self.held
        shape = (rows, n // (2 * stride), 2, stride)
        mine = [b.reshape(w, shape) for w in words]
        other = [b.apply("xor", w, b.fold("xor", w, 2)) for w in mine]
        first = b.apply("eq", b.index(0, (1, 1, 2, 1), 2), b.full(i64, (1, 1, 1, 1), 0))
        stays = b.apply("eq", self.precedes(b, mine, other), first)
        return [
            b.reshape(b.apply("where", stays, w, o), (rows, n))
            for w, o in zip(mine, other, strict=True)
        ]

    def precedes(self, b: Builder, words: Words, others: Words) -> Tile:
        """Whether words come before others; of equal elements the one with the smaller index."""
        before = b.apply("lt", words[0], others[0])
        if self.parts == 1:
            return before
        same = b.apply("eq", words[0], others[0])
        earlier = b.apply("lt", words[1], others[1])
        return b.apply("logical_or", before, b.apply("logical_and", same, earlier))

    def extreme(self, b: Builder, words: Words, f: str) -> Words:
        """The smaller, or larger, of each pair along the third axis; of equal ones by their index."""
        key = b.fold(f, words[0], 2)
        if self.parts == 1:
            return [key]
        none = b.full(i64, (1, 1, 1, 1), (1 << 63) - 1 if f == "min" else -(1 << 63))
        mine = b.apply("where", b.apply("eq", words[0], key), words[1], none)
        return [key, b.fold(f, mine, 2)]

    # Kernels

    def small(self, counts: Mapping[str, int]) -> Kernel:
        """Whole lines in a block."""
        b = Builder("sort_lines")
        x, outs = self.given(b), self.made(b, counts)
        line = self.lines(b)
        extent, axes = self.box(self.rows, self.size)
        if self.rows == 1:
            self.held = max(self.size // (32 * self.threads.warps), 1)
        raw = b.load(x, (line[0], 0, line[1]), extent, axes, (axes[0], 1), vector=self.vector)
        words = self.sorted(b, self.words(b, raw, 0), 0, self.size)
        self.unpack(b, self.in_line(b, words), x, outs, line, 0)
        return b.finish()


def _powers(first: int, last: int) -> list[int]:
    """The powers of two from first to last."""
    return (
        [1 << i for i in range(first.bit_length() - 1, last.bit_length())] if last >= first else []
    )


SORTS = {
    "sort": partial(sort, "values"),
    "argsort": partial(sort, "indices"),
}
