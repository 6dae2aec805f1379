"""Quantisation: linear scales, integer products."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.core.dtype import as_dtype, f32, i32
from tessera.interop.onnx.model import DTYPES, OnnxError
from tessera.interop.onnx.rule import (
    NodeCall,
    axis_of,
    host,
    is_foreign,
    is_ours,
    numpy_dtype,
    rule,
)
from tessera.interop.onnx.rules.cast import cast
from tessera.interop.onnx.rules.integers import centred, rounded, whole_conv, whole_matmul
from tessera.interop.onnx.rules.windows import window
from tessera.lang import op
from tessera.ops.define import as_value

_SMALL = {"int4": (-8, 7), "uint4": (0, 15), "int2": (-2, 1), "uint2": (0, 3)}


def bounds(dtype: np.dtype[Any]) -> tuple[int, int] | None:
    """The smallest and largest number of an integer format; None for floats."""
    if dtype.name in _SMALL:
        return _SMALL[dtype.name]
    if dtype.kind not in "iu":
        return None
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _number(x: Any) -> Any:
    """A value that ops take: formats that Tessera has no dtype for become f32."""
    return x.astype(np.float32) if is_foreign(x) else x


def _along(v: Any, x: Any, n: NodeCall) -> Any:
    """A scale or zero point in a shape that broadcasts with x."""
    v = as_value(_number(v))
    rank = len(x.shape)
    if v.ndim == 0 or (v.ndim == 1 and v.shape[0] == 1):
        return op.reshape(v, ())
    axis = axis_of(n.get("axis", 1), rank)
    block = n.get("block_size", 0)
    if not block:
        if v.ndim != 1:
            raise OnnxError(f"a scale of {v.ndim} axes needs a block_size")
        return op.reshape(v, tuple(-1 if k == axis else 1 for k in range(rank)))
    if block < 0 or block * int(v.shape[axis]) < int(x.shape[axis]):
        raise OnnxError(f"block_size is {block}, which does not cover axis {axis}")
    wide = op.repeat(v, block, axis)
    return op.index(wide, (*[slice(None)] * axis, slice(0, x.shape[axis])))


@rule("QuantizeLinear")
def _quantize(n: NodeCall, x: Any, scale: Any, zero: Any = None) -> Any:
    to = DTYPES[n.get("output_dtype") or 2] if zero is None else numpy_dtype(zero)
    x, by = as_value(_number(x)), _along(scale, x, n)
    precision = n.get("precision", 0)
    kind = as_dtype(DTYPES[precision]) if precision else x.dtype
    if kind.kind != "f":
        kind = f32
    y = op.div(op.cast(x, kind), op.cast(by, kind))
    limits = bounds(to)
    if limits is None:
        if zero is not None and to.name.startswith("float4"):
            y = op.add(y, _along(zero, x, n))
        return cast(y, to, bool(n.get("saturate", 1)))
    y = op.round(op.cast(y, f32) if y.dtype.bits < 32 else y)
    if zero is not None:
        y = op.add(y, op.cast(_along(zero, x, n), y.dtype))
    y = op.clip(y, *limits)
    if is_ours(to):
        return op.cast(y, as_dtype(to))
    return host(y, "the input of QuantizeLinear").astype(np.int8).astype(to)


@rule("DequantizeLinear")
def _dequantize(n: NodeCall, x: Any, scale: Any, zero: Any = None) -> Any:
    to = DTYPES[n.get("output_dtype") or 0] if n.get("output_dtype") else numpy_dtype(scale)
    wide = op.cast(_number(x), f32)
    if zero is not None and bounds(numpy_dtype(x)) is not None:
        wide = op.sub(wide, op.cast(_along(zero, x, n), f32))
    return op.cast(op.mul(wide, op.cast(_along(scale, x, n), f32)), as_dtype(to))


@rule("DynamicQuantizeLinear")
def _dynamic_quantize(n: NodeCall, x: Any) -> Any:
    return rounded(x)


def _requantized(y: Any, scale: Any, zero: Any, to: Any) -> Any:
    """i32 sums at another scale, rounded and clamped."""
    wide = op.mul(op.cast(y, f32), op.cast(scale, f32))
    if zero is not None:
        wide = op.add(wide, op.cast(zero, f32))
    limits = bounds(numpy_dtype(to))
    assert limits is not None
    return op.cast(op.clip(op.round(wide), *limits), as_dtype(numpy_dtype(to)))


@rule("QLinearMatMul")
def _qlinear_matmul(
    n: NodeCall, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, y_scale: Any,
    y_zero: Any,
) -> Any:  # fmt: skip
    y = (
        whole_matmul(a, a_zero, b, b_zero)
        if _is_whole(a, b)
        else _wide_matmul(a, a_zero, b, b_zero)
    )
    left = _by_row(a_scale, -2, len(a.shape))
    scale = op.div(op.mul(op.cast(left, f32), op.cast(b_scale, f32)), op.cast(y_scale, f32))
    return _requantized(y, scale, y_zero, a if y_zero is None else y_zero)


def _is_whole(*xs: Any) -> bool:
    return all(numpy_dtype(x).kind in "iu" for x in xs)


def _wide_matmul(a: Any, a_zero: Any, b: Any, b_zero: Any) -> Any:
    return op.matmul(centred(a, a_zero, -2), centred(b, b_zero, -1))


def _by_row(scale: Any, axis: int, rank: int) -> Any:
    v = as_value(scale)
    if v.ndim != 1 or v.shape[0] == 1:
        return v
    return op.reshape(v, tuple(-1 if k == axis % rank else 1 for k in range(rank)))


@rule("QLinearConv")
def _qlinear_conv(
    n: NodeCall, x: Any, x_scale: Any, x_zero: Any, w: Any, w_scale: Any, w_zero: Any, y_scale: Any,
    y_zero: Any, bias: Any = None,
) -> Any:  # fmt: skip
    p = window(n, x.shape[2:], w.shape[2:])
    y = whole_conv(n.get("group", 1), x, x_zero, w, w_zero, p)
    column = (1, -1, *(1,) * (len(x.shape) - 2))
    if bias is not None:
        y = op.add(y, op.reshape(op.cast(bias, i32), column))
    by = as_value(w_scale)
    by = op.reshape(by, column) if by.ndim == 1 and by.shape[0] != 1 else op.reshape(by, ())
    scale = op.div(op.mul(op.reshape(x_scale, ()), by), op.reshape(y_scale, ()))
    return _requantized(y, scale, y_zero, x if y_zero is None else y_zero)
