"""The primitive operations that approximations are made of, and numbers that are written with them.

An Algebra works on values of one float format (f32 or f64), integers of the same width and truth
values.  NumPy, LLVM and Triton each have one; every operation is exact or correctly rounded, so a
function written with them has the same bits everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from tessera.core.fma import unguarded_fma

Array = np.ndarray[Any, np.dtype[Any]]
V = TypeVar("V")  # the values of an algebra: arrays for NumPy, names of registers for LLVM


@dataclass(frozen=True)
class BinaryFormat:
    """A binary float format."""

    name: str
    bits: int
    digits: int  # of the significand, the hidden one included
    bias: int  # of the exponent

    @property
    def fraction(self) -> int:
        """Bits below the exponent."""
        return self.digits - 1

    @property
    def magic(self) -> float:
        """Adding it rounds to an integer and leaves that integer in the low bits."""
        return 1.5 * 2.0**self.fraction

    @property
    def smallest(self) -> float:
        """The smallest normal number."""
        return float(2.0 ** (1 - self.bias))


F32 = BinaryFormat("f32", 32, 24, 127)
F64 = BinaryFormat("f64", 64, 53, 1023)


class Algebra(Protocol[V]):
    """What a target provides; OPERATIONS lists the names that `apply` takes."""

    format: BinaryFormat

    def real(self, value: float) -> V:
        """A constant, rounded to the format."""

    def integer(self, value: int) -> V:
        """An integer constant."""

    def apply(self, operation: str, *operands: V) -> V:
        """One operation of OPERATIONS."""

    def lookup(self, table: tuple[float, ...], index: V) -> V:
        """table[index]; the index is in range."""

    def rare(
        self, condition: V, slow: Callable[[], tuple[V, ...]], usual: tuple[V, ...]
    ) -> tuple[V, ...]:
        """Reals: slow() where the condition holds, else usual; may skip slow() if it holds nowhere."""


@runtime_checkable
class Scaler(Protocol):
    """An algebra whose machine may have an instruction for x 2^n, and one for what rounding leaves."""

    def scales(self) -> bool:
        """Whether there is an instruction for x 2^n."""

    def scaled(self, x: Any, power: Any) -> Any:
        """x 2^n rounded once, for a real n that is an integer or infinite; 2^infinity
        wins over a NaN in x.
        """

    def rests(self) -> bool:
        """Whether there is an instruction for what rounding leaves, beside the one for x 2^n."""

    def rest(self, x: Any) -> Any:
        """x less the integer nearest to it, ties to even; 0 for an infinite x."""


@runtime_checkable
class Logarithmic(Protocol):
    """An algebra that cannot reach the bits of its numbers: logarithm and exponential are its own."""

    def own_log(self, x: Any) -> Any:
        """The natural logarithm."""

    def own_exp(self, x: Any) -> Any:
        """e to the power x."""


def _right(x: Array, n: Array) -> Array:
    return np.asarray(x >> n)


# Operands are reals unless the name starts with int_ (integers) or with mask_ (truth values).
OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "fma": unguarded_fma,  # evaluate() ignores warnings
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "trunc": np.trunc,
    "round": np.rint,
    "copysign": np.copysign,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "where": np.where,  # a truth value and two reals
    "bits": lambda x: x.view(np.int32 if x.dtype == np.float32 else np.int64),
    "int_real": lambda i: i.astype(np.float32 if i.dtype == np.int32 else np.float64),
    "int_from_bits": lambda i: i.view(np.float32 if i.dtype == np.int32 else np.float64),
    "int_add": np.add,
    "int_sub": np.subtract,
    "int_and": np.bitwise_and,
    "int_or": np.bitwise_or,
    "int_left": np.left_shift,
    "int_right": _right,  # arithmetic
    "int_lt": np.less,
    "int_eq": np.equal,
    "int_where": np.where,  # a truth value and two integers
    "mask_and": np.logical_and,
    "mask_or": np.logical_or,
    "mask_not": np.logical_not,
}


@lru_cache(1 << 12)
def _constant(value: float, sign: float, dtype: type[Any]) -> Array:
    """A constant as an array; 0.0 and -0.0, which are equal, differ in their sign."""
    made = np.asarray(value, dtype)
    made.flags.writeable = False
    return made


class NumpyAlgebra:
    """The primitives on arrays."""

    def __init__(self, format: BinaryFormat):
        self.format = format
        self._real = np.float32 if format is F32 else np.float64
        self._integer = np.int32 if format is F32 else np.int64

    def real(self, value: float) -> Array:
        """A constant, rounded to the format."""
        return _constant(value, math.copysign(1, value), self._real)

    def integer(self, value: int) -> Array:
        """An integer constant."""
        return np.asarray(value, self._integer)

    def apply(self, operation: str, *operands: Array) -> Array:
        """One operation of OPERATIONS."""
        return np.asarray(OPERATIONS[operation](*operands))

    def lookup(self, table: tuple[float, ...], index: Array) -> Array:
        """table[index]."""
        return np.asarray(table, self._real)[index]

    def rare(
        self, condition: Array, slow: Callable[[], tuple[Array, ...]], usual: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        """slow() where the condition holds, else usual."""
        if not condition.any():
            return usual
        return tuple(np.where(condition, a, b) for a, b in zip(slow(), usual, strict=True))


class Real:
    """A number of an algebra's format, with the operators of Python; floats become constants."""

    __slots__ = ("algebra", "raw")

    def __init__(self, algebra: Algebra[Any], raw: Any):
        self.algebra, self.raw = algebra, raw

    @property
    def format(self) -> BinaryFormat:
        """The format."""
        return self.algebra.format

    def const(self, value: float) -> Real:
        """A constant of the same format."""
        return Real(self.algebra, self.algebra.real(value))

    def integer(self, value: int) -> Integer:
        """An integer constant of the same width."""
        return Integer(self.algebra, self.algebra.integer(value))

    def apply(self, operation: str, *others: Real | float) -> Real:
        """An operation on this number and others."""
        raws = [o.raw if isinstance(o, Real) else self.algebra.real(o) for o in others]
        return Real(self.algebra, self.algebra.apply(operation, self.raw, *raws))

    def __add__(self, other: Real | float) -> Real:
        return self.apply("add", other)

    def __radd__(self, other: float) -> Real:
        return self.apply("add", other)

    def __sub__(self, other: Real | float) -> Real:
        return self.apply("sub", other)

    def __rsub__(self, other: float) -> Real:
        return self.const(other).apply("sub", self)

    def __mul__(self, other: Real | float) -> Real:
        return self.apply("mul", other)

    def __rmul__(self, other: float) -> Real:
        return self.apply("mul", other)

    def __truediv__(self, other: Real | float) -> Real:
        return self.apply("div", other)

    def __rtruediv__(self, other: float) -> Real:
        return self.const(other).apply("div", self)

    def __neg__(self) -> Real:
        return self.apply("neg")

    def __abs__(self) -> Real:
        return self.apply("abs")

    def __lt__(self, other: Real | float) -> Truth:
        return self._compare("lt", other)

    def __le__(self, other: Real | float) -> Truth:
        return self._compare("le", other)

    def __gt__(self, other: Real | float) -> Truth:
        return self.lift(other)._compare("lt", self)

    def __ge__(self, other: Real | float) -> Truth:
        return self.lift(other)._compare("le", self)

    def equals(self, other: Real | float) -> Truth:
        """Whether both are the same number (NaN is none)."""
        return self._compare("eq", other)

    def _compare(self, operation: str, other: Real | float) -> Truth:
        return Truth(self.algebra, self.apply(operation, other).raw)

    def lift(self, other: Real | float) -> Real:
        """A number or a constant as a number."""
        return other if isinstance(other, Real) else self.const(other)

    def fma(self, y: Real | float, z: Real | float) -> Real:
        """self y + z, rounded once."""
        return self.apply("fma", y, z)

    def sqrt(self) -> Real:
        """The square root."""
        return self.apply("sqrt")

    def floor(self) -> Real:
        """The largest integer that is not larger."""
        return self.apply("floor")

    def trunc(self) -> Real:
        """The integer part."""
        return self.apply("trunc")

    def round(self) -> Real:
        """The nearest integer, ties to even."""
        return self.apply("round")

    def copysign(self, other: Real) -> Real:
        """This magnitude with the sign of another number."""
        return self.apply("copysign", other)

    def at_most(self, bound: Real | float) -> Real:
        """The bound where this is larger; NaN stays."""
        high = self.lift(bound)
        return (high < self).where(high, self)

    def at_least(self, bound: Real | float) -> Real:
        """The bound where this is smaller; NaN stays."""
        low = self.lift(bound)
        return (self < low).where(low, self)

    def bits(self) -> Integer:
        """The bit pattern as a signed integer."""
        return Integer(self.algebra, self.algebra.apply("bits", self.raw))


class Integer:
    """A signed integer of the width of the format; it wraps around."""

    __slots__ = ("algebra", "raw")

    def __init__(self, algebra: Algebra[Any], raw: Any):
        self.algebra, self.raw = algebra, raw

    def apply(self, operation: str, *others: Integer | int) -> Integer:
        """An operation on this integer and others."""
        raws = [o.raw if isinstance(o, Integer) else self.algebra.integer(o) for o in others]
        return Integer(self.algebra, self.algebra.apply(f"int_{operation}", self.raw, *raws))

    def __add__(self, other: Integer | int) -> Integer:
        return self.apply("add", other)

    def __sub__(self, other: Integer | int) -> Integer:
        return self.apply("sub", other)

    def __rsub__(self, other: int) -> Integer:
        return Integer(self.algebra, self.algebra.integer(other)).apply("sub", self)

    def __and__(self, other: Integer | int) -> Integer:
        return self.apply("and", other)

    def __or__(self, other: Integer | int) -> Integer:
        return self.apply("or", other)

    def __lshift__(self, n: int) -> Integer:
        return self.apply("left", n)

    def __rshift__(self, n: int) -> Integer:
        return self.apply("right", n)

    def __lt__(self, other: Integer | int) -> Truth:
        return Truth(self.algebra, self.apply("lt", other).raw)

    def equals(self, other: Integer | int) -> Truth:
        """Whether both are the same."""
        return Truth(self.algebra, self.apply("eq", other).raw)

    def real(self) -> Real:
        """As a real, rounded."""
        return Real(self.algebra, self.algebra.apply("int_real", self.raw))

    def from_bits(self) -> Real:
        """The real with this bit pattern."""
        return Real(self.algebra, self.algebra.apply("int_from_bits", self.raw))

    def lookup(self, table: Sequence[float]) -> Real:
        """The entry of a table with this number."""
        return Real(self.algebra, self.algebra.lookup(tuple(table), self.raw))


class Truth:
    """A truth value."""

    __slots__ = ("algebra", "raw")

    def __init__(self, algebra: Algebra[Any], raw: Any):
        self.algebra, self.raw = algebra, raw

    def apply(self, operation: str, *others: Truth) -> Truth:
        """An operation on truth values."""
        raws = [o.raw for o in others]
        return Truth(self.algebra, self.algebra.apply(f"mask_{operation}", self.raw, *raws))

    def __and__(self, other: Truth) -> Truth:
        return self.apply("and", other)

    def __or__(self, other: Truth) -> Truth:
        return self.apply("or", other)

    def __invert__(self) -> Truth:
        return self.apply("not")

    def where(self, x: Real | float, y: Real | float) -> Real:
        """x where this holds, else y."""
        a, b = (v.raw if isinstance(v, Real) else self.algebra.real(v) for v in (x, y))
        return Real(self.algebra, self.algebra.apply("where", self.raw, a, b))

    def where_integer(self, x: Integer | int, y: Integer | int) -> Integer:
        """x where this holds, else y."""
        a, b = (v.raw if isinstance(v, Integer) else self.algebra.integer(v) for v in (x, y))
        return Integer(self.algebra, self.algebra.apply("int_where", self.raw, a, b))

    def rare(
        self, slow: Callable[[], tuple[Real, ...]], usual: tuple[Real, ...]
    ) -> tuple[Real, ...]:
        """slow() where this holds, else usual; a target may skip slow() when it holds nowhere."""
        raws = self.algebra.rare(
            self.raw, lambda: tuple(x.raw for x in slow()), tuple(x.raw for x in usual)
        )
        return tuple(Real(self.algebra, raw) for raw in raws)
