"""The derivative of a convolution in its kernel as Tile programs, in the order of core/convolutions.py.

    dw[o, c, k] = sum over b, p of x[b, c, p*stride + k*dilation - low] * ct[b, o, p]
->  program (leaves, c by some, o by 64): for leaf: copy the x that is seen to scratch; pack ct[p, o];
        for (c, k) by 6: for p: acc[c, k] = fma(x[c, p + k], ct[p, o:o+64], acc[c, k])
    program (o, c and k): join what the instances above made, turn and store

Leaves of an instance join as soon as their neighbours are there, so that few sums wait at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.core.convolutions import ConvolutionLeaves
from tessera.core.dims import Size, larger, product, smaller
from tessera.core.folds import LANES
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.cpu.conv.windows import (
    ACCUMULATORS,
    ENOUGH,
    ConvolutionProblem,
    Seen,
    join,
    leaf_spans,
    panel_width,
    runs,
    walk,
)
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile
from tessera.ir.tile.launch import Expansion, Launch

_SEEN, _SUMS = 96 * 1024, 64 * 1024  # elements of scratch of an instance
_LEAVES = 4  # of an instance where their number is not known


def lower_weights(step: Primitive, types: Mapping[str, TensorType]) -> Expansion:
    """The kernels of the derivative: sums of leaves, then the tree over them."""
    x, ct = step.operands
    (w,) = step.results
    p = ConvolutionProblem.of(types[x], types[w], types[ct], step.params)
    kernel = WeightSums(p)
    return Expansion(
        (
            Launch(kernel.kernel(), (x, ct), ("parts",)),
            Launch(finish(p, kernel.parts), ("parts",), (w,)),
        ),
        {"parts": kernel.parts},
    )


class WeightSums:
    """The kernel that sums leaves: an instance has some channels, a panel of out channels, leaves."""

    def __init__(self, p: ConvolutionProblem):
        self.p, self.b, self.width = p, Builder("conv_weights"), panel_width(p.made)
        self.leaves = ConvolutionLeaves.of((p.batch, *p.counts))
        cut, step = self.leaves.axis, self.leaves.step
        self.images = step if cut == 0 else 1
        if cut == 0 and isinstance(p.batch, int):
            self.images = min(step, p.batch)
        self.counts = tuple(
            n if i > cut else min(step, n) if i == cut else 1 for i, n in enumerate(p.counts, 1)
        )
        self.terms = self.images * product(self.counts)
        self.taps = product(p.window)
        self.panels = -(-p.made // self.width)
        self.channels = self.some_channels()
        blocks = -(-p.channels // self.channels) * p.groups * self.panels
        self.many = _LEAVES
        if isinstance(self.leaves.count, int):
            while self.many > 1 and -(-self.leaves.count // self.many) * blocks < ENOUGH:
                self.many //= 2
            while (
                self.many < self.leaves.count
                and -(-self.leaves.count // self.many) * blocks >= 4 * ENOUGH
            ):
                self.many *= 2
        pieces = (self.leaves.count + self.many - 1) // self.many
        shape = (pieces, p.groups, self.panels, p.channels * self.taps, self.width)
        self.parts = TensorType(p.dtype.accum, shape)

    def some_channels(self) -> int:
        """Channels of an instance: as many as the scratch of a core holds."""
        p = self.p
        spans = [p.span(i, n) for i, n in enumerate(self.counts)]
        seen = self.images * product((*spans[:2], (spans[2] + LANES - 1) // LANES * LANES))
        most = min(_SEEN // seen, _SUMS // (self.taps * self.width))
        blocks = -(-p.channels // max(most, 1))
        return -(-p.channels // blocks)

    def kernel(self) -> Kernel:
        b, p = self.b, self.p
        x = b.parameter("x", TensorType(p.dtype, (p.batch, p.groups, p.channels, *p.sizes)))
        places = product(p.counts)
        ct = TensorType(p.dtype, (p.batch, p.groups, p.made, places))
        self.ct = b.parameter("ct", ct)
        out = b.parameter("parts", self.parts, writable=True)
        piece, group = b.program(self.parts.shape[0]), b.program(p.groups)
        channel = b.program(-(-p.channels // self.channels)) * self.channels
        panel = b.program(self.panels)
        self.seen = Seen(b, p, x, self.images, self.channels, self.counts)
        wide = p.dtype.accum
        self.packed = b.alloc(wide, (self.terms + LANES, self.width))
        self.rows = self.channels * self.taps
        depth = self.many.bit_length()
        self.sums = b.alloc(wide, (depth, self.rows, self.width))
        with b.loop(0, smaller(self.many, self.leaves.count - piece * self.many)) as leaf:
            self.leaf(leaf.variable, piece * self.many + leaf.variable, group, channel, panel)
        last = smaller(self.many, self.leaves.count - piece * self.many)
        for level in range(1, depth):  # what is left of the stack, from its top
            self.merge(depth - level, smaller(larger(_ones(last, depth) - (depth - level), 0), 1))
        masked = (3,) if p.channels % self.channels else ()
        with b.loop(0, self.rows) as row:
            r = row.variable
            line = b.load(self.sums, (0, r, 0), (1, 1, self.width), axes=(2,))
            b.store(
                out, line, (piece, group, panel, channel * self.taps + r, 0),
                (1, 1, 1, 1, self.width), axes=(4,), masked=masked,
            )  # fmt: skip
        return b.finish()

    def leaf(self, i: Size, number: Size, group: Size, channel: Size, panel: Size) -> None:
        """The sums of the i-th leaf of the instance, joined with those of its left neighbours."""
        b = self.b
        spans = leaf_spans(self.leaves, number)
        first = [a for a, _ in spans]
        self.seen.bring(first[0], group, channel, first[1:])
        self.pack(first, spans, group, panel)
        local = [(0, z - a) for a, z in spans]
        depth = self.many.bit_length()
        slot = _ones(i, depth)
        for start, stop, height in runs(0, self.rows, ACCUMULATORS // (self.width // LANES)):
            with b.loop(start, stop, height) as row:
                self.block([row.variable + r for r in range(height)], local, slot)
        for level in range(depth - 1):
            full = 1 - smaller((i + 1) % (2 << level), 1)
            self.merge(slot - level, full)

    def merge(self, slot: Size, times: Size) -> None:
        """Add a slot to the one below it, or (0 times) do not."""
        b = self.b
        with b.loop(0, self.rows * times) as row:
            r = row.variable
            low, high = (
                b.load(self.sums, (s, r, 0), (1, 1, self.width), axes=(2,))
                for s in (slot - 1, slot)
            )
            total = b.apply("add", low, high)
            b.store(self.sums, total, (slot - 1, r, 0), (1, 1, self.width), axes=(2,))

    def pack(
        self, first: Sequence[Size], spans: Sequence[tuple[Size, Size]], group: Size, panel: Size
    ) -> None:
        """The ct of a leaf, turned round: a row for each place, the out channels of the panel."""
        b, p = self.b, self.p
        run: Size = product(self.counts)  # places of an image
        start = (first[1] * p.counts[1] + first[2]) * p.counts[2] + first[3]
        with (
            b.loop(0, spans[0][1] - spans[0][0]) as image,
            b.loop(0, smaller(run, product(p.counts) - start), LANES) as place,
            b.loop(0, self.width, LANES) as part,
        ):
            i, t, o = image.variable, place.variable, part.variable
            square = b.load(
                self.ct, (first[0] + i, group, panel * self.width + o, start + t),
                (1, 1, LANES, LANES), axes=(2, 3), masked=(2, 3),
            )  # fmt: skip
            # Past the end of an image the next one overwrites what is stored here.
            turned = b.transpose(b.cast(square, p.dtype.accum))
            b.store(self.packed, turned, (i * run + t, o), (LANES, LANES))

    def block(self, rows: Sequence[Size], local: Sequence[tuple[Size, Size]], slot: Size) -> None:
        """Weights in registers: their chains over the places of a leaf."""
        b, p = self.b, self.p
        places = [self.place(r) for r in rows]

        def step(at: tuple[Size, ...], sums: Sequence[Tile]) -> list[Tile]:
            image, z, y, x = at
            c0, c1, c2 = self.counts
            number = ((image * c0 + z) * c1 + y) * c2 + x
            given = b.load(self.packed, (number, 0), (1, self.width))
            made = []
            for (channel, *k), total in zip(places, sums, strict=True):
                seen = self.seen.load(image, channel, (z, y, x), k)
                made.append(b.apply("fma", seen, given, total))
            return made

        start = [b.full(p.dtype.accum, (1, self.width), 0.0) for _ in rows]
        for r, total in zip(rows, walk(b, local, start, step), strict=True):
            b.store(self.sums, total, (slot, r, 0), (1, 1, self.width), axes=(1, 2))

    def place(self, row: Size) -> tuple[Size, Size, Size, Size]:
        """The channel and the place of the window that a row is."""
        _, k1, k2 = self.p.window
        return row // self.taps, row // (k1 * k2) % self.p.window[0], row // k2 % k1, row % k2


def _ones(n: Size, bits: int) -> Size:
    """How many bits of a number are set: how many subtrees wait before the n-th leaf."""
    total: Size = 0
    for i in range(bits):
        total = total + n // (1 << i) % 2
    return total


def finish(p: ConvolutionProblem, parts: TensorType) -> Kernel:
    """The kernel that joins subtrees and puts weights in their place."""
    b = Builder("conv_weights_join")
    pieces, groups, panels, rows, _ = parts.shape
    width = panel_width(p.made)
    x = b.parameter("parts", parts)
    w = b.parameter("w", TensorType(p.dtype, (groups, p.made, rows)), writable=True)
    group, panel = b.program(groups), b.program(panels)
    first = b.program((rows + LANES - 1) // LANES) * LANES
    kept: Memory = b.alloc(parts.dtype, (pieces, LANES, width))
    with b.loop(0, pieces) as piece:
        i = piece.variable
        square = b.load(
            x, (i, group, panel, first, 0), (1, 1, 1, LANES, width), axes=(3, 4), masked=(3,)
        )
        b.store(kept, square, (i, 0, 0), (1, LANES, width), axes=(1, 2))
    join(b, kept, pieces, LANES)
    with b.loop(0, width, LANES) as part:
        o = part.variable
        square = b.load(kept, (0, 0, o), (1, LANES, LANES), axes=(1, 2))
        b.store(
            w, b.cast(b.transpose(square), p.dtype), (group, panel * width + o, first),
            (1, LANES, LANES), axes=(1, 2), masked=(1, 2),
        )  # fmt: skip
    return b.finish()
