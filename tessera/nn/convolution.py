"""Convolutions, and their transposes, over one to three spatial axes."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from tessera.core.errors import OperandError, located
from tessera.lang import op
from tessera.nn.linear import keys_of, natural, sized
from tessera.nn.module import Module

Sizes = int | tuple[int, ...]
Padding = int | str | tuple[int, ...] | tuple[tuple[int, int], ...]
MODES = ("zeros", "reflect", "replicate", "circular")


def _each(layer: str, name: str, n: Any, rank: int) -> tuple[int, ...]:
    sizes = (n,) * rank if isinstance(n, int) else tuple(n)
    if len(sizes) != rank:
        raise located(
            OperandError(f"nn.{layer}: {name} is {n!r:.40}, expected a number or {rank} of them")
        )
    return sizes


def _frozen(padding: Any) -> Any:
    if isinstance(padding, int | str):
        return padding
    return tuple(p if isinstance(p, int) else tuple(p) for p in padding)


class _Convolution(Module):
    """What Conv1d, Conv2d and Conv3d share."""

    weight: Any
    bias: Any
    stride: tuple[int, ...]
    padding: Padding
    dilation: tuple[int, ...]
    groups: int
    padding_mode: str

    rank: ClassVar[int] = 0

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        size: Sizes,
        stride: Sizes = 1,
        padding: Padding = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        key: Any = None,
        dtype: Any = "f32",
    ) -> None:
        name = type(self).__name__
        _check_channels(name, in_channels, out_channels, groups)
        if padding_mode not in MODES:
            raise located(
                OperandError(
                    f"nn.{name}: padding_mode is {padding_mode!r}, expected one of {', '.join(MODES)}"
                )
            )
        window = _each(name, "size", size, self.rank)
        self.stride = _each(name, "stride", stride, self.rank)
        self.dilation = _each(name, "dilation", dilation, self.rank)
        self.padding, self.groups, self.padding_mode = _frozen(padding), groups, padding_mode
        a, b = keys_of(name, key)
        fan = in_channels // groups * math.prod(window)
        self.weight = natural(a, (out_channels, in_channels // groups, *window), fan, dtype)
        self.bias = natural(b, (out_channels,), fan, dtype) if bias else None

    def __call__(self, x: Any) -> Any:
        padding = self.padding
        if self.padding_mode != "zeros":
            x, padding = bordered(x, self._pairs(), self.padding_mode), 0
        return op.conv(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def _pairs(self) -> tuple[tuple[int, int], ...]:
        """Elements before and after each spatial axis."""
        spans = [(n - 1) * d for n, d in zip(self.weight.shape[2:], self.dilation, strict=True)]
        if self.padding == "valid":
            return ((0, 0),) * self.rank
        if self.padding == "same":
            return tuple((s // 2, s - s // 2) for s in spans)
        assert not isinstance(self.padding, str), self.padding
        given: Any = (self.padding,) * self.rank if isinstance(self.padding, int) else self.padding
        return tuple((p, p) if isinstance(p, int) else p for p in given)


def _check_channels(name: str, into: int, out: int, groups: int) -> None:
    sized(name, in_channels=into, out_channels=out, groups=groups)
    if into % groups or out % groups:
        raise located(
            OperandError(
                f"nn.{name}: {groups} groups do not divide {into} in and {out} out channels"
            )
        )


class Conv1d(_Convolution):
    """Sums over windows of x (batch, channels, length), times weight (out, in / groups, size)."""

    rank = 1


class Conv2d(_Convolution):
    """Sums over windows of x (batch, channels, height, width), times weight (out, in / groups, ...)."""

    rank = 2


class Conv3d(_Convolution):
    """Sums over windows of x (batch, channels, depth, height, width)."""

    rank = 3


class _Transposed(Module):
    """What ConvTranspose1d, ConvTranspose2d and ConvTranspose3d share."""

    weight: Any
    bias: Any
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    output_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    rank: ClassVar[int] = 0

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        *,
        key: Any = None,
        dtype: Any = "f32",
    ) -> None:
        name = type(self).__name__
        _check_channels(name, in_channels, out_channels, groups)
        window = _each(name, "size", size, self.rank)
        self.stride = _each(name, "stride", stride, self.rank)
        self.padding = _each(name, "padding", padding, self.rank)
        self.output_padding = _each(name, "output_padding", output_padding, self.rank)
        self.dilation = _each(name, "dilation", dilation, self.rank)
        self.groups = groups
        a, b = keys_of(name, key)
        fan = out_channels // groups * math.prod(window)
        self.weight = natural(a, (in_channels, out_channels // groups, *window), fan, dtype)
        self.bias = natural(b, (out_channels,), fan, dtype) if bias else None

    def __call__(self, x: Any) -> Any:
        return op.conv_transpose(
            x, self.weight, self.bias, self.stride, self.padding, self.output_padding, self.dilation,
            self.groups,
        )  # fmt: skip


class ConvTranspose1d(_Transposed):
    """The adjoint of Conv1d: weight is (in, out / groups, size)."""

    rank = 1


class ConvTranspose2d(_Transposed):
    """The adjoint of Conv2d: weight is (in, out / groups, ...)."""

    rank = 2


class ConvTranspose3d(_Transposed):
    """The adjoint of Conv3d: weight is (in, out / groups, ...)."""

    rank = 3


def bordered(x: Any, pairs: tuple[tuple[int, int], ...], mode: str) -> Any:
    """x (batch, channels, ...) with elements of its own before and after each spatial axis."""
    names = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    for i, (before, after) in enumerate(pairs):
        n = x.shape[2 + i]
        most = {"reflect": n - 1, "replicate": before + after, "circular": n}[mode]
        if max(before, after) > most or n == 0:
            raise located(
                OperandError(
                    f"nn: padding ({before}, {after}) by '{mode}' needs more than {n} elements on axis "
                    f"{2 + i}"
                )
            )
        ids = np.pad(np.arange(n), (before, after), mode=names[mode])  # type: ignore[call-overload]
        x = op.take(x, ids, axis=2 + i)
    return x
