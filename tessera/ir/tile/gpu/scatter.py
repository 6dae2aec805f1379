"""scatter: sums into numbered rows, with the rows that meet brought together first.

    y = x; y[i[n]] += v[n]   ->   order = numbers n sorted by i[n]; starts[r] = first of them with i >= r
                                  block r: y[r] = x[r] + v[order[starts[r]]] + ... + v[order[starts[r + 1] - 1]]

A number's place in the order is how many come before it: each is compared with each, which a GPU does
faster than anything clever while there are some ten thousands.  A row takes what meets there eight at a
time, in ascending order of n, as a tree and then a chain: its bits depend on nothing else.
"""

from __future__ import annotations

from tessera.core.dtype import DType, i32, i64
from tessera.core.types import TensorType
from tessera.ir.tile.gpu.blocks import power
from tessera.ir.tile.gpu.folds import tree
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile
from tessera.ir.tile.launch import Expansion, Launch, Threads

MOST = 1 << 17  # numbers that are compared with each other
_NUMBERS, _OTHERS = 32, 128  # that a block compares at a time
_SEARCHED = 512  # rows whose start a block looks for
_AT_ONCE = 8  # rows that are added at a time
_WIDEST = 256  # columns of a block, a warp


def scatter_sums(
    operands: tuple[str, str, str], out: str, rows: int, columns: int, count: int, dtype: DType
) -> Expansion:
    """The launches: order, starts, sums."""
    x, v, index = operands
    ordered, order, starts = (f"{out}_{n}" for n in ("sorted", "order", "starts"))
    numbers = TensorType(i32, (count,))
    between = {ordered: numbers, order: numbers, starts: TensorType(i32, (rows + 1,))}
    return Expansion(
        (
            Launch(_order(rows, count), (index,), (ordered, order), Threads(4)),
            Launch(_starts(rows, count), (ordered,), (starts,), Threads(4)),
            Launch(_sums(rows, columns, count, dtype), (x, v, order, starts), (out,), Threads(1)),
        ),
        between,
    )


def _order(rows: int, count: int) -> Kernel:
    """The row of each number and the numbers themselves, sorted by row and then by number."""
    b = Builder("scatter_order")
    index = b.parameter("index", TensorType(i64, (count,)))
    ordered = b.parameter("sorted", TensorType(i32, (count,)), writable=True)
    order = b.parameter("order", TensorType(i32, (count,)), writable=True)
    at = b.program(-(-count // _NUMBERS)) * _NUMBERS
    mine = _rows_of(b, index, at, _NUMBERS, rows)
    own = b.reshape(mine, (_NUMBERS, 1))
    number = b.cast(b.index(at, (_NUMBERS, 1), 0), i32)
    begin = b.full(i32, (_NUMBERS, _OTHERS), 0)
    with b.loop(0, count, _OTHERS, [begin]) as loop:
        there = b.reshape(_rows_of(b, index, loop.variable, _OTHERS, rows), (1, _OTHERS))
        others = b.cast(b.index(loop.variable, (1, _OTHERS), 1), i32)
        earlier = b.apply("logical_and", b.apply("eq", there, own), b.apply("lt", others, number))
        before = b.apply("logical_or", b.apply("lt", there, own), earlier)
        loop.carry(b.apply("add", loop.carried[0], b.cast(before, i32)))
    place = b.reshape(b.cast(b.fold("add", loop.results[0], 1), i64), (_NUMBERS,))
    # Behind the last number stands a row behind the last one: its place is out of the memory.
    b.scatter(ordered, mine, {0: place}, (0,), (1,), (), (0,))
    b.scatter(order, b.reshape(number, (_NUMBERS,)), {0: place}, (0,), (1,), (), (0,))
    return b.finish()


def _rows_of(b: Builder, index: Memory, at: object, n: int, rows: int) -> Tile:
    """The rows that some numbers stand for; one behind all for what is no row, and behind the last number."""
    found = b.load(index, (at,), (n,), masked=(0,))  # type: ignore[arg-type]
    numbers = b.index(at, (n,), 0)  # type: ignore[arg-type]
    inside = b.apply("lt", numbers, b.full(i64, (n,), int(index.type.shape[0])))
    for name, end in (("ge", 0), ("lt", rows)):
        inside = b.apply("logical_and", inside, b.apply(name, found, b.full(i64, (n,), end)))
    return b.cast(b.apply("where", inside, found, b.full(i64, (n,), rows)), i32)


def _starts(rows: int, count: int) -> Kernel:
    """For each row, and one behind the last, how many sorted numbers come before it."""
    b = Builder("scatter_starts")
    ordered = b.parameter("sorted", TensorType(i32, (count,)))
    starts = b.parameter("starts", TensorType(i32, (rows + 1,)), writable=True)
    at = b.program(-(-(rows + 1) // _SEARCHED)) * _SEARCHED
    row = b.index(at, (_SEARCHED,), 0)
    found = b.full(i64, (_SEARCHED,), 0)
    step = power(count + 1)
    while step:
        probe = b.apply("add", found, b.full(i64, (_SEARCHED,), step))
        place = b.apply("sub", probe, b.full(i64, (_SEARCHED,), 1))
        value = b.gather(ordered, {0: place}, (0,), (1,), (), (0,), rows + 1)
        further = b.apply("lt", b.cast(value, i64), row)
        found = b.apply("where", further, probe, found)
        step //= 2
    b.store(starts, b.cast(found, i32), (at,), (_SEARCHED,), masked=(0,))
    return b.finish()


def _sums(rows: int, columns: int, count: int, dtype: DType) -> Kernel:
    b, wide = Builder("scatter_sums"), dtype.accum
    x = b.parameter("x", TensorType(dtype, (rows, columns)))
    v = b.parameter("v", TensorType(dtype, (count, columns)))
    order = b.parameter("order", TensorType(i32, (count,)))
    starts = b.parameter("starts", TensorType(i32, (rows + 1,)))
    y = b.parameter("y", TensorType(dtype, (rows, columns)), writable=True)
    n = min(power(columns), _WIDEST)
    row, at = b.program(rows), b.program(-(-columns // n)) * n
    masked = (1,) if columns % n else ()
    start, stop = (b.cast(b.load(starts, (row + i,), (1,), ()), i64) for i in (0, 1))
    begin = b.cast(b.load(x, (row, at), (1, n), masked=masked), wide)
    line = b.index(at, (1, n), 1)
    with b.loop(0, count, _AT_ONCE, [begin], bound=b.apply("sub", stop, start)) as loop:
        place = b.apply(
            "add", b.index(loop.variable, (_AT_ONCE,), 0), b.broadcast(start, (_AT_ONCE,))
        )
        number = b.gather(order, {0: place}, (0,), (1,), (), (0,), 0)
        mine = b.apply("lt", place, b.broadcast(stop, (_AT_ONCE,)))
        nowhere = b.full(i64, (_AT_ONCE,), count)
        which = b.reshape(b.apply("where", mine, b.cast(number, i64), nowhere), (_AT_ONCE, 1))
        found = b.gather(v, {0: which, 1: line}, (0, 0), (1, 1), (), (0, 1), -0.0)
        sums = tree(b, "add", b.cast(found, wide), 0)
        loop.carry(b.apply("add", loop.carried[0], sums))
    b.store(y, b.cast(loop.results[0], dtype), (row, at), (1, n), masked=masked)
    return b.finish()
