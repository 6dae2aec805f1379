"""Patterns: the two sides of a law, written as mathematics and read by Python's own parser.

    (A @ B).H            capital letters are operators, .H the adjoint, .T the transpose
    s * A + B - C        small letters are data (numbers, vectors, matrices) or sizes
    diag(d) @ diag(e)    other kinds by name; functions of data (conj, fft, 1 / d) on the right

A pattern is matched against all terms that an e-graph holds equal, and built from what was found.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from tessera.algebra.laws.datum import Datum, make, number
from tessera.algebra.laws.egraph import EGraph
from tessera.algebra.laws.form import form
from tessera.algebra.operator import Operator
from tessera.algebra.table import IndexTable
from tessera.core.dtype import DType
from tessera.ops.fft import OPPOSITE

Bound = dict[str, Any]  # operators by their numbers, data as Datum, sizes as they are

# How many parts, data and static fields a name takes.
ARITY = {
    "compose": (2, 0, 0), "adjoint": (1, 0, 0), "transpose": (1, 0, 0), "conj": (1, 0, 0),
    "plus": (2, 0, 0), "scale": (1, 1, 0), "eye": (0, 0, 1), "zero": (0, 0, 2),
    "dense": (0, 1, 0), "diag": (0, 1, 0), "kron": (2, 0, 0), "inv": (1, 0, 0),
    "kronsum": (2, 0, 0), "dsum": (2, 0, 0), "row": (2, 0, 0), "column": (2, 0, 0),
    "expm": (1, 0, 0), "power": (1, 0, 1), "permutation": (0, 0, 1),
    "fft": (0, 0, 1), "circulant": (0, 1, 0), "tridiagonal": (0, 3, 0),
    "lower": (0, 1, 0), "upper": (0, 1, 0), "toeplitz": (0, 1, 2), "ring": (0, 1, 2), "sparse": (0, 1, 4),
    "pinv": (1, 0, 0), "sqrtm": (1, 0, 0),
    "low_rank": (0, 2, 0), "low_rank3": (0, 3, 0), "gram": (0, 1, 0), "gram2": (0, 2, 0),
}  # fmt: skip


@dataclass(frozen=True)
class Var:
    """Any operator."""

    name: str


@dataclass(frozen=True)
class Field:
    """Data or a static field: an expression of small letters, or just one letter."""

    tree: ast.expr

    @property
    def name(self) -> str | None:
        """The letter, if it is just one."""
        return self.tree.id if isinstance(self.tree, ast.Name) else None


@dataclass(frozen=True)
class OperatorTerm:
    """An operator of one kind."""

    form: str
    parts: tuple[Pattern, ...] = ()
    data: tuple[Field, ...] = ()
    static: tuple[Field, ...] = ()


Pattern = Var | OperatorTerm

_BINARY: dict[type[ast.operator], str] = {ast.MatMult: "compose", ast.Add: "plus"}
_ATTRIBUTES = {"H": "adjoint", "T": "transpose"}


def parse(text: str) -> Pattern:
    """The pattern that a text describes."""
    return _parse(ast.parse(text, mode="eval").body)


def _parse(e: ast.expr) -> Pattern:
    if isinstance(e, ast.Name) and e.id[0].isupper():
        return Var(e.id)
    if isinstance(e, ast.Attribute):
        return OperatorTerm(_ATTRIBUTES[e.attr], (_parse(e.value),))
    if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub):
        return OperatorTerm("scale", (_parse(e.operand),), (Field(_MINUS),))
    if isinstance(e, ast.BinOp):
        return _binary(e)
    assert isinstance(e, ast.Call), ast.unparse(e)
    assert isinstance(e.func, ast.Name), ast.unparse(e)
    parts, data, static = ARITY[e.func.id]
    assert len(e.args) == parts + data + static, ast.unparse(e)
    return OperatorTerm(
        e.func.id,
        tuple(_parse(a) for a in e.args[:parts]),
        tuple(Field(a) for a in e.args[parts : parts + data]),
        tuple(Field(a) for a in e.args[parts + data :]),
    )


_MINUS = ast.parse("-1", mode="eval").body


def _binary(e: ast.BinOp) -> Pattern:
    if isinstance(e.op, ast.Mult):
        return OperatorTerm("scale", (_parse(e.right),), (Field(e.left),))
    if isinstance(e.op, ast.Pow):
        return OperatorTerm("power", (_parse(e.left),), (), (Field(e.right),))
    if isinstance(e.op, ast.Sub):
        negative = OperatorTerm("scale", (_parse(e.right),), (Field(_MINUS),))
        return OperatorTerm("plus", (_parse(e.left), negative))
    left, right = _parse(e.left), _parse(e.right)
    if isinstance(e.op, ast.Add):
        inner = left.parts if isinstance(left, OperatorTerm) and left.form == "plus" else (left,)
        return OperatorTerm("plus", (*inner, right))
    return OperatorTerm(_BINARY[type(e.op)], (left, right))


def variables(p: Pattern) -> Iterator[str]:
    """The letters of operators."""
    if isinstance(p, Var):
        yield p.name
    else:
        for part in p.parts:
            yield from variables(part)


# Matching ---------------------------------------------------------------------------------------


def match(g: EGraph, p: Pattern, n: int, bound: Bound) -> Iterator[Bound]:
    """The ways in which a term, or one that is equal to it, fits a pattern."""
    if isinstance(p, Var):
        known = bound.get(p.name)
        if known is None:
            yield {**bound, p.name: n}
        elif g.find(known) == g.find(n):
            yield bound
        return
    kind = form(p.form).kind
    for m in g.of_kind(n, kind):
        yield from match_node(g, p, m, bound)


def match_node(
    g: EGraph, p: OperatorTerm, m: int, bound: Bound, top: bool = False
) -> Iterator[Bound]:
    """The ways in which one term fits a pattern of its kind."""
    a, f = g.terms[m], form(p.form)
    found = _fields(p.data, f.data(a), bound)
    if found is not None:
        found = _fields(p.static, f.static(a), found)
    if found is None:
        return
    if a.kind == "plus":
        yield from _match_sum(g, p.parts, g.children[m], found, top)
    elif len(p.parts) == len(a.parts):
        yield from _match_parts(g, p.parts, g.children[m], found)


def _match_parts(
    g: EGraph, parts: Sequence[Pattern], children: Sequence[int], bound: Bound
) -> Iterator[Bound]:
    if not parts:
        yield bound
        return
    for found in match(g, parts[0], children[0], bound):
        yield from _match_parts(g, parts[1:], children[1:], found)


REST = "..."  # what a pattern leaves of a sum


def _match_sum(
    g: EGraph, parts: Sequence[Pattern], children: Sequence[int], bound: Bound, top: bool
) -> Iterator[Bound]:
    """Any of the terms of a sum, in any order; what is left at the top is remembered."""
    if len(parts) != len(children) and not (top and len(parts) < len(children)):
        return
    fitting = [_fitting(g, p, children) for p in parts]
    if not all(fitting):
        return
    for found, used in _choices(g, parts, fitting, children, bound, ()):
        if top:
            rest = tuple(c for i, c in enumerate(children) if i not in used)
            yield {**found, REST: rest}
        else:
            yield found


def _fitting(g: EGraph, p: Pattern, children: Sequence[int]) -> Sequence[int]:
    """Which terms of a sum are of the kind of a pattern."""
    if isinstance(p, Var):
        return range(len(children))
    kind = form(p.form).kind
    return [i for i, c in enumerate(children) if g.has(c, kind)]


def _choices(
    g: EGraph,
    parts: Sequence[Pattern],
    fitting: Sequence[Sequence[int]],
    children: Sequence[int],
    bound: Bound,
    used: tuple[int, ...],
) -> Iterator[tuple[Bound, tuple[int, ...]]]:
    if not parts:
        yield bound, used
        return
    for i in fitting[0]:
        if i not in used:
            for found in match(g, parts[0], children[i], bound):
                yield from _choices(g, parts[1:], fitting[1:], children, found, (*used, i))


def _fields(patterns: Sequence[Field], values: Sequence[Any], bound: Bound) -> Bound | None:
    if len(patterns) != len(values):
        return None
    for p, v in zip(patterns, values, strict=True):
        name = p.name
        if name is None:
            bound_here = _against(p.tree, v, bound)
            if bound_here is None:
                return None
            bound = bound_here
        elif name not in bound:
            bound = {**bound, name: v}
        elif bound[name] is not v and bound[name] != v:
            return None
    return bound


def _against(e: ast.expr, v: Any, bound: Bound) -> Bound | None:
    """Match an expression: one that can be evaluated, or .T and conj around a letter."""
    if not isinstance(v, Datum) or isinstance(e, ast.Constant | ast.UnaryOp):
        wanted = value(e, bound)
        fits = as_datum(wanted) is v if isinstance(v, Datum) else wanted == v
        return bound if fits else None
    name = next(n.id for n in ast.walk(e) if isinstance(n, ast.Name) and n.id != "conj")
    if name not in bound:  # both turn back when done twice
        bound = {**bound, name: value(e, {name: v})}
    return bound if value(e, bound) is v else None


# Building ---------------------------------------------------------------------------------------


def build(p: Pattern, bound: Mapping[str, Any], dtype: DType) -> Operator:
    """The operator that a pattern describes; capital letters are bound to operators."""
    made = _built(p, bound, dtype)
    rest = bound.get(REST)
    return form("plus").build([made, *rest], (), (), dtype) if rest else made


def _built(p: Pattern, bound: Mapping[str, Any], dtype: DType) -> Operator:
    if isinstance(p, Var):
        found: Operator = bound[p.name]
        return found
    parts = [_built(q, bound, dtype) for q in p.parts]
    data = [as_datum(value(d.tree, bound)) for d in p.data]
    static = tuple(value(s.tree, bound) for s in p.static)
    return form(p.form).build(parts, data, static, dtype)


def as_datum(x: Any) -> Datum:
    """A number or a datum as a datum."""
    if isinstance(x, Datum):
        return x
    return number(x if isinstance(x, complex) else Fraction(x))


def _gain(f: Any) -> Fraction:
    """The number g with F @ F.H = g I: how often a transform counts the length of a vector."""
    sizes, norm, inverse = f
    n = math.prod(sizes)
    plain = OPPOSITE[norm] if inverse else norm
    return {"backward": Fraction(n), "ortho": Fraction(1), "forward": Fraction(1, n)}[plain]


def _mirror(f: Any) -> IndexTable:
    """Where each place of a grid goes when every index changes its sign."""
    places = np.arange(math.prod(f[0])).reshape(f[0])
    for axis in range(len(f[0])):
        places = np.roll(np.flip(places, axis), 1, axis)
    return IndexTable(places.reshape(-1))


class TooMuch(Exception):
    """A law whose right side would be much larger than the left one."""


def _meeting(q: IndexTable, r: IndexTable) -> tuple[Any, Any]:
    """The pairs of elements of two sparse matrices that meet in their product."""
    order = np.argsort(r.array, kind="stable")
    places = r.array[order]
    low, high = (np.searchsorted(places, q.array, side) for side in ("left", "right"))
    count = int((high - low).sum())
    if count > 4 * (len(q) + len(r)):
        raise TooMuch
    left = np.repeat(np.arange(len(q)), high - low)
    start = np.repeat(low - np.cumsum(high - low) + (high - low), high - low)
    return left, order[start + np.arange(count)]


STATIC_FUNCTIONS: dict[str, Callable[..., Any]] = {
    # of tables of indices
    "follow": lambda p, q: IndexTable(q.array[p.array]),
    "back": lambda p: IndexTable(np.argsort(p.array)),
    "both": lambda p, q: IndexTable(np.concatenate([p.array, q.array])),
    "left": lambda q, r: IndexTable(_meeting(q, r)[0]),
    "right": lambda q, r: IndexTable(_meeting(q, r)[1]),
    # of grids
    "origin": lambda sizes: tuple(0 for _ in sizes),
    "count": math.prod,
    "line": lambda place: (place,),
    # of transforms: sizes, norm, whether it is the inverse one
    "undo": lambda f: (f[0], f[1], not f[2]),
    "turn": lambda f: (f[0], OPPOSITE[f[1]], not f[2]),
    "gain": _gain,
    "mirror": _mirror,
    "to": lambda n: ((n,), "backward", False),
    "back_from": lambda n: ((n,), "backward", True),
}
_OPERATORS: dict[type[ast.operator], str] = {ast.Mult: "mul", ast.Add: "add", ast.MatMult: "matmul"}


def value(e: ast.expr, bound: Mapping[str, Any]) -> Any:
    """What an expression of small letters stands for: a datum, or a size."""
    if isinstance(e, ast.Name):
        return bound[e.id]
    if isinstance(e, ast.Constant):
        return e.value
    if isinstance(e, ast.UnaryOp):
        inner = value(e.operand, bound)
        return make("mul", number(Fraction(-1)), inner) if isinstance(inner, Datum) else -inner
    if isinstance(e, ast.Attribute):  # a.T of a matrix
        return make("transpose", value(e.value, bound))
    if isinstance(e, ast.Call):
        assert isinstance(e.func, ast.Name), ast.unparse(e)
        args = [value(a, bound) for a in e.args]
        if e.func.id in STATIC_FUNCTIONS:
            return STATIC_FUNCTIONS[e.func.id](*args)
        data = [a for a in args if isinstance(a, Datum)]
        return make(e.func.id, *data, static=tuple(a for a in args if not isinstance(a, Datum)))
    assert isinstance(e, ast.BinOp), ast.unparse(e)
    return _arithmetic(e, value(e.left, bound), value(e.right, bound))


def _arithmetic(e: ast.BinOp, x: Any, y: Any) -> Any:
    if not isinstance(x, Datum) and not isinstance(y, Datum):
        return {ast.Mult: x * y, ast.Add: x + y, ast.Sub: x - y}[type(e.op)]
    x, y = as_datum(x), as_datum(y)
    if isinstance(e.op, ast.Div):
        inverse = make("reciprocal", y)
        return inverse if x is number(Fraction(1)) else make("mul", x, inverse)
    if isinstance(e.op, ast.Sub):
        return make("add", x, make("mul", number(Fraction(-1)), y))
    return make(_OPERATORS[type(e.op)], x, y)
