"""The primitives of approximations as LLVM instructions on vectors of one width."""

from __future__ import annotations

import struct
from collections.abc import Callable
from hashlib import sha256

from tessera.core.approximate.algebra import F32, BinaryFormat
from tessera.core.dtype import FORMATS
from tessera.ir.target.cpu.instructions import has_powers
from tessera.ir.target.cpu.types import vector_of
from tessera.ir.target.cpu.writer import LlvmWriter

# {0} {1} {2} operands; {f} {i} {b} the types of reals, integers and truth values; {v} the suffix of f.
_TEMPLATES = {
    "add": "fadd {f} {0}, {1}",
    "sub": "fsub {f} {0}, {1}",
    "mul": "fmul {f} {0}, {1}",
    "div": "fdiv {f} {0}, {1}",
    "fma": "call {f} @llvm.fma.{v}({f} {0}, {f} {1}, {f} {2})",
    "neg": "fneg {f} {0}",
    "abs": "call {f} @llvm.fabs.{v}({f} {0})",
    "sqrt": "call {f} @llvm.sqrt.{v}({f} {0})",
    "floor": "call {f} @llvm.floor.{v}({f} {0})",
    "trunc": "call {f} @llvm.trunc.{v}({f} {0})",
    "round": "call {f} @llvm.roundeven.{v}({f} {0})",
    "copysign": "call {f} @llvm.copysign.{v}({f} {0}, {f} {1})",
    "lt": "fcmp olt {f} {0}, {1}",
    "le": "fcmp ole {f} {0}, {1}",
    "eq": "fcmp oeq {f} {0}, {1}",
    "where": "select {b} {0}, {f} {1}, {f} {2}",
    "bits": "bitcast {f} {0} to {i}",
    "int_real": "sitofp {i} {0} to {f}",
    "int_from_bits": "bitcast {i} {0} to {f}",
    "int_add": "add {i} {0}, {1}",
    "int_sub": "sub {i} {0}, {1}",
    "int_and": "and {i} {0}, {1}",
    "int_or": "or {i} {0}, {1}",
    "int_left": "shl {i} {0}, {1}",
    "int_right": "ashr {i} {0}, {1}",
    "int_lt": "icmp slt {i} {0}, {1}",
    "int_eq": "icmp eq {i} {0}, {1}",
    "int_where": "select {b} {0}, {i} {1}, {i} {2}",
    "mask_and": "and {b} {0}, {1}",
    "mask_or": "or {b} {0}, {1}",
    "mask_not": "xor {b} {0}, {true}",
}


class LlvmAlgebra:
    """Writes primitives on vectors of `width` elements; a value is the name of a register."""

    def __init__(self, writer: LlvmWriter, format: BinaryFormat, width: int):
        self.writer, self.format, self.width = writer, format, width
        self.kind = "float" if format is F32 else "double"
        self.types = {
            "f": vector_of(self.kind, width),
            "i": vector_of(f"i{format.bits}", width),
            "b": vector_of("i1", width),
            "v": (f"v{width}" if width > 1 else "") + format.name,
            "true": self.splat("i1", "true"),
        }

    def splat(self, kind: str, text: str) -> str:
        """A constant in every lane."""
        return text if self.width == 1 else f"splat ({kind} {text})"

    def real(self, value: float) -> str:
        """A constant, rounded to the format."""
        return self.splat(self.kind, _hexadecimal(value, self.format))

    def integer(self, value: int) -> str:
        """An integer constant."""
        return self.splat(f"i{self.format.bits}", str(value))

    def apply(self, operation: str, *operands: str) -> str:
        """One operation as one instruction."""
        return self.writer.put(_TEMPLATES[operation].format(*operands, **self.types))

    def scales(self) -> bool:
        """Whether there is one instruction for x 2^power on such vectors."""
        return has_powers(self.writer.features, FORMATS[self.format.name], self.width)

    def scaled(self, x: str, power: str) -> str:
        """x 2^power as one instruction."""
        f = self.types["f"]
        return self.writer.put(
            f"call {f} @llvm.x86.avx512.mask.scalef.ps.512({f} {x}, {f} {power}, "
            f"{f} poison, i16 -1, i32 4)"  # every lane, rounded as everything is
        )

    def rests(self) -> bool:
        """Whether there is one instruction for x less the nearest integer on such vectors."""
        return self.scales() and "avx512dq" in self.writer.features

    def rest(self, x: str) -> str:
        """x less the nearest integer as one instruction."""
        f = self.types["f"]
        return self.writer.put(
            f"call {f} @llvm.x86.avx512.mask.reduce.ps.512({f} {x}, i32 8, {f} poison, i16 -1, i32 4)"
        )

    def lookup(self, table: tuple[float, ...], index: str) -> str:
        """table[index], from constant memory."""
        entries = ", ".join(f"{self.kind} {_hexadecimal(x, self.format)}" for x in table)
        array = f"[{len(table)} x {self.kind}]"
        name = f"table.{sha256(entries.encode()).hexdigest()[:16]}"
        self.writer.declared[name] = f"@{name} = private constant {array} [{entries}]"
        f, i, width = self.types["f"], self.types["i"], self.width
        at = self.writer.put(f"getelementptr {array}, ptr @{name}, i64 0, {i} {index}")
        align = self.format.bits // 8
        if width == 1:
            return self.writer.put(f"load {f}, ptr {at}, align {align}")
        return self.writer.put(
            f"call {f} @llvm.masked.gather.{self.types['v']}.v{width}p0(<{width} x ptr> {at}, "
            f"i32 {align}, <{width} x i1> {self.types['true']}, {f} poison)"
        )

    def rare(
        self, condition: str, slow: Callable[[], tuple[str, ...]], usual: tuple[str, ...]
    ) -> tuple[str, ...]:
        """A branch around slow() when the condition holds in no lane."""
        w, f, b = self.writer, self.types["f"], self.types["b"]
        some = condition
        if self.width > 1:
            some = w.put(f"call i1 @llvm.vector.reduce.or.v{self.width}i1({b} {condition})")
        branch, join = (f"{k}{w.count}" for k in ("rare", "usual"))
        before = w.label
        w.do(f"br i1 {some}, label %{branch}, label %{join}")
        w.start(branch)
        picked = [
            w.put(f"select {b} {condition}, {f} {x}, {f} {y}")
            for x, y in zip(slow(), usual, strict=True)
        ]
        after = w.label
        w.do(f"br label %{join}")
        w.start(join)
        return tuple(
            w.put(f"phi {f} [ {y}, %{before} ], [ {x}, %{after} ]")
            for x, y in zip(picked, usual, strict=True)
        )


def _hexadecimal(value: float, format: BinaryFormat) -> str:
    """A literal: LLVM writes both formats with the 64 bits of a double."""
    rounded = struct.unpack("<f", struct.pack("<f", value))[0] if format is F32 else value
    return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"
