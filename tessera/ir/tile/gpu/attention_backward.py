"""The backward pass of attention on a GPU.

It computes the weights again, from the logarithm of the sum of each row, which the forward pass leaves:
once for a block of keys and once for a block of queries, so that every sum has one order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tessera.core.dims import Size, larger, smaller
from tessera.core.dtype import f32
from tessera.ir.schedule.gpu_blocks import width
from tessera.ir.tile.gpu.attention import LOG2E, AttentionKernel, AttentionProblem
from tessera.ir.tile.ir import Kernel, Loop, Tile
from tessera.ir.tile.launch import Threads


class Delta(AttentionKernel):
    """The sum of o times its cotangent, for each query."""

    def __init__(self, p: AttentionProblem, queries: int = 64):
        super().__init__("attention_delta", p)
        self.m = queries
        self.o = self.of_queries("o", p.values)
        self.d_o = self.of_queries("d_o", p.values)
        self.delta = self.b.parameter("delta", p.row_type, writable=True)

    def kernel(self) -> Kernel:
        b, p = self.b, self.p
        head, number = b.program(p.batch * p.heads), b.program(-(-p.queries // self.m))
        z, h, at = head // p.heads, head % p.heads, number * self.m
        x, y = (self.tile(m, z, h, at, self.m) for m in (self.o, self.d_o))
        sums, *more = (
            b.fold("add", b.apply("mul", b.cast(a, f32), b.cast(c, f32)), 1)
            for a, c in zip(x, y, strict=True)
        )
        for other in more:
            sums = b.apply("add", sums, other)
        masked = (2,) if p.queries % self.m else ()
        flat = b.reshape(sums, (self.m,))
        b.store(self.delta, flat, (z, h, at), (1, 1, self.m), (2,), masked)
        return b.finish()


class _Backward(AttentionKernel):
    """What both kernels of the backward pass read."""

    def __init__(self, name: str, p: AttentionProblem, queries: int, keys: int, whole: int):
        super().__init__(name, p, whole)
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
        scale = self.number(self.p.scale * LOG2E)
        found = self.b.apply("exp2", self.b.apply("fma", s, scale, self.b.apply("neg", logs)))
        if not edge:
            return found
        return self.seen(found, query, key, turned, 0.0, self.p.causal)

    def slopes(self, weights: Tile, d: Tile, delta: Tile) -> Tile:
        """The cotangent of the scores, without their scale."""
        return self.narrowed(self.b.apply("mul", weights, self.b.apply("sub", d, delta)))

    def scaled(self, xs: list[Tile]) -> list[Tile]:
        return [self.b.apply("mul", x, self.number(self.p.scale)) for x in xs]

    @contextmanager
    def each(self, start: Size, stop: Size, step: int, state: list[Tile]) -> Iterator[Loop]:
        with self.b.loop(start, stop, step, state) as loop:
            yield loop


class KeysBackward(_Backward):
    """The cotangents of k and v: queries pass by a block of keys."""

    def __init__(self, p: AttentionProblem, queries: int = 64, keys: int = 128, whole: int = 0):
        super().__init__("attention_keys", p, queries, keys, whole)
        self.d_k = self.of_keys("d_k", p.size, writable=True)
        self.d_v = self.of_keys("d_v", p.values, writable=True)

    def kernel(self) -> Kernel:
        b, p = self.b, self.p
        head, number = b.program(p.batch * p.groups), b.program(-(-p.keys // self.n))
        self.z, self.g, self.at = head // p.groups, head % p.groups, number * self.n
        self.k_tile = self.tile(self.k, self.z, self.g, self.at, self.n)
        self.v_tile = self.tile(self.v, self.z, self.g, self.at, self.n)
        state = [*self.zeros(self.n, p.size), *self.zeros(self.n, p.values)]
        if p.share == 1:
            state = self.head(self.g, state)
        else:
            with b.loop(0, p.share, 1, state) as heads:
                heads.carry(*self.head(self.g * p.share + heads.variable, list(heads.carried)))
            state = list(heads.results)
        count = len(self.k_tile)
        self.store(self.d_k, self.scaled(state[:count]), self.z, self.g, self.at)
        self.store(self.d_v, state[count:], self.z, self.g, self.at)
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
        at = loop.variable
        count = len(self.k_tile)
        d_k, d_v = list(loop.carried[:count]), list(loop.carried[count:])
        q = self.tile(self.q, self.z, h, at, self.m)
        q_turned = self.tile(self.q, self.z, h, at, self.m, turned=True)
        s = self.product(self.k_tile, q_turned)
        logs = self.numbers(self.logs, self.z, h, at, self.m, True)
        weights = self.weights(s, logs, at, self.at, True, edge)
        if ragged or (edge and self.p.queries % self.m):
            weights = self.inside(weights, at)
        d_o = self.tile(self.d_o, self.z, h, at, self.m)
        d_v = self.summed(self.narrowed(weights), d_o, d_v)
        d_o_turned = self.tile(self.d_o, self.z, h, at, self.m, turned=True)
        d = self.product(self.v_tile, d_o_turned)
        delta = self.numbers(self.delta, self.z, h, at, self.m, True)
        d_k = self.summed(self.slopes(weights, d, delta), q, d_k)
        return [*d_k, *d_v]

    def inside(self, weights: Tile, at: Size) -> Tile:
        """0 for queries behind the last one, whose rows are read as 0."""
        b = self.b
        numbers = b.index(at, (1, self.m), 1)
        test = b.apply("lt", numbers, b.index(self.p.queries, (1, 1)))
        return b.apply("where", test, weights, self.number(0.0))


class QueriesBackward(_Backward):
    """The cotangent of q: keys pass by a block of queries."""

    def __init__(self, p: AttentionProblem, queries: int = 128, keys: int = 64, whole: int = 0):
        super().__init__("attention_queries", p, queries, keys, whole)
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
        state = self.zeros(self.m, p.size)
        if whole != stop and not p.causal:
            whole = 0  # a loop of one step would have shared memory of its own
        if whole != 0:
            with self.each(0, whole, self.n, state) as clear:
                clear.carry(*self.step(clear, False))
            state = list(clear.results)
        if whole != stop:
            with self.each(whole, stop, self.n, state) as edge:
                edge.carry(*self.step(edge, True))
            state = list(edge.results)
        self.store(self.d_q, self.scaled(state), self.z, self.h, self.at)
        return b.finish()

    def step(self, loop: Loop, edge: bool) -> list[Tile]:
        g, at = self.h // self.p.share, loop.variable
        k_turned = self.tile(self.k, self.z, g, at, self.n, turned=True)
        s = self.product(self.q_tile, k_turned)
        weights = self.weights(s, self.row_logs, self.at, at, False, edge)
        v_turned = self.tile(self.v, self.z, g, at, self.n, turned=True)
        d = self.product(self.o_tile, v_turned)
        k = self.tile(self.k, self.z, g, at, self.n)
        return self.summed(self.slopes(weights, d, self.row_delta), k, loop.carried)


def keys_block(p: AttentionProblem) -> tuple[int, int, Threads]:
    """Queries and keys of a block for the cotangents of k and v, and how a GPU runs it."""
    wide = max(width(p.size), width(p.values))
    if wide <= 128:
        return 64, 64, Threads(4, 2, True, approximate=True)
    if wide <= 256:
        return 64, 64, Threads(8, 2, True, approximate=True)
    return 32, 32, Threads(8, 1, True, approximate=True)


def queries_block(p: AttentionProblem) -> tuple[int, int, Threads]:
    """Queries and keys of a block for the cotangent of q, and how a GPU runs it."""
    wide = max(width(p.size), width(p.values))
    if wide <= 128:
        return 64, 64, Threads(4, 2, True, approximate=True)
    if wide <= 256:
        return 64, 64, Threads(4, 2, True, approximate=True)
    return 32, 32, Threads(8, 1, True, approximate=True)
