"""Signals: Fourier transforms, windows, mel filters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tessera.interop.onnx.model import DTYPES, Array
from tessera.interop.onnx.rule import NodeCall, axis_of, one, rule
from tessera.lang import op
from tessera.ops.define import as_value


@rule("DFT")
def _dft(n: NodeCall, x: Any, length: Any = None, axis: Any = None) -> Any:
    """The discrete Fourier transform; complex numbers are pairs along the last axis."""
    x = as_value(x)
    given = n.get("axis", 1) if n.version < 20 else -2 if axis is None else int(one(axis, "axis"))
    a = axis_of(given, x.ndim)
    size = None if length is None else int(one(length, "dft_length"))
    return _transform(x, a, size, bool(n.get("inverse", 0)), bool(n.get("onesided", 0)))


def _transform(x: Any, axis: int, size: int | None, inverse: bool, onesided: bool) -> Any:
    signal = _complex(x)
    if inverse and onesided:
        length = 2 * (int(x.shape[axis]) - 1) if size is None else size
        return op.cast(op.expand_dims(op.irfft(signal, length, axis), -1), x.dtype)
    y = (op.ifft if inverse else op.fft)(signal, size, axis)
    if onesided:
        half = int(y.shape[axis]) // 2 + 1
        y = op.index(y, (*[slice(None)] * axis, slice(0, half)))
    return op.cast(op.stack([op.real(y), op.imag(y)], -1), x.dtype)


def _complex(x: Any) -> Any:
    wide = op.cast(x, "f64")  # one rounding at the end, as the reference has it
    if x.shape[-1] == 1:
        return op.squeeze(wide, -1)
    return op.complex(op.index(wide, (..., 0)), op.index(wide, (..., 1)))


@rule("STFT")
def _stft(n: NodeCall, x: Any, step: Any, window: Any = None, length: Any = None) -> Any:
    """Fourier transforms of windows of a signal (batch, length, 1 or 2); (batch, length) is real."""
    x = as_value(x)
    x = op.expand_dims(x, -1) if x.ndim == 2 else x
    hop = int(one(step, "frame_step"))
    if length is not None:
        size = int(one(length, "frame_length"))
    else:
        size = int(x.shape[1] if window is None else window.shape[0])
    frames = op.moveaxis(op.windows(op.moveaxis(x, 1, -1), size, hop), 1, -1)
    if window is not None:
        frames = op.mul(frames, op.reshape(window, (size, 1)))
    return _transform(frames, 2, None, False, bool(n.get("onesided", 1)))


def _window(n: NodeCall, size: Any, terms: tuple[float, ...]) -> Array:
    """A sum of cosines over one period."""
    count = int(one(size, "size"))
    turn = np.arange(count) * 2 * np.pi / max(count if n.get("periodic", 1) else count - 1, 1)
    total = sum(t * np.cos(k * turn) for k, t in enumerate(terms))
    return np.asarray(total).astype(DTYPES[n.get("output_datatype", 1)])


@rule("HannWindow")
def _hann(n: NodeCall, size: Any) -> Any:
    return _window(n, size, (0.5, -0.5))


@rule("HammingWindow")
def _hamming(n: NodeCall, size: Any) -> Any:
    return _window(n, size, (25 / 46, -21 / 46))


@rule("BlackmanWindow")
def _blackman(n: NodeCall, size: Any) -> Any:
    return _window(n, size, (0.42, -0.5, 0.08))


@rule("MelWeightMatrix")
def _mel_weights(n: NodeCall, bins: Any, length: Any, rate: Any, low: Any, high: Any) -> Any:
    """Triangles that are even on the mel scale, over the bins of a spectrum."""
    count, size = int(one(bins, "num_mel_bins")), int(one(length, "dft_length"))
    first, last = (2595 * math.log10(1 + float(one(e, "edge")) / 700) for e in (low, high))
    mels = np.arange(count + 2) * ((last - first) / (count + 2)) + first
    hertz = 700 * (10 ** (mels / 2595) - 1)
    at = (((size + 1) * hertz) // int(one(rate, "sample_rate"))).astype(int)
    out = np.zeros((size // 2 + 1, count))
    for i in range(count):
        left, centre, right = at[i : i + 3]
        if centre == left:
            out[centre, i] = 1
        else:
            out[left : centre + 1, i] = np.arange(centre - left + 1) / (centre - left)
        if right > centre:
            out[centre:right, i] = (right - np.arange(centre, right)) / (right - centre)
    return out.astype(DTYPES[n.get("output_datatype", 1)])
