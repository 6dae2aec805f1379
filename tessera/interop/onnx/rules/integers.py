"""Products of quantised numbers, whose sums in i32 are exact in any order.

Where the processor multiplies bytes (VNNI, AMX) the numbers stay bytes, and zero points are taken off the
sums:

    sum (a - p) (b - q)  =  sum a b  -  p sum b  -  q sum a  +  k p q

Elsewhere they are products of f32 over parts that are short enough to be exact.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from tessera.core.dtype import as_dtype, f32, i32, u8
from tessera.core.flags import flags
from tessera.core.processor import multiplies_bytes
from tessera.interop.onnx.rule import (
    NodeCall,
    Quantised,
    at_once,
    host,
    is_known,
    numpy_dtype,
    rule,
)
from tessera.interop.onnx.rules.windows import convolved, window
from tessera.ir.graph.ir import concrete
from tessera.lang import op
from tessera.ops.define import as_value

_EXACT = 1 << 24  # f32 holds all whole numbers up to it
_SUMS = (1 << 31) - 1  # what i32 holds
_DEEP = 32  # products in a sum from which bytes pay


@rule("MatMulInteger")
def _matmul_integer(n: NodeCall, a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
    return whole_matmul(a, a_zero, b, b_zero)


@rule("ConvInteger")
def _conv_integer(n: NodeCall, x: Any, w: Any, x_zero: Any = None, w_zero: Any = None) -> Any:
    p = window(n, x.shape[2:], w.shape[2:])
    return whole_conv(n.get("group", 1), x, x_zero, w, w_zero, p)


def rounded(x: Any) -> tuple[Any, Any, Any]:
    """x in 8 bits over its own range: the numbers, their scale and their zero point."""
    high, low = op.maximum(op.max(x), 0.0), op.minimum(op.min(x), 0.0)
    spread = op.sub(high, low)
    scale = op.div(op.where(op.eq(spread, 0), 1.0, spread), 255.0)
    zero = op.round(op.clip(op.div(op.neg(low), scale), 0.0, 255.0))
    y = op.clip(op.add(op.round(op.div(x, scale)), zero), 0.0, 255.0)
    return op.cast(y, u8), scale, op.cast(zero, u8)


def centred(x: Any, zero: Any, axis: int) -> Any:
    """Quantised numbers less their zero point, which may be one for each place along an axis."""
    wide = op.cast(x, i32)
    return wide if zero is None else op.sub(wide, _point(zero, len(wide.shape), axis))


def _point(zero: Any, rank: int, axis: int) -> Any:
    """A zero point in i32, in a shape that broadcasts with numbers of that rank."""
    point = op.cast(zero, i32)
    if len(point.shape) == 1:
        one = point.shape[0] == 1
        shape = tuple(-1 if k == axis % rank else 1 for k in range(rank))
        return op.reshape(point, () if one else shape)
    return point


def _by_bytes(*values: Any) -> bool:
    """Whether these are bytes, and where they are the processor has an instruction for their products."""
    if not _are_bytes(*values):  # first: formats that are no dtypes are no values
        return False
    here = all(as_value(v).device.kind == "cpu" for v in values)
    return here and flags().target == "cpu" and multiplies_bytes()


def _are_bytes(*xs: Any) -> bool:
    return all(numpy_dtype(x).name in ("int8", "uint8") for x in xs)


def _is_zero(zero: Any) -> bool:
    """Whether a zero point is known to be 0."""
    return zero is None or (is_known(zero) and not np.any(host(zero, "a zero point")))


# Products of matrices -------------------------------------------------------------------------


def whole_matmul(a: Any, a_zero: Any, b: Any, b_zero: Any) -> Any:
    """A product of quantised numbers in i32."""
    a, b = as_value(a), as_value(b)
    depth = a.shape[-1]
    deep = not isinstance(depth, int) or depth >= _DEEP
    if deep and _by_bytes(a, b) and a.ndim > 1 and b.ndim > 1:
        return _byte_matmul(a, a_zero, b, b_zero)
    return _float_matmul(a, a_zero, b, b_zero)


def _byte_matmul(a: Any, a_zero: Any, b: Any, b_zero: Any) -> Any:
    """A product of bytes, and what zero points take off it."""
    (a, a_zero), (b, b_zero) = _even(a, a_zero), _even(b, b_zero)
    y = op.matmul(op.cast(a, i32), op.cast(b, i32))
    if not _is_zero(a_zero):
        columns = at_once(lambda v: _sums(v, -2), b)
        y = op.sub(y, op.mul(_point(a_zero, a.ndim, -2), columns))
    if not _is_zero(b_zero):
        rows = at_once(lambda v, z: _sums(centred(v, z, -2), -1), a, a_zero)
        y = op.sub(y, op.mul(rows, _point(b_zero, b.ndim, -1)))
    return y


def _even(x: Any, zero: Any) -> tuple[Any, Any]:
    """Numbers and their zero point; u8 around 128 that are known become i8 around 0."""
    if numpy_dtype(x).name != "uint8" or zero is None or not is_known(x) or not is_known(zero):
        return x, zero
    if not np.all(host(zero, "a zero point") == 128):
        return x, zero
    return concrete((host(x, "a weight") ^ 128).view(np.int8)), None


def rounded_matmul(a: Any, b: Any, scale: Any, zero: Any) -> Any:
    """A product of a, rounded to 8 bits over its own range, with quantised weights."""
    numbers, step, point = rounded(a)
    y = op.cast(whole_matmul(numbers, point, b, zero), f32)
    return op.mul(y, op.mul(step, scale))


def scaled_matmul(a: Quantised, b: Quantised) -> Any:
    """The product of what two DequantizeLinear made, by the product of what they made it from; None where
    scales do not leave the sum, or i32 does not hold it.
    """
    if not _by_bytes(a.numbers, b.numbers):
        return None
    left, right = as_value(a.numbers), as_value(b.numbers)
    if left.ndim < 2 or right.ndim < 2:
        return None
    if not (_is_for(a, left.ndim, -2) and _is_for(b, right.ndim, -1)):
        return None
    depth = left.shape[-1]
    most = _largest(left, a.zero) * _largest(right, b.zero)
    if not isinstance(depth, int) or not _DEEP <= depth <= _SUMS // most:
        return None
    y = op.cast(whole_matmul(left, a.zero, right, b.zero), f32)
    return op.mul(y, op.mul(_by(a, left.ndim, -2), _by(b, right.ndim, -1)))


def transposed(q: Quantised | None) -> Quantised | None:
    """What the transpose of a matrix was made from."""
    if q is None or len(q.numbers.shape) != 2 or q.blocks:
        return None
    return replace(q, numbers=at_once(op.transpose, as_value(q.numbers)), axis=1 - q.axis % 2)


def _is_for(q: Quantised, rank: int, axis: int) -> bool:
    """Whether there is one scale for all, or one for each place along an axis, in f32."""
    if numpy_dtype(q.scale).name != "float32":
        return False
    one = math.prod(q.scale.shape) == 1
    return one or (len(q.scale.shape) == 1 and not q.blocks and q.axis % rank == axis % rank)


def _by(q: Quantised, rank: int, axis: int) -> Any:
    """A scale in a shape that broadcasts with the product."""
    if math.prod(q.scale.shape) == 1:
        return op.reshape(q.scale, ())
    return op.reshape(q.scale, tuple(-1 if k == axis % rank else 1 for k in range(rank)))


def _sums(x: Any, axis: int) -> Any:
    return op.cast(op.sum(op.cast(x, i32), axis, True), i32)


def _float_matmul(a: Any, a_zero: Any, b: Any, b_zero: Any) -> Any:
    """The same by products of f32 of parts that are exact."""
    room, depth = _room(a, a_zero, b, b_zero), a.shape[-1]
    left = at_once(lambda x, z: centred(x, z, -2), a, a_zero)
    right = at_once(lambda x, z: centred(x, z, -1), b, b_zero)
    if room < 64 or not isinstance(depth, int) or b.ndim < 2:
        return op.matmul(left, right)
    left, right = at_once(_float, left), at_once(_float, right)
    total: Any = None
    for at in range(0, max(depth, 1), room):
        part = slice(at, min(at + room, depth))
        rows = at_once(lambda v, k=part: op.index(v, (..., k, slice(None))), right)
        y = op.cast(op.matmul(op.index(left, (..., part)), rows), i32)
        total = y if total is None else op.add(total, y)
    return total


def _largest(x: Any, zero: Any) -> int:
    """What no quantised number less its zero point goes beyond."""
    info = np.iinfo(numpy_dtype(x))
    low, high = int(info.min), int(info.max)
    if zero is None:
        return max(-low, high)
    if not is_known(zero):
        return high - low
    points = host(zero, "a zero point").astype(np.int64)
    return int(max((high - points).max(), (points - low).max())) if points.size else high - low


def _room(a: Any, a_zero: Any, b: Any, b_zero: Any) -> int:
    """How many products f32 adds up without rounding."""
    return _EXACT // (_largest(a, a_zero) * _largest(b, b_zero))


def _float(x: Any) -> Any:
    return op.cast(x, f32)


# Convolutions ---------------------------------------------------------------------------------


def whole_conv(groups: int, x: Any, x_zero: Any, w: Any, w_zero: Any, p: dict[str, Any]) -> Any:
    """A convolution of quantised numbers in i32."""
    x, w = as_value(x), as_value(w)
    if bytes_pay(groups, x, w, p):
        return _byte_conv(x, x_zero, w, w_zero, p)
    return _float_conv(groups, x, x_zero, w, w_zero, p)


def scaled_conv(groups: int, x: Quantised, w: Quantised, p: dict[str, Any]) -> Any:
    """The convolution of what two DequantizeLinear made, by that of what they made it from; None where that
    is no faster, or not the same.
    """
    if not bytes_pay(groups, x.numbers, w.numbers, p):
        return None
    left, right = as_value(x.numbers), as_value(w.numbers)
    if not (_is_for(x, left.ndim, 1) and _is_for(w, right.ndim, 0)):
        return None
    depth, most = math.prod(right.shape[1:]), _largest(left, x.zero) * _largest(right, w.zero)
    if depth > _SUMS // most or math.prod(x.scale.shape) != 1:
        return None
    y = op.cast(_byte_conv(left, x.zero, right, w.zero, p), f32)
    by = op.mul(op.reshape(x.scale, ()), op.reshape(w.scale, (-1, *(1,) * (left.ndim - 2))))
    return op.mul(y, by)


def bytes_pay(groups: int, x: Any, w: Any, p: dict[str, Any]) -> bool:
    """Whether a convolution is faster as a product of bytes: their windows are written out for it.  What
    `conv` refuses is left to it.
    """
    sizes = (*x.shape[1:], *w.shape)
    if groups != 1 or not _by_bytes(x, w):
        return False
    if not all(isinstance(s, int) for s in sizes) or math.prod(w.shape[1:]) < _DEEP:
        return False
    cut = any(min(pair) < 0 for pair in p["padding"])
    return not cut and all(n > 0 for n in _places(x.shape[2:], w.shape[2:], p))


def _places(sizes: Any, kernel: Any, p: dict[str, Any]) -> list[int]:
    """How many windows there are along each axis."""
    each = zip(sizes, kernel, p["stride"], p["dilation"], p["padding"], strict=True)
    return [(size + sum(pair) - (k - 1) * d - 1) // s + 1 for size, k, s, d, pair in each]


def _byte_conv(x: Any, x_zero: Any, w: Any, w_zero: Any, p: dict[str, Any]) -> Any:
    """A product of weights (outputs, channels * window) and windows (channels * window, places)."""
    kernel = tuple(w.shape[2:])
    windows, places = _windows(x, x_zero, kernel, p)
    rows = at_once(lambda v: op.reshape(v, (v.shape[0], math.prod(v.shape[1:]))), w)
    y = _byte_matmul(rows, _as_rows(w_zero), windows, x_zero)
    return op.reshape(y, (x.shape[0], w.shape[0], *places))


def _as_rows(zero: Any) -> Any:
    """A zero point for each output, or one for all."""
    return None if zero is None else op.reshape(zero, (-1,))


def _windows(x: Any, zero: Any, kernel: tuple[int, ...], p: dict[str, Any]) -> tuple[Any, Any]:
    """The windows (batch, channels * window, places) of x, around which lies its zero point, and how many
    there are along each axis.
    """
    stride, dilation, padding = p["stride"], p["dilation"], p["padding"]
    places = _places(x.shape[2:], kernel, p)
    if any(pair != (0, 0) for pair in padding):
        x = _padded(x, zero, padding)
    parts = []
    for at in np.ndindex(*kernel):
        starts = [i * d for i, d in zip(at, dilation, strict=True)]
        steps = zip(starts, places, stride, strict=True)
        cut = [slice(a, a + (n - 1) * s + 1, s) for a, n, s in steps]
        parts.append(op.index(x, (slice(None), slice(None), *cut)))
    shape = (x.shape[0], x.shape[1] * math.prod(kernel), math.prod(places))
    return op.reshape(op.stack(parts, 2) if len(parts) > 1 else parts[0], shape), places


def _padded(x: Any, zero: Any, padding: Any) -> Any:
    """x with its zero point around it; sums of bytes wrap."""
    pairs = [(0, 0), (0, 0), *padding]
    if _is_zero(zero):
        return op.pad(x, pairs)
    point = op.reshape(op.cast(zero, as_dtype(numpy_dtype(x))), ())
    return op.add(op.pad(op.sub(x, point), pairs), point)


def _float_conv(groups: int, x: Any, x_zero: Any, w: Any, w_zero: Any, p: dict[str, Any]) -> Any:
    """The same by convolutions of f32 that are exact."""
    kernel = [int(s) for s in w.shape[2:]]
    room = _room(x, x_zero, w, w_zero) // max(math.prod(kernel), 1)
    left = centred(x, x_zero, 1)
    right = at_once(lambda v, z: centred(v, z, 0), w, w_zero)
    channels = int(w.shape[1])
    if room < 1 or (groups > 1 and room < channels):
        return op.conv(left, right, groups=groups, **p)
    left, right = _float(left), at_once(_float, right)
    if room >= channels:
        return op.cast(convolved(left, right, None, groups, p), i32)
    total: Any = None
    for at in range(0, channels, room):
        part = (slice(None), slice(at, min(at + room, channels)))
        kept = at_once(lambda v, k=part: op.index(v, k), right)
        y = op.cast(convolved(op.index(left, part), kept, None, 1, p), i32)
        total = y if total is None else op.add(total, y)
    return total
