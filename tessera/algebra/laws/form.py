"""Forms: the names under which laws speak of kinds, and the symbolic operators that they build.

While laws are tried, operators hold data that are symbolic (tessera.algebra.laws.datum), the factor of
a multiple is an exact fraction or a datum, and a sum has any number of terms.  `symbolic` brings an
operator into this form, `realised` brings it back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

from tessera.algebra.combinators.linear import balanced
from tessera.algebra.laws.datum import Datum, computed, leaf, number
from tessera.algebra.laws.equal import EqualTensors
from tessera.algebra.operator import Operator
from tessera.core.dtype import DType
from tessera.ops.creation import full

Build = Callable[[Sequence[Operator], Sequence[Any], tuple[Any, ...], DType], Operator]


def _plain(kind: str) -> Build:
    return lambda parts, data, static, dtype: Operator(kind, parts, data, static)


def _sum(parts: Sequence[Operator], data: Any, static: Any, dtype: Any) -> Operator:
    flat = [q for p in parts for q in (p.parts if p.kind == "plus" else (p,))]
    return Operator("plus", flat)


def _multiple(parts: Sequence[Operator], data: Sequence[Any], static: Any, dtype: Any) -> Operator:
    (factor,) = data
    if factor.fn == "number" and isinstance(factor.static[0], Fraction):
        if factor.static[0] == 1:
            return parts[0]
        return Operator("scale", parts, (), factor.static)
    return Operator("scale", parts, (factor,))


@dataclass(frozen=True)
class Form:
    """How laws write one kind: its name there, which fields they see, how it is built."""

    kind: str
    build: Build
    data: Callable[[Operator], tuple[Datum, ...]] = lambda a: a.data  # type: ignore[assignment,return-value]
    static: Callable[[Operator], tuple[Any, ...]] = lambda a: a.static


def _factor(a: Operator) -> tuple[Datum, ...]:
    return a.data or (number(a.static[0]),)  # type: ignore[return-value]


def _fixed(kind: str, static: tuple[Any, ...]) -> Form:
    """A kind with static fields of one value."""
    return Form(
        kind,
        lambda parts, data, given, dtype: Operator(kind, parts, data, static),
        static=lambda a: () if a.static == static else (None,),
    )


FORMS: dict[str, Form] = {
    "plus": Form("plus", _sum),
    "scale": Form("scale", _multiple, _factor, lambda a: ()),
    "eye": Form("eye", lambda parts, data, static, dtype: Operator("eye", (), (), (*static, dtype)),
                static=lambda a: a.static[:1]),
    "zero": Form("zero", lambda parts, data, static, dtype: Operator("zero", (), (), (*static, dtype)),
                 static=lambda a: a.static[:2]),
    "kron": Form("kronecker", _plain("kronecker")),
    "inv": Form("inverse", _plain("inverse")),
    "dsum": Form("direct_sum", _plain("direct_sum")),
    "permutation": Form("permutation",
                        lambda parts, data, static, dtype: Operator("permutation", (), (), (*static, dtype)),
                        static=lambda a: a.static[:1]),
    "fft": Form("fft", lambda parts, data, static, dtype: Operator("fft", (), (), (*static[0], dtype)),
                static=lambda a: (a.static[:3],)),
    "toeplitz": Form("toeplitz",
                     lambda parts, data, static, dtype: Operator("toeplitz", (), data, (*static, False)),
                     static=lambda a: a.static[:2]),
    "ring": Form("convolution",
                 lambda parts, data, static, dtype: Operator(
                     "convolution", (), data, (static[0], static[0], static[1], True)),
                 static=lambda a: (a.static[0], a.static[2]) if a.static[3] else ()),
    "pinv": Form("pseudoinverse", _plain("pseudoinverse")),
    "sqrtm": _fixed("function", ("sqrt",)),
    "lower": _fixed("triangular", (True, False)),
    "upper": _fixed("triangular", (False, False)),
    "row": _fixed("block", (1, 2)),
    "column": _fixed("block", (2, 1)),
    "expm": _fixed("function", ("exp",)),
    "low_rank": _fixed("low_rank", (False, False)),
    "low_rank3": _fixed("low_rank", (True, False)),
    "gram": _fixed("low_rank", (False, True)),
    "gram2": _fixed("low_rank", (True, True)),
}  # fmt: skip


@cache
def form(name: str) -> Form:
    """The form of a name; most names are those of kinds."""
    found = FORMS.get(name)
    return found if found is not None else Form(name, _plain(name))


# Kinds into whose data laws look.  Others without parts stay as they are, with their tensors.
SYMBOLIC = {
    "dense", "diag", "low_rank", "circulant", "tridiagonal", "triangular", "toeplitz", "convolution",
    "sparse",
}  # fmt: skip


def symbolic(a: Operator, memo: dict[int, Operator], seen: EqualTensors | None = None) -> Operator:
    """The operator as laws see it; tensors that are equal are one."""
    seen = EqualTensors() if seen is None else seen
    if not a.parts and a.data and a.kind not in SYMBOLIC:
        data = tuple(map(seen.first, a.data))
        same = all(x is y for x, y in zip(data, a.data, strict=True))
        return a if same else Operator(a.kind, (), data, a.static, a.assumed)
    found = memo.get(id(a))
    if found is None:
        parts = [symbolic(p, memo, seen) for p in a.parts]
        if a.kind == "plus":
            found = _sum(parts, (), (), a.dtype)
        elif a.kind == "direct_sum":
            found = _nested("direct_sum", parts, ())
        elif a.kind == "block":
            m, n = a.static
            rows = [_nested("block", parts[i * n : (i + 1) * n], (1, 2)) for i in range(m)]
            found = _nested("block", rows, (2, 1))
        elif a.kind == "scale" and a.static:
            found = _multiple(parts, (number(_fraction(a.static[0])),), (), a.dtype)
        else:
            held: Any = [leaf(seen.first(v)) for v in a.data]
            found = Operator(a.kind, parts, held, a.static)
        if a.assumed:
            found = found.assume(*a.assumed)
        memo[id(a)] = found
    return found


def _nested(kind: str, parts: Sequence[Operator], static: tuple[Any, ...]) -> Operator:
    """Many parts two by two: A, (B, (C, D))."""
    first, *rest = parts
    return Operator(kind, (first, _nested(kind, rest, static)), (), static) if rest else first


def _flat(kind: str, parts: Sequence[Operator]) -> list[Operator]:
    return [q for p in parts for q in (_flat(kind, p.parts) if p.kind == kind else (p,))]


def _fraction(x: Any) -> Any:
    return x if isinstance(x, complex) else Fraction(x)


def realised(a: Operator, tensors: dict[Datum, Any], memo: dict[int, Operator]) -> Operator:
    """The operator with tensors for its data."""
    found = memo.get(id(a))
    if found is None:
        parts = [realised(p, tensors, memo) for p in a.parts]
        found = _real(a, parts, tensors)
        if a.assumed:
            found = found.assume(*a.assumed)
        memo[id(a)] = found
    return found


TURNED: dict[str, Callable[[Operator], Operator]] = {  # the kind may have a turned form of its own
    "adjoint": lambda a: a.H,
    "transpose": lambda a: a.T,
    "conj": lambda a: a.conj(),
}


def _real(a: Operator, parts: list[Operator], tensors: dict[Datum, Any]) -> Operator:
    if a.kind == "plus":
        made: Operator = balanced(lambda p, q: Operator("plus", (p, q)), parts)
        return made
    if a.kind in TURNED:
        return TURNED[a.kind](parts[0])
    if a.kind == "direct_sum":
        return Operator("direct_sum", _flat("direct_sum", parts))
    if a.kind == "scale":
        factor = computed(_factor(a)[0], tensors)
        if isinstance(factor, int | float | complex | Fraction):
            return Operator("scale", parts, (), (_plain_number(factor),))
        return Operator("scale", parts, (factor,))
    held: tuple[Any, ...] = a.data
    data = [computed(d, tensors) if isinstance(d, Datum) else d for d in held]
    data = [full((), v, a.dtype) if isinstance(v, int | float | complex) else v for v in data]
    return Operator(a.kind, parts, data, a.static)


def _plain_number(x: Any) -> Any:
    if isinstance(x, Fraction):
        return int(x) if x.denominator == 1 else float(x)
    return x
