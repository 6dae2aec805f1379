"""Casts between dtypes as Triton, with the rounding of core/rounding.py."""

from __future__ import annotations

from typing import Any

import ml_dtypes

from tessera.core.dtype import DType, bf16, f16, f32, f64, i4, i8
from tessera.ir.target.triton.types import SMALL, value

_finfo: Any = ml_dtypes.finfo
_iinfo: Any = ml_dtypes.iinfo

HELPERS = {
    # Beyond the range at its end, NaN as 0; `high` may round up to a number that is outside.
    "to_whole": """
@triton.jit
def to_whole(x, low: tl.constexpr, high: tl.constexpr, least: tl.constexpr, most: tl.constexpr, to: tl.constexpr):
    inside = (x > low) & (x < high)
    near = tl.where(inside, x, 0.0).to(x.dtype).to(to)
    ends = tl.where(x <= low, tl.full((), least, to), tl.full((), most, to))
    return tl.where(inside, near, tl.where(x != x, tl.full((), 0, to), ends))
""",  # noqa: E501
    # The instruction keeps to the largest number; here what is beyond it is NaN or infinite.
    "to_small": """
@triton.jit
def to_small(x, last: tl.constexpr, beyond: tl.constexpr, to: tl.constexpr):
    inside = tl.abs(x) <= last
    near = tl.where(inside, x, 0.0).to(to).to(tl.uint8, bitcast=True)
    sign = (x.to(tl.uint32, bitcast=True) >> 24).to(tl.uint8) & 128
    code = tl.where(x != x, 127, beyond).to(tl.uint8) | sign
    return tl.where(inside, near, code).to(tl.uint8).to(to, bitcast=True)
""",
    "clamp_between": """
@triton.jit
def clamp_between(x, low: tl.constexpr, high: tl.constexpr):
    up = tl.where(x < low, low, x).to(x.dtype)
    return tl.where(up > high, high, up).to(x.dtype)
""",
}  # fmt: skip


class Casts:
    """Writes changes of dtype; `used` collects the helpers."""

    def __init__(self, used: dict[str, None]):
        self.used = used

    def cast(self, x: str, source: DType, to: DType) -> str:
        """An expression in another dtype."""
        if source.base is i4:
            x, source = f"(({x} << 4).to(tl.int8) >> 4)", i8
        if to.policy.saturate:
            x, source = self._clamped(x, source, to)
        source, to = source.base, to.base
        if source is to:
            return x
        if source.is_narrow and source.kind == "f" and to is not f32:
            return self.cast(f"{x}.to(tl.float32)", f32, to)
        if to.kind == "b":
            return f"({x} != 0)"
        if to.kind in "iu" and source.kind == "f":
            return self._whole(x, source, to)
        if to.name in SMALL:
            return self._small(self.cast(x, source, f32), to)
        if to is bf16:
            return f"{self.cast(x, source, f32)}.to(tl.bfloat16)"
        if to is f16 and source is not f64:
            return f"{self.cast(x, source, f32)}.to(tl.float16)"
        if to is i4:
            return f"(({x}.to(tl.int8) << 4).to(tl.int8) >> 4)"
        return f"{x}.to({value(to)})"

    def _whole(self, x: str, source: DType, to: DType) -> str:
        info = _iinfo(to.np)
        least, most = int(info.min), int(info.max)
        self.used["to_whole"] = None
        low, high = float(least) - (1 if to.bits < source.bits else 0), float(most + 1)
        if to.bits >= source.bits and least:
            low = float(least)  # which the format has, and whose value is itself
        kind = value(i8 if to is i4 else to)
        return f"to_whole({x}, {low}, {high}, {least}, {most}, {kind})"

    def _small(self, x: str, to: DType) -> str:
        """Past the middle between the largest number and the one after it there is no number."""
        self.used["to_small"] = None
        end, code = SMALL[to.name]
        return f"to_small({x}, {end}, {code}, {value(to)})"

    def _clamped(self, x: str, source: DType, to: DType) -> tuple[str, DType]:
        """What is beyond the range of a dtype, at its end; and the dtype that this was done in."""
        self.used["clamp_between"] = None
        if to.kind == "f":
            wide = source.base if source.base in (f32, f64) else f64
            top = float(_finfo(to.np).max)
            return f"clamp_between({self.cast(x, source, wide)}, {-top}, {top})", wide
        if source.kind in "iu" and to.kind in "iu":
            of, here = _iinfo(to.np), _iinfo(source.np)
            low, high = max(int(of.min), int(here.min)), min(int(of.max), int(here.max))
            return f"clamp_between({x}, {low}, {high})", source
        return x, source
