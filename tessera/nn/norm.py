"""Normalisation without running statistics."""

from __future__ import annotations

from typing import Any

from tessera.core.errors import OperandError, located
from tessera.lang import op
from tessera.nn.linear import sized
from tessera.nn.module import Module


def _sizes(layer: str, shape: int | tuple[int, ...]) -> tuple[int, ...]:
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    sized(layer, **{f"shape[{i}]": n for i, n in enumerate(sizes)})
    return sizes


class LayerNorm(Module):
    """(x - mean) / sqrt(var + eps) over the last axes, which have this shape, times weight plus bias."""

    weight: Any
    bias: Any
    axes: int
    eps: float

    def __init__(
        self,
        shape: int | tuple[int, ...],
        eps: float = 1e-5,
        affine: bool = True,
        bias: bool = True,
        *,
        dtype: Any = "f32",
    ) -> None:
        sizes = _sizes("LayerNorm", shape)
        self.axes, self.eps = len(sizes), eps
        self.weight = op.ones(sizes, dtype) if affine else None
        self.bias = op.zeros(sizes, dtype) if affine and bias else None

    def __call__(self, x: Any) -> Any:
        return op.layernorm(x, self.weight, self.bias, tuple(range(-self.axes, 0)), self.eps)


class RMSNorm(Module):
    """x / sqrt(mean(x * x) + eps) over the last axes, which have this shape, times weight."""

    weight: Any
    axes: int
    eps: float

    def __init__(
        self,
        shape: int | tuple[int, ...],
        eps: float = 1e-6,
        affine: bool = True,
        *,
        dtype: Any = "f32",
    ) -> None:
        sizes = _sizes("RMSNorm", shape)
        self.axes, self.eps = len(sizes), eps
        self.weight = op.ones(sizes, dtype) if affine else None

    def __call__(self, x: Any) -> Any:
        return op.rmsnorm(x, self.weight, tuple(range(-self.axes, 0)), self.eps)


class GroupNorm(Module):
    """Normalise each group of channels with its positions: x is (batch, channels, ...)."""

    weight: Any
    bias: Any
    groups: int
    eps: float

    def __init__(
        self,
        groups: int,
        channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        dtype: Any = "f32",
    ) -> None:
        sized("GroupNorm", groups=groups, channels=channels)
        if channels % groups:
            raise located(
                OperandError(f"nn.GroupNorm: {groups} groups do not divide {channels} channels")
            )
        self.groups, self.eps = groups, eps
        self.weight = op.ones((channels,), dtype) if affine else None
        self.bias = op.zeros((channels,), dtype) if affine else None

    def __call__(self, x: Any) -> Any:
        return op.groupnorm(x, self.groups, self.weight, self.bias, self.eps)


class InstanceNorm(Module):
    """Normalise each channel of each sample over its positions: x is (batch, channels, ...)."""

    weight: Any
    bias: Any
    eps: float

    def __init__(
        self, channels: int, eps: float = 1e-5, affine: bool = False, *, dtype: Any = "f32"
    ) -> None:
        sized("InstanceNorm", channels=channels)
        self.eps = eps
        self.weight = op.ones((channels,), dtype) if affine else None
        self.bias = op.zeros((channels,), dtype) if affine else None

    def __call__(self, x: Any) -> Any:
        return op.instancenorm(x, self.weight, self.bias, self.eps)


class LocalResponseNorm(Module):
    """x / (k + alpha * mean of squares over `size` neighbouring channels) ** beta."""

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0

    def __call__(self, x: Any) -> Any:
        before, after = self.size // 2, (self.size - 1) // 2
        sides = [(0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)]
        total: Any = op.cumsum(
            op.pad(op.square(x), [(0, 0), (before + 1, after), *sides[2:]]), axis=1
        )
        n = x.shape[1]
        windows = total[:, self.size : self.size + n] - total[:, :n]
        return x / op.pow(self.k + self.alpha * windows / self.size, self.beta)
