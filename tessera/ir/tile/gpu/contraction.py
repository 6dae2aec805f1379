"""Contractions on a GPU: a block of the product in registers, factors streamed along k.

    t[m, n] = add over k of a[m, k] * b[k, n]
->  block (m by 128, n by 256): for k by 64: acc = dot(load(a, m, k), load(b, k, n), acc)

The sum over k is one chain; matrix units add the products of a few k at a time to it, in ascending
order, so that the block's shape does not change a bit.  Blocks follow each other in groups of rows, so
that neighbours in time share factors in the cache.  Stages that follow are computed on the block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tessera.core.dims import Size, larger, product, smaller, substitute, symbols
from tessera.core.errors import ScheduleError
from tessera.core.types import TensorType
from tessera.ir.schedule import ir as schedule
from tessera.ir.schedule.factors import axes_of, bare, factors, is_plain, lies_along, read_of
from tessera.ir.schedule.gpu_blocks import SHARED, ProductBlock
from tessera.ir.schedule.ir import Read, Term, reads
from tessera.ir.tile.gpu.product_blocks import ProductShape, product_block
from tessera.ir.tile.gpu.terms import AxisLine, Terms, parameters
from tessera.ir.tile.ir import Builder, Kernel, Tile
from tessera.ir.tile.launch import Threads

_SIDES = (16, 32, 64, 128, 256)  # of blocks that tensor cores take and registers hold


class Contraction:
    """A contraction being written."""

    ends_at: Mapping[str, int] = MappingProxyType({})  # columns of memories that zeros follow

    def __init__(
        self,
        kernel: schedule.Kernel,
        types: Mapping[str, TensorType],
        block: ProductBlock | None = None,
        builder: Builder | None = None,
    ):
        self.k, self.b = kernel, builder or Builder(kernel.name)
        self.head = kernel.stages[0]
        self.memory = parameters(self.b, kernel.inputs(), types)
        self.out = parameters(self.b, kernel.outputs, types, writable=True)
        self.m, self.n = self.head.axes[-2:]
        (self.over,) = self.head.reduced
        self.left, self.right = (bare(t) for t in factors(self.head))
        if self.left.dtype is not self.right.dtype:
            self.left, self.right = factors(self.head)
        self.block = block or default_block(kernel)
        self.env: dict[str, Size] = {}
        self.values: dict[str, Tile] = {}

    @property
    def threads(self) -> Threads:
        """Matrix units of Hopper take 128 threads each."""
        narrow, size = self.left.dtype.bits <= 16, self.block.m * self.block.n
        if self.block.n == 16:  # warps that fetch far ahead
            warps = max(2, min(self.block.m // 64, 8))
            return self.asked(Threads(warps, 4 if narrow else 2))
        stages = (4 if size <= 128 * 64 else 3) if narrow else 2
        warps = 8 if size >= 128 * 256 else 4
        return self.asked(Threads(warps, stages, narrow and self.block.m >= 64))

    def asked(self, t: Threads) -> Threads:
        """Threads as the block asks for them."""
        return replace(t, warps=self.block.warps or t.warps, stages=self.block.stages or t.stages)

    def kernel(self) -> Kernel:
        rows, columns = self.count(self.m, self.block.m), self.count(self.n, self.block.n)
        if not self.block.persistent:
            for axis in self.head.axes[:-2]:
                self.env[axis.name] = self.b.program(axis.size)
            self.product(*self.places(self.b.program(rows * columns), rows, columns))
            return self.b.finish()
        total = rows * columns * product(tuple(axis.size for axis in self.head.axes[:-2]))
        first = self.b.program(smaller(total, self.block.persistent))
        with self.b.loop(first, total, self.block.persistent) as blocks:
            rest: Size = blocks.variable // (rows * columns)
            for axis in reversed(self.head.axes[:-2]):
                self.env[axis.name] = rest % axis.size
                rest = rest // axis.size
            at = blocks.variable % (rows * columns) if self.head.axes[:-2] else blocks.variable
            self.product(*self.places(at, rows, columns))
        return self.b.finish()

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return int(self.count(self.m, self.block.m) * self.count(self.n, self.block.n))

    def part(self, number: Size, first: int) -> None:
        """All of the product, by the instances from `first` on."""
        rows, columns = self.count(self.m, self.block.m), self.count(self.n, self.block.n)
        before = smaller(larger(first - number, 0), 1)
        behind = smaller(larger(first + self.blocks - number, 0), 1)
        with self.b.loop(before, behind):
            self.product(*self.places(larger(number - first, 0), rows, columns))

    def product(self, m: Size, n: Size) -> None:
        """The block of the product that begins at m and n."""
        self.finish(self.accumulated(m, n), m, n)

    def accumulated(self, m: Size, n: Size) -> Tile:
        """The sums of a block over the k that it sees."""
        acc = self.b.full(self.head.dtype, (self.block.m, self.block.n), 0)
        start, stop = self.range(m, n)
        with self.b.loop(start, stop, self.block.k, [acc]) as loop:
            left = self.factor(self.left, self.line(0, self.m, m), self.depth(1, loop.variable))
            right = self.factor(self.right, self.depth(0, loop.variable), self.line(1, self.n, n))
            loop.carry(self.b.dot(left, right, loop.carried[0]))
        return loop.results[0]

    def places(self, at: Size, rows: Size, columns: int) -> tuple[Size, Size]:
        """Where the block with a number begins."""
        group, columns = self.block.group, max(columns, 1)  # an empty result has no block
        if rows == 1 or columns == 1 or group == 1:
            across = columns or 1  # of no columns there are no instances
            return at // across * self.block.m, at % across * self.block.n
        wide = group * columns
        first = at // wide * group
        many = group if rows % group == 0 else larger(smaller(rows - first, group), 1)
        return (first + at % wide % many) * self.block.m, at % wide // many * self.block.n

    @staticmethod
    def count(a: schedule.Axis, n: int) -> Any:
        return (a.size + n - 1) // n

    def range(self, m: Size, n: Size) -> tuple[Size, Size]:
        """The k that this block sees."""
        start: Size = 0
        stop: Size = self.over.size
        for seen in self.k.seen:
            at, size = (m, self.block.m) if seen.axis == "m" else (n, self.block.n)
            if seen.side == "first":
                start = larger(start, larger(at + seen.offset, 0) // self.block.k * self.block.k)
            else:
                stop = smaller(stop, larger(at + size + seen.offset, 0))
        return start, stop

    def line(self, axis: int, a: schedule.Axis, at: Size) -> tuple[str, AxisLine]:
        return a.name, AxisLine(axis, at, self.block.m if a is self.m else self.block.n, a.size)

    def depth(self, axis: int, at: Size) -> tuple[str, AxisLine]:
        return self.over.name, AxisLine(axis, at, self.block.k, self.over.size)

    def factor(self, t: Term, *lines: tuple[str, AxisLine]) -> Tile:
        """A factor at some k; what lies behind the last one is 0."""
        where = self.terms(dict(lines))
        value = where.spread(where.term(t))
        if is_plain(t) and self.over.name in axes_of(t) and self.ends(read_of(t)):
            return value
        axis = next(line.axis for name, line in lines if name == self.over.name)
        return where.inside(value, "or" if value.dtype.kind in "iu" else "add", axis)

    def ends(self, r: Read) -> bool:
        """Whether no step reads what lies behind the last k: the memory ends there, as it does not where
        it is cut.
        """
        *lead, columns = self.memory[r.source].type.shape
        shape = (*lead, self.ends_at.get(r.source, columns))
        last = {self.over.name: self.over.size}
        return int(self.over.size) % self.block.k == 0 or all(
            substitute(x, last) == n
            for x, n in zip(r.index, shape, strict=True)
            if self.over.name in symbols(x)
        )

    def terms(self, lines: dict[str, AxisLine]) -> Terms:
        made = Terms(self.b, self.memory, self.values.get)
        made.env, made.lines = dict(self.env), lines
        return made

    def finish(self, acc: Tile, m: Size, n: Size) -> None:
        """The stages that follow, and what is stored."""
        where = self.terms(dict([self.line(0, self.m, m), self.line(1, self.n, n)]))
        for s in self.k.stages:
            value = acc if s is self.head else where.term(s.term)
            self.values[s.name] = value
            if s.name in self.out:
                where.store(self.out[s.name], [a.variable for a in s.axes], value)


def side_by_side(
    kernels: Sequence[schedule.Kernel], types: Sequence[Mapping[str, TensorType]]
) -> tuple[Kernel, Threads]:
    """One kernel for products that have nothing to do with each other, of different names."""
    b = Builder("products")
    parts = [Contraction(k, t, SHARED, b) for k, t in zip(kernels, types, strict=True)]
    number = b.program(sum(p.blocks for p in parts))
    first = 0
    for p in parts:
        p.part(number, first)
        first += p.blocks
    b.parameters.sort(key=lambda m: m.writable)
    return b.finish(), Threads(8, 3, descriptors=True)


def wanted_block(tile: tuple[int, int, int]) -> tuple[int, int, int]:
    """The block that a user asked for; an error if a GPU has no such block.  A size of 0 is not asked for."""
    if any(n and n not in _SIDES for n in tile):
        raise ScheduleError(
            f"matmul: tile_shape is {tile}, expected powers of two from {_SIDES[0]} to {_SIDES[-1]} on a GPU"
        )
    return tile


def default_block(k: schedule.Kernel) -> ProductBlock:
    """The block of a contraction."""
    if k.tile is not None:
        wanted = wanted_block(k.tile)
        usual = ProductBlock(*wanted) if all(wanted) else product_block(shape_of(k))
        return ProductBlock(
            *(x or y for x, y in zip(wanted, (usual.m, usual.n, usual.k), strict=True))
        )
    return product_block(shape_of(k))


def shape_of(k: schedule.Kernel) -> ProductShape:
    """What the choice of a block asks of a contraction."""
    head = k.stages[0]
    left, _ = factors(head)
    batch = int(product(tuple(a.size for a in head.axes[:-2])))
    m, n, depth = (int(a.size) for a in (*head.axes[-2:], *head.reduced))
    turned = bool(list(reads(left))) and lies_along(left, head.axes[-2])
    return ProductShape(batch, m, n, depth, bare(left).dtype.bits, len(k.stages), turned)
