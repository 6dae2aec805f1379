"""Pooling layers over the spatial axes of x (batch, channels, ...)."""

from __future__ import annotations

from typing import Any

from tessera.core.errors import OperandError, located
from tessera.lang import op
from tessera.nn.module import Module

Sizes = int | tuple[int, ...]


class MaxPool(Module):
    """The largest element of each window; the stride is the window's size unless given."""

    size: Sizes
    stride: Sizes | None = None
    padding: Sizes = 0
    dilation: Sizes = 1
    ceil_mode: bool = False

    def __call__(self, x: Any) -> Any:
        return op.max_pool(x, self.size, self.stride, self.padding, self.dilation, self.ceil_mode)


class AvgPool(Module):
    """The mean of each window; the stride is the window's size unless given."""

    size: Sizes
    stride: Sizes | None = None
    padding: Sizes = 0
    ceil_mode: bool = False
    count_include_pad: bool = True

    def __call__(self, x: Any) -> Any:
        return op.avg_pool(
            x, self.size, self.stride, self.padding, self.ceil_mode, self.count_include_pad
        )


class LPPool(Module):
    """(sum of x ** p) ** (1 / p) over each window."""

    p: float
    size: Sizes
    stride: Sizes | None = None
    ceil_mode: bool = False

    def __call__(self, x: Any) -> Any:
        return op.lp_pool(x, self.size, self.p, self.stride, self.ceil_mode)


class AdaptiveAvgPool(Module):
    """Means of `size` windows that cover each spatial axis."""

    size: Sizes

    def __call__(self, x: Any) -> Any:
        return op.adaptive_avg_pool(x, self.size)


class AdaptiveMaxPool(Module):
    """The largest elements of `size` windows that cover each spatial axis."""

    size: Sizes

    def __call__(self, x: Any) -> Any:
        sizes = (self.size,) * (x.ndim - 2) if isinstance(self.size, int) else self.size
        if len(sizes) != x.ndim - 2:
            raise located(
                OperandError(
                    f"nn.AdaptiveMaxPool: size is {self.size!r}, expected a number or {x.ndim - 2} of them"
                )
            )
        for axis, count in enumerate(sizes, 2):
            n = x.shape[axis]
            cuts = [(i * n // count, -(-(i + 1) * n // count)) for i in range(count)]
            at: Any = (slice(None),) * axis
            x = op.stack([op.max(x[(*at, slice(a, b))], axis=axis) for a, b in cuts], axis=axis)
        return x


class GlobalAvgPool(Module):
    """The mean of each channel over all its positions: (batch, channels)."""

    def __call__(self, x: Any) -> Any:
        return op.global_avg_pool(x, keepdims=False)


class Upsample(Module):
    """x at other spatial sizes, by "nearest", "linear" (bilinear in 2-D) or "cubic"."""

    size: Sizes | None = None
    scale: float | tuple[float, ...] | None = None
    mode: str = "nearest"
    align_corners: bool = False

    def __call__(self, x: Any) -> Any:
        return op.resize(x, self.size, self.scale, self.mode, self.align_corners)


class PixelShuffle(Module):
    """Channels (c * r * r) as a finer grid: (batch, c, height * r, width * r)."""

    by: int

    def __call__(self, x: Any) -> Any:
        batch, channels, h, w = x.shape
        r = self.by
        parts = op.reshape(x, (batch, channels // r**2, r, r, h, w))
        return op.reshape(
            op.transpose(parts, (0, 1, 4, 2, 5, 3)), (batch, channels // r**2, h * r, w * r)
        )
