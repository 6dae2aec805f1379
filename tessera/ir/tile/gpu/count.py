"""count: how often each number 0 ... size - 1 is in a tensor.

    y[n] = how many i with x[i] = n   ->   part p: c[p, n] = how many i of the part with x[i] = n
                                           y[n] = sum over p of c[p, n]

Of few numbers, a block counts in the memory that its threads share.  The elements of a histogram are placed
by halving in the same kernel, which reads them once and writes no places.

Of more numbers, an element is compared with the upper and with the lower digits of all numbers, not with
every number, and matrix units add up: c[h, l] = sum over i of [x[i] // 16 = h] [x[i] % 16 = l].  Sums of ones
below 2^24 are exact in f32, so that no size of parts changes a result.

Of many numbers few elements share one: each element adds its one to memory at once, in whole numbers, whose
sum has no order.  Blocks have several copies of the counts, since ones for one place wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from tessera.core.dims import Size, smaller
from tessera.core.dtype import DType, f16, f32, i32, i64
from tessera.core.types import TensorType
from tessera.ir.schedule.gpu_blocks import power
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile
from tessera.ir.tile.launch import Expansion, Launch, Threads
from tessera.ir.tile.search import halve

SHARED = (
    256  # numbers that blocks count in shared memory; at least as many bins as are counted at once
)
TAKEN = 2048  # elements that such a block counts at once, 16 for each thread
MATCHED = 1024  # numbers up to which elements are compared with digits
ADDED = 1024  # elements of a block that adds ones to memory
COPIES = 64  # of the counts
_COPIED = 1 << 22  # counts of all copies
PARTS = 512  # blocks of threads
SHARING = 1024  # blocks that count in shared memory: 8 of 4 warps for each multiprocessor
_BINS = 32  # numbers at least that a warp counts: one for each thread
_LEAST = 16  # rows and columns of a product
_ROWS = 64  # of a block's product
_EXACT = 1 << 24  # elements of a part
_SUMMED = 2048  # counts of parts that a block adds up


def count_places(step: Primitive, types: Mapping[str, TensorType]) -> Expansion:
    """Two launches: the counts of parts, and their sums."""
    (x,), (y,) = step.operands, step.results
    p = Counts(
        types[x].dtype, prod(int(n) for n in types[x].shape), int(types[y].shape[0]), types[y].dtype
    )
    counts = f"{y}_counts"
    if p.size > MATCHED:
        added = (
            Launch(p.cleared(), (), (counts,), Threads(4)),
            Launch(p.added(), (x,), (counts,), Threads(4)),
            Launch(p.summed(p.copies, p.size), (counts,), (y,), Threads(4)),
        )
        return Expansion(added, {counts: TensorType(i32, (p.copies, p.size))})
    if p.size <= SHARED:
        return p.shared((x,), y)
    warps = 8 if p.high * p.low > 1 << 10 else 4
    launches = (
        Launch(p.counted(), (x,), (counts,), Threads(warps)),
        Launch(p.summed(p.parts, p.high * p.low), (counts,), (y,), Threads(4)),
    )
    return Expansion(launches, {counts: TensorType(i32, (p.parts, p.high * p.low))})


def count_between(step: Primitive, types: Mapping[str, TensorType]) -> Expansion:
    """The same for numbers between edges."""
    edges, v = step.operands
    (y,) = step.results
    t, count = types[v], prod(int(n) for n in types[v].shape)
    p = Counts(t.dtype, count, int(types[y].shape[0]), types[y].dtype, types[edges])
    return p.shared((edges, v), y)


@dataclass(frozen=True)
class Counts:
    """So many elements, whose numbers up to a size are counted."""

    kind: DType
    count: int
    size: int
    dtype: DType
    edges: TensorType | None = None  # between which elements are placed

    def shared(self, operands: tuple[str, ...], y: str) -> Expansion:
        """Two launches: counts in shared memory, and their sums."""
        counts = f"{y}_counts"
        launches = (
            Launch(self.counted_in_blocks(), operands, (counts,), Threads(4)),
            Launch(self.summed(self.parts, self.bins), (counts,), (y,), Threads(4)),
        )
        return Expansion(launches, {counts: TensorType(i32, (self.parts, self.bins))})

    @property
    def bins(self) -> int:
        """Numbers that a block counts."""
        return max(power(self.size), _BINS)

    @property
    def low(self) -> int:
        """Values of the lower digit."""
        return max(1 << (power(self.size).bit_length() - 1) // 2, _LEAST)

    @property
    def high(self) -> int:
        """Values of the upper digit."""
        return max(power(self.size) // self.low, _LEAST)

    @property
    def step(self) -> int:
        """Elements that are compared at a time."""
        if self.size <= SHARED:
            return TAKEN
        return 128 if self.low <= _LEAST else 64

    @property
    def parts(self) -> int:
        """Into how many parts the elements are cut."""
        shared = self.size <= SHARED
        wanted = SHARING if shared else max(PARTS // max(self.high // _ROWS, 1), 1)
        enough = max(power(self.count // ((1 if shared else 8) * self.step)), 1)
        return max(min(wanted, enough), power(-(-self.count // _EXACT)))

    @property
    def copies(self) -> int:
        """How many copies of the counts there are."""
        enough = power(self.count // (8 * self.size) + 1)
        return max(min(COPIES, enough, _COPIED // self.size), 1)

    def cleared(self) -> Kernel:
        """Nothing counted."""
        b, n = Builder("count_none"), self.copies * self.size
        counts = b.parameter("counts", TensorType(i32, (n,)), writable=True)
        at = b.program(-(-n // ADDED)) * ADDED
        b.store(counts, b.full(i32, (ADDED,), 0), (at,), (ADDED,), masked=(0,) if n % ADDED else ())
        return b.finish()

    def added(self) -> Kernel:
        """A one for each element; numbers that are none are out of the memory."""
        b = Builder("count_ones")
        x = b.parameter("x", TensorType(self.kind, (self.count,)))
        kind = TensorType(i32, (self.copies, self.size))
        counts = b.parameter("counts", kind, writable=True)
        part, copy = b.program(-(-self.count // (self.copies * ADDED))), b.program(self.copies)
        at = (part * self.copies + copy) * ADDED
        number = b.cast(b.load(x, (at,), (ADDED,), masked=(0,)), i64)
        inside = b.apply("lt", b.index(at, (ADDED,), 0), b.full(i64, (1,), self.count))
        number = b.apply("where", inside, number, b.full(i64, (1,), -1))
        one = b.full(i32, (ADDED,), 1)
        b.scatter(counts, one, {1: number}, (copy, 0), (1, 1), (), (1,), atomic="add")
        return b.finish()

    def counted_in_blocks(self) -> Kernel:
        """The counts of each part, in shared memory."""
        b, e = Builder("count_shared"), self.step
        edges = None if self.edges is None else b.parameter("edges", self.edges)
        x = b.parameter("x", TensorType(self.kind, (self.count,)))
        out = b.parameter("counts", TensorType(i32, (self.parts, self.bins)), writable=True)
        each = -(-self.count // self.parts)
        each = -(-each // e) * e
        part = b.program(self.parts)
        start: Size = part * each
        stop = smaller(start + each, self.count)
        with b.loop(start, stop, e, [b.full(i32, (self.bins,), 0)]) as loop:
            if edges is None:
                number = self.number(b, x, loop.variable)
            else:
                number = self.placed(b, edges, x, loop.variable)
            loop.carry(b.apply("add", loop.carried[0], b.count(number, self.bins)))
        b.store(out, loop.results[0], (part, 0), (1, self.bins), (1,))
        return b.finish()

    def placed(self, b: Builder, edges: Memory, x: Memory, at: Size) -> Tile:
        """The bins of some elements; a number that is none for what lies in no bin."""
        e, wide = self.step, self.kind.compute
        masked = (0,) if self.count % e else ()
        value = b.cast(b.load(x, (at,), (e,), masked=masked, fill=0), wide)
        found, step = b.full(i64, (e,), 0), power(self.size + 2) // 2
        while step:
            found = halve(b, edges, found, b.full(i64, (e,), step), value, True)
            step //= 2
        place = b.apply("sub", b.cast(found, i32), b.full(i32, (e,), 1))
        last = b.cast(b.gather(edges, {0: b.full(i64, (1,), self.size)}, (0,), (1,), (), ()), wide)
        place = b.apply(
            "where", b.apply("eq", value, last), b.full(i32, (1,), self.size - 1), place
        )
        if not masked:
            return place
        there = b.apply("lt", b.index(at, (e,), 0), b.full(i64, (1,), self.count))
        return b.apply("where", there, place, b.full(i32, (1,), -1))

    def number(self, b: Builder, x: Memory, at: Size) -> Tile:
        """The numbers of some elements, -1 for what is none."""
        e = self.step
        masked = (0,) if self.count % e else ()
        wide = b.cast(b.load(x, (at,), (e,), masked=masked, fill=0), i64)
        inside = b.apply("logical_and", b.apply("ge", wide, b.full(i64, (e,), 0)),
                         b.apply("lt", wide, b.full(i64, (e,), self.size)))  # fmt: skip
        if masked:
            there = b.apply("lt", b.index(at, (e,), 0), b.full(i64, (e,), self.count))
            inside = b.apply("logical_and", inside, there)
        return b.cast(b.apply("where", inside, wide, b.full(i64, (e,), -1)), i32)

    def counted(self) -> Kernel:
        """The counts of each part."""
        b, e, n = Builder("count_parts"), self.step, self.low
        m = min(self.high, _ROWS)
        x = b.parameter("x", TensorType(self.kind, (self.count,)))
        out = b.parameter("counts", TensorType(i32, (self.parts, self.high, n)), writable=True)
        each = -(-self.count // self.parts)
        each = -(-each // e) * e
        part, row = b.program(self.parts), b.program(self.high // m) * m
        start: Size = part * each
        rows, columns = b.cast(b.index(row, (m, 1), 0), i32), b.cast(b.index(0, (1, n), 1), i32)
        with b.loop(start, smaller(start + each, self.count), e, [b.full(f32, (m, n), 0)]) as loop:
            # A number that is none has an upper digit that is none.
            number = self.number(b, x, loop.variable)
            shift = (n - 1).bit_length()
            upper = b.apply("shift_right", number, b.full(i32, (e,), shift))
            lower = b.apply("and", number, b.full(i32, (e,), n - 1))
            left = b.cast(b.apply("eq", b.reshape(upper, (1, e)), rows), f16)
            right = b.cast(b.apply("eq", b.reshape(lower, (e, 1)), columns), f16)
            loop.carry(b.dot(left, right, loop.carried[0]))
        b.store(out, b.cast(loop.results[0], i32), (part, row, 0), (1, m, n), (1, 2))
        return b.finish()

    def summed(self, parts: int, whole: int) -> Kernel:
        """The sums of the parts."""
        b = Builder("count_sums")
        counts = b.parameter("counts", TensorType(i32, (parts, whole)))
        y = b.parameter("y", TensorType(self.dtype, (self.size,)), writable=True)
        n = max(min(_SUMMED // parts, power(whole)), 1)
        at = b.program(-(-self.size // n)) * n
        masked = (1,) if whole % n else ()
        found = b.cast(b.load(counts, (0, at), (parts, n), masked=masked), i64)
        total = b.reshape(b.fold("add", found, 0), (n,))
        b.store(y, b.cast(total, self.dtype), (at,), (n,), masked=(0,) if self.size % n else ())
        return b.finish()
