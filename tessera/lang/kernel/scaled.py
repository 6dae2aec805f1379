"""Products of block-scaled numbers: mxfp8, mxfp4 and nvfp4, whose groups along k share a scale."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tessera.core.dtype import f8e4m3, f8e5m2, f16, f32, i32, u8
from tessera.core.errors import DTypeError, ShapeError
from tessera.lang.kernel.compute import place
from tessera.lang.kernel.parts import bitcast, join
from tessera.lang.kernel.table import IntrinsicContext, intrinsic
from tessera.lang.kernel.values import KernelError, TileValue

_PLAIN = {"e4m3": f8e4m3, "e5m2": f8e5m2, "bf16": None, "fp16": f16}
_FORMATS = ("e2m1", *_PLAIN)
_STORED = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def _decoded_reference(x: Any, form: str, axis: int) -> Any:
    if form != "e2m1":
        stored = x.view(_STORED[form]) if x.dtype == np.uint8 else x
        return stored.astype(np.float32)
    codes = np.stack((x & 15, x >> 4), axis + 1).astype(np.uint8)
    shape = (*x.shape[:axis], 2 * x.shape[axis], *x.shape[axis + 1 :])
    return codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32).reshape(shape)


def _scaled_reference(x: Any, scale: Any, axis: int) -> Any:
    if scale is None:
        return x
    codes = scale.view(ml_dtypes.float8_e8m0fnu) if scale.dtype == np.uint8 else scale
    numbers = codes.astype(np.float32)
    each = np.repeat(numbers, x.shape[axis] // scale.shape[1], 1)
    return x * (each if axis else each.T)


def _reference(
    a: Any, a_scale: Any, a_format: str, b: Any, b_scale: Any, b_format: str, acc: Any = 0
) -> Any:
    left = _scaled_reference(_decoded_reference(a, a_format, 1), a_scale, 1)
    right = _scaled_reference(_decoded_reference(b, b_format, 0), b_scale, 0)
    return acc + left @ right


@intrinsic(_reference)
def dot_scaled(
    p: IntrinsicContext,
    a: Any,
    a_scale: Any,
    a_format: str,
    b: Any,
    b_scale: Any,
    b_format: str,
    acc: Any = None,
) -> TileValue:
    """The product in f32 of two matrices of narrow numbers whose groups along k have scales.

    A format is "e2m1" (two numbers in a byte along k, the low half first), "e4m3", "e5m2", "bf16" or
    "fp16".  A scale is a tile with a row for each row of a (each column of b) and a column for each group:
    codes of e8m0 in u8, floats such as f8e4m3, or None.
    """
    left = _factor(p, "a", a, a_scale, a_format, 1)
    right = _factor(p, "b", b, b_scale, b_format, 0)
    return p.w.dot(left, right, None if acc is None else p.w.tile(acc))


def _factor(p: IntrinsicContext, name: str, x: Any, scale: Any, form: str, axis: int) -> TileValue:
    """One matrix in f32, at no place, with its scales multiplied in."""
    t = _nowhere(p, x)
    if form not in _FORMATS:
        raise KernelError(
            f"dot_scaled: the format of {name} is {form!r}, expected one of {_FORMATS}"
        )
    if t.rank != 2:
        raise ShapeError(f"dot_scaled: {name} is {t.type}, expected a matrix")
    numbers = _pairs(p, name, t, axis) if form == "e2m1" else _plain(p, t, form)
    if scale is None:
        return numbers
    s = _nowhere(p, scale)
    k, rows = numbers.shape[axis], numbers.shape[1 - axis]
    if s.rank != 2 or s.shape[0] != rows or s.shape[1] < 1 or k % s.shape[1]:
        raise ShapeError(
            f"dot_scaled: the scale of {name} is {s.type}, expected {rows} rows and a column for each group "
            f"of {k} numbers"
        )
    w, groups = p.w, s.shape[1]
    each = _scale(p, name, s)
    if axis:
        shape, spread = (rows, groups, k // groups), (rows, groups, 1)
    else:
        each, shape, spread = w.transpose(each), (groups, k // groups, rows), (groups, 1, rows)
    made = w.apply("mul", w.reshape(numbers, shape), w.reshape(each, spread))
    return w.reshape(made, numbers.shape)


def _nowhere(p: IntrinsicContext, x: Any) -> TileValue:
    """A tile at no place: zeros that were loaded from outside of a tensor count, and add nothing."""
    made: TileValue = place.emit(p, x, None)
    return made


def _plain(p: IntrinsicContext, x: TileValue, form: str) -> TileValue:
    stored = _PLAIN[form]
    if x.dtype is u8 and stored is not None and stored.bits == 8:
        x = _from_bits(p, x, form)
    return p.w.cast(x, f32)


def _from_bits(p: IntrinsicContext, x: TileValue, form: str) -> TileValue:
    """The numbers of codes of 8 bits, by the f16 of the same exponent or one that is wider."""
    code, w = p.w.cast(x, i32), p.w
    mantissa, bias = (3, 7) if form == "e4m3" else (2, 15)
    size = w.apply("and", code, 127)
    exponent = w.apply("shift_right", size, mantissa)
    part = w.cast(w.apply("and", size, (1 << mantissa) - 1), f32)
    fraction = w.apply("mul", part, 2.0**-mantissa)
    power = _power(p, w.apply("add", exponent, 127 - bias))
    normal = w.apply("mul", w.apply("add", fraction, 1.0), power)
    small = w.apply("mul", fraction, 2.0 ** (1 - bias))
    value = w.apply("where", w.apply("eq", exponent, 0), small, normal)
    if form == "e4m3":
        value = w.apply("where", w.apply("eq", size, 127), float("nan"), value)
    else:
        value = w.apply("where", w.apply("eq", size, 124), float("inf"), value)
        value = w.apply("where", w.apply("gt", size, 124), float("nan"), value)
    made: TileValue = w.apply("where", w.apply("ge", code, 128), w.apply("neg", value), value)
    return made


def _pairs(p: IntrinsicContext, name: str, x: TileValue, axis: int) -> TileValue:
    """Two numbers of four bits in each byte."""
    if x.dtype is not u8:
        raise DTypeError(
            f"dot_scaled: {name} in e2m1 is {x.type}, expected u8, two numbers in a byte"
        )
    w = p.w
    bytes_ = w.cast(x if axis else w.transpose(x), i32)
    low, high = (w.apply("and", bytes_, 15), w.apply("shift_right", bytes_, 4))
    rows, n = bytes_.shape
    both = w.reshape(join.emit(p, _fp4(p, low), _fp4(p, high)), (rows, 2 * n))
    return both if axis else w.transpose(both)


def _fp4(p: IntrinsicContext, code: TileValue) -> TileValue:
    """The number of a code of e2m1: a sign, two bits of exponent, one of mantissa."""
    w = p.w
    exponent = w.apply("and", w.apply("shift_right", code, 1), 3)
    half = w.apply("mul", w.cast(w.apply("and", code, 1), f32), 0.5)
    normal = w.apply("mul", w.apply("add", half, 1.0), _power(p, w.apply("add", exponent, 126)))
    size = w.apply("where", w.apply("eq", exponent, 0), half, normal)
    made: TileValue = w.apply("where", w.apply("ge", code, 8), w.apply("neg", size), size)
    return made


def _scale(p: IntrinsicContext, name: str, s: TileValue) -> TileValue:
    """Scales as f32: powers of two from codes of e8m0, or floats as they are."""
    if s.dtype.kind == "f":
        return p.w.cast(s, f32)
    if s.dtype is not u8:
        raise DTypeError(f"dot_scaled: the scale of {name} is {s.type}, expected u8 or a float")
    code, w = p.w.cast(s, i32), p.w
    power = w.apply("where", w.apply("eq", code, 0), 2.0**-127, _power(p, code))
    made: TileValue = w.apply("where", w.apply("eq", code, 255), float("nan"), power)
    return made


def _power(p: IntrinsicContext, exponent: TileValue) -> TileValue:
    """The power of two with this exponent in the bits of f32."""
    made: TileValue = bitcast.emit(p, p.w.apply("shift_left", exponent, 23), f32)
    return made
