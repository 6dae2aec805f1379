"""Quotients by one number: its reciprocal, and a correction that makes every bit right.

A vector unit divides in the time of a dozen multiplications.  When all of a tile is divided by b, let
y = 1/b, rounded, and z the rest of it, so that q = a y + a z is within a unit of a/b.  The residual a - b q
is exact in one fused multiply-add, and q + y (a - b q) is a/b correctly rounded (Markstein).  That holds
where nothing under- or overflows; elsewhere, which is rare, the vectors are divided.
"""

from __future__ import annotations

from dataclasses import dataclass

from tessera.core.approximate import FLOATS
from tessera.ir.target.cpu.algebra import LlvmAlgebra
from tessera.ir.target.cpu.shapes import ShapeWriter
from tessera.ir.target.cpu.types import LANES, TYPES, widths_of
from tessera.ir.tile.ir import Operation


@dataclass(frozen=True)
class _Range:
    """Powers of two between whose negatives and themselves numerators and divisors may lie."""

    numerator: int
    divisor: int


# The last place of b q is that of a less two mantissas: it must not lie below the subnormal numbers.
RANGES = {"f32": _Range(96, 24), "f64": _Range(900, 60)}


class QuotientWriter(ShapeWriter):
    """Writes quotients of whole vectors by a number that they share."""

    def is_shared_quotient(self, op: Operation) -> bool:
        """Whether a tile of vectors is divided by one number for each row of it."""
        x, y = op.operands
        t = op.results[0]
        return (
            t.dtype.name in RANGES
            and x.shape == t.shape
            and bool(t.shape)
            and t.shape[-1] >= LANES
            and (not y.shape or y.shape[-1] == 1)
        )

    def shared_quotients(self, op: Operation) -> list[str]:
        """The vectors of a tile over those numbers."""
        x, y = op.operands
        t = op.results[0]
        names, divisors = self.tiles[x], self.spread(y, (*t.shape[:-1], 1))
        widths = widths_of(t.type)
        each = len(widths) // len(divisors)
        out: list[str] = []
        for i, b in enumerate(divisors):
            row = slice(i * each, (i + 1) * each)
            out += self.row_quotients(names[row], widths[row], b, t.dtype.name)
        return out

    def row_quotients(self, row: list[str], widths: list[int], b: str, dtype: str) -> list[str]:
        own, kind, small = FLOATS[dtype], TYPES[dtype], RANGES[dtype]
        one = LlvmAlgebra(self, own, 1)
        y, minus = one.apply("div", one.real(1.0), b), one.apply("neg", b)
        z = one.apply("mul", one.apply("fma", minus, y, one.real(1.0)), y)
        far = self.outside(one, b, small.divisor)  # below 0 a quotient 0 would have the other sign
        quick: list[str] = []
        for a, width in zip(row, widths, strict=True):
            many = LlvmAlgebra(self, own, width)
            over, little, against = (self.splat(v, kind, width) for v in (y, z, minus))
            q = many.apply("fma", a, over, many.apply("mul", a, little))
            rest = many.apply("fma", against, q, a)
            quick.append(many.apply("fma", rest, over, q))
            odd = self.odd(many, a, small.numerator)
            some = odd if width == 1 else self.put(
                f"call i1 @llvm.vector.reduce.or.v{width}i1(<{width} x i1> {odd})"
            )  # fmt: skip
            far = self.put(f"or i1 {far}, {some}")
        return self.either(far, row, widths, b, dtype, quick)

    def odd(self, many: LlvmAlgebra, a: str, power: int) -> str:
        """Which numerators do not lie between two powers of two, by their bits; 0 does, but not -0."""
        own, bits = many.format, many.apply("bits", a)
        first, last = ((own.bias + p) << own.fraction for p in (-power, power))
        size = many.apply("int_and", bits, many.integer(2 ** (own.bits - 1) - 1))
        above = many.apply("int_sub", size, many.integer(first))
        far = self.put(f"icmp ugt {many.types['i']} {above}, {many.integer(last - first)}")
        nonzero = many.apply("mask_not", many.apply("int_eq", bits, many.integer(0)))
        return many.apply("mask_and", far, nonzero)

    def outside(self, algebra: LlvmAlgebra, size: str, power: int) -> str:
        """Whether a size does not lie between two powers of two, or is no number."""
        low = algebra.apply("le", algebra.real(2.0**-power), size)
        high = algebra.apply("le", size, algebra.real(2.0**power))
        return algebra.apply("mask_not", algebra.apply("mask_and", low, high))

    def either(
        self, far: str, row: list[str], widths: list[int], b: str, dtype: str, quick: list[str]
    ) -> list[str]:
        """The quick quotients, or divisions where they may be wrong."""
        own, kind = FLOATS[dtype], TYPES[dtype]
        divided, join = (f"{k}{self.count}" for k in ("divided", "quotients"))
        before = self.label
        self.do(f"br i1 {far}, label %{divided}, label %{join}")
        self.start(divided)
        exact = [
            LlvmAlgebra(self, own, w).apply("div", a, self.splat(b, kind, w))
            for a, w in zip(row, widths, strict=True)
        ]
        self.do(f"br label %{join}")
        self.start(join)
        return [
            self.put(f"phi {LlvmAlgebra(self, own, w).types['f']} [ {q}, %{before} ], [ {d}, %{divided} ]")
            for q, d, w in zip(quick, exact, widths, strict=True)
        ]  # fmt: skip
