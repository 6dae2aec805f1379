"""Attention on a GPU: keys pass by a block of queries, whose softmax is corrected as it goes.

    o = softmax(scale q k^T) v   ->   block (z, h, 64 queries): for keys by 128: s = dot(q, k); m' = max(m, s);
                                      p = 2^(s - m'); l, acc = l, acc * 2^(m - m') + sum p, dot(p, v)

Keys pass by from the last that a query sees to the first: where some are hidden from some, that is the first step.
Nothing of the size queries by keys exists in memory.  What the backward pass needs of a row is the
logarithm of its sum; it computes the weights again from that, once for a block of keys and once for a block
of queries, so that every sum has one order.  The number of keys in a step is part of that order; the
number of queries and of threads is not.  Weights are rounded to the dtype of v before they meet it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tessera.core.dims import Size, larger, smaller
from tessera.core.dtype import DType, f32
from tessera.core.types import TensorType
from tessera.ir.tile.ir import Builder, Kernel, Loop, Memory, Tile
from tessera.ir.tile.launch import Threads

KEYS = 128  # in a step of the forward pass
_LOG2E = 1.4426950408889634


@dataclass(frozen=True)
class Columns:
    """A tensor of heads as columns of a matrix for each batch."""

    pitch: int  # columns of the matrix
    first: int  # where head 0 begins
    step: int  # from head to head
    plus_zero: bool = False  # whether 0 is added to what is written: there is no -0 then


@dataclass(frozen=True)
class Problem:
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


class _Attention:
    """What the kernels have in common."""

    def __init__(self, name: str, p: Problem):
        self.p, self.b = p, Builder(name)
        self.columns = dict(p.columns)
        self.sizes: dict[str, int] = {}

    def of_queries(self, name: str, size: int, writable: bool = False) -> Memory:
        """A tensor with a row for each query."""
        return self.tensor(name, (self.p.heads, self.p.queries, size), writable)

    def of_keys(self, name: str, size: int, writable: bool = False) -> Memory:
        """A tensor with a row for each key."""
        return self.tensor(name, (self.p.groups, self.p.keys, size), writable)

    def tensor(self, name: str, shape: tuple[int, int, int], writable: bool) -> Memory:
        self.sizes[name] = shape[2]
        own = self.columns.get(name)
        rest = shape if own is None else (shape[1], own.pitch)
        return self.b.parameter(name, TensorType(self.p.dtype, (self.p.batch, *rest)), writable)

    def box(self, m: Memory, z: Size, h: Size, at: Size, n: int) -> tuple[Any, Any, int]:
        """Where rows of a head lie, how many they are, and the axis that counts them."""
        own, size = self.columns.get(m.name), self.sizes[m.name]
        if own is None:
            return (z, h, at, 0), (1, 1, n, size), 2
        return (z, at, own.first + h * own.step), (1, n, size), 1

    def tile(self, m: Memory, z: Size, h: Size, at: Size, n: int, turned: bool = False) -> Tile:
        """Rows of a tensor, or its columns, from `at` on; 0 behind the last one."""
        start, extent, rows = self.box(m, z, h, at, n)
        masked = (rows,) if int(m.type.shape[rows]) % n else ()
        axes = (rows + 1, rows) if turned else (rows, rows + 1)
        return self.b.load(m, start, extent, axes, masked)

    def numbers(self, m: Memory, z: Size, h: Size, at: Size, n: int, across: bool) -> Tile:
        """A number for each query, along the rows or the columns of a tile."""
        masked = (2,) if self.p.queries % n else ()
        found = self.b.load(m, (z, h, at), (1, 1, n), (2,), masked)
        return self.b.reshape(found, (1, n) if across else (n, 1))

    def full(self, shape: tuple[int, int], value: float) -> Tile:
        return self.b.full(f32, shape, value)

    def number(self, value: float) -> Tile:
        return self.b.full(f32, (1, 1), value)

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

    def store(self, m: Memory, x: Tile, z: Size, h: Size, at: Size) -> None:
        start, extent, rows = self.box(m, z, h, at, x.shape[0])
        masked = (rows,) if int(m.type.shape[rows]) % x.shape[0] else ()
        value = self.b.cast(x, m.type.dtype)
        if m.name in self.columns and self.columns[m.name].plus_zero:
            sums = self.b.apply("add", self.b.cast(value, f32), self.number(0))
            value = self.b.cast(sums, m.type.dtype)
        self.b.store(m, value, start, extent, (rows, rows + 1), masked)


class Forward(_Attention):
    """o, and the logarithm to base 2 of the sum of each row."""

    def __init__(self, p: Problem, queries: int = 128, keys: int = KEYS):
        super().__init__("attention", p)
        self.m, self.n = queries, keys
        b = self.b
        self.q = self.of_queries("q", p.size)
        self.k = self.of_keys("k", p.size)
        self.v = self.of_keys("v", p.values)
        self.o = self.of_queries("o", p.values, writable=True)
        self.logs = b.parameter("logs", p.row_type, writable=True)

    def kernel(self) -> Kernel:
        b, p = self.b, self.p
        head = b.program(p.batch * p.heads)
        blocks = -(-p.queries // self.m)
        number = b.program(blocks)
        # Later queries see more keys: they begin first.
        at = (blocks - 1 - number) * self.m if p.causal else number * self.m
        self.z, self.h = head // p.heads, head % p.heads
        self.q_tile = self.tile(self.q, self.z, self.h, at, self.m)
        edge, self.count = self.steps(at)
        state = [
            self.full((self.m, p.values), 0), self.full((self.m, 1), -math.inf), self.full((self.m, 1), 0),
        ]  # fmt: skip
        if edge != 0:
            with b.loop(0, edge, 1, state) as some:
                some.carry(*self.step(some, at, True))
            state = list(some.results)
        with b.loop(edge, self.count, 1, state) as clear:
            clear.carry(*self.step(clear, at, False))
        state = list(clear.results)
        acc, top, total = state
        total = b.apply("where", b.apply("eq", total, self.number(0)), self.number(1), total)
        self.store(self.o, b.apply("div", acc, total), self.z, self.h, at)
        scaled = b.apply("mul", top, self.number(p.scale * _LOG2E))
        logs = b.apply("add", scaled, b.apply("log2", total))
        masked = (2,) if p.queries % self.m else ()
        flat = b.reshape(logs, (self.m,))
        b.store(self.logs, flat, (self.z, self.h, at), (1, 1, self.m), (2,), masked)
        return b.finish()

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
        aligned = self.n % self.m == 0 and p.offset % self.m == 0
        return p.causal and (p.queries > p.keys or not aligned)

    def step(self, loop: Loop, at: Size, edge: bool) -> list[Tile]:
        b, p = self.b, self.p
        acc, top, total = loop.carried
        g, key = self.h // p.share, (self.count - 1 - loop.variable) * self.n
        k = self.tile(self.k, self.z, g, key, self.n, turned=True)
        s = b.dot(self.q_tile, k, self.full((self.m, self.n), 0))
        if edge:
            s = self.seen(s, at, key, False, -math.inf, p.causal)
        new = b.apply("max", top, b.fold("max", s, 1))
        scale = self.number(p.scale * _LOG2E)
        level = new
        if edge and self.late:
            nothing = b.apply("eq", new, self.number(-math.inf))
            level = b.apply("where", nothing, self.number(0), new)
        down = b.apply("neg", b.apply("mul", level, scale))
        weights = b.apply("exp2", b.apply("fma", s, scale, down))
        # Exactly 1 where the largest score stays: steps that show a row nothing change nothing.
        again = b.apply("exp2", b.apply("mul", b.apply("sub", top, level), scale))
        total = b.apply("add", b.apply("mul", total, again), b.fold("add", weights, 1))
        v = self.tile(self.v, self.z, g, key, self.n)
        acc = b.dot(self.narrowed(weights), v, b.apply("mul", acc, again))
        return [acc, new, total]


class Delta(_Attention):
    """The sum of o times its cotangent, for each query."""

    def __init__(self, p: Problem, queries: int = 64):
        super().__init__("attention_delta", p)
        self.m = queries
        self.o = self.of_queries("o", p.values)
        self.d_o = self.of_queries("d_o", p.values)
        self.delta = self.b.parameter("delta", p.row_type, writable=True)

    def kernel(self) -> Kernel:
        b, p = self.b, self.p
        head, number = b.program(p.batch * p.heads), b.program(-(-p.queries // self.m))
        z, h, at = head // p.heads, head % p.heads, number * self.m
        x, y = (b.cast(self.tile(m, z, h, at, self.m), f32) for m in (self.o, self.d_o))
        sums = b.fold("add", b.apply("mul", x, y), 1)
        masked = (2,) if p.queries % self.m else ()
        flat = b.reshape(sums, (self.m,))
        b.store(self.delta, flat, (z, h, at), (1, 1, self.m), (2,), masked)
        return b.finish()


class _Backward(_Attention):
    """What both kernels of the backward pass read."""

    def __init__(self, name: str, p: Problem, queries: int, keys: int):
        super().__init__(name, p)
        self.m, self.n = queries, keys
        b = self.b
        self.q = self.of_queries("q", p.size)
        self.k = self.of_keys("k", p.size)
        self.v = self.of_keys("v", p.values)
        self.d_o = self.of_queries("d_o", p.values)
        self.logs = b.parameter("logs", p.row_type)
        self.delta = b.parameter("delta", p.row_type)

    def weights(
        self, s: Tile, logs: Tile, query: Size, key: Size, turned: bool, edge: bool
    ) -> Tile:
        """The weights of the forward pass, from scores and the logarithms of their sums."""
        scale = self.number(self.p.scale * _LOG2E)
        found = self.b.apply("exp2", self.b.apply("fma", s, scale, self.b.apply("neg", logs)))
        if not edge:
            return found
        return self.seen(found, query, key, turned, 0.0, self.p.causal)

    def slopes(self, weights: Tile, d: Tile, delta: Tile) -> Tile:
        """The cotangent of the scores, without their scale."""
        return self.narrowed(self.b.apply("mul", weights, self.b.apply("sub", d, delta)))

    def scaled(self, x: Tile) -> Tile:
        return self.b.apply("mul", x, self.number(self.p.scale))

    @contextmanager
    def each(self, start: Size, stop: Size, step: int, state: list[Tile]) -> Iterator[Loop]:
        with self.b.loop(start, stop, step, state) as loop:
            yield loop


class KeysBackward(_Backward):
    """The cotangents of k and v: queries pass by a block of keys."""

    def __init__(self, p: Problem, queries: int = 64, keys: int = 128):
        super().__init__("attention_keys", p, queries, keys)
        self.d_k = self.of_keys("d_k", p.size, writable=True)
        self.d_v = self.of_keys("d_v", p.values, writable=True)

    def kernel(self) -> Kernel:
        b, p = self.b, self.p
        head, number = b.program(p.batch * p.groups), b.program(-(-p.keys // self.n))
        self.z, self.g, self.at = head // p.groups, head % p.groups, number * self.n
        self.k_tile = self.tile(self.k, self.z, self.g, self.at, self.n)
        self.v_tile = self.tile(self.v, self.z, self.g, self.at, self.n)
        state = [self.full((self.n, p.size), 0), self.full((self.n, p.values), 0)]
        if p.share == 1:
            d_k, d_v = self.head(self.g, state)
        else:
            with b.loop(0, p.share, 1, state) as heads:
                heads.carry(*self.head(self.g * p.share + heads.variable, list(heads.carried)))
            d_k, d_v = heads.results
        self.store(self.d_k, self.scaled(d_k), self.z, self.g, self.at)
        self.store(self.d_v, d_v, self.z, self.g, self.at)
        return b.finish()

    def head(self, h: Size, state: list[Tile]) -> list[Tile]:
        """What the queries of one head add."""
        p = self.p
        start: Size = 0
        clear: Size = 0
        if (
            p.causal
        ):  # the first query that sees one of these keys, and the first that sees them all
            start = larger(self.at - p.offset, 0) // self.m * self.m
            clear = smaller(
                (larger(self.at + self.n - 1 - p.offset, 0) + self.m - 1) // self.m * self.m,
                p.queries,
            )
            clear = larger(clear, start)
            with self.each(start, clear, self.m, state) as edge:
                edge.carry(*self.step(edge, h, True))
            state = list(edge.results)
        ragged = bool(p.keys % self.n or p.queries % self.m)
        with self.each(clear, p.queries, self.m, state) as whole:
            whole.carry(*self.step(whole, h, False, ragged))
        return list(whole.results)

    def step(self, loop: Loop, h: Size, edge: bool, ragged: bool = False) -> list[Tile]:
        b, at = self.b, loop.variable
        d_k, d_v = loop.carried
        q = self.tile(self.q, self.z, h, at, self.m)
        q_turned = self.tile(self.q, self.z, h, at, self.m, turned=True)
        s = b.dot(self.k_tile, q_turned, self.full((self.n, self.m), 0))
        logs = self.numbers(self.logs, self.z, h, at, self.m, True)
        weights = self.weights(s, logs, at, self.at, True, edge)
        if ragged or (edge and self.p.queries % self.m):
            weights = self.inside(weights, at)
        d_o = self.tile(self.d_o, self.z, h, at, self.m)
        d_v = b.dot(self.narrowed(weights), d_o, d_v)
        d_o_turned = self.tile(self.d_o, self.z, h, at, self.m, turned=True)
        d = b.dot(self.v_tile, d_o_turned, self.full((self.n, self.m), 0))
        delta = self.numbers(self.delta, self.z, h, at, self.m, True)
        d_k = b.dot(self.slopes(weights, d, delta), q, d_k)
        return [d_k, d_v]

    def inside(self, weights: Tile, at: Size) -> Tile:
        """0 for queries behind the last one, whose rows are read as 0."""
        b = self.b
        numbers = b.index(at, (1, self.m), 1)
        test = b.apply("lt", numbers, b.index(self.p.queries, (1, 1)))
        return b.apply("where", test, weights, self.number(0.0))


class QueriesBackward(_Backward):
    """The cotangent of q: keys pass by a block of queries."""

    def __init__(self, p: Problem, queries: int = 128, keys: int = 64):
        super().__init__("attention_queries", p, queries, keys)
        self.d_q = self.of_queries("d_q", p.size, writable=True)

    def kernel(self) -> Kernel:
        b, p = self.b, self.p
        head, number = b.program(p.batch * p.heads), b.program(-(-p.queries // self.m))
        blocks = -(-p.queries // self.m)
        self.at = (blocks - 1 - number) * self.m if p.causal else number * self.m
        self.z, self.h = head // p.heads, head % p.heads
        self.q_tile = self.tile(self.q, self.z, self.h, self.at, self.m)
        self.o_tile = self.tile(self.d_o, self.z, self.h, self.at, self.m)
        self.row_logs = self.numbers(self.logs, self.z, self.h, self.at, self.m, False)
        self.row_delta = self.numbers(self.delta, self.z, self.h, self.at, self.m, False)
        whole: Size = p.keys // self.n * self.n
        stop: Size = p.keys
        if p.causal:
            whole = smaller(whole, larger(self.at + p.offset + 1, 0) // self.n * self.n)
            stop = smaller(stop, larger(self.at + self.m + p.offset, 0))
        state = [self.full((self.m, p.size), 0)]
        with self.each(0, whole, self.n, state) as clear:
            clear.carry(self.step(clear, False))
        state = list(clear.results)
        if whole != stop:
            with self.each(whole, stop, self.n, state) as edge:
                edge.carry(self.step(edge, True))
            state = list(edge.results)
        self.store(self.d_q, self.scaled(state[0]), self.z, self.h, self.at)
        return b.finish()

    def step(self, loop: Loop, edge: bool) -> Tile:
        b, g, at = self.b, self.h // self.p.share, loop.variable
        k_turned = self.tile(self.k, self.z, g, at, self.n, turned=True)
        s = b.dot(self.q_tile, k_turned, self.full((self.m, self.n), 0))
        weights = self.weights(s, self.row_logs, self.at, at, False, edge)
        v_turned = self.tile(self.v, self.z, g, at, self.n, turned=True)
        d = b.dot(self.o_tile, v_turned, self.full((self.m, self.n), 0))
        k = self.tile(self.k, self.z, g, at, self.n)
        return b.dot(self.slopes(weights, d, self.row_delta), k, loop.carried[0])


def forward_threads(p: Problem) -> Threads:
    """How a GPU runs the forward pass."""
    if p.size > 64:
        return Threads(8, 3, approximate=True)
    # Three blocks to a multiprocessor; without the bound, places of keys would stay in registers.
    return Threads(4, 2, True, approximate=True, registers=168)


def backward_threads(p: Problem) -> Threads:
    """How a GPU runs the kernels of the backward pass."""
    return Threads(4, 2, True, approximate=True)
