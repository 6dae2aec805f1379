"""The table of convolutions: which kernels compute them, in the order of core/convolutions.py.

Vectors run along the out channels where there are enough of them (channels.py, weights packed once,
before), and along the last spatial axis otherwise (conv_pixels.py).  All convolutions are seen with three
spatial axes.
"""

from __future__ import annotations

from collections.abc import Mapping

from tessera.core.dims import product
from tessera.core.folds import LANES
from tessera.core.primitives import PRIMITIVES
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.cpu.conv.channels import Channels
from tessera.ir.tile.cpu.conv.conv_input import lower_input
from tessera.ir.tile.cpu.conv.conv_pixels import Pixels, suits_pixels
from tessera.ir.tile.cpu.conv.conv_weights import lower_weights
from tessera.ir.tile.cpu.conv.epilogue import results_of
from tessera.ir.tile.cpu.conv.windows import ConvolutionProblem, panel_width
from tessera.ir.tile.ir import Builder, Kernel
from tessera.ir.tile.launch import Expansion, Launch


def lower_conv(step: Primitive, types: Mapping[str, TensorType]) -> Expansion:
    """The kernels of a convolution."""
    x, w = step.own
    (y,) = PRIMITIVES["conv"].infer([types[x], types[w]], step.params)
    p = ConvolutionProblem.of(types[x], types[w], y, step.params)
    width = panel_width(p.made)
    results = results_of(step, types)
    if suits_pixels(p, width):
        kernel = Pixels(p, results).kernel()
        return Expansion((Launch(kernel, (x, w, *step.others), step.results),))
    made = Channels(p, width, results)
    return Expansion(
        (
            Launch(pack(p, width), (w,), ("packed",)),
            Launch(made.kernel(), (x, "packed", *step.others), step.results),
        ),
        {"packed": made.packed},
    )


def pack(p: ConvolutionProblem, width: int) -> Kernel:
    """The kernel that packs weights: (group, panel, channel and place, out channel)."""
    b = Builder("pack")
    taps = p.channels * product(p.window)
    w = b.parameter("w", TensorType(p.dtype, (p.groups, p.made, taps)))
    panels = -(-p.made // width)
    out = b.parameter(
        "packed", TensorType(p.dtype.accum, (p.groups, panels, taps, width)), writable=True
    )
    group, panel, part = b.program(p.groups), b.program(panels), b.program(width // LANES)
    first = panel * width + part * LANES
    masked = (1,) if p.made % width else ()
    whole = taps // LANES * LANES
    for start, stop, size in ((0, whole, LANES), (whole, taps, 1)):
        if start == stop:
            continue
        with b.loop(start, stop, size) as k:
            at = k.variable
            square = b.load(w, (group, first, at), (1, LANES, size), axes=(1, 2), masked=masked)
            turned = b.transpose(b.cast(square, p.dtype.accum))
            b.store(out, turned, (group, panel, at, part * LANES), (1, 1, size, LANES), axes=(2, 3))
    return b.finish()


CONVOLUTIONS = {"conv": lower_conv, "conv_weights": lower_weights, "conv_input": lower_input}
