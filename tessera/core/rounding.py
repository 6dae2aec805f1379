"""Rounding of wide results to the storage format and policy of a dtype.

Nearest ties to even by default.  Stochastic rounding draws its bits from a hash of the element's
index and of the unrounded value, so that the result is a function of the program and its inputs.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tessera.core.dtype import DType

Array = np.ndarray[Any, np.dtype[Any]]
_finfo: Any = ml_dtypes.finfo
_iinfo: Any = ml_dtypes.iinfo


def round_to(x: Array, dtype: DType) -> Array:
    """x in the storage format of dtype, under its policy."""
    with np.errstate(all="ignore"):
        if dtype.kind in "iu":
            return _to_integer(x, dtype)
        if dtype.kind == "f" and (dtype.policy.stochastic_round or dtype.policy.saturate):
            x = _under_policy(x, dtype)
        return np.asarray(x).astype(dtype.np)


def _under_policy(x: Array, dtype: DType) -> Array:
    wide = x if x.dtype in (np.float32, np.float64) else x.astype(np.float64)
    if dtype.policy.stochastic_round and x.dtype != dtype.np:
        wide = _stochastic(wide, dtype)
    return _clamp_float(wide, dtype) if dtype.policy.saturate else wide


def _finite(dtype: DType) -> Any:
    return _finfo(dtype.np)  # covers the formats that NumPy lacks and those it has


def top_of(dtype: DType) -> float:
    """The number of a dtype of floats that none exceeds: infinity where it has one."""
    with np.errstate(over="ignore", invalid="ignore"):
        beyond = float(np.array(np.inf, np.float32).astype(dtype.np))
    return beyond if np.isinf(beyond) else float(_finite(dtype).max)


def _clamp_float(x: Array, dtype: DType) -> Array:
    top = x.dtype.type(_finite(dtype).max)
    return np.where(np.isnan(x), x, np.clip(x, -top, top)).astype(x.dtype)


def _to_integer(x: Array, dtype: DType) -> Array:
    """Float to integer truncates and clamps, NaN to 0; integer to integer wraps unless saturating."""
    info = _iinfo(dtype.np)
    low, high = int(info.min), int(info.max)
    if x.dtype == ml_dtypes.int4:  # which NumPy does not know as an integer
        x = x.astype(np.int8)
    if x.dtype.kind == "f" or x.dtype.kind == "V" or x.dtype == ml_dtypes.bfloat16:
        wide = np.nan_to_num(
            np.trunc(x.astype(np.float64)), nan=0.0, posinf=2.0**64, neginf=-(2.0**63)
        )
        inside = np.clip(wide, float(low), float(high))
        out = inside.astype(np.uint64 if dtype.kind == "u" else np.int64)
        out = np.where(wide >= float(high), np.asarray(high, out.dtype), out)
        return np.asarray(out).astype(dtype.np)
    if dtype.policy.saturate and x.dtype != np.bool_:
        src = _iinfo(x.dtype)
        inside = np.clip(x, max(low, int(src.min)), min(high, int(src.max)))
        return np.asarray(inside).astype(dtype.np)
    if dtype.name == "i4":
        return np.asarray(x.astype(np.int8) << np.int8(4) >> np.int8(4)).astype(dtype.np)
    return x.astype(dtype.np)


def _stochastic(x: Array, dtype: DType) -> Array:
    """Round each element down or up with probability by its distance to the two neighbours.

    What lies beyond the largest number is left to the rounding to nearest, which overflows.
    """
    near = x.astype(dtype.np).astype(x.dtype)
    up, down = _neighbours(x, near, dtype)
    gap = up - down
    share = np.where(gap > 0, (x - down) / np.where(gap > 0, gap, 1), 0)
    pick = np.copysign(np.where(_uniform(x) < share, up, down), x)  # zeros keep the sign of x
    return np.where(np.abs(x) <= x.dtype.type(_finite(dtype).max), pick, x).astype(x.dtype)


def _neighbours(x: Array, near: Array, dtype: DType) -> tuple[Array, Array]:
    """The representable values on both sides of x (equal when x is representable)."""
    stored = near.astype(dtype.np)
    unsigned = np.dtype(f"u{dtype.bits // 8}")
    bits = stored.view(unsigned).astype(np.int64)
    sign = 1 << dtype.bits - 1
    ordered = np.where(bits & sign, -(bits & (sign - 1)), bits)

    def at(step: int) -> Array:
        o = ordered + step
        raw = np.where(o < 0, (-o) | sign, o).astype(unsigned)
        return raw.view(dtype.np).astype(x.dtype)

    above = np.where(near >= x, near, at(1))
    below = np.where(near <= x, near, at(-1))
    return above, below


def _uniform(x: Array) -> Array:
    """Numbers in [0, 1) from each element's index and value (a 64-bit finaliser, twice)."""
    index = np.arange(x.size, dtype=np.uint64).reshape(x.shape)
    bits = x.astype(np.float64).view(np.uint64)
    mixed = _mix(bits ^ _mix(index + np.uint64(0x9E3779B97F4A7C15)))
    return np.asarray((mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _mix(z: Array) -> Array:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def round_mantissa(x: Array, bits: int) -> Array:
    """f32 values with a mantissa of this many bits (tf32 has 10), nearest ties to even."""
    raw = x.astype(np.float32).view(np.uint32)
    drop = np.uint32(23 - bits)
    one = np.uint32(1)
    bias = ((raw >> drop) & one) + (one << (drop - one)) - one
    rounded = ((raw + bias) >> drop) << drop
    finite = np.isfinite(x)
    return np.where(finite, rounded, raw).astype(np.uint32).view(np.float32)
