"""Scalar ops as ONNX nodes: one table, from which every elementwise op is written."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.core.dtype import DType, bool_
from tessera.core.scalar import Expr
from tessera.interop.onnx.model import OnnxError
from tessera.interop.onnx.special import approximated
from tessera.interop.onnx.writer import OnnxWriter

_DIRECT = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "max": "Max", "min": "Min", "pow": "Pow",
    "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual",
    "and": "BitwiseAnd", "or": "BitwiseOr", "xor": "BitwiseXor", "invert": "BitwiseNot",
    "logical_and": "And", "logical_or": "Or", "logical_xor": "Xor", "logical_not": "Not",
    "neg": "Neg", "pos": "Identity", "abs": "Abs", "sign": "Sign", "recip": "Reciprocal",
    "sqrt": "Sqrt", "floor": "Floor", "ceil": "Ceil", "round": "Round", "exp": "Exp", "log": "Log",
    "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan",
    "sinh": "Sinh", "cosh": "Cosh", "tanh": "Tanh", "asinh": "Asinh", "acosh": "Acosh",
    "atanh": "Atanh", "sigmoid": "Sigmoid", "erf": "Erf", "is_nan": "IsNaN", "is_inf": "IsInf",
    "where": "Where",
}  # fmt: skip
_OF_BOOLS = {"and": "And", "or": "Or", "xor": "Xor", "invert": "Not"}
_TESTS = {
    "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "logical_not",
    "is_nan", "is_inf", "is_finite", "signbit",
}  # fmt: skip
# Whole numbers that run-times have no Where of; as i64 they keep their bits.
_UNCHOSEN = {"i8", "i16", "u16", "u32", "u64"}
# What is written with the approximations of the other targets.
_SPECIAL = {"erfinv", "erfcinv", "gamma", "lgamma", "digamma"}


class OnnxScalars:
    """Writes an expression over operands of one dtype."""

    def __init__(self, w: OnnxWriter, names: list[str], dtypes: list[DType], at: DType):
        self.w, self.names, self.dtypes = w, names, dtypes
        self.at = at  # the dtype that numbers and arithmetic have

    def number(self, value: Any) -> str:
        """A constant of the dtype in force."""
        return self.w.constant(np.asarray(value).astype(self.at.np))

    def write(self, e: Expr) -> str:
        """The name of the value of an expression."""
        if e.op == "arg":
            return self.names[e.index]
        if e.op == "const":
            return self.number(e.value)
        names = [self.write(o) for o in e.operands]
        if e.op in _DIRECT:
            return self._direct(e, names)
        if e.op in _SPECIAL:
            return approximated(self, e.op, *names)
        make = _MADE.get(e.op)
        if make is None:
            raise OnnxError(f"onnx: there is no ONNX node for the scalar op '{e.op}'")
        return make(self, *names)

    def _direct(self, e: Expr, names: list[str]) -> str:
        if e.op in ("max", "min") and self.at is bool_:
            return self.n("Or" if e.op == "max" else "And", *names)
        if e.op == "where" and self.at is bool_:  # run-times have no Where of booleans
            test, yes, no = names
            return self.n("Or", self.n("And", test, yes), self.n("And", self.n("Not", test), no))
        if e.op == "where" and self.at.name in _UNCHOSEN:
            test, *sides = names
            wide = [self.w.cast(x, np.int64) for x in sides]
            return self.w.cast(self.n("Where", test, *wide), self.at.np)
        if e.op in _OF_BOOLS and self.at is bool_:
            return self.n(_OF_BOOLS[e.op], *names)
        if e.op in ("abs", "sign", "round", "floor", "ceil") and self.at.kind == "u":
            return self.n("Sign", *names) if e.op == "sign" else names[0]
        return self.n(_DIRECT[e.op], *names)

    def n(self, op: str, *names: str, **attributes: Any) -> str:
        """A node of one output."""
        found: str = self.w.emit(op, *names, **attributes)
        return found

    def _div(self, a: str, b: str) -> str:
        return self.n("Div", a, b)

    def _floor_div(self, a: str, b: str) -> str:
        if self.at.kind != "f":
            return self.n("Div", self.n("Sub", a, self.n("Mod", a, b)), b)
        # a whole number of b fits into what is left: the quotient is near one, and rounded to it
        whole = self.n("Div", self.n("Sub", a, self._mod(a, b)), b)
        near = self.n("Floor", self.n("Add", whole, self.number(0.5)))
        plain = self.n("Or", self.n("Equal", b, self.number(0)), self.n("IsInf", b))
        plain = self.n("Or", plain, self.n("IsInf", a))
        return self.n("Where", plain, self.n("Floor", self.n("Div", a, b)), near)

    def _mod(self, a: str, b: str) -> str:
        if self.at.kind != "f":
            return self.n("Mod", a, b)
        rest, zero = self.n("Mod", a, b, fmod=1), self.number(0)
        other = self.n("Xor", self.n("Less", rest, zero), self.n("Less", b, zero))
        none = self.n("Equal", rest, zero)
        turned = self.n("Where", other, self.n("Add", rest, b), rest)
        return self.n("Where", none, self.signed(zero, b), turned)

    def _trunc(self, a: str) -> str:
        return self.signed(self.n("Floor", self.n("Abs", a)), a)

    def _is_negative(self, a: str) -> str:
        """Whether the sign is minus, also that of a zero."""
        zero = self.number(0)
        return self.n("Or", self.n("Less", a, zero), self.n("Less", self.n("Reciprocal", a), zero))

    def signed(self, size: str, sign: str) -> str:
        """The size of one number with the sign of another."""
        size = self.n("Abs", size)
        return self.n("Where", self._is_negative(sign), self.n("Neg", size), size)

    def _hypot(self, a: str, b: str) -> str:
        """The larger of both times sqrt(1 + q q), which is in range where the squares are not."""
        x, y, zero = self.n("Abs", a), self.n("Abs", b), self.number(0)
        most, least = self.n("Max", x, y), self.n("Min", x, y)
        one = self.number(1)
        q = self.n("Div", least, self.n("Where", self.n("Equal", most, zero), one, most))
        size = self.n("Mul", most, self.n("Sqrt", self.n("Add", one, self.n("Mul", q, q))))
        far = self.n("Or", self.n("IsInf", a), self.n("IsInf", b))
        return self.n("Where", far, self.number(math.inf), size)

    def _logaddexp(self, a: str, b: str) -> str:
        most = self.n("Max", a, b)
        gap = self.n("Neg", self.n("Abs", self.n("Sub", a, b)))
        gap = self.n("Where", self.n("Equal", a, b), self.number(0), gap)  # also of infinities
        return self.n("Add", most, self._log1p(self.n("Exp", gap)))

    def _log1p(self, a: str) -> str:
        """a log(u) / (u - 1) with u = 1 + a rounded: the digits of a that u loses are in the factor."""
        one = self.number(1)
        u = self.n("Add", a, one)
        lost = self.n("Or", self.n("Equal", u, one), self.n("IsInf", u, detect_negative=0))
        rest = self.n("Where", lost, one, self.n("Sub", u, one))
        exact = self.n("Mul", a, self.n("Div", self.n("Log", u), rest))
        return self.n("Where", lost, a, exact)

    def _scaled(self, op: str, a: str, factor: float) -> str:
        return self.n("Mul", self.n(op, a), self.number(factor))

    def _finite(self, a: str) -> str:
        either = self.n("Or", self.n("IsNaN", a), self.n("IsInf", a))
        return self.n("Not", either)

    def _expm1(self, a: str) -> str:
        # tanh keeps the digits near 0 that exp(x) - 1 loses
        half = self.n("Tanh", self.n("Mul", a, self.number(0.5)))
        return self.n("Mul", half, self.n("Add", self.n("Exp", a), self.number(1)))

    def _shift(self, a: str, b: str, way: str) -> str:
        """Shifts of signed numbers are products and quotients of powers of two."""
        if self.at.kind == "u":
            return self.n("BitShift", a, b, direction=way)
        unsigned = np.dtype(f"u{np.dtype(self.at.np).itemsize}")
        one = self.w.constant(np.array(1, unsigned))
        power = self.n("BitShift", one, self.w.cast(b, unsigned), direction="LEFT")
        power = self.w.cast(power, self.at.np)
        return self.n("Mul", a, power) if way == "LEFT" else self._floor_div(a, power)

    def _conj(self, a: str) -> str:
        if self.at.kind == "c":
            raise OnnxError("onnx: there is no ONNX node for the scalar op 'conj'")
        return a

    def _atan2(self, y: str, x: str) -> str:
        """The angle in the first quadrant, mirrored by the signs; zeros and infinities have theirs too."""
        zero, one = self.number(0), self.number(1)
        far = self.n("And", self.n("IsInf", y), self.n("IsInf", x))
        none = self.n("And", self.n("Equal", y, zero), self.n("Equal", x, zero))
        up = self.n("Where", far, one, self.n("Abs", y))
        right = self.n("Where", self.n("Or", far, none), one, self.n("Abs", x))
        angle = self.n("Atan", self.n("Div", up, right))
        left = self.n("Sub", self.number(math.pi), angle)
        return self.signed(self.n("Where", self._is_negative(x), left, angle), y)


_MADE: dict[str, Callable[..., str]] = {
    "div": OnnxScalars._div,
    "floor_div": OnnxScalars._floor_div,
    "mod": OnnxScalars._mod,
    "fmod": lambda s, a, b: s.n("Mod", a, b, fmod=1),
    "fma": lambda s, a, b, c: s.n("Add", s.n("Mul", a, b), c),
    "ne": lambda s, a, b: s.n("Not", s.n("Equal", a, b)),
    "square": lambda s, a: s.n("Mul", a, a),
    "rsqrt": lambda s, a: s.n("Reciprocal", s.n("Sqrt", a)),
    "cbrt": lambda s, a: s.signed(s.n("Pow", s.n("Abs", a), s.number(1 / 3)), a),
    "trunc": OnnxScalars._trunc,
    "exp2": lambda s, a: s.n("Exp", s.n("Mul", a, s.number(math.log(2)))),
    "expm1": OnnxScalars._expm1,
    "log2": lambda s, a: s._scaled("Log", a, 1 / math.log(2)),
    "log10": lambda s, a: s._scaled("Log", a, 1 / math.log(10)),
    "log1p": OnnxScalars._log1p,
    "erfc": lambda s, a: s.n("Sub", s.number(1), s.n("Erf", a)),
    "hypot": OnnxScalars._hypot,
    "copysign": OnnxScalars.signed,
    "logaddexp": OnnxScalars._logaddexp,
    "is_finite": OnnxScalars._finite,
    "signbit": OnnxScalars._is_negative,
    "atan2": OnnxScalars._atan2,
    "conj": OnnxScalars._conj,
    "shift_left": lambda s, a, b: s._shift(a, b, "LEFT"),
    "shift_right": lambda s, a, b: s._shift(a, b, "RIGHT"),
}
