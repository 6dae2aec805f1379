"""Convolutions to few out channels as Tile programs: vectors run along the last spatial axis.

    y[b, o, p] = sum over c, k of x[b, c, p*stride + k*dilation - low] * w[o, c, k]
->  program (b, rows of p): copy the x that is seen to scratch, zeros where there is none;
        for (o, row) by 6: for c, k: acc[o, row] = fma(x[c, row + k, p:p+64], w[o, c, k], acc[o, row])

With a stride along the last axis, places are kept in scratch by what is left when they are divided by
it, so that the windows' places are neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.core.dims import Size, product, smaller
from tessera.core.folds import LANES
from tessera.core.scalar import Number
from tessera.core.types import TensorType
from tessera.ir.tile.cpu.conv.epilogue import Results
from tessera.ir.tile.cpu.conv.windows import (
    ACCUMULATORS,
    ENOUGH,
    ConvolutionProblem,
    join,
    leaf_spans,
    runs,
    walk,
)
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile

_WIDEST = 64  # outputs along x of a block
_SEEN = 16 * 1024  # elements of x in scratch


class Pixels:
    """The kernel whose vectors lie along the last spatial axis."""

    fill: Number = 0  # what is seen where there is no x
    group: Size

    def __init__(self, p: ConvolutionProblem, results: Results):
        self.p, self.b, self.results = p, Builder("conv"), results
        x = p.counts[2]
        self.width = _WIDEST
        if isinstance(x, int):
            self.width = min(_WIDEST, -(-max(x, 1) // LANES) * LANES)
        self.chunks = (x + self.width - 1) // self.width
        reach = (p.window[2] - 1) * p.dilation[2] // p.stride[2]
        across = self.chunks * self.width + reach
        self.across = (across + LANES - 1) // LANES * LANES
        self.rows = self.some_rows()

    def some_rows(self) -> int:
        """Rows of outputs of an instance: what scratch holds, and enough instances."""
        p = self.p
        z, y, _ = p.counts
        if not isinstance(y, int) or not isinstance(self.across, int):
            return 8
        rows = max(y, 1)
        line = p.channels * p.span(0, 1) * self.across * p.stride[2]
        while rows > 1 and line * p.span(1, rows) > _SEEN:
            rows -= 1
        outer = product((p.batch, z)) * p.groups
        while isinstance(outer, int) and rows > 1 and outer * -(-y // rows) < ENOUGH:
            rows -= 1
        return -(-y // -(-y // rows)) if y else 1

    def kernel(self) -> Kernel:
        b, p = self.b, self.p
        x = TensorType(p.dtype, (p.batch, p.groups, p.channels, *p.sizes))
        w = TensorType(p.dtype, (p.groups, p.made, p.channels, *p.window))
        y = TensorType(p.dtype, (p.batch, p.groups, p.made, *p.counts))
        self.x, self.w = b.parameter("x", x), b.parameter("w", w)
        self.results.declare(b, y)
        self.batch, self.group = b.program(p.batch), b.program(p.groups)
        self.z = b.program(p.counts[0])
        self.first = b.program((p.counts[1] + self.rows - 1) // self.rows) * self.rows
        even = isinstance(p.counts[1], int) and p.counts[1] % self.rows == 0
        rows = self.rows if even else smaller(self.first + self.rows, p.counts[1]) - self.first
        shape = (p.channels, p.span(0, 1), p.span(1, self.rows), p.stride[2], self.across)
        self.seen = b.alloc(p.dtype.accum, shape)
        self.bring()
        count = p.leaves.count
        if count == 1:
            self.sums(None, 0, rows)
        else:
            lines = (count, p.made * self.rows * self.chunks, self.width)
            kept = b.alloc(p.dtype.accum, lines)
            with b.loop(0, count) as leaf:
                self.sums(kept, leaf.variable, rows)
            self.finish(kept, rows)
        return b.finish()

    def bring(self) -> None:
        """Copy what the windows of the instance see."""
        b, p = self.b, self.p
        step, (channels, planes, rows, phases, across) = p.stride, self.seen.type.shape
        with b.loop(0, channels) as c, b.loop(0, planes) as z, b.loop(0, rows) as y:
            here = (c.variable, z.variable, y.variable)
            plane, row = p.place(0, 1, here[1]), p.place(1, self.rows, here[2])
            at = (
                self.batch, self.group, here[0], self.z * step[0] + plane - p.low[0],
                self.first * step[1] + row - p.low[1],
            )  # fmt: skip
            with b.loop(0, across, LANES) as x:
                i = x.variable
                line = b.load(
                    self.x, (*at, i * step[2] - p.low[2]), (1, 1, 1, 1, 1, LANES * step[2]),
                    axes=(5,), masked=(3, 4, 5), fill=self.fill,
                )  # fmt: skip
                line = b.cast(line, p.dtype.accum)
                if phases != 1:
                    line = b.transpose(b.reshape(line, (LANES, step[2])))
                line = b.reshape(line, (step[2], LANES))
                b.store(self.seen, line, (*here, 0, i), (1, 1, 1, step[2], LANES), axes=(3, 4))

    def sums(self, kept: Memory | None, leaf: Size, rows: Size) -> None:
        """The sums of a leaf for all outputs of the instance."""
        b, height = self.b, ACCUMULATORS // (self.width // LANES)
        for o0, o1, many in runs(0, self.p.made, height):
            with b.loop(o0, o1, many) as o:
                for y0, y1, down in runs(0, rows, max(height // many, 1)):
                    with b.loop(y0, y1, down) as y, b.loop(0, self.chunks) as chunk:
                        lines = [
                            (o.variable + i, y.variable + j)
                            for i in range(many)
                            for j in range(down)
                        ]
                        self.block(kept, leaf, lines, chunk.variable)

    def block(
        self, kept: Memory | None, leaf: Size, lines: Sequence[tuple[Size, Size]], chunk: Size
    ) -> None:
        """Lines of outputs in registers: their chains over a leaf."""
        b, p = self.b, self.p

        def step(k: tuple[Size, ...], sums: Sequence[Tile]) -> list[Tile]:
            made = []
            for (o, y), total in zip(lines, sums, strict=True):
                weight = b.load(self.w, (self.group, o, *k), (1,) * 6, axes=(4, 5))
                weight = b.cast(weight, p.dtype.accum)
                made.append(b.apply("fma", self.line(k, y, chunk), weight, total))
            return made

        start = [b.full(p.dtype.accum, (1, self.width), 0.0) for _ in lines]
        for (o, y), total in zip(
            lines, walk(b, leaf_spans(p.leaves, leaf), start, step), strict=True
        ):
            if kept is None:
                self.store(total, o, y, chunk)
            else:
                row = (o * self.rows + y) * self.chunks + chunk
                b.store(kept, total, (leaf, row, 0), (1, 1, self.width), axes=(1, 2))

    def line(self, k: tuple[Size, ...], y: Size, chunk: Size) -> Tile:
        """What a line of windows has at one of their places."""
        p, (c, k0, k1, k2) = self.p, k
        phase, far = k2 * p.dilation[2] % p.stride[2], k2 * p.dilation[2] // p.stride[2]
        at = (
            c, k0 * p.gap(0, 1), y * p.stride[1] + k1 * p.gap(1, self.rows), phase,
            chunk * self.width + far,
        )  # fmt: skip
        return self.b.load(self.seen, at, (1, 1, 1, 1, self.width), axes=(3, 4))

    def finish(self, kept: Memory, rows: Size) -> None:
        """Leaves joined and written."""
        b, p = self.b, self.p
        # Rows past the end of the image were not computed, and are not joined.
        with b.loop(0, p.made) as o:
            first = o.variable * self.rows * self.chunks
            join(b, kept, p.leaves.count, rows * self.chunks, first)
            with b.loop(0, rows) as y, b.loop(0, self.chunks) as chunk:
                row = first + y.variable * self.chunks + chunk.variable
                total = b.load(kept, (0, row, 0), (1, 1, self.width), axes=(1, 2))
                self.store(total, o.variable, y.variable, chunk.variable)

    def store(self, total: Tile, o: Size, y: Size, chunk: Size) -> None:
        at = (self.batch, self.group, o, self.z, self.first + y, chunk * self.width)
        value = self.b.cast(total, self.p.dtype)
        self.results.write(value, at, (1, 1, 1, 1, 1, self.width), axes=(4, 5), masked=(5,))


def suits_pixels(p: ConvolutionProblem, width: int) -> bool:
    """Whether vectors along x leave fewer lanes idle than vectors along the out channels."""
    x = p.counts[2]
    if p.made >= LANES:
        return False
    across = 1.0 if not isinstance(x, int) else x / (-(-max(x, 1) // LANES) * LANES)
    return across > p.made / width
