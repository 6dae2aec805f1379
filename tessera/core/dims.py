"""Sizes of axes: integers, or polynomials over named symbols.

A Dim is an integer polynomial in canonical form, so that equal sizes are equal objects: `2*S + 1`,
`B*H`.  What is not a polynomial is an atom of its own: `S // 2`, `S % 4`, `max(S, 8)`.  Arithmetic
that comes out constant gives a plain int.  A name with a leading underscore is a counter, which
starts at 0; any other is a size, which is at least 1.

Sizes are scalars in arithmetic that is not of sizes: `1.0 / S`, `S ** 0.5`, `S / (S - 1)`; the language
says how (`SIZE_AS_SCALAR`).  A compiler does the same little sums over and over, so that results are
remembered.
"""

from __future__ import annotations

import math
import operator
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import FrameType
from typing import Any, NamedTuple, Union

from tessera.core.errors import ShapeError
from tessera.core.provided import Provided

Size = Union[int, "Dim"]
Shape = tuple[Size, ...]


class Symbol(NamedTuple):
    """A named size."""

    name: str

    def __str__(self) -> str:
        return self.name


class SizeFunction(NamedTuple):
    """A function of sizes that is no polynomial."""

    function: str  # a key of _FUNCTIONS
    left: Size
    right: Size

    def __str__(self) -> str:
        if self.function in ("max", "min"):
            return f"{self.function}({self.left}, {self.right})"
        return f"{_factor(self.left)} {self.function} {_factor(self.right)}"


Atom = Symbol | SizeFunction
Monomial = tuple[tuple[Atom, int], ...]  # atoms with powers, sorted by text; () is the constant 1
Terms = tuple[tuple[Monomial, int], ...]
_FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "max": max,
    "min": min,
}


_remember = lru_cache(maxsize=1 << 15)


class _Decisions(threading.local):
    """Who knows whether two sizes are equal: the facts of the trace that is open, if one is."""

    same: Callable[[Size, Size], bool | None] | None = None


DECISIONS = _Decisions()


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and name.partition(".")[0] == "tessera"


class Dim:
    """A polynomial over atoms that is not constant."""

    __slots__ = ("_hash", "_text", "terms")

    def __init__(self, terms: Terms):
        self.terms = terms
        self._hash = hash(terms)
        self._text: str | None = None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        """Whether both are the same polynomial; while tracing, code of users gets an answer that holds for
        every call.
        """
        if self is other or (isinstance(other, Dim) and self.terms == other.terms):
            return True
        same = DECISIONS.same
        if same is None or not isinstance(other, Dim | int) or _is_ours(sys._getframe(1)):
            return False
        found = same(self, other)
        if found is None:
            raise ShapeError(
                f"whether {self} == {other} is not known while tracing; use op.eq({self}, {other}) with "
                "op.where or "
                "ts.cond, or give the axis a number"
            )
        return found

    def __add__(self, other: Any) -> Any:
        return (
            _add(self, other, 1) if isinstance(other, int | Dim) else _by(operator.add, self, other)
        )

    def __radd__(self, other: Any) -> Any:
        return _add(self, other, 1) if isinstance(other, int) else _by(operator.add, other, self)

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, int | Dim):
            return _add(self, other, -1)
        return _by(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        if isinstance(other, int | Dim):
            return _add(_multiply(self, -1), other, 1)
        return _by(operator.sub, other, self)

    def __neg__(self) -> Any:
        return _multiply(self, -1)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return extreme("max", self, _multiply(self, -1))

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, int | Dim):
            return _multiply(self, other)
        return _by(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return _multiply(self, other) if isinstance(other, int) else _by(operator.mul, other, self)

    def __floordiv__(self, other: Any) -> Any:
        if isinstance(other, int | Dim):
            return _divide(self, checked_divisor(self, other))
        return _by(operator.floordiv, self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        if isinstance(other, int):
            return _apply("//", other, self)
        return _by(operator.floordiv, other, self)

    def __mod__(self, other: Any) -> Any:
        if isinstance(other, int | Dim):
            return _rest(self, checked_divisor(self, other))
        return _by(operator.mod, self, other)

    def __rmod__(self, other: Any) -> Any:
        if isinstance(other, int):
            return _apply("%", other, self)
        return _by(operator.mod, other, self)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __truediv__(self, other: Any) -> Any:
        return _by(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _by(operator.truediv, other, self)

    def __pow__(self, k: Any) -> Any:
        return power(self, k) if isinstance(k, int) and k >= 0 else _by(operator.pow, self, k)

    def __rpow__(self, other: Any) -> Any:
        return _by(operator.pow, other, self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        f = _UFUNCS.get(ufunc.__name__)
        if f is not None and method == "__call__" and not kwargs:
            whole = [int(x) if _is_whole(x) else x for x in inputs]
            sizes = all(isinstance(x, int | Dim) for x in whole)
            return f(*whole) if sizes else _by(f, *whole)
        raise ShapeError(
            f"numpy.{ufunc.__name__}: size {self} is symbolic and has no number while tracing; use "
            f"op.{ufunc.__name__} instead"
        )

    def __index__(self) -> int:
        raise ShapeError(
            f"size {self} is symbolic and has no number while tracing; keep it symbolic, or give "
            "the axis a number in the annotation"
        )

    __int__ = __trunc__ = __floor__ = __ceil__ = __index__

    def __float__(self) -> float:
        raise ShapeError(
            f"size {self} is symbolic and has no number while tracing; write 1.0 * n for a scalar, functions "
            "of ops for those of math (op.sqrt(n)), or give the axis a number in the annotation"
        )

    def __complex__(self) -> complex:
        return complex(float(self))

    def __round__(self, digits: int | None = None) -> Any:
        return self

    def __bool__(self) -> bool:
        return True  # a symbolic size is an axis with elements until a guard says otherwise

    def _order(self, other: Any, sign: int) -> bool:
        if isinstance(other, int | Dim):
            low, high = bounds(self - other)
        elif isinstance(other, float):
            low, high = (b - other for b in bounds(self))
        else:
            raise ShapeError(
                f"size {self} cannot be compared with {type(other).__name__} by an operator; use op.lt, "
                "op.gt "
                "and their kin"
            )
        if sign * (low if sign > 0 else high) > 0:
            return True
        if sign * (high if sign > 0 else low) <= 0:
            return False
        raise ShapeError(
            f"whether {self} {'>' if sign > 0 else '<'} {other} is not known while tracing; use "
            "max(a, b) or min(a, b), or give the axis a number"
        )

    def __gt__(self, other: Any) -> bool:
        return self._order(other, 1)

    def __lt__(self, other: Any) -> bool:
        return self._order(other, -1)

    def __ge__(self, other: Any) -> bool:
        return not self._order(other, -1)

    def __le__(self, other: Any) -> bool:
        return not self._order(other, 1)

    def __str__(self) -> str:
        if self._text is None:
            self._text = _sum(self.terms, _text)
        return self._text

    __repr__ = __str__


_UFUNCS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "power": operator.pow,
}
SIZE_AS_SCALAR: Provided[Callable[[Dim], Any]] = Provided(
    "size as scalar", "how a size becomes a scalar in arithmetic with numbers that are not sizes"
)


def _by(f: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Arithmetic of scalars on sizes and numbers; anything else is left to the other operand."""
    known = all(isinstance(x, int | float | complex | Dim) or _is_numpy(x) for x in (a, b))
    scalar = SIZE_AS_SCALAR.value
    if not known or scalar is None:
        return NotImplemented
    return f(*(scalar(x) if isinstance(x, Dim) else x for x in (a, b)))


def _is_numpy(x: Any) -> bool:
    """Whether x is a number or an array of NumPy, which this module does not import."""
    return type(x).__module__ == "numpy" and hasattr(x, "dtype")


def _is_whole(x: Any) -> bool:
    return _is_numpy(x) and x.dtype.kind in "iu" and x.ndim == 0


def checked_divisor(a: Size, b: Size) -> Size:
    """b, where a can be divided by it."""
    if b == 0:
        raise ShapeError(f"size {a} is divided by 0")
    return b


_LARGEST_POWER = 64  # of a size in an annotation; 2**64 elements are more than any machine holds


def power(a: Size, k: int) -> Size:
    """A size to a whole power."""
    if k > _LARGEST_POWER:
        raise ShapeError(
            f"size {a} to the power {k} is too large; powers go up to {_LARGEST_POWER}"
        )
    return math.prod([a] * k, start=1)


def _sum(terms: Terms, factor: Callable[[Atom, bool], str]) -> str:
    """A polynomial in text; `factor` writes an atom, alone in its term or not."""
    text = ""
    for m, c in terms:
        alone = c == 1 and len(m) == 1 and m[0][1] == 1
        factors = [factor(a, alone) + (f"**{p}" if p != 1 else "") for a, p in m]
        body = "*".join(([str(abs(c))] if abs(c) != 1 or not m else []) + factors)
        text += f"{' - ' if text else '-'}{body}" if c < 0 else f"{' + ' if text else ''}{body}"
    return text


def _binds_loosely(a: Atom) -> bool:
    return isinstance(a, SizeFunction) and a.function in ("//", "%")


def _text(a: Atom, alone: bool) -> str:
    return f"({a})" if _binds_loosely(a) and not alone else str(a)


def _factor(x: Size) -> str:
    """A size as an operand of // or %."""
    if isinstance(x, Dim):
        monomial, count = x.terms[0]
        one = len(x.terms) == count == len(monomial) == 1 and monomial[0][1] == 1
        return _text(monomial[0][0], False) if one else f"({x})"
    return str(x) if x >= 0 else f"({x})"


@_remember
def symbol(name: str) -> Dim:
    """The size with this name."""
    return Dim(((((Symbol(name), 1),), 1),))


def _terms(x: Size) -> Terms:
    return x.terms if isinstance(x, Dim) else (((), x),) if x else ()


def _make(terms: Mapping[Monomial, int]) -> Size:
    kept = [(m, c) for m, c in terms.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    if len(kept) > 1:
        kept.sort(key=lambda t: _rank(t[0]))
    return Dim(tuple(kept))


@_remember
def _rank(m: Monomial) -> tuple[int, list[tuple[str, int]]]:
    """Where a monomial stands: high degrees first, then by text."""
    return -sum(p for _, p in m), [(_in_order(a), p) for a, p in m]


@_remember
def _in_order(x: Atom | Size) -> str:
    """The text by which terms are sorted: every operand of // and % stands in brackets, before any name."""
    if isinstance(x, SizeFunction):
        a, b = _in_order(x.left), _in_order(x.right)
        return (
            f"{x.function}({a}, {b})"
            if x.function in ("max", "min")
            else f"({a}) {x.function} ({b})"
        )
    return _sum(x.terms, _factor_in_order) if isinstance(x, Dim) else str(x)


def _factor_in_order(a: Atom, alone: bool) -> str:
    return f"({_in_order(a)})" if _binds_loosely(a) else _in_order(a)


@_remember
def _add(a: Size, b: Size, sign: int) -> Size:
    out = dict(_terms(a))
    for m, c in _terms(b):
        out[m] = out.get(m, 0) + sign * c
    return _make(out)


@_remember
def _multiply(a: Size, b: Size) -> Size:
    out: dict[Monomial, int] = {}
    for m, c in _terms(a):
        for n, d in _terms(b):
            key = times(m, n)
            out[key] = out.get(key, 0) + c * d
    return _make(out)


@_remember
def _divide(a: Size, b: Size) -> Any:
    quotient, rest = split_terms(a, b)
    return quotient + _apply("//", rest, b)


@_remember
def _rest(a: Size, b: Size) -> Size:
    return _apply("%", split_terms(a, b)[1], b)


def times(m: Monomial, n: Monomial) -> Monomial:
    """The product of two monomials."""
    if not m or not n:
        return m or n
    powers: dict[Atom, int] = dict(m)
    for a, p in n:
        powers[a] = powers.get(a, 0) + p
    return tuple(sorted(powers.items(), key=lambda t: _in_order(t[0])))


@_remember
def split_terms(a: Size, b: Size) -> tuple[Size, Size]:
    """(q, r) with a = q*b + r, where q takes every term that the single term b divides."""
    if a == b:
        return 1, 0
    parts = _terms(b)
    if len(parts) != 1:
        return 0, a
    by, k = parts[0]
    quotient: dict[Monomial, int] = {}
    for m, c in _terms(a):
        powers = dict(m)
        if all(powers.get(atom, 0) >= p for atom, p in by):
            for atom, p in by:
                powers[atom] -= p
            key = tuple((x, p) for x, p in powers.items() if p)
            quotient[key] = quotient.get(key, 0) + c // k
    q = _make(quotient)
    return q, a - q * b


def _apply(function: str, a: Size, b: Size) -> Size:
    if isinstance(a, int) and isinstance(b, int):
        return _FUNCTIONS[function](a, b)
    if function in ("//", "%") and (b == 1 or a == 0):
        return a if function == "//" else 0
    if function in ("//", "%") and bounds(a)[0] >= 0 and bounds(b - a)[0] > 0:
        return 0 if function == "//" else a
    return Dim(((((SizeFunction(function, a, b), 1),), 1),))


def larger(a: Size, b: Size) -> Size:
    """The larger of two sizes."""
    return extreme("max", a, b)


def smaller(a: Size, b: Size) -> Size:
    """The smaller of two sizes."""
    return extreme("min", a, b)


def extreme(function: str, a: Size, b: Size) -> Size:
    """max or min of two sizes."""
    low, high = bounds(a - b)
    if low >= 0:
        return a if function == "max" else b
    if high <= 0:
        return b if function == "max" else a
    return _apply(function, a, b)


def bounds(x: Size) -> tuple[float, float]:
    """An interval that holds x whenever every size is at least 1 and every counter at least 0."""
    return (x, x) if isinstance(x, int) else _bounds(x)


@_remember
def _bounds(x: Dim) -> tuple[float, float]:
    low = high = 0.0
    for m, c in x.terms:
        ends = [float(c), float(c)]
        for a, p in m:
            for _ in range(p):
                found = [_scaled(e, f) for e in ends for f in _atom_bounds(a)]
                ends = [min(found), max(found)]
        low, high = low + ends[0], high + ends[1]
    return low, high


def _scaled(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _atom_bounds(a: Atom) -> tuple[float, float]:
    if isinstance(a, Symbol):
        return 0 if a.name.startswith("_") else 1, math.inf
    (llo, lhi), (rlo, rhi) = bounds(a.left), bounds(a.right)
    if a.function == "max":
        return max(llo, rlo), max(lhi, rhi)
    if a.function == "min":
        return min(llo, rlo), min(lhi, rhi)
    if rlo < 0:
        return -math.inf, math.inf
    rlo, rhi = max(rlo, 1), max(rhi, 1)  # nothing is divided by 0
    if a.function == "%":
        return 0, rhi - 1
    return _quotient(llo, rhi if llo >= 0 else rlo), _quotient(lhi, rlo if lhi >= 0 else rhi)


def _quotient(a: float, b: float) -> float:
    """a // b for a positive b, as a limit where an end is infinite."""
    if math.isinf(a):
        return a
    return float(a // b) if math.isfinite(b) else 0.0 if a >= 0 else -1.0


def symbols(x: Size) -> frozenset[str]:
    """The names in x."""
    return _NONE if isinstance(x, int) else _symbols(x)


_NONE: frozenset[str] = frozenset()


@_remember
def _symbols(x: Dim) -> frozenset[str]:
    found: set[str] = set()
    for m, _ in x.terms:
        for a, _p in m:
            found |= {a.name} if isinstance(a, Symbol) else symbols(a.left) | symbols(a.right)
    return frozenset(found)


def symbols_within(values: Iterable[Any]) -> frozenset[str]:
    """The names of the sizes that parameters hold, also inside tuples."""
    found: frozenset[str] = frozenset()
    for v in values:
        if isinstance(v, Dim):
            found |= symbols(v)
        elif isinstance(v, tuple):
            found |= symbols_within(v)
    return found


def substitute(x: Size, env: Mapping[str, Size]) -> Size:
    """x with the symbols of env replaced."""
    if isinstance(x, int) or env.keys().isdisjoint(_symbols(x)):
        return x
    total: dict[Monomial, int] = {}  # what the terms become, put in order once
    for m, c in x.terms:
        term: Size = 1
        for a, p in m:
            if isinstance(a, Symbol):
                value: Size = env[a.name] if a.name in env else symbol(a.name)
            else:
                value = call(a.function, substitute(a.left, env), substitute(a.right, env))
            for _ in range(p):
                term = value if term == 1 else term * value
        for n, d in _terms(term):
            total[n] = total.get(n, 0) + c * d
    return _make(total)


def call(function: str, a: Size, b: Size) -> Size:
    """Apply one of //, %, max and min to sizes."""
    if function == "//":
        return a // b
    if function == "%":
        return a % b
    return extreme(function, a, b)


def unflattened(index: Size, sizes: Shape) -> list[Size]:
    """The places along axes of the element with this number, in row-major order."""
    out: list[Size] = []
    for n in reversed(sizes[1:]):
        out.append(index % n)
        index = index // n
    return [index, *reversed(out)]


def product(sizes: Shape) -> Size:
    """How many elements a shape has."""
    total: Size = 1
    for s in sizes:
        total = total * s
    return total
