"""The largest of windows as Tile programs: as convolutions to few channels, without weights.

    y[p] = max over k of x[p*stride + k*dilation - low]
->  program (plane, rows of p): copy the x that is seen to scratch, the least number where there is none;
        for row by 6: for k: acc[row] = max(acc[row], x[row + k, p:p+64])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.core.convolutions import MOST_AXES
from tessera.core.dims import Size, product, smaller
from tessera.core.evaluate import identity
from tessera.core.pools import counts_of
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.cpu.conv.conv_pixels import Pixels
from tessera.ir.tile.cpu.conv.epilogue import Results
from tessera.ir.tile.cpu.conv.windows import ConvolutionProblem, walk
from tessera.ir.tile.ir import Kernel, Memory, Tile
from tessera.ir.tile.launch import Expansion, Launch


def lower_max_pool(step: Primitive, types: Mapping[str, TensorType]) -> Expansion:
    """One kernel, whose instances take planes of one channel."""
    (x,), (y,) = step.operands, step.results
    t, p = types[x], step.params
    more = MOST_AXES + 2 - t.rank
    ones = (1,) * more
    low = tuple(a for a, _ in p["padding"])
    problem = ConvolutionProblem(
        product(t.shape[:2]), 1, 1, 1, (*ones, *t.shape[2:]), (*ones, *p["size"]),
        (*ones, *counts_of(t, p)), (*ones, *p["stride"]), (*ones, *p["dilation"]),
        (*(0,) * more, *low), t.dtype,
    )  # fmt: skip
    return Expansion((Launch(_Largest(problem, Results()).kernel(), (x,), (y,)),))


class _Largest(Pixels):
    """The kernel of the largest elements."""

    def kernel(self) -> Kernel:
        b, p = self.b, self.p
        self.fill = identity("max", p.dtype.accum)
        self.x = b.parameter("x", TensorType(p.dtype, (p.batch, 1, 1, *p.sizes)))
        self.results.declare(b, TensorType(p.dtype, (p.batch, 1, 1, *p.counts)))
        self.batch, self.group, self.z = b.program(p.batch), 0, b.program(p.counts[0])
        self.first = b.program((p.counts[1] + self.rows - 1) // self.rows) * self.rows
        even = isinstance(p.counts[1], int) and p.counts[1] % self.rows == 0
        rows = self.rows if even else smaller(self.first + self.rows, p.counts[1]) - self.first
        shape = (1, p.span(0, 1), p.span(1, self.rows), p.stride[2], self.across)
        self.seen = b.alloc(p.dtype.accum, shape)
        self.bring()
        self.sums(None, 0, rows)
        return b.finish()

    def block(
        self, kept: Memory | None, leaf: Size, lines: Sequence[tuple[Size, Size]], chunk: Size
    ) -> None:
        """Lines of outputs in registers: the largest of all places of their windows."""
        b, p = self.b, self.p

        def step(k: tuple[Size, ...], found: Sequence[Tile]) -> list[Tile]:
            pairs = zip(lines, found, strict=True)
            return [b.apply("max", x, self.line(k, y, chunk)) for (_, y), x in pairs]

        start = [b.full(p.dtype.accum, (1, self.width), self.fill) for _ in lines]
        spans: list[tuple[Size, Size]] = [(0, n) for n in (1, *p.window)]
        for (o, y), x in zip(lines, walk(b, spans, start, step), strict=True):
            self.store(x, o, y, chunk)


POOLS = {"max_pool": lower_max_pool}
