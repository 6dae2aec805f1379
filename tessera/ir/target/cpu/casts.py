"""Casts between dtypes, with the rounding of core/rounding.py on every machine."""

from __future__ import annotations

from typing import Any

import ml_dtypes

from tessera.core.dtype import DType, bf16, f16, f32, f64, i4, i8, i32
from tessera.core.processor import machine
from tessera.ir.target.cpu.small import SmallWriter
from tessera.ir.target.cpu.types import (
    TYPES,
    constant,
    suffix,
    vector_of,
    vector_type,
    widths_of,
)
from tessera.ir.tile.ir import Operation

_finfo: Any = ml_dtypes.finfo
_iinfo: Any = ml_dtypes.iinfo


class CastWriter(SmallWriter):
    """Writes changes of dtype."""

    def _cast(self, op: Operation) -> None:
        x, t = op.operands[0], op.results[0]
        self.tiles[t] = [
            self.cast(name, x.dtype, t.dtype, width)
            for name, width in zip(self.tiles[x], widths_of(t.type), strict=True)
        ]

    def cast(self, x: str, source: DType, to: DType, width: int) -> str:
        """A vector in another dtype."""
        if source.base is i4:
            x, source = self.from_i4(x, width), i8
        if to.policy.saturate:
            x, source = self.clamp(x, source, to, width)
        source, to = source.base, to.base
        if source is to:
            return x
        if source.is_narrow:
            return self.cast(self.widen(x, source, width), source.compute, to, width)
        if to.kind == "b":
            relation = "fcmp une" if source.kind == "f" else "icmp ne"
            zero = constant(0, source, width)
            return self.put(f"{relation} {vector_type(source, width)} {x}, {zero}")
        narrow = self.narrow if to.is_narrow else self.between
        return narrow(x, source, to, width)

    def widen(self, x: str, source: DType, width: int) -> str:
        """A narrow number in the format that arithmetic on it happens in, which holds it."""
        if source is bf16:
            return self.from_bf16(x, width)
        if source is f16:
            return self.convert("fpext", x, f16, f32, width)
        return self.from_small(x, source, width)

    def narrow(self, x: str, source: DType, to: DType, width: int) -> str:
        """A number in a narrow format: all but f16 and i4 round from f32, as ml_dtypes does."""
        if to is i4:
            return self.to_i4(self.clamped_to_i4(x, source, width), width)
        if to is bf16:
            return self.to_bf16(self.cast(x, source, f32, width), width)
        if to is f16:
            near = self.to_odd(x, width) if source is f64 else self.cast(x, source, f32, width)
            return self.convert("fptrunc", near, f32, f16, width)
        return self.to_small(self.cast(x, source, f32, width), to, width)

    def clamped_to_i4(self, x: str, source: DType, width: int) -> str:
        """i8 with the lower half that i4 has: floats are clamped, integers wrap."""
        y = self.cast(x, source, i8, width)
        return self.held(y, i8, -8, 7, width) if source.kind == "f" else y

    def between(self, x: str, source: DType, to: DType, width: int) -> str:
        """Casts that LLVM has as they should be: among f32, f64, integers and from bools."""
        if source.kind == "f" and to.kind == "f":
            word = "fpext" if source.bits < to.bits else "fptrunc"
            return self.convert(word, x, source, to, width)
        if source.kind == "f" and width > 1 and machine() == "x86_64":
            return self.to_whole(x, source, to, width)
        if source.kind == "f":
            v = f"v{width}" if width > 1 else ""
            kinds = f"{v}{TYPES[to.name]}.{v}{suffix(TYPES[source.name])}"
            sign = "s" if to.kind == "i" else "u"
            a, b = vector_type(source, width), vector_type(to, width)
            return self.put(f"call {b} @llvm.fpto{sign}i.sat.{kinds}({a} {x})")
        if to.kind == "f":
            word = "sitofp" if source.kind == "i" else "uitofp"
            return self.convert(word, x, source, to, width)
        if source.kind != "b" and to.bits <= source.bits:
            return x if to.bits == source.bits else self.convert("trunc", x, source, to, width)
        return self.convert("sext" if source.kind == "i" else "zext", x, source, to, width)

    def to_whole(self, x: str, source: DType, to: DType, width: int) -> str:
        """Floats toward zero as integers, NaN as 0 and what is beyond as the ends: LLVM takes vectors apart
        for that on x86.
        """
        of = _iinfo(to.np)
        low, high = int(of.min), int(of.max)
        t = vector_type(source, width)
        sign = "s" if to.kind == "i" else "u"
        if float(high) != high or high > 1 << _finfo(source.np).nmant:
            y = self.convert(f"fpto{sign}i", x, source, to, width)  # of those in between
            ends = (("olt", low, low), ("oge", high + 1, high), ("uno", None, 0))
            for relation, edge, value in ends:
                than = x if edge is None else constant(float(edge), source, width)
                out = self.put(f"fcmp {relation} {t} {x}, {than}")
                kinds = vector_of("i1", width), vector_type(to, width)
                y = self.put(
                    f"select {kinds[0]} {out}, {kinds[1]} {constant(value, to, width)}, {kinds[1]} {y}"
                )
            return y
        truth = vector_of("i1", width)
        for relation, edge in (("ord", None), ("ogt", low), ("olt", high)):
            if relation == "ord" and low == 0:
                continue  # the next one makes 0 of NaN
            end = constant(float(edge or 0), source, width)
            kept = self.put(f"fcmp {relation} {t} {x}, {end}")
            x = self.put(f"select {truth} {kept}, {t} {x}, {t} {end}")
        wide = i32 if to.bits < 32 else to
        y = self.convert(f"fpto{'s' if wide is i32 else sign}i", x, source, wide, width)
        return y if wide is to else self.convert("trunc", y, wide, to, width)

    def clamp(self, x: str, source: DType, to: DType, width: int) -> tuple[str, DType]:
        """What is beyond the range of a dtype, at its end; and the dtype that this was done in."""
        if to.kind == "f":
            wide = source.base if source.base in (f32, f64) else f64
            x, top = self.cast(x, source, wide, width), float(_finfo(to.np).max)
            return self.held(x, wide, -top, top, width), wide
        if source.kind in "iu" and to.kind in "iu":
            of, here = _iinfo(to.np), _iinfo(source.np)
            low, high = max(int(of.min), int(here.min)), min(int(of.max), int(here.max))
            return self.held(x, source.base, low, high, width), source
        return x, source

    def held(self, x: str, dtype: DType, low: Any, high: Any, width: int) -> str:
        t, truth = vector_type(dtype, width), vector_of("i1", width)
        less, more = {"f": ("fcmp olt", "fcmp ogt"), "i": ("icmp slt", "icmp sgt")}.get(
            dtype.kind, ("icmp ult", "icmp ugt")
        )
        for relation, end in ((less, low), (more, high)):
            edge = constant(end, dtype, width)
            out = self.put(f"{relation} {t} {x}, {edge}")
            x = self.put(f"select {truth} {out}, {t} {edge}, {t} {x}")
        return x

    def convert(self, word: str, x: str, source: DType, to: DType, width: int) -> str:
        return self.put(f"{word} {vector_type(source, width)} {x} to {vector_type(to, width)}")

    def from_bf16(self, x: str, width: int) -> str:
        wide = vector_of("i32", width)
        bits = self.put(f"zext {vector_of('i16', width)} {x} to {wide}")
        high = self.put(f"shl {wide} {bits}, {constant(16, i32, width)}")
        return self.put(f"bitcast {wide} {high} to {vector_of('float', width)}")

    def to_bf16(self, x: str, width: int) -> str:
        """f32 rounded to nearest even by hand: x86 has an instruction, but it drops subnormals."""
        t, wide = vector_of("float", width), vector_of("i32", width)
        bits = self.put(f"bitcast {t} {x} to {wide}")
        up = self.put(f"lshr {wide} {bits}, {constant(16, i32, width)}")
        odd = self.put(f"and {wide} {up}, {constant(1, i32, width)}")
        bias = self.put(f"add {wide} {odd}, {constant(0x7FFF, i32, width)}")
        moved = self.put(f"add {wide} {bits}, {bias}")
        high = self.put(f"lshr {wide} {moved}, {constant(16, i32, width)}")
        nan = self.put(f"fcmp uno {t} {x}, {x}")
        quiet = constant(0x7FC0, i32, width)
        kept = self.put(f"select {vector_of('i1', width)} {nan}, {wide} {quiet}, {wide} {high}")
        return self.put(f"trunc {wide} {kept} to {vector_of('i16', width)}")

    def to_odd(self, x: str, width: int) -> str:
        """f64 as f32 rounded to odd, so that a second rounding gives what one rounding would."""
        t, wide = vector_of("double", width), vector_of("float", width)
        ints, truth = vector_of("i32", width), vector_of("i1", width)
        near = self.put(f"fptrunc {t} {x} to {wide}")
        back = self.put(f"fpext {wide} {near} to {t}")
        v = f"v{width}f64" if width > 1 else "f64"
        far, size = (self.put(f"call {t} @llvm.fabs.{v}({t} {n})") for n in (back, x))
        above = self.put(f"fcmp ogt {t} {far}, {size}")
        less = self.put(f"sext {truth} {above} to {ints}")
        inexact = self.put(f"fcmp one {t} {back}, {x}")
        odd = self.put(f"zext {truth} {inexact} to {ints}")
        bits = self.put(f"bitcast {wide} {near} to {ints}")
        toward = self.put(f"add {ints} {bits}, {less}")
        final = self.put(f"or {ints} {toward}, {odd}")
        return self.put(f"bitcast {ints} {final} to {wide}")
