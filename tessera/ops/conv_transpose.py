"""The transpose of convolution: from the results of a conv back to the shape of its x."""

from __future__ import annotations

from typing import Any

from tessera.core.constraints import require
from tessera.core.dims import Size
from tessera.core.errors import OperandError, ShapeError
from tessera.ir.graph.ir import Value
from tessera.ops.convolution import (
    biased,
    conv_input,
    groups_of,
    operands_of,
    padding_pairs,
)
from tessera.ops.define import ArrayLike, public
from tessera.ops.windows import reach, spatial


@public
def conv_transpose(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: Size = 1,
) -> Value:
    """The adjoint of conv in its x: w is (in channels, out channels / groups, ...).

    A stride makes (n - 1) * stride + reach of the window - padding elements from n, and
    output_padding more after them, where conv maps several sizes to one.
    """
    return _spread("conv_transpose", x, w, bias, stride, padding, output_padding, dilation, groups)


def _spread(
    op: str,
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike,
    stride: Any,
    padding: Any,
    output_padding: Any,
    dilation: Any,
    groups: Any,
    rank: int = 0,
) -> Value:
    v, k, *b = operands_of(op, x, w, bias, rank)
    if isinstance(padding, str):
        raise OperandError(f"{op}: padding is {padding!r}, expected numbers")
    rank = v.ndim - 2
    n = groups_of(op, groups)
    if not require("divisible", k.shape[0], n, f"{op}: the in channels of w"):
        raise ShapeError(
            f"{op}: groups {n} do not divide the {k.shape[0]} in channels of w {k.type}"
        )
    steps, gaps = spatial(op, "stride", stride, rank, 1), spatial(op, "dilation", dilation, rank, 1)
    extra = spatial(op, "output_padding", output_padding, rank, 0)
    for i in range(rank):
        if extra[i] >= max(steps[i], gaps[i]):
            raise OperandError(
                f"{op}: output_padding {extra[i]} must be below stride {steps[i]} or dilation {gaps[i]}"
            )
    spans = [reach(s, d) - 1 for s, d in zip(k.shape[2:], gaps, strict=True)]
    cut = padding_pairs(op, padding, v.shape[2:], spans, steps)
    long = [reach(m, s) for m, s in zip(v.shape[2:], steps, strict=True)]
    sizes = tuple(
        m + span - a - b + more
        for m, span, (a, b), more in zip(long, spans, cut, extra, strict=True)
    )
    for i, size in enumerate(sizes):
        if not require("at_least", size, 0, f"{op}: the size of the result"):
            raise ShapeError(
                f"{op}: padding {cut[i]} leaves {size} elements on spatial axis {i} of x {v.type}; "
                f"pad less or pass output_padding"
            )
    # More after the last place than before the next window: less is cut off there.
    cut = tuple(
        (a, b if isinstance(m, int) and isinstance(s, int) and m < s else b - m)
        for (a, b), m, s in zip(cut, extra, steps, strict=True)
    )
    y = conv_input.bind(v, k, size=sizes, stride=steps, padding=cut, dilation=gaps, groups=n)
    return biased(op, y, b)


@public
def conv_transpose1d(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: Size = 1,
) -> Value:
    """conv_transpose of x (batch, channels, length)."""
    name = "conv_transpose1d"
    return _spread(name, x, w, bias, stride, padding, output_padding, dilation, groups, 1)


@public
def conv_transpose2d(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: Size = 1,
) -> Value:
    """conv_transpose of x (batch, channels, height, width)."""
    name = "conv_transpose2d"
    return _spread(name, x, w, bias, stride, padding, output_padding, dilation, groups, 2)


@public
def conv_transpose3d(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: Size = 1,
) -> Value:
    """conv_transpose of x (batch, channels, depth, height, width)."""
    name = "conv_transpose3d"
    return _spread(name, x, w, bias, stride, padding, output_padding, dilation, groups, 3)
