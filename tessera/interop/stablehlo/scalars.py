"""Scalar ops as StableHLO: one table, from which every elementwise op and fold is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.core.dtype import DType, as_dtype, bool_
from tessera.core.scalar import SCALARS, TESTS, Expr
from tessera.interop.stablehlo.writer import Ssa, StableHloError, StableHloWriter

# Ops of the same meaning for every kind of number they take.
_DIRECT = {
    "add": "add", "sub": "subtract", "mul": "multiply", "max": "maximum", "min": "minimum", "pow": "power",
    "and": "and", "or": "or", "xor": "xor", "invert": "not", "shift_left": "shift_left",
    "neg": "negate", "sqrt": "sqrt", "rsqrt": "rsqrt", "cbrt": "cbrt", "floor": "floor",
    "ceil": "ceil", "round": "round_nearest_even", "exp": "exponential", "expm1": "exponential_minus_one",
    "log": "log",
    "log1p": "log_plus_one", "sin": "sine", "cos": "cosine", "tan": "tan", "tanh": "tanh",
    "sigmoid": "logistic", "atan2": "atan2",
    "asin": "chlo.asin", "acos": "chlo.acos", "atan": "chlo.atan", "sinh": "chlo.sinh",
    "cosh": "chlo.cosh", "asinh": "chlo.asinh", "acosh": "chlo.acosh", "atanh": "chlo.atanh",
    "erf": "chlo.erf", "erfc": "chlo.erfc", "erfinv": "chlo.erf_inv", "lgamma": "chlo.lgamma",
    "digamma": "chlo.digamma", "nextafter": "chlo.next_after",
}  # fmt: skip
_COMPARED = {"eq": "EQ", "ne": "NE", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE"}
_LOGICAL = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor", "logical_not": "not"}
_WHOLE = ("floor", "ceil", "round", "trunc")  # which leave integers as they are


class HloScalars:
    """Writes scalar ops on tensors of one shape."""

    def __init__(self, w: StableHloWriter, at: DType, shape: Sequence[int]):
        self.w, self.shape = w, tuple(shape)
        self.at = at  # the dtype of numbers that meet no operand

    def write(self, e: Expr, xs: Sequence[Ssa]) -> Ssa:
        """The value of an expression on operands."""
        if e.op == "arg":
            return xs[e.index]
        if e.op == "const":
            return self.w.full(e.value, self.at, self.shape)
        found = {i: self.write(o, xs) for i, o in enumerate(e.operands) if o.op != "const"}
        kinds = [x.dtype for i, x in found.items() if e.op != "where" or i > 0]
        near = kinds[0] if kinds else self.at
        whole = [
            found[i] if i in found else self.w.full(o.value, near, self.shape)
            for i, o in enumerate(e.operands)
        ]
        return self.apply(e.op, *whole)

    def apply(self, name: str, *xs: Ssa) -> Ssa:
        """A scalar op on operands."""
        kind = xs[0].dtype.kind
        made = _MADE.get(name)
        if made is not None:
            return made(self, *xs)
        if name in _COMPARED:
            return self.w.compare(_COMPARED[name], *xs)
        if name in _LOGICAL:
            return self.w.op(_LOGICAL[name], *(self.w.cast(x, bool_) for x in xs))
        if name in _WHOLE and kind != "f":
            return xs[0]
        if name not in _DIRECT:
            raise StableHloError(f"stablehlo: there is no form for the scalar op '{name}'")
        return self.w.op(_DIRECT[name], *xs)

    def number(self, value: Any, x: Ssa) -> Ssa:
        """A number like x."""
        return self.w.like(value, x)

    # Sugar for the rules below

    def n(self, name: str, *xs: Ssa | float) -> Ssa:
        """A scalar op where numbers stand for tensors of them."""
        first = next(x for x in xs if isinstance(x, Ssa))
        return self.apply(name, *(x if isinstance(x, Ssa) else self.number(x, first) for x in xs))

    def where(self, test: Ssa, a: Ssa, b: Ssa) -> Ssa:
        return self.w.select(test, a, b)

    # Rules

    def _div(self, a: Ssa, b: Ssa) -> Ssa:
        return self.w.op("divide", a, b)

    def _abs(self, a: Ssa) -> Ssa:
        if a.dtype.kind in "ub":
            return a
        return self.w.op("abs", a, dtype=a.dtype.real)

    def _sign(self, a: Ssa) -> Ssa:
        if a.dtype.kind in "ub":
            return self.w.cast(self.w.cast(a, bool_), a.dtype)
        return self.w.op("sign", a)

    def _signbit(self, a: Ssa) -> Ssa:
        if a.dtype.kind != "f":
            return self.n("lt", a, 0)
        bits = self.w.op("bitcast_convert", a, dtype=as_dtype(f"i{a.dtype.bits}"))
        return self.n("lt", bits, 0)

    def _copysign(self, a: Ssa, b: Ssa) -> Ssa:
        size = self._abs(a)
        return self.where(self._signbit(b), self.n("neg", size), size)

    def _shift_right(self, a: Ssa, b: Ssa) -> Ssa:
        way = "shift_right_arithmetic" if a.dtype.kind == "i" else "shift_right_logical"
        return self.w.op(way, a, b)

    def _rest(self, a: Ssa, b: Ssa) -> Ssa:
        """The remainder with the sign of b; of whole numbers by 0, which is 0."""
        r = self._fmod(a, b)
        if a.dtype.kind in "ub":
            return r
        apart = self.n(
            "logical_and", self.n("ne", r, 0), self.n("ne", self.n("lt", r, 0), self.n("lt", b, 0))
        )
        moved = self.where(apart, self.n("add", r, b), r)
        if a.dtype.kind != "f":
            return moved
        return self.where(self.n("eq", moved, 0), self._copysign(moved, b), moved)

    def _fmod(self, a: Ssa, b: Ssa) -> Ssa:
        r = self.w.op("remainder", a, b)
        return r if a.dtype.kind == "f" else self._by_zero(b, r)

    def _by_zero(self, b: Ssa, y: Ssa) -> Ssa:
        return self.where(self.n("eq", b, 0), self.number(0, y), y)

    def _floor_div(self, a: Ssa, b: Ssa) -> Ssa:
        if a.dtype.kind in "ub":
            return self._by_zero(b, self._div(a, b))
        if a.dtype.kind == "i":
            return self._by_zero(b, self._div(self.n("sub", a, self._rest(a, b)), b))
        plain = self.n("floor", self._div(a, b))
        exact = self._div(self.n("sub", a, self._rest(a, b)), b)
        ends = self.n("logical_or", self._is_inf(a), self._is_inf(b))
        ends = self.n("logical_or", ends, self.n("eq", b, 0))
        return self.where(ends, plain, self.n("round", exact))

    def _trunc(self, a: Ssa) -> Ssa:
        if a.dtype.kind != "f":
            return a
        return self.where(self.n("lt", a, 0), self.n("ceil", a), self.n("floor", a))

    def _is_nan(self, a: Ssa) -> Ssa:
        return self.w.compare("NE", a, a) if a.dtype.kind in "fc" else self.no(a)

    def no(self, a: Ssa) -> Ssa:
        """False everywhere."""
        return self.w.full(False, bool_, a.shape)

    def _is_inf(self, a: Ssa) -> Ssa:
        if a.dtype.kind == "c":
            return self.n("logical_or", *map(self._is_inf, self._parts(a)))
        return self.n("eq", self._abs(a), math.inf) if a.dtype.kind == "f" else self.no(a)

    def _is_finite(self, a: Ssa) -> Ssa:
        if a.dtype.kind == "c":
            return self.n("logical_and", *map(self._is_finite, self._parts(a)))
        if a.dtype.kind != "f":
            return self.n("logical_not", self.no(a))
        return self.w.op("is_finite", a, dtype=bool_)

    def _parts(self, a: Ssa) -> list[Ssa]:
        return [self._part(a, which) for which in ("real", "imag")]

    def _part(self, a: Ssa, which: str) -> Ssa:
        if a.dtype.kind != "c":
            return a if which == "real" else self.number(0, a)
        return self.w.op(which, a, dtype=a.dtype.real)

    def _conj(self, a: Ssa) -> Ssa:
        if a.dtype.kind != "c":
            return a
        re, im = self._parts(a)
        return self.w.op("complex", re, self.n("neg", im), dtype=a.dtype)

    def _hypot(self, a: Ssa, b: Ssa) -> Ssa:
        a, b = self._abs(a), self._abs(b)
        big, small = self.n("max", a, b), self.n("min", a, b)
        ratio = self._div(small, self.where(self.n("eq", big, 0), self.number(1, big), big))
        y = self.n("mul", big, self.n("sqrt", self.n("add", self.n("mul", ratio, ratio), 1)))
        ends = self.n("logical_or", self._is_inf(a), self._is_inf(b))
        return self.where(ends, self.number(math.inf, y), y)

    def _logaddexp(self, a: Ssa, b: Ssa) -> Ssa:
        gap = self.n("neg", self._abs(self.n("sub", a, b)))
        y = self.n("add", self.n("max", a, b), self.n("log1p", self.n("exp", gap)))
        same = self.n("eq", a, b)  # both may be infinite, and then have no difference
        return self.where(same, self.n("add", a, math.log(2)), y)

    def _gamma(self, a: Ssa) -> Ssa:
        size = self.n("exp", self.n("lgamma", a))
        odd = self.n("eq", self._rest(self.n("floor", a), self.number(2, a)), 1)
        negative = self.n("logical_and", self.n("lt", a, 0), odd)
        y = self.where(negative, self.n("neg", size), size)
        pole = self.n("logical_and", self.n("lt", a, 0), self.n("eq", self.n("floor", a), a))
        return self.where(pole, self.number(math.nan, a), self._zero_pole(a, y))

    def _zero_pole(self, a: Ssa, y: Ssa) -> Ssa:
        return self.where(self.n("eq", a, 0), self._copysign(self.number(math.inf, a), a), y)

    def _erfcinv(self, a: Ssa) -> Ssa:
        """Newton steps on erfc keep the digits near 0 that 1 - a loses."""
        y = self.n("erfinv", self.n("sub", 1.0, a))
        for _ in range(2):
            slope = self.n(
                "mul", self.n("exp", self.n("neg", self.n("mul", y, y))), -2 / math.sqrt(math.pi)
            )
            step = self._div(self.n("sub", self.n("erfc", y), a), slope)
            y = self.where(self._is_finite(step), self.n("sub", y, step), y)
        return self.where(self.n("lt", a, 0), self.number(math.nan, a), y)  # 1 - a may be 1

    def _bits(self, a: Ssa, kind: str) -> Ssa:
        return self.w.op("bitcast_convert", a, dtype=as_dtype(f"{kind}{a.dtype.bits}"))

    def _neg(self, a: Ssa) -> Ssa:
        return self.w.op("negate", a)


_MADE: dict[str, Callable[..., Ssa]] = {
    "div": HloScalars._div, "floor_div": HloScalars._floor_div, "mod": HloScalars._rest,
    "fmod": HloScalars._fmod,
    "fma": lambda s, a, b, c: s.n("add", s.n("mul", a, b), c),
    "hypot": HloScalars._hypot, "copysign": HloScalars._copysign, "logaddexp": HloScalars._logaddexp,
    "shift_right": HloScalars._shift_right, "pos": lambda s, a: a, "abs": HloScalars._abs,
    "sign": HloScalars._sign,
    "signbit": HloScalars._signbit, "recip": lambda s, a: s._div(s.number(1, a), a),
    "square": lambda s, a: s.n("mul", a, a), "trunc": HloScalars._trunc,
    "exp2": lambda s, a: s.w.op("power", s.number(2, a), a),
    "log2": lambda s, a: s.n("mul", s.n("log", a), 1 / math.log(2)),
    "log10": lambda s, a: s.n("mul", s.n("log", a), 1 / math.log(10)),
    "erfcinv": HloScalars._erfcinv, "gamma": HloScalars._gamma,
    "is_nan": HloScalars._is_nan, "is_inf": HloScalars._is_inf, "is_finite": HloScalars._is_finite,
    "real": lambda s, a: s._part(a, "real"), "imag": lambda s, a: s._part(a, "imag"),
    "conj": HloScalars._conj, "bits": lambda s, a: s._bits(a, "u"), "from_bits": lambda s, a: s._bits(a, "f"),
    "where": lambda s, t, a, b: s.where(s.w.cast(t, bool_), a, b),
}  # fmt: skip


def fold_start(name: str, dtype: DType) -> Any:
    """What a fold starts from."""
    start = SCALARS[name].identity
    assert start is not None, name
    if dtype.kind in "iu" and isinstance(start, float):
        held = np.iinfo(np.dtype(dtype.np))
        return held.min if start < 0 else held.max
    if dtype.kind == "b":
        return start > 0 if isinstance(start, float) else bool(start)
    if dtype.kind == "u" and start == -1:
        return np.iinfo(np.dtype(dtype.np)).max
    return start


def is_test(e: Expr) -> bool:
    """Whether an expression gives a bool."""
    return e.op in TESTS or e.op in _LOGICAL
