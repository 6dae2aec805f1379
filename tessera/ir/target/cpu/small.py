"""Numbers of 8 bits and less: floats f8e4m3 and f8e5m2 as their bits, i4 as a byte whose upper half is 0."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tessera.core.dtype import FORMATS, DType, f32, i8, i32
from tessera.ir.target.cpu.pairs import PairWriter
from tessera.ir.target.cpu.types import constant, vector_of

_HALF_BIAS = 15  # of the exponent of a half


@dataclass(frozen=True)
class Small:
    """A float of 8 bits: its mantissa, the bias of its exponent, and the codes that are no numbers."""

    mantissa: int
    bias: int
    beyond: int  # what numbers too large round to
    nan: int
    first_nan: int


def _small(d: DType) -> Small:
    """The layout of a float of 8 bits, from its digits: a sign, the exponent, the mantissa."""
    mantissa = d.format.digits - 1
    exponents = 1 << 7 - mantissa
    nan = int(np.array(np.nan, d.np).view(np.uint8)) & 0x7F
    infinity = (exponents - 1) << mantissa
    if not d.format.infinite:
        return Small(mantissa, exponents // 2 - 1, nan, nan, nan)
    return Small(mantissa, exponents // 2 - 1, infinity, nan, infinity + 1)


SMALL = {name: _small(d) for name, d in FORMATS.items() if d.kind == "f" and d.bits == 8}


class SmallWriter(PairWriter):
    """Writes casts from and to small numbers."""

    def from_i4(self, x: str, width: int) -> str:
        """As i8: the sign is bit 3."""
        t, four = vector_of("i8", width), constant(4, i8, width)
        return self.put(f"ashr {t} {self.put(f'shl {t} {x}, {four}')}, {four}")

    def to_i4(self, x: str, width: int) -> str:
        """The lower half of i8."""
        return self.put(f"and {vector_of('i8', width)} {x}, {constant(15, i8, width)}")

    def from_small(self, x: str, dtype: DType, width: int) -> str:
        """As f32: the bits as a half, which has a wider exponent, times the ratio of the biases."""
        s, t = SMALL[dtype.name], vector_of("i16", width)
        wide = self.put(f"zext {vector_of('i8', width)} {x} to {t}")
        high = self.put(
            f"and {t} {self.put(f'shl {t} {wide}, {_half(8, width)}')}, {_half(-32768, width)}"
        )
        code = self.put(f"and {t} {wide}, {_half(127, width)}")
        low = self.put(f"shl {t} {code}, {_half(10 - s.mantissa, width)}")
        bits = self.put(f"or {t} {high}, {low}")
        half = self.put(f"bitcast {t} {bits} to {vector_of('half', width)}")
        single = vector_of("float", width)
        y = self.put(f"fpext {vector_of('half', width)} {half} to {single}")
        y = self.put(f"fmul {single} {y}, {constant(2.0 ** (_HALF_BIAS - s.bias), f32, width)}")
        if dtype.format.infinite and s.bias != _HALF_BIAS:
            far = self.put(f"icmp eq {t} {code}, {_half(s.beyond, width)}")
            signed = self.put(f"fmul {single} {y}, {constant(float('inf'), f32, width)}")
            y = self.put(f"select {vector_of('i1', width)} {far}, {single} {signed}, {single} {y}")
        nan = self.put(f"icmp uge {t} {code}, {_half(s.first_nan, width)}")
        none = constant(float("nan"), f32, width)
        return self.put(f"select {vector_of('i1', width)} {nan}, {single} {none}, {single} {y}")

    def to_small(self, x: str, dtype: DType, width: int) -> str:
        """f32 rounded to nearest even: by its bits, or (subnormals) by the addition of a large number."""
        s, t, single = SMALL[dtype.name], vector_of("i32", width), vector_of("float", width)
        truth, drop = vector_of("i1", width), 23 - s.mantissa

        def number(n: int) -> str:
            return constant(n, i32, width)

        bits = self.put(f"bitcast {single} {x} to {t}")
        size = self.put(f"and {t} {bits}, {number(0x7FFFFFFF)}")
        up = self.put(f"lshr {t} {size}, {number(drop)}")
        odd = self.put(f"and {t} {up}, {number(1)}")
        moved = self.put(
            f"add {t} {size}, {self.put(f'add {t} {odd}, {number((1 << drop - 1) - 1)}')}"
        )
        code = self.put(f"lshr {t} {moved}, {number(drop)}")
        normal = self.put(f"sub {t} {code}, {number(127 - s.bias << s.mantissa)}")
        large = self.put(f"icmp sgt {t} {normal}, {number(s.beyond)}")
        normal = self.put(f"select {truth} {large}, {t} {number(s.beyond)}, {t} {normal}")
        far = 2.0 ** (24 - s.bias - s.mantissa)  # whose last place is the least subnormal
        plain = self.put(f"bitcast {t} {size} to {single}")
        summed = self.put(f"fadd {single} {plain}, {constant(far, f32, width)}")
        raw = self.put(f"bitcast {single} {summed} to {t}")
        start = (127 + 24 - s.bias - s.mantissa) << 23
        little = self.put(f"sub {t} {raw}, {number(start)}")
        below = self.put(f"icmp ult {t} {size}, {number(128 - s.bias << 23)}")
        kept = self.put(f"select {truth} {below}, {t} {little}, {t} {normal}")
        nan = self.put(f"fcmp uno {single} {x}, {x}")
        kept = self.put(f"select {truth} {nan}, {t} {number(s.nan)}, {t} {kept}")
        sign = self.put(f"and {t} {self.put(f'lshr {t} {bits}, {number(24)}')}, {number(128)}")
        whole = self.put(f"or {t} {kept}, {sign}")
        return self.put(f"trunc {t} {whole} to {vector_of('i8', width)}")


def _half(n: int, width: int) -> str:
    return str(n) if width == 1 else f"splat (i16 {n})"
