"""sort: lines of a tensor sorted by a bitonic network, in registers as far as they reach.

    y = sort(x[r, :])   ->   words = number of x[r, i] in the order of its dtype, and i below it
                             runs of 1024 words, each sorted by a block; two runs as one, until one is left
                             y[r, :] = x[r, words & low]

A word orders the bits of an element as a whole number: NaN comes after all others, zeros are equal, and i
tells equal elements apart, so that the order is stable (core/sorts.py).  Descending order is that of the
inverted bits. Elements of 64 bits have their index beside them.

A network merges a run that ascends and one that descends.  Here the second holds inverted words, so that
every comparison is the same: the smaller first.  Strides that reach beyond a block are passes over memory,
up to three at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod

from tessera.core.dims import Size
from tessera.core.dtype import bool_, i8, i16, i32, i64
from tessera.core.types import TensorType
from tessera.ir.schedule.gpu_blocks import power, warps_for
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile
from tessera.ir.tile.launch import Expansion, Launch, Threads

_BLOCK = 1024  # elements that a block sorts
_AT_ONCE = 3  # strides of a pass over memory
_WIDE = 256  # neighbours that a block of such a pass takes
LONGEST = 1 << 28  # elements of an axis; longer ones are left to the host
_FEWEST = 32  # elements of a block, a warp
_LOW = (1 << 32) - 1  # the low word
_BITS = {8: i8, 16: i16, 32: i32, 64: i64}
_INFINITY = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000, "f64": 0x7FF0000000000000}

Words = list[Tile]  # elements to be ordered: one tile, or the elements and their indices


def is_sortable(t: TensorType, axis: int) -> bool:
    """Whether there are kernels that sort such a tensor along an axis."""
    d = t.dtype
    known = d is bool_ or d.name in _INFINITY or (d.kind in "iu" and d.bits in _BITS)
    return d is d.base and known and 0 not in t.shape and int(t.shape[axis]) <= LONGEST


def sort(wanted: str, step: Primitive, types: Mapping[str, TensorType]) -> Expansion | None:
    """The launches; `wanted` says whether values, indices or both are written."""
    x, p = types[step.operands[0]], step.params
    if not is_sortable(x, p["axis"]):
        return None
    made = Sort(x, p["axis"], bool(p.get("descending", p.get("largest"))))
    outs = dict(zip(wanted.split(), step.results, strict=True))
    counts = {n: int(types[y].shape[p["axis"]]) for n, y in outs.items()}
    if made.size <= _BLOCK:
        return Expansion((Launch(made.small(counts), step.operands, step.results, made.threads),))
    return made.passes(step.operands[0], outs, counts)


class Sort:
    """The kernels of a sort along the middle of three axes."""

    def __init__(self, x: TensorType, axis: int, down: bool):
        self.dtype, self.down = x.dtype, down
        self.outer, self.inner = (
            prod(int(s) for s in part) for part in (x.shape[:axis], x.shape[axis + 1 :])
        )
        self.n = int(x.shape[axis])
        self.size = power(self.n)
        self.bits = bool_ if x.dtype is bool_ else _BITS[x.dtype.bits]
        self.parts = 2 if x.dtype.bits == 64 else 1
        lines = self.outer if self.inner == 1 else self.inner
        self.rows = max(min(_BLOCK // self.size, power(lines)), 1)
        while self.rows > 1 and self.rows * self.size > _FEWEST and lines < 2 * self.rows:
            self.rows //= 2
        self.threads = Threads(max(warps_for(4 * self.rows * self.size), 1))

    # Lines

    def given(self, b: Builder) -> Memory:
        return b.parameter("x", TensorType(self.bits, (self.outer, self.n, self.inner)))

    def made(self, b: Builder, counts: Mapping[str, int]) -> dict[str, Memory]:
        """What is written; values are copied as the bits that they are."""
        kinds = {"values": self.bits, "indices": i64}
        return {
            name: b.parameter(name, TensorType(kinds[name], (self.outer, n, self.inner)), True)
            for name, n in counts.items()
        }

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
        key = b.apply("invert", key) if self.down else key
        inside = b.apply("lt", place, b.full(i64, (1, 1), self.n))
        last = b.full(i64, (1, 1), (1 << 63) - 1)
        if self.parts == 2:
            return [b.apply("where", inside, key, last), b.broadcast(place, raw.shape)]
        high = b.apply("mul", b.cast(key, i64), b.full(i64, (1, 1), 1 << 32))
        return [b.apply("where", inside, b.apply("or", high, place), last)]

    def ordered(self, b: Builder, raw: Tile) -> Tile:
        """A whole number with a sign for each element, in the order of the elements."""
        wide = i64 if self.dtype.bits == 64 else i32
        x, one = b.cast(raw, wide), (1, 1)
        sign = 1 << self.dtype.bits - 1
        if self.dtype.kind == "u":
            return b.apply("xor", x, b.full(wide, one, -sign))
        if self.dtype.kind != "f":
            return x
        most, zero = b.full(wide, one, sign - 1), b.full(wide, one, 0)
        turned = b.apply("where", b.apply("lt", x, zero), b.apply("xor", x, most), x)
        key = b.apply("where", b.apply("eq", x, b.full(wide, one, -sign)), zero, turned)
        size = b.apply("and", x, most)
        nan = b.apply("gt", size, b.full(wide, one, _INFINITY[self.dtype.name]))
        return b.apply("where", nan, most, key)

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
            b.store(m, value, start, extent, axes, masked=(axes[0], 1))

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
        odd = b.apply("and", b.index(first, (1, n // k, 1, 1), 1), b.full(i64, (1, 1, 1, 1), 1))
        if k > 2:
            odd = b.apply("xor", odd, b.index(0, (1, 1, 2, 1), 2))
        mask = b.apply("neg", odd)
        shape = (rows, n // k, 2, k // 2)
        return [b.reshape(b.apply("xor", b.reshape(w, shape), mask), (rows, n)) for w in words]

    def merged(self, b: Builder, words: Words, k: int) -> Words:
        """Runs of k words sorted whose halves ascend and descend."""
        for stride in reversed(_powers(1, k // 2)):
            words = self.compared(b, words, stride)
        return words

    def compared(self, b: Builder, words: Words, stride: int) -> Words:
        """Of two words so far apart the smaller one first."""
        rows, n = words[0].shape
        shape = (rows, n // (2 * stride), 2, stride)
        given = [b.reshape(w, shape) for w in words]
        first = b.apply("eq", b.index(0, (1, 1, 2, 1), 2), b.full(i64, (1, 1, 1, 1), 0))
        low, high = (self.extreme(b, given, f) for f in ("min", "max"))
        return [
            b.reshape(b.apply("where", first, p, q), (rows, n))
            for p, q in zip(low, high, strict=True)
        ]

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
        raw = b.load(x, (line[0], 0, line[1]), extent, axes, (axes[0], 1))
        words = self.sorted(b, self.words(b, raw, 0), 0, self.size)
        self.unpack(b, words, x, outs, line, 0)
        return b.finish()

    def passes(self, x: str, outs: Mapping[str, str], counts: Mapping[str, int]) -> Expansion:
        """A line in many blocks: runs of a block each, then two runs as one until one is left."""
        names = tuple(f"{next(iter(outs.values()))}_words{i}" for i in range(self.parts))
        kind = TensorType(i64, (self.outer * self.inner, self.size))
        threads = Threads(warps_for(4 * _BLOCK))
        end = Launch(self.last(counts), (x, *names), tuple(outs.values()), threads)
        near = Launch(self.near(), (), names, threads)
        launches = [Launch(self.runs(), (x,), names, threads)]
        shared: dict[int, Launch] = {}
        for k in _powers(2 * _BLOCK, self.size):
            beyond = (k // _BLOCK).bit_length() - 1  # strides that reach out of a block
            count = (beyond - 1) % _AT_ONCE + 1
            launches.append(Launch(self.far(k >> count, count, True), (), names, Threads(4)))
            for left in range(beyond - count, 0, -_AT_ONCE):
                q = _BLOCK << left - _AT_ONCE
                if q not in shared:
                    shared[q] = Launch(self.far(q, _AT_ONCE, False), (), names, Threads(4))
                launches.append(shared[q])
            launches.append(near if k < self.size else end)
        return Expansion(tuple(launches), dict.fromkeys(names, kind))

    def buffers(self, b: Builder, shape: Sequence[int], writable: bool = True) -> list[Memory]:
        t = TensorType(i64, tuple(shape))
        return [b.parameter(f"w{i}", t, writable) for i in range(self.parts)]

    def runs(self) -> Kernel:
        """Each block of a line sorted, the odd ones as inverted words."""
        b = Builder("sort_runs")
        x = self.given(b)
        buffers = self.buffers(b, (self.outer * self.inner, self.size))
        o, c, block = b.program(self.outer), b.program(self.inner), b.program(self.size // _BLOCK)
        at = block * _BLOCK
        extent, axes = self.box(1, _BLOCK)
        raw = b.load(x, (o, at, c), extent, axes, (1,))
        words = self.sorted(b, self.words(b, raw, at), block, _BLOCK)
        for m, w in zip(buffers, words, strict=True):
            b.store(m, w, (o * self.inner + c, at), (1, _BLOCK))
        return b.finish()

    def far(self, q: int, count: int, first: bool) -> Kernel:
        """Comparisons of words q, 2q ... apart, of which the first pass of a merge turns runs."""
        b, group = Builder("sort_far"), 1 << count
        parts = self.outer * self.inner * self.size // (group * q)
        buffers = self.buffers(b, (parts, group, q))
        a, at = b.program(parts), b.program(q // _WIDE) * _WIDE
        held = [[b.load(m, (a, g, at), (1, 1, _WIDE), (2,)) for m in buffers] for g in range(group)]
        if first:
            alone = group * q == self.size
            odd = b.apply("and", b.index(0 if alone else a, (1,)), b.full(i64, (1,), 1))
            mask = b.apply("neg", odd)
            masks = [mask, b.apply("invert", mask)]
            held = [
                [b.apply("xor", w, masks[g >= group // 2]) for w in words]
                for g, words in enumerate(held)
            ]
        for stride in reversed(_powers(1, group // 2)):
            for g in (g for g in range(group) if not g & stride):
                held[g], held[g + stride] = self.pair(b, held[g], held[g + stride])
        for g, words in enumerate(held):
            for m, w in zip(buffers, words, strict=True):
                b.store(m, w, (a, g, at), (1, 1, _WIDE), (2,))
        return b.finish()

    def pair(self, b: Builder, p: Words, q: Words) -> tuple[Words, Words]:
        """Two words, the smaller one first."""
        if self.parts == 1:
            return [b.apply("min", p[0], q[0])], [b.apply("max", p[0], q[0])]
        equal = b.apply("logical_and", b.apply("eq", q[0], p[0]), b.apply("lt", q[1], p[1]))
        swap = b.apply("logical_or", b.apply("lt", q[0], p[0]), equal)
        both = list(zip(p, q, strict=True))
        return (
            [b.apply("where", swap, y, x) for x, y in both],
            [b.apply("where", swap, x, y) for x, y in both],
        )

    def near(self) -> Kernel:
        """Comparisons inside of a block."""
        b = Builder("sort_near")
        lines = self.outer * self.inner
        buffers = self.buffers(b, (lines, self.size))
        place = (b.program(lines), b.program(self.size // _BLOCK) * _BLOCK)
        words = self.merged(b, [b.load(m, place, (1, _BLOCK)) for m in buffers], _BLOCK)
        for m, w in zip(buffers, words, strict=True):
            b.store(m, w, place, (1, _BLOCK))
        return b.finish()

    def last(self, counts: Mapping[str, int]) -> Kernel:
        """The last comparisons, after which words are no longer needed."""
        b = Builder("sort_last")
        x = self.given(b)
        buffers = self.buffers(b, (self.outer * self.inner, self.size), writable=False)
        outs = self.made(b, counts)
        o, c = b.program(self.outer), b.program(self.inner)
        at = b.program(self.size // _BLOCK) * _BLOCK
        line = o * self.inner + c
        words = self.merged(b, [b.load(m, (line, at), (1, _BLOCK)) for m in buffers], _BLOCK)
        self.unpack(b, words, x, outs, (o, c), at)
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
