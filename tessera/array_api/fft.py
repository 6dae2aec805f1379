"""Fourier transforms: the fft extension of the standard."""

from __future__ import annotations

from typing import Any

from tessera.array_api._creation import place
from tessera.core.dtype import DType, f32
from tessera.lang import op
from tessera.lang.op import (
    fft,
    fftn,
    fftshift,
    hfft,
    ifft,
    ifftn,
    ifftshift,
    ihfft,
    irfft,
    irfftn,
    rfft,
    rfftn,
)
from tessera.lang.tensor import Tensor
from tessera.ops.define import public

__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft",
    "irfftn", "rfft", "rfftfreq", "rfftn",
]  # fmt: skip


@public
def fftfreq(n: int, /, *, d: float = 1.0, dtype: DType | None = None, device: Any = None) -> Tensor:
    """The frequencies of fft of n samples at spacing d."""
    return place(op.fftfreq(n, d, dtype or f32), device)


@public
def rfftfreq(
    n: int, /, *, d: float = 1.0, dtype: DType | None = None, device: Any = None
) -> Tensor:
    """The frequencies of rfft of n samples at spacing d."""
    return place(op.rfftfreq(n, d, dtype or f32), device)


def __dir__() -> list[str]:
    return sorted(__all__)
