"""Complex numbers as pairs of real ones, and the complex ops that the targets compute on them.

A pair is of numbers, of arrays, or of what else adds and multiplies: NumPy runs the functions here on
arrays, kernels on tiles.  Each addition and product is rounded, none is fused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tessera.core.dtype import DType, c64, c128, complex_of, f32, f64
from tessera.core.primitive import Array, Definition, Params, Types
from tessera.core.types import TensorType


class Pair(NamedTuple):
    """A complex number as its parts."""

    re: Any
    im: Any

    def plus(self, other: Pair) -> Pair:
        return Pair(self.re + other.re, self.im + other.im)

    def minus(self, other: Pair) -> Pair:
        return Pair(self.re - other.re, self.im - other.im)

    def times(self, w: Pair) -> Pair:
        return Pair(self.re * w.re - self.im * w.im, self.re * w.im + self.im * w.re)

    def scaled(self, factor: Any) -> Pair:
        return Pair(self.re * factor, self.im * factor)

    def plus_turned(self, other: Pair) -> Pair:
        """self - i other."""
        return Pair(self.re + other.im, self.im - other.re)

    def minus_turned(self, other: Pair) -> Pair:
        """self + i other."""
        return Pair(self.re - other.im, self.im + other.re)

    @property
    def swapped(self) -> Pair:
        return Pair(self.im, self.re)


# Of complex operands, which are pairs, and of real ones; None is 0.
FORMULAS: dict[str, Callable[..., Any]] = {
    "add": Pair.plus,
    "sub": Pair.minus,
    "mul": Pair.times,
    "square": lambda x: x.times(x),
    "neg": lambda x: Pair(-x.re, -x.im),
    "conj": lambda x: Pair(x.re, -x.im),
    "real": lambda x: x.re,
    "imag": lambda x: x.im,
    "complex": Pair,
    "cast": lambda x: Pair(x, None),
}
_FROM_REAL, _TO_REAL = ("complex", "cast"), ("real", "imag")
_COMPLEX: tuple[DType, ...] = (c64, c128)
_REAL: tuple[DType, ...] = (f32, f64)


def parted(x: Array) -> Any:
    """An array as its parts when it is complex."""
    if x.dtype.kind != "c":
        return x
    return Pair(np.array(x.real, order="C"), np.array(x.imag, order="C"))


def joined(x: Any) -> Array:
    """The inverse of `parted`."""
    if not isinstance(x, Pair):
        return np.asarray(x)
    out = np.empty(x.re.shape, np.result_type(x.re.dtype, np.complex64))
    out.real, out.imag = x.re, 0 if x.im is None else x.im
    return out


def _supports(name: str, types: Types, p: Params) -> bool:
    wanted = _REAL if name in _FROM_REAL else _COMPLEX
    known = all(any(t.dtype is d for d in wanted) for t in types)
    return known and (name != "cast" or p["dtype"] is complex_of(types[0].dtype))


def _infer(name: str, types: Types, p: Params) -> list[TensorType]:
    d = types[0].dtype
    made = complex_of(d) if name in _FROM_REAL else d.real if name in _TO_REAL else d
    return [types[0].with_dtype(made)]


def _evaluate(name: str, xs: Sequence[Array], p: Params) -> list[Array]:
    return [joined(FORMULAS[name](*map(parted, xs)))]


COMPLEX = tuple(
    Definition(name, partial(_supports, name), partial(_infer, name), partial(_evaluate, name))
    for name in FORMULAS
)
