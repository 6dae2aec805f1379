"""Scalar expressions: what an op computes at one point of its index space.

SCALARS has one row per scalar op; each target reads its own column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tessera.core.fma import fma
from tessera.core.host import special
from tessera.core.philox import philox_words

Number = bool | int | float | complex


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """One row: a function of scalars."""

    name: str
    arity: int
    numpy: Callable[..., Any]
    identity: Number | None = None  # set when the op may fold a reduced axis
    ulp: float = 0.5  # error bound of the NumPy column in units in the last place


def _sign(x: Any) -> Any:
    return np.sign(x)


def _sigmoid(x: Any) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(np.asarray(x).dtype)


def _floor_div(x: Any, y: Any) -> Any:
    """floor(x / y), also where one of them is infinite and Python's rule gives NaN or -1."""
    q = np.floor_divide(x, y)
    if q.dtype.kind != "f":
        return q
    return np.where(np.isinf(x) | np.isinf(y), np.floor(np.divide(x, y)), q)


def _power(x: Any, y: Any) -> Any:
    """NumPy's power, whose limits x**0 = 1**y = 1 hold for signalling NaN on some machines only."""
    z = np.power(x, y)
    if z.dtype.kind != "f":
        return z
    return np.where((y == 0) | (x == 1), z.dtype.type(1), z)


def _expm1(x: Any) -> Any:
    """NumPy's expm1; its complex one lacks the limits at infinity and keeps a real part of -0."""
    y = np.expm1(x)
    if y.dtype.kind != "c":
        return y
    z = np.where(np.isfinite(x), y, np.exp(x) - 1)
    z.real += 0
    return z


def _tanh(x: Any) -> Any:
    """NumPy's tanh; the sign of a complex limit's imaginary part is that of x, not of sin(2 x)."""
    y = np.tanh(x)
    if y.dtype.kind != "c":
        return y
    edge, z = np.isinf(x.real) & np.isfinite(x.imag), np.array(y)
    z.real = np.where(edge, np.copysign(1, x.real), z.real)
    z.imag = np.where(edge, np.copysign(0, x.imag), z.imag)
    return z


def _maximum(x: Any, y: Any) -> Any:
    """IEEE 754-2019 maximum: NaN if either is, and +0 above -0, where NumPy gives either zero."""
    m = np.maximum(x, y)
    if m.dtype.kind in "biuc" or np.all(m):
        return m
    return np.where((x == 0) & (y == 0), np.add(x, y), m).astype(m.dtype, copy=False)


def _minimum(x: Any, y: Any) -> Any:
    """IEEE 754-2019 minimum: NaN if either is, and -0 below +0."""
    m = np.minimum(x, y)
    if m.dtype.kind in "biuc" or np.all(m):
        return m
    both = np.negative(np.add(np.negative(x), np.negative(y)))
    return np.where((x == 0) & (y == 0), both, m).astype(m.dtype, copy=False)


def is_winner(name: str, x: Any) -> Any:
    """Which elements are the zero that wins among zeros: +0 for max, -0 for min."""
    return (x == 0) & (np.signbit(x) == (name == "min"))


def with_zeros(name: str, m: Any, won: Any) -> Any:
    """Extremes as NumPy folds them, where zeros have either sign, with the zeros that _maximum and _minimum
    give.
    """
    zero = np.where(won == (name == "max"), m.dtype.type(0.0), m.dtype.type(-0.0))
    return np.where(m == 0, zero, m)


def _nextafter(x: Any, y: Any) -> Any:
    """NumPy's nextafter; at x = y it is y, as C says, where NumPy's f16 gives the zero x."""
    return np.where(x == y, y, np.nextafter(x, y))


def _shift_left(x: Any, n: Any) -> Any:
    return np.left_shift(x, n)


def _bits(x: Any) -> Any:
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def _from_bits(x: Any) -> Any:
    return x.view(np.dtype(f"f{x.dtype.itemsize}"))


SCALARS = {
    row.name: row
    for row in (
        ScalarOp("add", 2, np.add, 0),
        ScalarOp("sub", 2, np.subtract),
        ScalarOp("fma", 3, fma),
        ScalarOp("mul", 2, np.multiply, 1),
        ScalarOp("div", 2, np.divide),
        ScalarOp("floor_div", 2, _floor_div),
        ScalarOp("mod", 2, np.remainder),
        ScalarOp("fmod", 2, np.fmod),
        ScalarOp("pow", 2, _power, ulp=4),
        ScalarOp("atan2", 2, np.arctan2, ulp=4),
        ScalarOp("hypot", 2, np.hypot, ulp=4),
        ScalarOp("max", 2, _maximum, float("-inf")),
        ScalarOp("min", 2, _minimum, float("inf")),
        ScalarOp("copysign", 2, np.copysign),
        ScalarOp("nextafter", 2, _nextafter),
        ScalarOp("logaddexp", 2, np.logaddexp, float("-inf"), ulp=4),
        ScalarOp("eq", 2, np.equal),
        ScalarOp("ne", 2, np.not_equal),
        ScalarOp("lt", 2, np.less),
        ScalarOp("le", 2, np.less_equal),
        ScalarOp("gt", 2, np.greater),
        ScalarOp("ge", 2, np.greater_equal),
        ScalarOp("and", 2, np.bitwise_and, -1),
        ScalarOp("or", 2, np.bitwise_or, 0),
        ScalarOp("xor", 2, np.bitwise_xor, 0),
        ScalarOp("shift_left", 2, _shift_left),
        ScalarOp("shift_right", 2, np.right_shift),
        ScalarOp("logical_and", 2, np.logical_and, True),
        ScalarOp("logical_or", 2, np.logical_or, False),
        ScalarOp("logical_xor", 2, np.logical_xor, False),
        ScalarOp("logical_not", 1, np.logical_not),
        ScalarOp("invert", 1, np.invert),
        ScalarOp("neg", 1, np.negative),
        ScalarOp("pos", 1, np.positive),
        ScalarOp("abs", 1, np.abs),
        ScalarOp("sign", 1, _sign),
        ScalarOp("signbit", 1, np.signbit),
        ScalarOp("recip", 1, np.reciprocal),
        ScalarOp("square", 1, np.square),
        ScalarOp("sqrt", 1, np.sqrt),
        ScalarOp("cbrt", 1, np.cbrt, ulp=4),
        ScalarOp("rsqrt", 1, lambda x: 1 / np.sqrt(x), ulp=2),
        ScalarOp("floor", 1, np.floor),
        ScalarOp("ceil", 1, np.ceil),
        ScalarOp("round", 1, np.round),
        ScalarOp("trunc", 1, np.trunc),
        ScalarOp("exp", 1, np.exp, ulp=4),
        ScalarOp("exp2", 1, np.exp2, ulp=4),
        ScalarOp("expm1", 1, _expm1, ulp=4),
        ScalarOp("log", 1, np.log, ulp=4),
        ScalarOp("log2", 1, np.log2, ulp=4),
        ScalarOp("log10", 1, np.log10, ulp=4),
        ScalarOp("log1p", 1, np.log1p, ulp=4),
        ScalarOp("sin", 1, np.sin, ulp=4),
        ScalarOp("cos", 1, np.cos, ulp=4),
        ScalarOp("tan", 1, np.tan, ulp=4),
        ScalarOp("asin", 1, np.arcsin, ulp=4),
        ScalarOp("acos", 1, np.arccos, ulp=4),
        ScalarOp("atan", 1, np.arctan, ulp=4),
        ScalarOp("sinh", 1, np.sinh, ulp=4),
        ScalarOp("cosh", 1, np.cosh, ulp=4),
        ScalarOp("tanh", 1, _tanh, ulp=4),
        ScalarOp("asinh", 1, np.arcsinh, ulp=4),
        ScalarOp("acosh", 1, np.arccosh, ulp=4),
        ScalarOp("atanh", 1, np.arctanh, ulp=4),
        ScalarOp("sigmoid", 1, _sigmoid, ulp=4),
        ScalarOp("erf", 1, special("erf"), ulp=4),
        ScalarOp("erfc", 1, special("erfc"), ulp=8),
        ScalarOp("erfinv", 1, special("erfinv"), ulp=16),
        ScalarOp("erfcinv", 1, special("erfcinv"), ulp=16),
        ScalarOp("lgamma", 1, special("gammaln"), ulp=16),
        ScalarOp("gamma", 1, special("gamma"), ulp=16),
        ScalarOp("digamma", 1, special("digamma"), ulp=16),
        ScalarOp("is_nan", 1, np.isnan),
        ScalarOp("is_inf", 1, np.isinf),
        ScalarOp("is_finite", 1, np.isfinite),
        ScalarOp("real", 1, np.real),
        ScalarOp("imag", 1, np.imag),
        ScalarOp("conj", 1, np.conjugate),
        ScalarOp("bits", 1, _bits),
        ScalarOp("from_bits", 1, _from_bits),
        ScalarOp("where", 3, np.where),
        # Of a key, a counter and the rest of the counter, all u64; made for random_bits.
        ScalarOp("philox_low", 4, partial(philox_words, high=False)),
        ScalarOp("philox_high", 4, partial(philox_words, high=True)),
    )
}


# Scalar ops that give a bool whatever they are given.
TESTS = frozenset(("eq", "ne", "lt", "le", "gt", "ge", "is_nan", "is_inf", "is_finite", "signbit"))
# Scalar ops that look at the bits of a number: the format that they give for each that they take.
REINTERPRETS = {
    "bits": {"f32": "u32", "f64": "u64"},
    "from_bits": {"u32": "f32", "u64": "f64"},
}


@dataclass(frozen=True, slots=True)
class Expr:
    """A tree of scalar ops over operands and constants."""

    op: str  # 'arg', 'const' or the name of a row of SCALARS
    operands: tuple[Expr, ...] = ()
    index: int = 0  # which operand, for 'arg'
    value: Number = 0  # for 'const'

    def __str__(self) -> str:
        if self.op == "arg":
            return f"x{self.index}"
        if self.op == "const":
            return repr(self.value)
        return f"{self.op}({', '.join(map(str, self.operands))})"


def arg(i: int) -> Expr:
    """Operand i."""
    return Expr("arg", (), i)


def const(value: Number) -> Expr:
    """A number."""
    return Expr("const", (), 0, value)


def apply(name: str, *operands: Expr) -> Expr:
    """A scalar op applied to expressions."""
    assert len(operands) == SCALARS[name].arity, (name, operands)
    return Expr(name, operands)


def product(n: int) -> Expr:
    """The product of n operands."""
    e = arg(0)
    for i in range(1, n):
        e = Expr("mul", (e, arg(i)))
    return e


def evaluate(e: Expr, xs: Sequence[Any]) -> Any:
    """The value of an expression on NumPy operands."""
    if e.op == "arg":
        return xs[e.index]
    if e.op == "const":
        return e.value
    return SCALARS[e.op].numpy(*(evaluate(o, xs) for o in e.operands))
