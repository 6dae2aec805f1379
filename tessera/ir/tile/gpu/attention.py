"""Attention on a GPU: what its kernels have in common, and the forward pass.

    o = softmax(scale q k^T) v   ->   block (z, h, 64 queries): for keys by 128: s = dot(q, k); m' =
    max(m, s);
                                      p = 2^(s - m'); l, acc = l, acc * 2^(m - m') + sum p, dot(p, v)

Keys pass by from the last that a query sees to the first: where some are hidden from some, that is the
first step. Nothing of the size queries by keys exists in memory.  The number of keys in a step is part of
the order of sums, and follows from the size of a head; the number of queries and of threads is not.
Weights are rounded to the dtype of v before they meet it.

A head of any size is cut into tiles whose widths are powers of two, the last one filled up with zeros: 80
is 64 and 16. With a mask, keys are taken in parts, each with a softmax of its own, which are joined one
after the other (attention_decode.py says why).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tessera.core.dims import Size, larger, smaller
from tessera.core.dtype import DType, f32
from tessera.core.types import TensorType
from tessera.ir.schedule.device_steps import Columns
from tessera.ir.schedule.gpu_blocks import padded, pieces, width
from tessera.ir.tile.ir import Builder, Kernel, Loop, Memory, Tile
from tessera.ir.tile.launch import Threads

KEYS = 128  # in a step of the forward pass, for heads of up to 128 numbers
_PARTS = 32  # that keys are cut into, at most
LOG2E = 1.4426950408889634  # log2(e): exp(x) is exp2(x log2(e))


@dataclass(frozen=True)
class AttentionProblem:
    """The sizes of an attention: batch, heads, heads of keys, queries, keys, and sizes of a row."""

    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    size: int
    values: int
    dtype: DType
    causal: bool
    scale: float
    columns: tuple[tuple[str, Columns], ...] = ()  # of parameters that do not lie head by head
    mask: TensorType | None = None  # bools, or floats to add: lead, heads, queries, keys, or 1
    lead: tuple[int, ...] = ()  # the axes of the batch, where a mask has some of them

    @property
    def share(self) -> int:
        """Heads of queries for each head of keys."""
        return self.heads // self.groups

    @property
    def offset(self) -> int:
        """How many keys the first query sees before its own."""
        return self.keys - self.queries

    @property
    def row_type(self) -> TensorType:
        """One number for each query."""
        return TensorType(f32, (self.batch, self.heads, self.queries))

    @property
    def step(self) -> int:
        """Keys that the forward pass takes at a time: 128, 64 of wide heads, 32 of the widest."""
        widest = max(self.size, self.values)
        return KEYS if widest <= 128 else KEYS // 2 if widest <= 256 else KEYS // 4

    @property
    def part(self) -> int:
        """Keys that have a softmax of their own where parts are joined: at most 32 parts, of at least 128
        keys.
        """
        return max(KEYS, padded(-(-self.keys // _PARTS)))

    @property
    def biased(self) -> bool:
        """Whether numbers are added to scores."""
        return self.mask is not None and self.mask.dtype.kind == "f"


class AttentionKernel:
    """What the kernels have in common; tiles of a head are lists of pieces."""

    def __init__(self, name: str, p: AttentionProblem, whole: int = 0):
        self.p, self.b, self.whole = p, Builder(name), whole
        self.columns = dict(p.columns)
        self.sizes: dict[str, int] = {}

    def pieces(self, size: int) -> tuple[tuple[int, int], ...]:
        """The tiles of a head: one of so many columns, where `whole` says so."""
        return ((0, self.whole),) if self.whole else pieces(size)

    def of_queries(self, name: str, size: int, writable: bool = False) -> Memory:
        """A tensor with a row for each query."""
        return self.tensor(name, (self.p.heads, self.p.queries, size), writable)

    def of_keys(self, name: str, size: int, writable: bool = False) -> Memory:
        """A tensor with a row for each key."""
        return self.tensor(name, (self.p.groups, self.p.keys, size), writable)

    def tensor(self, name: str, shape: tuple[int, int, int], writable: bool) -> Memory:
        self.sizes[name] = size = shape[2]
        own = self.columns.get(name)
        rest = shape if own is None else (shape[1], own.pitch)
        if own is not None and self._is_apart(size):
            rest = (shape[1], own.pitch // size, size)
        return self.b.parameter(name, TensorType(self.p.dtype, (self.p.batch, *rest)), writable)

    def _is_apart(self, size: int) -> bool:
        """Whether tiles reach over the end of a head, whose columns are an axis of their own then."""
        return sum(n for _, n in self.pieces(size)) != size

    def box(self, m: Memory, z: Size, h: Size, at: Size, n: int) -> tuple[list[Size], list[int]]:
        """Where rows of a head begin, and how many they are along each axis."""
        own, size = self.columns.get(m.name), self.sizes[m.name]
        if own is None:
            return [z, h, at, 0], [1, 1, n, 1]
        if self._is_apart(size):
            return [z, at, own.first // size + h * (own.step // size), 0], [1, n, 1, 1]
        return [z, at, own.first + h * own.step], [1, n, 1]

    def boxes(self, m: Memory, z: Size, h: Size, at: Size, n: int) -> list[dict[str, Any]]:
        """Where the pieces of some rows lie."""
        start, extent = self.box(m, z, h, at, n)
        rows, last = (1 if m.name in self.columns else len(start) - 2), len(start) - 1
        out = []
        for begin, columns in self.pieces(self.sizes[m.name]):
            masked = [rows] if int(m.type.shape[rows]) % n else []
            masked += [last] if begin + columns > self.sizes[m.name] else []
            place = [*start[:-1], start[-1] + begin]
            box = [*extent[:-1], columns]
            out.append({"at": place, "extent": box, "axes": (rows, last), "masked": masked})
        return out

    def tile(
        self, m: Memory, z: Size, h: Size, at: Size, n: int, turned: bool = False
    ) -> list[Tile]:
        """Rows of a tensor, or its columns, from `at` on; 0 behind the last one."""
        out = []
        for box in self.boxes(m, z, h, at, n):
            axes = box["axes"][::-1] if turned else box["axes"]
            out.append(self.b.load(m, box["at"], box["extent"], axes, box["masked"]))
        return out

    def numbers(self, m: Memory, z: Size, h: Size, at: Size, n: int, across: bool) -> Tile:
        """A number for each query, along the rows or the columns of a tile."""
        masked = (2,) if self.p.queries % n else ()
        found = self.b.load(m, (z, h, at), (1, 1, n), (2,), masked)
        return self.b.reshape(found, (1, n) if across else (n, 1))

    def full(self, shape: tuple[int, int], value: float) -> Tile:
        return self.b.full(f32, shape, value)

    def zeros(self, rows: int, size: int) -> list[Tile]:
        """Sums of rows of a head."""
        return [self.full((rows, n), 0) for _, n in self.pieces(size)]

    def number(self, value: float) -> Tile:
        return self.b.full(f32, (1, 1), value)

    def product(self, xs: Sequence[Tile], ys: Sequence[Tile]) -> Tile:
        """The product of rows and turned rows, one chain over their pieces."""
        total = self.full((xs[0].shape[0], ys[0].shape[1]), 0)
        for x, y in zip(xs, ys, strict=True):
            total = self.b.dot(x, y, total)
        return total

    def summed(self, x: Tile, rows: Sequence[Tile], sums: Sequence[Tile]) -> list[Tile]:
        """Sums to which the product of weights and rows is added."""
        return [self.b.dot(x, y, acc) for y, acc in zip(rows, sums, strict=True)]

    def seen(
        self, s: Tile, query: Size, key: Size, turned: bool, hidden: float, causal: bool
    ) -> Tile:
        """Scores, or what became of them, where a query may see a key; something else elsewhere."""
        b, p = self.b, self.p
        rows, columns = s.shape
        q = b.index(
            query + p.offset - key, (1, columns) if turned else (rows, 1), 1 if turned else 0
        )
        k = b.index(0, (rows, 1) if turned else (1, columns), 0 if turned else 1)
        test = b.apply("ge", q, k) if causal else b.apply("lt", k, b.index(p.keys - key, (1, 1)))
        return b.apply("where", test, s, self.number(hidden))

    def narrowed(self, x: Tile) -> Tile:
        return self.b.cast(x, self.p.dtype)

    def store(self, m: Memory, xs: Sequence[Tile], z: Size, h: Size, at: Size) -> None:
        for x, box in zip(xs, self.boxes(m, z, h, at, xs[0].shape[0]), strict=True):
            value = self.b.cast(x, m.type.dtype)
            if m.name in self.columns and self.columns[m.name].plus_zero:
                sums = self.b.apply("add", self.b.cast(value, f32), self.number(0))
                value = self.b.cast(sums, m.type.dtype)
            self.b.store(m, value, box["at"], box["extent"], box["axes"], box["masked"])


@dataclass
class QuerySums:
    """What a block of queries has of the keys so far."""

    acc: list[Tile]  # values times weights
    top: Tile  # the largest score
    total: Tile  # the sum of weights

    @property
    def tiles(self) -> list[Tile]:
        return [*self.acc, self.top, self.total]

    @staticmethod
    def of(tiles: Sequence[Tile]) -> QuerySums:
        return QuerySums(list(tiles[:-2]), tiles[-2], tiles[-1])


class AttentionForward(AttentionKernel):
    """o, and the logarithm to base 2 of the sum of each row."""

    def __init__(
        self, p: AttentionProblem, queries: int = 128, keys: int | None = None, whole: int = 0
    ):
        super().__init__("attention", p, whole)
        self.m, self.n = queries, p.step if keys is None else keys
        self.inputs()
        self.o = self.of_queries("o", p.values, writable=True)
        self.logs = self.b.parameter("logs", p.row_type, writable=True)

    def inputs(self) -> None:
        p = self.p
        self.q = self.of_queries("q", p.size)
        self.k = self.of_keys("k", p.size)
        self.v = self.of_keys("v", p.values)
        self.mask = None if p.mask is None else self.b.parameter("mask", p.mask)

    def kernel(self) -> Kernel:
        b, p = self.b, self.p
        head = b.program(p.batch * p.heads)
        blocks = -(-p.queries // self.m)
        number = b.program(blocks)
        # Later queries see more keys: they begin first.
        at = (blocks - 1 - number) * self.m if p.causal else number * self.m
        self.z, self.h, self.at = head // p.heads, head % p.heads, at
        self.q_tile = self.tile(self.q, self.z, self.h, at, self.m)
        self.finish(self.plain() if p.mask is None else self.in_parts())
        return b.finish()

    def empty(self) -> QuerySums:
        """The sums of no keys."""
        acc = self.zeros(self.m, self.p.values)
        return QuerySums(acc, self.full((self.m, 1), -math.inf), self.full((self.m, 1), 0))

    def plain(self) -> QuerySums:
        """The sums of all keys in one chain."""
        edge, count = self.steps(self.at)
        state = self.empty().tiles
        if edge != 0 and not self.p.causal:
            edge = (
                count  # a loop of one step would be taken apart, and have shared memory of its own
            )
        if edge != 0:
            with self.b.loop(0, edge, 1, state) as some:
                key = (count - 1 - some.variable) * self.n
                some.carry(*self.step(some, key, True))
            state = list(some.results)
        if edge == count and not self.p.causal:
            return QuerySums.of(state)
        with self.b.loop(edge, count, 1, state) as clear:
            key = (count - 1 - clear.variable) * self.n
            clear.carry(*self.step(clear, key, False))
        return QuerySums.of(clear.results)

    def in_parts(self) -> QuerySums:
        """The sums of all keys, part by part."""
        end, size = self.end(), self.p.part
        with self.b.loop(0, (end + size - 1) // size, 1, self.empty().tiles) as parts:
            first = parts.variable * size
            own = self.of_part(first, smaller(end - first, size))
            parts.carry(*joined(self, QuerySums.of(parts.carried), own).tiles)
        return QuerySums.of(parts.results)

    def of_part(self, first: Size, length: Size) -> QuerySums:
        """The sums of so many keys from one on."""
        count = (length + self.n - 1) // self.n
        edge = self.p.causal or bool(self.p.keys % self.n)
        with self.b.loop(0, count, 1, self.empty().tiles) as loop:
            key = first + (count - 1 - loop.variable) * self.n
            loop.carry(*self.step(loop, key, edge))
        return QuerySums.of(loop.results)

    def end(self) -> Size:
        """The key behind the last one that a query of the block sees."""
        p = self.p
        if not p.causal:
            return p.keys
        return smaller(p.keys, larger(self.at + self.m + p.offset, 0))

    def finish(self, x: QuerySums) -> None:
        """Write the means of values and the logarithms of the sums."""
        b, p = self.b, self.p
        total = b.apply("where", b.apply("eq", x.total, self.number(0)), self.number(1), x.total)
        self.store(self.o, [b.apply("div", a, total) for a in x.acc], self.z, self.h, self.at)
        scaled = x.top if p.biased else b.apply("mul", x.top, self.number(p.scale * LOG2E))
        logs = b.apply("add", scaled, b.apply("log2", total))
        masked = (2,) if p.queries % self.m else ()
        flat = b.reshape(logs, (self.m,))
        b.store(self.logs, flat, (self.z, self.h, self.at), (1, 1, self.m), (2,), masked)

    def steps(self, at: Size) -> tuple[Size, Size]:
        """Steps whose keys not all queries of a block see, which come first, and all steps."""
        p, n = self.p, self.n
        clear: Size = p.keys // n
        count: Size = -(-p.keys // n)
        if p.causal:
            clear = smaller(clear, larger(at + p.offset + 1, 0) // n)
            count = smaller(count, (larger(at + self.m + p.offset, 0) + n - 1) // n)
        return count - clear, count

    @property
    def late(self) -> bool:
        """Whether a query may see nothing in the first steps of its block."""
        p = self.p
        if p.mask is not None:
            return True
        aligned = self.n % self.m == 0 and p.offset % self.m == 0
        return p.causal and (p.queries > p.keys or not aligned)

    def scores(self, g: Size, key: Size, edge: bool) -> Tile:
        """What the softmax is of; to base 2, where numbers were added."""
        k = self.tile(self.k, self.z, g, key, self.n, turned=True)
        s = self.product(self.q_tile, k)
        if self.mask is not None:
            s = self.masked(s, self.mask, key)
        if edge:
            s = self.seen(s, self.at, key, False, -math.inf, self.p.causal)
        return s

    def masked(self, s: Tile, m: Memory, key: Size) -> Tile:
        """Scores where a mask shows them, or with the numbers that it adds."""
        b, p = self.b, self.p
        places, left = [self.h, self.at, key], self.z
        for n in reversed(p.lead or (p.batch,)):
            places, left = [left % n, *places], left // n
        sizes = [int(n) for n in m.type.shape]
        steps = [*[1] * (len(sizes) - 2), self.m, self.n]
        box = [k if n > 1 else 1 for n, k in zip(sizes, steps, strict=True)]
        at = [i if n > 1 else 0 for n, i in zip(sizes, places, strict=True)]
        axes = (len(sizes) - 2, len(sizes) - 1)
        found = b.load(m, at, box, axes, [i for i in axes if sizes[i] % box[i]])
        if m.type.dtype.kind == "b":
            return b.apply("where", found, s, self.number(-math.inf))
        more = b.apply("mul", b.cast(found, f32), self.number(LOG2E))
        return b.apply("fma", s, self.number(self.p.scale * LOG2E), more)

    def step(self, loop: Loop, key: Size, edge: bool) -> list[Tile]:
        b, p, before = self.b, self.p, QuerySums.of(loop.carried)
        g = self.h // p.share
        s = self.scores(g, key, edge)
        new = b.apply("max", before.top, b.fold("max", s, 1))
        scale = self.number(1.0 if p.biased else p.scale * LOG2E)
        level = new
        if (edge or self.mask is not None) and self.late:
            nothing = b.apply("eq", new, self.number(-math.inf))
            level = b.apply("where", nothing, self.number(0), new)
        down = b.apply("neg", b.apply("mul", level, scale))
        weights = b.apply("exp2", b.apply("fma", s, scale, down))
        # Exactly 1 where the largest score stays: steps that show a row nothing change nothing.
        again = b.apply("exp2", b.apply("mul", b.apply("sub", before.top, level), scale))
        total = b.apply("add", b.apply("mul", before.total, again), b.fold("add", weights, 1))
        v = self.tile(self.v, self.z, g, key, self.n)
        scaled = [b.apply("mul", a, again) for a in before.acc]
        acc = self.summed(self.narrowed(weights), v, scaled)
        return [*acc, new, total]


def joined(kernel: AttentionKernel, x: QuerySums, y: QuerySums) -> QuerySums:
    """The sums of two parts; one that shows a row nothing changes nothing."""
    b, p = kernel.b, kernel.p
    top = b.apply("max", x.top, y.top)
    nothing = b.apply("eq", top, kernel.number(-math.inf))
    level = b.apply("where", nothing, kernel.number(0), top)
    scale = kernel.number(1.0 if p.biased else p.scale * LOG2E)
    one, two = (
        b.apply("exp2", b.apply("mul", b.apply("sub", s.top, level), scale)) for s in (x, y)
    )
    acc = [
        b.apply("fma", a, one, b.apply("mul", c, two)) for a, c in zip(x.acc, y.acc, strict=True)
    ]
    return QuerySums(acc, top, b.apply("fma", x.total, one, b.apply("mul", y.total, two)))


def forward_block(p: AttentionProblem) -> tuple[int, Threads]:
    """Queries of a block of the forward pass, and how a GPU runs it."""
    wide = max(width(p.size), width(p.values))
    if p.mask is not None:
        return 64, Threads(8, 2, approximate=True)  # 4 warps take 3 to 10 times as long
    if wide <= 64:
        # Three blocks to a multiprocessor; without the bound, places of keys would stay in registers.
        return 64, Threads(4, 2, True, approximate=True, registers=168)
    if wide <= 128:
        return 128, Threads(8, 3, approximate=True)
    return (128 if wide <= 256 else 64), Threads(8, 2, approximate=True)
