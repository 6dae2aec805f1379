"""Casts between number formats and text."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tessera.core.dtype import as_dtype, i32
from tessera.interop.onnx.model import STRING, Array, dtype_of
from tessera.interop.onnx.rule import (
    NodeCall,
    host,
    is_foreign,
    is_ours,
    is_text,
    numpy_dtype,
    rule,
    tensor,
)
from tessera.lang import op

# Formats of 8 bits and fewer, which a cast may clamp to their largest number.
_NARROW = {
    np.dtype(t)
    for t in (
        ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e5m2fnuz,
    )
}  # fmt: skip
_INT4 = np.dtype(ml_dtypes.int4)
_SCALE = np.dtype(ml_dtypes.float8_e8m0fnu)
_FLOAT4 = np.dtype(ml_dtypes.float4_e2m1fn)


@rule("Cast", sizes=True)
def _cast(n: NodeCall, x: Any) -> Any:
    to = dtype_of(n.need("to"), "Cast")
    return cast(tensor(x), to, bool(n.get("saturate", 1)), n.get("round_mode", "up"))


@rule("CastLike")
def _cast_like(n: NodeCall, x: Any, like: Any) -> Any:
    return cast(x, numpy_dtype(like), bool(n.get("saturate", 1)), n.get("round_mode", "up"))


@rule("BitCast")
def _bitcast(n: NodeCall, x: Any) -> Any:
    to = dtype_of(n.need("to"), "BitCast")
    if not is_foreign(x) and is_ours(to) and to.itemsize in (4, 8) and numpy_dtype(x).kind in "fiu":
        return op.bitcast(x, as_dtype(to))
    return host(x, "input 0").view(to)


def cast(x: Any, to: np.dtype[Any], saturate: bool = True, round_mode: str = "up") -> Any:
    """x in another format, as ONNX rounds it."""
    if is_foreign(x) or not is_ours(to):
        return _cast_on_host(host(x, "the input of a cast"), to, saturate, round_mode)
    if to in _NARROW and numpy_dtype(x).kind in "fV" and saturate:
        x = _clamped(x, to)
    if to == _INT4 and numpy_dtype(x) != _INT4:  # the low bits of the whole part
        low = op.bitwise_and(op.cast(x, i32), 15)
        return op.cast(op.where(op.gt(low, 7), op.sub(low, 16), low), as_dtype(to))
    return op.cast(x, as_dtype(to))


def _largest(to: np.dtype[Any]) -> float:
    """The largest number of a format."""
    finfo: Any = ml_dtypes.finfo
    return float(finfo(to).max)


def _clamped(x: Any, to: np.dtype[Any]) -> Any:
    most = _largest(to)
    if numpy_dtype(x) in _NARROW:
        x = op.cast(x, "f32")
    return op.where(op.isnan(x), x, op.clip(x, -most, most))


def _cast_on_host(x: Array, to: np.dtype[Any], saturate: bool, round_mode: str) -> Array:
    if to == STRING:
        return _written(x)
    if is_text(x):
        return _read(x, to)
    if to in _NARROW or to == _FLOAT4:
        wide = x.astype(np.float32)
        most = np.float32(_largest(to))
        if saturate or to == _FLOAT4:
            wide = np.where(np.isnan(wide), wide, np.clip(wide, -most, most))
        return wide.astype(to)
    if to == _SCALE:
        return to_scale(x.astype(np.float32), saturate, round_mode)
    if to.name in ("int4", "uint4", "int2", "uint2"):
        return _to_small(x, to)
    wide = x.astype(np.float32) if not is_ours(x.dtype) else x
    return wide.astype(to)


def _to_small(x: Array, to: np.dtype[Any]) -> Array:
    """Integers of 4 or 2 bits: the low bits of the whole part."""
    bits = int(to.name[-1])
    whole = x.astype(np.float32).astype(np.int64) & ((1 << bits) - 1)
    if to.name.startswith("int"):
        whole = np.where(whole >= 1 << (bits - 1), whole - (1 << bits), whole)
    return whole.astype(np.int8).astype(to)


def to_scale(x: Array, saturate: bool = True, mode: str = "up") -> Array:
    """Powers of two, from the exponent bits of f32."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    exponent, fraction = ((bits >> 23) & 0xFF).astype(np.int64), bits & 0x7FFFFF
    if mode == "up":
        exponent = exponent + ((fraction > 0) & (exponent < 0xFF))
    elif mode == "nearest":
        exponent = exponent + ((fraction >= 0x400000) & (exponent < 0xFF))
    over = (exponent > 0xFE) & ~np.isnan(x)
    code = np.where(over, 0xFE if saturate else 0xFF, exponent)
    found: Array = code.astype(np.uint8).view(_SCALE).reshape(x.shape)
    return found


def _written(x: Array) -> Array:
    out = np.empty(x.shape, object)
    plain = x if is_ours(x.dtype) and x.dtype.kind in "biufO" else x.astype(np.float32)
    flat = [s if isinstance(s, str) else _number(s) for s in plain.reshape(-1)]
    out.reshape(-1)[:] = flat
    return out


def _number(s: Any) -> str:
    if isinstance(s, np.floating):
        return (
            "NaN" if np.isnan(s) else "INF" if s == np.inf else "-INF" if s == -np.inf else str(s)
        )
    return str(s)


def _read(x: Array, to: np.dtype[Any]) -> Array:
    numbers = np.array([float(s) for s in x.reshape(-1)], np.float64).reshape(x.shape)
    if to.kind in "iu":
        whole = [int(s) if s.lstrip("+-").isdigit() else int(float(s)) for s in x.reshape(-1)]
        return np.array(whole, object).astype(to).reshape(x.shape)
    return numbers.astype(to)
