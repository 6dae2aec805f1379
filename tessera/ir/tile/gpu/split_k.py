"""Products whose sums are long: leaves of LEAF terms, added one after the other.

    t[m, n] = add over k of a[m, k] b[k, n]
->  part[p, m, n] = add over k in leaf p of a[m, k] b[k, n];  t[m, n] = (part[0] + part[1]) + part[2] ...

A sum is cut from LONG terms on, whatever the rows, columns and batch are: the order of a sum follows from
its length alone, and so does every bit.  Where there are few blocks the leaves are computed side by side,
in another launch than their sum; where there are enough, one block computes all leaves of its sums and has
the total in registers.
"""

from __future__ import annotations

from collections.abc import Mapping

from tessera.core.dims import Size, larger, smaller
from tessera.core.types import TensorType
from tessera.ir.schedule import ir as schedule
from tessera.ir.schedule.gpu_blocks import LONG, MULTIPROCESSORS, ProductBlock
from tessera.ir.tile.gpu.contraction import Contraction, shape_of
from tessera.ir.tile.gpu.product_blocks import ProductShape, product_block
from tessera.ir.tile.ir import Kernel, Tile
from tessera.ir.tile.launch import Expansion, Launch

LEAF = 8192  # terms of a leaf (decision 070): part of the bits, so it never changes
_PARTS = "_parts"
_WHOLE = ProductBlock(128, 128, 64, 8, 0, 8, 3)  # whose sums have room in registers beside a leaf


def is_long(k: schedule.Kernel) -> bool:
    """Whether the sums of a contraction are cut into leaves."""
    return int(k.stages[0].reduced[0].size) >= LONG


def split_k(
    k: schedule.Kernel, types: Mapping[str, TensorType], ends_at: Mapping[str, int]
) -> Expansion:
    """The launches of a contraction with long sums."""
    s = shape_of(k)
    blocks = s.batch * -(-s.m // _WHOLE.m) * -(-s.n // _WHOLE.n)
    if blocks >= MULTIPROCESSORS:
        block = None if s.bits > 16 else _WHOLE
        w = WholeSums(k, types, block)
        w.ends_at = ends_at
        return Expansion((Launch(w.kernel(), tuple(k.inputs()), k.outputs, w.threads),))
    head = k.stages[0]
    leaves = -(-s.k // LEAF)
    parts = TensorType(head.dtype, (leaves, *head.type.shape))
    first = schedule.Kernel(k.name, k.rows, (head,), (head.name,), seen=k.seen)
    wide = product_block(ProductShape(s.batch * leaves, s.m, s.n, LEAF, s.bits, 1, s.turned))
    a = KLeaves(first, {**types, head.name: parts}, _plain(wide))
    a.ends_at = ends_at
    b = JoinedSums(k, {**types, _PARTS: parts}, ProductBlock(16, 64, 16))
    inputs = tuple(dict.fromkeys((_PARTS, *b.others)))
    return Expansion(
        (
            Launch(a.kernel(), tuple(first.inputs()), (_PARTS,), a.threads),
            Launch(b.kernel(), inputs, k.outputs),
        ),
        {_PARTS: parts},
    )


def _plain(b: ProductBlock) -> ProductBlock:
    """A block whose threads take one block of the product."""
    return ProductBlock(b.m, b.n, b.k, b.group, 0, b.warps, b.stages)


class KLeaves(Contraction):
    """The leaves of a product, each by blocks of its own."""

    leaf: Size = 0

    def kernel(self) -> Kernel:
        self.leaf = self.b.program(-(-int(self.over.size) // LEAF))
        return super().kernel()

    def range(self, m: Size, n: Size) -> tuple[Size, Size]:
        start, stop = super().range(m, n)
        return larger(start, self.leaf * LEAF), smaller(stop, self.leaf * LEAF + LEAF)

    def finish(self, acc: Tile, m: Size, n: Size) -> None:
        where = self.terms(dict([self.line(0, self.m, m), self.line(1, self.n, n)]))
        index = [self.leaf, *(a.variable for a in self.head.axes)]
        where.store(self.out[self.head.name], index, acc)


class JoinedSums(Contraction):
    """The sums of leaves, and the stages that follow."""

    def __init__(
        self, kernel: schedule.Kernel, types: Mapping[str, TensorType], block: ProductBlock
    ):
        super().__init__(kernel, types, block)
        own = {s.name for s in kernel.stages}
        reads = [r.source for s in kernel.stages[1:] for r in schedule.reads(s.term)]
        self.others = tuple(dict.fromkeys(n for n in reads if n not in own))
        self.b.parameters.clear()
        self.memory = {n: self.b.parameter(n, types[n]) for n in (_PARTS, *self.others)}
        self.out = {n: self.b.parameter(n, types[n], writable=True) for n in kernel.outputs}

    def product(self, m: Size, n: Size) -> None:
        zero = self.b.full(self.head.dtype, (self.block.m, self.block.n), 0)
        with self.b.loop(0, -(-int(self.over.size) // LEAF), 1, [zero]) as loop:
            where = self.terms(dict([self.line(0, self.m, m), self.line(1, self.n, n)]))
            index = (loop.variable, *(a.variable for a in self.head.axes))
            part = where.spread(where.load(schedule.Read(self.head.dtype, _PARTS, index)))
            loop.carry(self.b.apply("add", loop.carried[0], part))
        self.finish(loop.results[0], m, n)


class WholeSums(Contraction):
    """All leaves of a block's sums, by one block of threads."""

    leaf: Size = 0

    def product(self, m: Size, n: Size) -> None:
        shape = (self.block.m, self.block.n)
        total = self.b.full(self.head.dtype, shape, 0)
        with self.b.loop(0, -(-int(self.over.size) // LEAF), 1, [total]) as leaves:
            self.leaf = leaves.variable
            acc = self.accumulated(m, n)
            leaves.carry(self.b.apply("add", leaves.carried[0], acc))
        self.finish(leaves.results[0], m, n)

    def range(self, m: Size, n: Size) -> tuple[Size, Size]:
        start, stop = super().range(m, n)
        return larger(start, self.leaf * LEAF), smaller(stop, self.leaf * LEAF + LEAF)
