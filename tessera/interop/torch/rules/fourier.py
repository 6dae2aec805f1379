"""Fourier transforms."""

from __future__ import annotations

from typing import Any

from tessera.interop.torch.rule import AtenCall, as_dtype, axis_of, number, rule
from tessera.lang import op


@rule("_fft_r2c")
def _fft_r2c(n: AtenCall, x: Any, dims: Any, normalization: int, onesided: bool) -> Any:
    *rest, last = (axis_of(d, x.ndim) for d in dims)
    y = op.rfft(x, axis=last) if onesided else op.fft(as_dtype(x, n.dtype), axis=last)
    for d in rest:
        y = op.fft(y, axis=d)
    return _normalised(y, x, dims, normalization)


@rule("_fft_c2c")
def _fft_c2c(n: AtenCall, x: Any, dims: Any, normalization: int, forward: bool) -> Any:
    y = x
    for d in dims:
        y = (op.fft if forward else op.ifft)(y, axis=axis_of(d, x.ndim))
    if forward:
        return _normalised(y, x, dims, normalization)
    return _unnormalised(y, x, dims, normalization)


@rule("_fft_c2r")
def _fft_c2r(n: AtenCall, x: Any, dims: Any, normalization: int, last_size: Any) -> Any:
    *rest, last = (axis_of(d, x.ndim) for d in dims)
    y = x
    for d in rest:
        y = op.ifft(y, axis=d)
    y = op.irfft(y, n=last_size, axis=last)
    return _unnormalised(y, y, dims, normalization)


def _count(x: Any, dims: Any) -> float:
    made = 1.0
    for d in dims:
        made *= int(x.shape[axis_of(d, x.ndim)])
    return made


def _normalised(y: Any, x: Any, dims: Any, mode: int) -> Any:
    """A forward transform by PyTorch's mode: 0 none, 1 by the root of the count, 2 by the count."""
    power = {0: 0.0, 1: -0.5, 2: -1.0}[mode]
    return y if not power else op.mul(y, number(_count(x, dims) ** power, y.dtype))


def _unnormalised(y: Any, x: Any, dims: Any, mode: int) -> Any:
    """An inverse transform, which ours divides by the count, by PyTorch's mode."""
    power = {0: 1.0, 1: 0.5, 2: 0.0}[mode]
    return y if not power else op.mul(y, number(_count(x, dims) ** power, y.dtype))
