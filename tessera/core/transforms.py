"""Fourier transforms as primitives: which types they take and give, and their definition."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tessera.core import fourier
from tessera.core.dtype import DType, c64, c128, complex_of, f32, f64
from tessera.core.primitive import Array, Definition, Params, Types
from tessera.core.types import TensorType

_COMPLEX, _REAL = (c64, c128), (f32, f64)
_LONGEST = 1 << 24  # elements; beyond, tables and scratch would be larger than most tensors


def axes_of(p: Params) -> tuple[int, ...]:
    """The axes of a transform, in the order in which they are transformed."""
    return tuple(reversed(p["axes"])) if "axes" in p else (p["axis"],)


def _supports(dtypes: Sequence[DType], types: Types, p: Params) -> bool:
    """Lengths must be known, since the operations of a transform follow from its length."""
    (t,) = types
    lengths = [p["n"]] if "n" in p else [t.shape[a] for a in axes_of(p)]
    known = all(isinstance(n, int) and fourier.FourierPlan(n).length <= _LONGEST for n in lengths)
    return known and any(t.dtype is d for d in dtypes)


def _fft(inverse: bool, xs: Sequence[Array], p: Params) -> list[Array]:
    return [fourier.fftn(xs[0], p["axes"], p["norm"], inverse)]


def _rfft(xs: Sequence[Array], p: Params) -> list[Array]:
    return [fourier.rfft(xs[0], p["axis"], p["norm"])]


def _irfft(xs: Sequence[Array], p: Params) -> list[Array]:
    return [fourier.irfft(xs[0], p["axis"], p["n"], p["norm"])]


def _sized(t: TensorType, p: Params, n: int, dtype: DType) -> list[TensorType]:
    a = p["axis"]
    return [TensorType(dtype, (*t.shape[:a], n, *t.shape[a + 1 :]))]


def _rfft_types(types: Types, p: Params) -> list[TensorType]:
    (t,) = types
    return _sized(t, p, t.shape[p["axis"]] // 2 + 1, complex_of(t.dtype))


def _irfft_types(types: Types, p: Params) -> list[TensorType]:
    return _sized(types[0], p, p["n"], types[0].dtype.real)


TRANSFORMS = (
    Definition("fft", partial(_supports, _COMPLEX), lambda types, p: types, partial(_fft, False)),
    Definition("ifft", partial(_supports, _COMPLEX), lambda types, p: types, partial(_fft, True)),
    Definition("rfft", partial(_supports, _REAL), _rfft_types, _rfft),
    Definition("irfft", partial(_supports, _COMPLEX), _irfft_types, _irfft),
)
