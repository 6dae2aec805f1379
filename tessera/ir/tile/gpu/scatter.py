"""scatter: values joined to numbered rows, with the values that meet brought together first.

    y = x; y[i[n]] += v[n]   ->   keys[n] = the row that i[n] names, or one behind all
                                  order = numbers n sorted by keys[n]; starts[r] = first of them with key >=
                                  r block r: y[r] = x[r] + v[order[starts[r]]] + ... + v[order[starts[r + 1]
                                  - 1]]

Up to some ten thousands of numbers, one's place in the order is how many come before it: each is compared
with each, which a GPU does faster than anything clever.  Beyond that they are sorted (radix.py).

A row takes what meets there eight at a time, in ascending order of n, as a tree and then a chain.  Where
hundreds meet in a row on average, its values are cut into pieces of equal length that many blocks take; a
tree joins the pieces. The bits of a row depend on its own values, and on how many values there are for each
row.

Where values replace rows, nothing is joined and nothing is sorted: the largest n of a row is found in memory
by atomic operations, whose order changes no largest number, and a row is v[n] or what it was.

Several indices name one row by its number among all; the numbered axes lie beside each other: x[a, row,
column].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tessera.core.dims import Size
from tessera.core.dtype import DType, i32, i64
from tessera.core.evaluate import neutral
from tessera.core.scalar import Number
from tessera.core.scatters import JOINS, WIDE
from tessera.core.types import TensorType
from tessera.ir.schedule.gpu_blocks import ENOUGH, power, warps_for
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.gpu.folds import tree
from tessera.ir.tile.gpu.radix import Radix
from tessera.ir.tile.gpu.sorted_lines import LONGEST
from tessera.ir.tile.ir import Builder, Kernel, Tile
from tessera.ir.tile.launch import Expansion, Launch, Threads

MOST = 1 << 12  # numbers that are compared with each other
_NUMBERS, _OTHERS = 32, 128  # that a block compares at a time
_SEARCHED = 512  # rows whose start a block looks for
_KEYS = 1024  # that a block makes
_AT_ONCE = 8  # values of a row that are joined at a time
_WIDEST = 256  # columns of a block, a warp
_LANES = 32  # rows of a block where columns are few
_PIECE = 256  # values of a row that are worth a piece
_PIECES = 256  # of a row at most: a block joins them by a tree
_JOINED = 2048  # elements of pieces that a block joins
# elements of a block that copies rows or what replaces them, 16 for each thread, and of one of a small tensor
_COPIED, _COPIED_OF_FEW = 2048, 512


def scatter_rows(step: Primitive, types: Mapping[str, TensorType]) -> Expansion | None:
    """The launches; None where rows are not numbered in one way, or elements are of no such kind."""
    p = problem(step, types)
    return None if p is None else p.expansion(step.operands, step.results[0])


def problem(step: Primitive, types: Mapping[str, TensorType]) -> ScatterRows | None:
    """What is joined to which rows."""
    x, v, *indices = (types[n] for n in step.operands)
    axes, join = tuple(step.params["axes"]), JOINS[step.primitive]
    beside = axes == tuple(range(axes[0], axes[0] + len(axes)))
    plain = x.dtype is v.dtype and x.dtype.kind in ("bfiu" if join is None else "fiu")
    sizes = [int(n) for n in x.shape]
    count = prod(int(n) for n in indices[0].shape)
    first, last = axes[0], axes[0] + len(axes)
    p = ScatterRows(
        join, x.dtype.base, prod(sizes[:first]), tuple(sizes[first:last]), prod(sizes[last:]), count,
        tuple(t.dtype for t in indices),
    )  # fmt: skip
    whole = prod(sizes) > 0 and 0 < count <= LONGEST and p.rows < 1 << 31
    return p if beside and plain and whole else None


@dataclass(frozen=True)
class ScatterRows:
    """A scatter: x[outer, rows, columns], v[count, outer, columns], and an index of each numbered axis."""

    join: str | None
    dtype: DType
    outer: int
    sizes: tuple[int, ...]  # of the numbered axes
    columns: int
    count: int
    kinds: tuple[DType, ...]  # of the indices

    @property
    def rows(self) -> int:
        """How many rows have a number."""
        return prod(self.sizes)

    @property
    def wide(self) -> DType:
        """What values are joined in."""
        return self.dtype.accum if self.join in WIDE and self.dtype.kind == "f" else self.dtype

    @property
    def pieces(self) -> int:
        """Into how many pieces the values of a row are cut."""
        return max(min(power(self.count // self.rows // _PIECE + 1) // 2, _PIECES), 1)

    def expansion(self, operands: Sequence[str], out: str) -> Expansion:
        """Keys, their order, where rows start, and the rows."""
        x, v, *indices = operands
        if self.join is None:
            return self.replacing(x, v, indices, out)
        keys, ordered, order, starts = (f"{out}_{n}" for n in ("keys", "sorted", "order", "starts"))
        numbers = TensorType(i32, (self.count,))
        between = {keys: numbers, ordered: numbers, order: numbers}
        between[starts] = TensorType(i32, (self.rows + 1,))
        launches = [Launch(self.keys(), tuple(indices), (keys,), Threads(4))]
        if self.count <= MOST:
            launches.append(Launch(self.compared(), (keys,), (ordered, order), Threads(4)))
        else:
            wanted = {"values": self.count, "indices": self.count}
            sort = Radix(numbers, 0, False, wanted, i32, self.rows.bit_length())
            found = sort.expansion(keys, {"values": ordered, "indices": order})
            between |= found.between
            launches += found.launches
        launches.append(Launch(self.starts(), (ordered,), (starts,), Threads(4)))
        given = (v, order, starts)
        if self.pieces == 1:
            launches.append(Launch(self.joined(), (x, *given), (out,), Threads(1)))
        else:
            parts = f"{out}_parts"
            shape = (self.pieces, self.outer * self.rows * self.columns)
            between[parts] = TensorType(self.wide, shape)
            launches.append(Launch(self.joined(), given, (parts,), Threads(1)))
            launches.append(Launch(self.whole(), (x, parts), (out,), Threads(4)))
        return Expansion(tuple(launches), between)

    def replacing(self, x: str, v: str, indices: Sequence[str], out: str) -> Expansion:
        """The last number of each row, and the rows."""
        last = f"{out}_last"
        return Expansion(
            (
                Launch(self.unnamed(), (), (last,), Threads(4)),
                Launch(self.named(), tuple(indices), (last,), Threads(4)),
                _Replaced(self).launch(x, v, last, out),
            ),
            {last: TensorType(i32, (self.rows,))},
        )

    def unnamed(self) -> Kernel:
        """No number for any row."""
        b, n = Builder("scatter_none"), self.rows
        last = b.parameter("last", TensorType(i32, (n,)), writable=True)
        at = b.program(-(-n // _KEYS)) * _KEYS
        b.store(last, b.full(i32, (_KEYS,), -1), (at,), (_KEYS,), masked=(0,) if n % _KEYS else ())
        return b.finish()

    def named(self) -> Kernel:
        """The largest number that names each row."""
        b = Builder("scatter_last")
        at, row = self.keyed(b)
        last = b.parameter("last", TensorType(i32, (self.rows,)), writable=True)
        number = b.cast(b.index(at, (_KEYS,), 0), i32)
        b.scatter(last, number, {0: row}, (0,), (1,), (), (0,), atomic="max")
        return b.finish()

    def keys(self) -> Kernel:
        """The row that each number names; one behind all for what is none."""
        b = Builder("scatter_keys")
        at, row = self.keyed(b)
        keys = b.parameter("keys", TensorType(i32, (self.count,)), writable=True)
        b.store(keys, b.cast(row, i32), (at,), (_KEYS,), masked=(0,))
        return b.finish()

    def keyed(self, b: Builder) -> tuple[Size, Tile]:
        """The first number of a block, and the rows that its numbers name; one behind all for none."""
        given = [
            b.parameter(f"i{k}", TensorType(d, (self.count,))) for k, d in enumerate(self.kinds)
        ]
        at = b.program(-(-self.count // _KEYS)) * _KEYS
        row = b.full(i64, (_KEYS,), 0)
        inside = b.apply("lt", b.index(at, (_KEYS,), 0), b.full(i64, (_KEYS,), self.count))
        for m, n in zip(given, self.sizes, strict=True):
            found = b.cast(b.load(m, (at,), (_KEYS,), masked=(0,)), i64)
            row = b.apply("add", b.apply("mul", row, b.full(i64, (_KEYS,), n)), found)
            for name, end in (("ge", 0), ("lt", n)):
                here = b.apply(name, found, b.full(i64, (_KEYS,), end))
                inside = b.apply("logical_and", inside, here)
        behind = b.full(i64, (_KEYS,), self.rows)
        return at, b.apply("where", inside, row, behind)

    def compared(self) -> Kernel:
        """Keys and numbers, sorted by key and then by number: each is compared with each."""
        b = Builder("scatter_order")
        keys = b.parameter("keys", TensorType(i32, (self.count,)))
        ordered = b.parameter("sorted", TensorType(i32, (self.count,)), writable=True)
        order = b.parameter("order", TensorType(i32, (self.count,)), writable=True)
        at = b.program(-(-self.count // _NUMBERS)) * _NUMBERS
        behind = self.rows + 1  # what stands behind the last number
        mine = b.load(keys, (at,), (_NUMBERS,), masked=(0,), fill=behind)
        own = b.reshape(mine, (_NUMBERS, 1))
        number = b.cast(b.index(at, (_NUMBERS, 1), 0), i32)
        begin = b.full(i32, (_NUMBERS, _OTHERS), 0)
        with b.loop(0, self.count, _OTHERS, [begin]) as loop:
            there = b.load(keys, (loop.variable,), (_OTHERS,), masked=(0,), fill=behind)
            there = b.reshape(there, (1, _OTHERS))
            others = b.cast(b.index(loop.variable, (1, _OTHERS), 1), i32)
            earlier = b.apply("logical_and", b.apply("eq", there, own),
                b.apply("lt", others, number))  # fmt: skip
            before = b.apply("logical_or", b.apply("lt", there, own), earlier)
            loop.carry(b.apply("add", loop.carried[0], b.cast(before, i32)))
        place = b.reshape(b.cast(b.fold("add", loop.results[0], 1), i64), (_NUMBERS,))
        # What stands behind the last number comes last: its place is out of the memory.
        b.scatter(ordered, mine, {0: place}, (0,), (1,), (), (0,))
        b.scatter(order, b.reshape(number, (_NUMBERS,)), {0: place}, (0,), (1,), (), (0,))
        return b.finish()

    def starts(self) -> Kernel:
        """For each row, and one behind the last, how many sorted keys come before it."""
        b, rows = Builder("scatter_starts"), self.rows
        ordered = b.parameter("sorted", TensorType(i32, (self.count,)))
        starts = b.parameter("starts", TensorType(i32, (rows + 1,)), writable=True)
        at = b.program(-(-(rows + 1) // _SEARCHED)) * _SEARCHED
        row = b.index(at, (_SEARCHED,), 0)
        found = b.full(i64, (_SEARCHED,), 0)
        step = power(self.count + 1)
        while step:
            probe = b.apply("add", found, b.full(i64, (_SEARCHED,), step))
            place = b.apply("sub", probe, b.full(i64, (_SEARCHED,), 1))
            value = b.gather(ordered, {0: place}, (0,), (1,), (), (0,), rows + 1)
            further = b.apply("lt", b.cast(value, i64), row)
            found = b.apply("where", further, probe, found)
            step //= 2
        b.store(starts, b.cast(found, i32), (at,), (_SEARCHED,), masked=(0,))
        return b.finish()

    def joined(self) -> Kernel:
        """Rows with what meets there, or pieces of what meets there."""
        return _Joined(self).kernel()

    def whole(self) -> Kernel:
        """Rows with their pieces."""
        assert self.join is not None
        b, size = Builder("scatter_whole"), self.outer * self.rows * self.columns
        x = b.parameter("x", TensorType(self.dtype, (size,)))
        parts = b.parameter("parts", TensorType(self.wide, (self.pieces, size)))
        y = b.parameter("y", TensorType(self.dtype, (size,)), writable=True)
        n = max(min(_JOINED // self.pieces, power(size)), 1)
        at = b.program(-(-size // n)) * n
        masked = bool(size % n)
        found = b.load(parts, (0, at), (self.pieces, n), masked=(1,) if masked else ())
        total = b.reshape(tree(b, self.join, found, 0), (n,))
        before = b.cast(b.load(x, (at,), (n,), masked=(0,) if masked else ()), self.wide)
        b.store(y, b.cast(b.apply(self.join, before, total), self.dtype), (at,), (n,),
                masked=(0,) if masked else ())  # fmt: skip
        return b.finish()


class _Joined:
    """The kernel in which a block takes some rows, and their values in order."""

    def __init__(self, p: ScatterRows):
        assert p.join is not None, p
        self.p, self.b, self.join = p, Builder("scatter_rows"), p.join
        self.n = min(power(p.columns), _WIDEST)
        self.many = max(min(_LANES, _WIDEST // self.n, power(p.rows)), 1)

    def kernel(self) -> Kernel:
        p, b, whole = self.p, self.b, self.p.pieces == 1
        shape = (p.outer, p.rows, p.columns)
        x = b.parameter("x", TensorType(p.dtype, shape)) if whole else None
        self.v = b.parameter("v", TensorType(p.dtype, (p.count, p.outer, p.columns)))
        self.order = b.parameter("order", TensorType(i32, (p.count,)))
        starts = b.parameter("starts", TensorType(i32, (p.rows + 1,)))
        made = TensorType(p.dtype if whole else p.wide, (p.pieces, *shape))
        y = b.parameter("y", made, writable=True)
        many, n = self.many, self.n
        piece, row = b.program(p.pieces), b.program(-(-p.rows // many)) * many
        outer, at = b.program(p.outer), b.program(-(-p.columns // n)) * n
        self.lines = b.index(outer, (1, 1, 1), None), b.index(at, (1, 1, n), 2)
        masked = tuple(i for i, odd in ((1, p.rows % many), (2, p.columns % n)) if odd)
        start, stop = (
            b.cast(b.load(starts, (row + i,), (many,), masked=(0,)), i64) for i in (0, 1)
        )
        before = None
        if x is not None:
            before = b.load(x, (outer, row, at), (1, many, n), (1, 2), masked)
        else:
            start, stop = self.cut(start, stop, piece)
        total = self.chain(self.join, start, stop, before)
        box = (piece, outer, row, at), (1, 1, many, n), (2, 3), tuple(i + 1 for i in masked)
        b.store(y, b.cast(total, made.dtype), *box)
        return b.finish()

    def numbers(self, x: int) -> Tile:
        return self.b.full(i64, (self.many,), x)

    def cut(self, start: Tile, stop: Tile, piece: Size) -> tuple[Tile, Tile]:
        """Where a piece of the values of each row starts and stops."""
        b, step = self.b, _AT_ONCE * self.p.pieces
        length = b.apply("add", b.apply("sub", stop, start), self.numbers(step - 1))
        groups = b.apply("floor_div", length, self.numbers(step))
        each = b.apply("mul", groups, self.numbers(_AT_ONCE))
        first = b.apply("add", start, b.apply("mul", each, b.index(piece, (self.many,), None)))
        return first, b.apply("min", stop, b.apply("add", first, each))

    def taken(self, place: Tile, stop: Tile, fill: Number) -> Tile:
        """The values at some places of the order; `fill` where a row has none."""
        b = self.b
        number = b.cast(b.gather(self.order, {0: place}, (0,), (1,), (), (0,), 0), i64)
        mine = b.apply("lt", place, b.broadcast(b.reshape(stop, (self.many, 1)), place.shape))
        which = b.apply("where", mine, number, b.full(i64, place.shape, self.p.count))
        outer, line = self.lines
        picked = {0: b.reshape(which, (*place.shape, 1)), 1: outer, 2: line}
        return b.gather(self.v, picked, (0, 0, 0), (1, 1, 1), (), (0, 1, 2), fill)

    def chain(self, join: str, start: Tile, stop: Tile, before: Tile | None) -> Tile:
        """The values of each row, eight at a time, joined to what was there before."""
        b, p, shape = self.b, self.p, (self.many, 1, self.n)
        begin = b.full(p.wide, shape, neutral(join, p.wide))
        if before is not None:
            begin = b.reshape(b.cast(before, p.wide), shape)
        longest = b.reshape(b.fold("max", b.apply("sub", stop, start), 0), ())
        with b.loop(0, p.count, _AT_ONCE, [begin], bound=longest) as loop:
            place = b.index(loop.variable, (1, _AT_ONCE), 1)
            place = b.apply("add", place, b.reshape(start, (self.many, 1)))
            found = self.taken(place, stop, neutral(join, p.dtype))
            joined = tree(b, join, b.cast(found, p.wide), 1)
            loop.carry(b.apply(join, loop.carried[0], joined))
        return b.reshape(loop.results[0], (self.many, self.n))


class _Replaced:
    """The kernel in which a block copies rows, or the values that replace them."""

    def __init__(self, p: ScatterRows):
        self.p, self.b = p, Builder("scatter_replaced")
        elements = _COPIED if p.outer * p.rows * p.columns >= ENOUGH * _COPIED else _COPIED_OF_FEW
        self.n = min(power(p.columns), _WIDEST)
        self.many = min(elements // self.n, power(p.rows))

    def launch(self, x: str, v: str, last: str, out: str) -> Launch:
        threads = Threads(warps_for(self.many * self.n, each=16))
        return Launch(self.kernel(), (x, v, last), (out,), threads)

    def kernel(self) -> Kernel:
        p, b, many, n = self.p, self.b, self.many, self.n
        shape = (p.outer, p.rows, p.columns)
        x = b.parameter("x", TensorType(p.dtype, shape))
        v = b.parameter("v", TensorType(p.dtype, (p.count, p.outer, p.columns)))
        last = b.parameter("last", TensorType(i32, (p.rows,)))
        y = b.parameter("y", TensorType(p.dtype, shape), writable=True)
        row, outer = b.program(-(-p.rows // many)) * many, b.program(p.outer)
        at = b.program(-(-p.columns // n)) * n
        masked = tuple(i for i, odd in ((1, p.rows % many), (2, p.columns % n)) if odd)
        box = (outer, row, at), (1, many, n), (1, 2), masked
        found = b.load(last, (row,), (many,), masked=(0,) if p.rows % many else (), fill=-1)
        which = b.reshape(b.cast(found, i64), (many, 1))
        before = b.load(x, *box)
        picked = {0: which, 1: b.index(outer, (1, 1), None), 2: b.index(at, (1, n), 1)}
        new = b.gather(v, picked, (0, 0, 0), (1, 1, 1), (), (0, 1, 2))
        some = b.apply("ge", which, b.full(i64, (1, 1), 0))
        b.store(y, b.apply("where", some, new, before), *box)
        return b.finish()
