"""Attention of few queries on many keys: parts of the keys at the same time, then joined one after the other.

    part (z, g, i): acc, top, total of keys [i part, (i + 1) part)   ->   join (z, h, query): o = acc / total

A part is at least 128 keys long, and a 32nd of all of them: its length follows from the number of keys
alone, so no number of blocks or of sequences changes a bit.  One query of all heads that share keys is one
tile: keys are read once.  Attention with a mask, which caches have, joins its parts in the same order
within a block: a chunk of queries has the bits that its queries have alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tessera.core.dims import Size, smaller
from tessera.core.dtype import f32
from tessera.core.types import TensorType
from tessera.ir.schedule.gpu_blocks import padded
from tessera.ir.tile.gpu.attention import (
    AttentionForward,
    AttentionKernel,
    AttentionProblem,
    QuerySums,
    forward_block,
    joined,
)
from tessera.ir.tile.ir import Kernel
from tessera.ir.tile.launch import Threads

FEW = 64  # queries at most
_AT_ONCE = 16  # parts that are read before they are joined


def is_few(p: AttentionProblem) -> bool:
    """Whether parts of the keys are taken at the same time."""
    return 0 < p.queries <= FEW and p.keys > p.part


def by_group(p: AttentionProblem) -> AttentionProblem:
    """One query of heads that share keys as so many queries of one head."""
    if p.queries != 1:
        return p
    mask, columns = p.mask, tuple(c for c in p.columns if c[0] in ("k", "v"))
    if mask is not None and int(mask.shape[-3]) > 1:
        mask = mask.with_shape((*mask.shape[:-3], p.groups, p.share, mask.shape[-1]))
    return replace(p, heads=p.groups, queries=p.share, causal=False, mask=mask, columns=columns)


def part_types(p: AttentionProblem) -> dict[str, TensorType]:
    """What passes between the two kernels: sums, largest scores and totals of each part."""
    own = by_group(p)
    rows = (p.batch, own.heads, -(-p.keys // p.part), own.queries)
    return {
        "acc": TensorType(f32, (*rows, p.values)), "top": TensorType(f32, rows),
        "total": TensorType(f32, rows),
    }  # fmt: skip


class KeysPart(AttentionForward):
    """The sums of a part of the keys for a block of queries."""

    def __init__(self, p: AttentionProblem, queries: int):
        AttentionKernel.__init__(self, "attention_part", by_group(p))
        self.m, self.n = queries, p.step
        self.inputs()
        self.outs = [self.b.parameter(n, t, writable=True) for n, t in part_types(p).items()]

    def kernel(self) -> Kernel:
        b, p = self.b, self.p
        head, part = b.program(p.batch * p.heads), b.program(-(-p.keys // p.part))
        number = b.program(-(-p.queries // self.m))
        self.z, self.h, self.at = head // p.heads, head % p.heads, number * self.m
        self.q_tile = self.tile(self.q, self.z, self.h, self.at, self.m)
        first = part * p.part
        found = self.of_part(first, smaller(p.keys - first, p.part))
        acc, *numbers = self.outs
        at, masked = (self.z, self.h, part, self.at), [3] if p.queries % self.m else []
        for x, (begin, n) in zip(found.acc, self.pieces(p.values), strict=True):
            over = [*masked, 4] if begin + n > p.values else masked
            b.store(acc, x, (*at, begin), (1, 1, 1, self.m, n), (3, 4), over)
        for m, t in zip(numbers, (found.top, found.total), strict=True):
            b.store(m, b.reshape(t, (self.m,)), at, (1, 1, 1, self.m), (3,), masked)
        return b.finish()


class Join(AttentionForward):
    """o and the logarithms of one query, of what its parts say."""

    def __init__(self, p: AttentionProblem):
        AttentionKernel.__init__(self, "attention_join", p)
        self.m = 1
        self.parts = [self.b.parameter(n, t) for n, t in part_types(p).items()]
        self.o = self.of_queries("o", p.values, writable=True)
        self.logs = self.b.parameter("logs", p.row_type, writable=True)

    def kernel(self) -> Kernel:
        b, p = self.b, self.p
        head, self.at = b.program(p.batch * p.heads), b.program(p.queries)
        self.z, self.h = head // p.heads, head % p.heads
        count, found = -(-p.keys // p.part), self.empty()
        many = count // _AT_ONCE * _AT_ONCE
        if many:
            with b.loop(0, many, _AT_ONCE, found.tiles) as loop:
                some = [loop.variable + i for i in range(_AT_ONCE)]
                loop.carry(*self.joined(QuerySums.of(loop.carried), some).tiles)
            found = QuerySums.of(loop.results)
        found = self.joined(found, range(many, count))
        self.finish(found)
        return b.finish()

    def joined(self, found: QuerySums, parts: Sequence[Size]) -> QuerySums:
        """Sums, and then those of some parts, all of which are read first."""
        for x in [self.read(i) for i in parts]:
            found = joined(self, found, x)
        return found

    def read(self, i: Size) -> QuerySums:
        """What part i says."""
        p, (acc, *numbers) = self.p, self.parts
        alone = p.queries == 1
        at = (self.h // p.share, i, self.h % p.share) if alone else (self.h, i, self.at)
        sums = [
            self.b.load(acc, (self.z, *at, begin), (1, 1, 1, 1, n), (3, 4),
            [4] if begin + n > p.values else [])
            for begin, n in self.pieces(p.values)
        ]  # fmt: skip
        top, total = (
            self.b.reshape(self.b.load(m, (self.z, *at), (1, 1, 1, 1), (3,)), (1, 1))
            for m in numbers
        )
        return QuerySums(sums, top, total)


def part_block(p: AttentionProblem) -> tuple[int, Threads]:
    """Queries of a block, and how a GPU runs it.

    Sums of blocks of 16 and 32 rows have other last bits than those of 64 (29% of them on an H200; a
    product by itself has the same ones, so the reason is not known).  With a mask, where a chunk of queries
    has the bits that they have one by one, all blocks have 64 rows: keys are read once all the same.
    """
    rows = min(padded(by_group(p).queries), 64)
    if rows == 64 or (p.mask is not None and p.dtype.bits <= 16):
        return forward_block(p)
    return rows, Threads(4, 2, approximate=True)


def join_threads(p: AttentionProblem) -> Threads:
    """How a GPU joins parts: a number or two for each thread."""
    return Threads(max(1, min(4, padded(p.values) // 32)), approximate=True)
