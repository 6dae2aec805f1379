"""Convolutions with vectors along the out channels, as Tile programs.

program (b, rows of p, o by 64): copy the x that is seen to scratch, zeros where there is none;
    for p by 6: for c, k: acc[p] = fma(x[c, p + k], w[c, k, o:o+64], acc[p]); turn and store
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.core.dims import Size, product, smaller
from tessera.core.folds import LANES
from tessera.core.types import TensorType
from tessera.ir.tile.cpu.conv.epilogue import Results
from tessera.ir.tile.cpu.conv.windows import (
    ACCUMULATORS,
    ENOUGH,
    ConvolutionProblem,
    Seen,
    join,
    leaf_spans,
    runs,
    walk,
)
from tessera.ir.tile.ir import Builder, Kernel, Tile

_TURNED = 4  # squares of 16 outputs and channels that are turned before an epilogue takes them
_PIXELS = 448  # outputs along the spatial axes of an instance


class Channels:
    """The kernel whose vectors lie along the out channels.

    The outputs of an instance are numbered through: whole images, or rows of one image.
    """

    def __init__(self, p: ConvolutionProblem, width: int, results: Results):
        self.p, self.width, self.b, self.results = p, width, Builder("conv"), results
        self.panels = -(-p.made // width)
        self.taps = p.channels * product(p.window)
        self.packed = TensorType(p.dtype.accum, (p.groups, self.panels, self.taps, width))
        self.height = ACCUMULATORS // (width // LANES)
        self.images, self.rows = share(p, self.panels)
        self.base = 0  # where the weights begin among those of the panel

    def kernel(self) -> Kernel:
        b, p = self.b, self.p
        self.x = b.parameter("x", TensorType(p.dtype, (p.batch, p.groups, p.channels, *p.sizes)))
        self.w = b.parameter("w", self.packed)
        planes, height, width = self.whole
        y = TensorType(p.dtype, (p.batch, p.groups, p.made, planes, height * width))
        self.results.declare(b, y)
        if self.results.by_rows:
            self.turned = b.alloc(p.dtype, (LANES, _TURNED * LANES))
        batch = b.program(p.batch // self.images) * self.images
        group, z = b.program(p.groups), b.program(p.counts[0])
        first = b.program((p.counts[1] + self.rows - 1) // self.rows) * self.rows
        panel = b.program(self.panels)
        self.phase((batch, group, z, first, panel))
        return b.finish()

    @property
    def whole(self) -> tuple[Size, ...]:
        """The spatial sizes of the output."""
        return self.p.counts

    def rows_left(self, z: Size, first: Size) -> Size:
        """Rows of the instance that there are."""
        n = self.p.counts[1]
        if isinstance(n, int) and n % self.rows == 0:
            return self.rows
        return smaller(first + self.rows, n) - first

    def phase(self, at: tuple[Size, ...]) -> None:
        """All outputs of the instance."""
        b, p, (batch, group, z, first, panel) = self.b, self.p, at
        self.seen = Seen(b, p, self.x, self.images, p.channels, (1, self.rows, p.counts[2]))
        self.seen.bring(batch, group, 0, (z, first, 0))
        self.run = self.rows_left(z, first) * p.counts[2]  # outputs of an image
        room = (self.images * self.rows * p.counts[2] + LANES - 1) // LANES * LANES
        self.kept = b.alloc(p.dtype.accum, (p.leaves.count, room, self.width))
        self.sums(group, panel)
        join(b, self.kept, p.leaves.count, self.images * self.run)
        with b.loop(0, self.images) as image:
            i = image.variable
            self.send(i * self.run, (batch + i, group, panel * self.width, z, first * p.counts[2]))

    def sums(self, group: Size, panel: Size) -> None:
        """The sums of all leaves and outputs of the instance."""
        count = self.p.leaves.count
        with self.b.loop(0, count) as leaf:
            number = 0 if count == 1 else leaf.variable
            for start, stop, height in runs(0, self.images * self.run, self.height):
                with self.b.loop(start, stop, height) as output:
                    outputs = [output.variable + i for i in range(height)]
                    self.block(number, group, panel, outputs)

    def place(self, output: Size) -> tuple[Size, Size, Size]:
        """Where an output lies: image, y, x."""
        y, x = output // self.p.counts[2], output % self.p.counts[2]
        return (y // self.rows, y % self.rows, x) if self.images > 1 else (0, y, x)

    def block(self, leaf: Size, group: Size, panel: Size, outputs: Sequence[Size]) -> None:
        """Outputs in registers: the chains of a leaf."""
        b, p = self.b, self.p
        places = [self.place(n) for n in outputs]

        def step(k: tuple[Size, ...], sums: Sequence[Tile]) -> list[Tile]:
            number = ((k[0] * p.window[0] + k[1]) * p.window[1] + k[2]) * p.window[2] + k[3]
            weights = b.load(
                self.w, (group, panel, self.base + number, 0), (1, 1, 1, self.width), axes=(2, 3)
            )
            made = []
            for (image, y, x), total in zip(places, sums, strict=True):
                seen = self.seen.load(image, k[0], (0, y, x), k[1:])
                made.append(b.apply("fma", seen, weights, total))
            return made

        start = [b.full(p.dtype.accum, (1, self.width), 0.0) for _ in outputs]
        sums = walk(b, leaf_spans(p.leaves, leaf), start, step)
        for n, total in zip(outputs, sums, strict=True):
            b.store(self.kept, total, (leaf, n, 0), (1, 1, self.width), axes=(1, 2))

    def send(self, start: Size, at: tuple[Size, ...]) -> None:
        """Finished sums to the output: 16 outputs of 16 channels are turned round in registers."""
        b, p = self.b, self.p
        batch, group, channel, z, place = at
        whole = self.run // LANES * LANES
        masked = (2,) if p.made % self.width else ()
        first: Size = 0
        for wide in (_TURNED * LANES, LANES) if self.results.by_rows else (LANES,):
            stop = self.run // wide * wide
            with b.loop(first, stop, wide) as output, b.loop(0, self.width, LANES) as part:
                n, c = output.variable, part.variable
                self.send_square(start + n, c, wide, (batch, group, channel + c, z, place + n))
            first = stop
        with b.loop(whole, self.run) as output:
            n = output.variable
            column = b.load(self.kept, (0, start + n, 0), (1, 1, self.width), axes=(2,))
            self.results.write(
                b.cast(column, p.dtype), (batch, group, channel, z, place + n),
                (1, 1, self.width, 1, 1), axes=(2,), masked=masked,
            )  # fmt: skip

    def send_square(self, start: Size, column: Size, wide: int, at: tuple[Size, ...]) -> None:
        """So many outputs of 16 channels: at once, or channel by channel where much is computed of them."""
        b, p = self.b, self.p
        masked = (2,) if p.made % self.width else ()

        def square(n: Size) -> Tile:
            found = b.load(self.kept, (0, start + n, column), (1, LANES, LANES), axes=(1, 2))
            return b.cast(b.transpose(found), p.dtype)

        if not self.results.by_rows:
            self.results.write(square(0), at, (1, 1, LANES, 1, LANES), axes=(2, 4), masked=masked)
            return
        with b.loop(0, wide, LANES) as part:
            n = part.variable
            b.store(self.turned, square(n), (0, n), (LANES, LANES))
        batch, group, channel, z, place = at
        with b.loop(0, LANES) as row:
            r = row.variable
            line = b.load(self.turned, (r, 0), (1, wide))
            self.results.write(
                line, (batch, group, channel + r, z, place), (1, 1, 1, 1, wide), axes=(2, 4),
                masked=masked,
            )  # fmt: skip


def share(p: ConvolutionProblem, panels: int) -> tuple[int, int]:
    """Images and rows of outputs of an instance: enough to use weights often, few enough to share."""
    z, y, x = p.counts
    if not isinstance(x, int) or not isinstance(y, int):
        return 1, 4
    rows = min(max(_PIXELS // max(x, 1), 1), max(y, 1))
    outer = product((p.batch, z)) * p.groups * panels
    while isinstance(outer, int) and rows > 1 and outer * -(-y // rows) < ENOUGH:
        rows -= 1
    rows = -(-y // -(-y // rows)) if y else 1
    images = 1
    while (
        rows == y and isinstance(outer, int) and isinstance(p.batch, int)
        and p.batch % (2 * images) == 0 and 2 * images * x * y <= _PIXELS
        and outer // (2 * images) >= ENOUGH
    ):  # fmt: skip
        images *= 2
    return images, rows
