"""The derivative of a convolution in x as Tile programs, in the order of core/convolutions.py.

    dx[b, c, q] = sum over o, k of ct[b, o, (q + low - k*dilation) / stride] * w[o, c, k]
->  for each phase of q modulo the stride: a convolution of ct with some places of the kernel

An instance computes all phases of its part of x, one after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tessera.core.convolutions import MOST_AXES, Phase, all_phases
from tessera.core.dims import Size, larger, product, smaller
from tessera.core.folds import LANES
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.cpu.conv.channels import Channels
from tessera.ir.tile.cpu.conv.epilogue import Results
from tessera.ir.tile.cpu.conv.windows import ConvolutionProblem, panel_width
from tessera.ir.tile.ir import Builder, Kernel
from tessera.ir.tile.launch import Expansion, Launch


@dataclass(frozen=True)
class PhasePart:
    """The convolution of one phase, and where its weights begin among the packed ones."""

    problem: ConvolutionProblem
    phases: tuple[Phase, ...]
    base: int


def lower_input(step: Primitive, types: Mapping[str, TensorType]) -> Expansion:
    """The kernels of the derivative: weights packed, then all phases."""
    ct, w = step.operands
    (x,) = step.results
    more = MOST_AXES + 2 - types[ct].rank
    window = (*(1,) * more, *types[w].shape[2:])
    parts = parts_of(types[ct], types[w], types[x], step.params, more)
    width = panel_width(parts[0].problem.made)
    kernel = Inputs(parts, (*(1,) * more, *types[x].shape[2:]), width)
    return Expansion(
        (
            Launch(pack_turned(parts, window, kernel), (w,), ("packed",)),
            Launch(kernel.kernel(), (ct, "packed"), (x,)),
        ),
        {"packed": kernel.packed},
    )


def parts_of(
    ct: TensorType, w: TensorType, x: TensorType, p: Mapping[str, Any], more: int
) -> list[PhasePart]:
    """The phases of a derivative as convolutions of ct."""
    groups = p["groups"]
    window: Any = (*(1,) * more, *w.shape[2:])
    made, into = w.shape[1], w.shape[0] // groups
    assert isinstance(made, int), w
    ones, zeros = (1,) * more, ((0, 0),) * more
    filled = {
        "stride": (*ones, *p["stride"]), "dilation": (*ones, *p["dilation"]),
        "padding": (*zeros, *p["padding"]),
    }  # fmt: skip
    sizes = (*ones, *x.shape[2:])
    parts: list[PhasePart] = []
    base = 0
    for found in all_phases(window, filled):
        counts = tuple(a.count(n) for a, n in zip(found, sizes, strict=True))
        if any(n == 0 for n in counts) and parts:  # an axis shorter than the stride
            continue
        problem = ConvolutionProblem(
            ct.shape[0], groups, into, made, (*ones, *ct.shape[2:]), tuple(a.size for a in found),
            counts, (1,) * MOST_AXES, tuple(a.dilation for a in found),
            tuple(a.low for a in found), ct.dtype,
        )  # fmt: skip
        parts.append(PhasePart(problem, found, base))
        base += into * product(problem.window)
    return parts


class Inputs(Channels):
    """The kernel of all phases."""

    def __init__(self, parts: Sequence[PhasePart], sizes: tuple[Size, ...], width: int):
        super().__init__(parts[0].problem, width, Results())
        self.parts, self.sizes = parts, sizes
        taps = max(sum(q.problem.channels * product(q.problem.window) for q in parts), 1)
        self.packed = TensorType(self.p.dtype.accum, (self.p.groups, self.panels, taps, width))
        self.images = self.images if len(parts) == 1 else 1

    @property
    def whole(self) -> tuple[Size, ...]:
        return self.sizes

    def phase(self, at: tuple[Size, ...]) -> None:
        for part in self.parts:
            self.p, self.base, self.part = part.problem, part.base, part
            super().phase(at)

    def rows_left(self, z: Size, first: Size) -> Size:
        if len(self.parts) == 1:
            return super().rows_left(z, first)
        rows = larger(smaller(first + self.rows, self.p.counts[1]) - first, 0)
        return rows * smaller(larger(self.p.counts[0] - z, 0), 1)

    def send(self, start: Size, at: tuple[Size, ...]) -> None:
        """Finished sums to the places of their phase, one place of all channels at a time."""
        if len(self.parts) == 1:
            super().send(start, at)
            return
        b, p, (z, y, x) = self.b, self.p, self.part.phases
        batch, group, channel, plane, place = at
        masked = (2,) if p.made % self.width else ()
        with b.loop(0, self.run) as output:
            n = output.variable
            row, column = (place + n) // p.counts[2], (place + n) % p.counts[2]
            into = (row * y.step + y.offset) * self.sizes[2] + column * x.step + x.offset
            line = b.load(self.kept, (0, start + n, 0), (1, 1, self.width), axes=(2,))
            self.results.write(
                b.cast(line, p.dtype), (batch, group, channel, plane * z.step + z.offset, into),
                (1, 1, self.width, 1, 1), axes=(2,), masked=masked,
            )  # fmt: skip


def pack_turned(parts: Sequence[PhasePart], window: Sequence[Size], kernel: Channels) -> Kernel:
    """The kernel that packs weights by phases, turned round: (group, panel, o and place, channel)."""
    p, b, width = parts[0].problem, Builder("pack"), kernel.width
    shape = (p.groups, p.channels, p.made, *window)
    w = b.parameter("w", TensorType(p.dtype, shape))
    out = b.parameter("packed", kernel.packed, writable=True)
    group, panel = b.program(p.groups), b.program(kernel.panels)
    o, part = b.program(p.channels), b.program(width // LANES)
    channel = panel * width + part * LANES
    masked = (2,) if p.made % width else ()
    for q in parts:
        k0, k1, k2 = q.problem.window
        with b.loop(0, k0) as z, b.loop(0, k1) as y, b.loop(0, k2) as x:
            places = (z.variable, y.variable, x.variable)
            at = (
                n - 1 - (a.first + a.every * u)
                for n, a, u in zip(window, q.phases, places, strict=True)
            )
            line = b.load(
                w, (group, o, channel, *at), (1, 1, LANES, 1, 1, 1), axes=(2,), masked=masked
            )
            number = q.base + ((o * k0 + places[0]) * k1 + places[1]) * k2 + places[2]
            b.store(
                out, b.cast(line, p.dtype.accum), (group, panel, number, part * LANES),
                (1, 1, 1, LANES), axes=(3,),
            )  # fmt: skip
    return b.finish()
