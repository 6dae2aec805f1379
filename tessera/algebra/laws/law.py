"""Law: an equation between operators, with the side conditions under which it holds.

    Law("mixed product", "kron(A, B) @ kron(C, D) = kron(A @ C, B @ D)", "A m k, B p q, C k n, D q r")

`=` is used from both sides, `->` from the left only.  What is given names each letter: rows and columns
of an operator and the flags it must have, the sizes of data.  A size that two letters share is a
condition.  So the conditions are the types, and `check` (tessera.algebra.laws.check) draws instances
from the same text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tessera.algebra.flags import FLAGS
from tessera.algebra.laws.egraph import EGraph
from tessera.algebra.laws.form import form
from tessera.algebra.laws.pattern import (
    REST,
    Bound,
    OperatorTerm,
    Pattern,
    TooMuch,
    Var,
    build,
    match_node,
    parse,
)
from tessera.algebra.operator import Operator


@dataclass(frozen=True)
class LetterFacts:
    """What a law asks of one letter."""

    name: str
    sizes: tuple[str | int, ...]
    words: frozenset[str]  # flags, and for the checker: small, int

    @property
    def flags(self) -> frozenset[str]:
        """The flags that the operator must have."""
        return self.words & FLAGS.keys()

    @property
    def is_operator(self) -> bool:
        """Whether the letter is a capital one."""
        return self.name[0].isupper()

    def __str__(self) -> str:
        kept = sorted(self.words - _FOR_THE_CHECKER)
        return " ".join([f"{self.name}:", " x ".join(map(str, self.sizes)), *kept]).strip()


_FOR_THE_CHECKER = {
    "small", "near", "int", "table", "index", "transform", "grid", "offset", "kernel", "stretch",
}  # fmt: skip


def _given(text: str) -> LetterFacts:
    name, *rest = text.split()
    sizes = [int(w) if w.isdigit() else w for w in rest if len(w) == 1 or w.isdigit()]
    return LetterFacts(
        name, tuple(sizes), frozenset(w for w in rest if len(w) > 1 and not w.isdigit())
    )


@dataclass(frozen=True, eq=False)
class Law:
    """An equation, what is given, and over which numbers it can be checked."""

    name: str
    equation: str
    given_text: str = ""
    numbers: str = "any"  # any, roots (of unity, of order n) or series
    known: bool = False  # only when the parts of the new side are there already
    first: bool = False  # one way to apply it to a term is as good as all
    drop: bool = False  # the left side need not be looked at any more
    group: str = "algebra"  # algebra, matrix (computes matrices)

    def __str__(self) -> str:
        return f"{self.name}: {self.equation}"

    @cached_property
    def given(self) -> tuple[LetterFacts, ...]:
        """What each letter must be."""
        return tuple(_given(t) for t in self.given_text.split(",") if t.strip())

    @cached_property
    def sides(self) -> tuple[Pattern, Pattern]:
        """The left and the right side."""
        left, right = self.equation.split(" = " if " = " in self.equation else " -> ")
        return parse(left), parse(right)

    @cached_property
    def rules(self) -> tuple[DirectedLaw, ...]:
        """The directions in which it is used."""
        left, right = self.sides
        forward = DirectedLaw(self, left, right, True)
        return (
            (forward, DirectedLaw(self, right, left, False))
            if " = " in self.equation
            else (forward,)
        )


@dataclass(frozen=True, eq=False)
class DirectedLaw:
    """A law in one direction."""

    law: Law
    left: Pattern
    right: Pattern
    forward: bool

    @cached_property
    def kind(self) -> str:
        """The kind of what it applies to."""
        assert isinstance(self.left, OperatorTerm), self.law
        return form(self.left.form).kind

    @cached_property
    def shallow(self) -> bool:
        """Whether its left side is a term as it stands."""
        assert isinstance(self.left, OperatorTerm)
        names = [p.name for p in self.left.parts if isinstance(p, Var)]
        fields = (*self.left.data, *self.left.static)
        return (
            self.left.form != "plus"
            and len(set(names)) == len(self.left.parts)
            and all(f.name is not None for f in fields)
        )

    @cached_property
    def heads(self) -> tuple[tuple[int, str], ...]:
        """Which parts have to be of which kind; those of a sum have no place."""
        assert isinstance(self.left, OperatorTerm)
        if self.left.form == "plus":
            return ()
        terms = [(i, p) for i, p in enumerate(self.left.parts) if isinstance(p, OperatorTerm)]
        return tuple((i, form(p.form).kind) for i, p in terms)

    def may_match(self, g: EGraph, n: int) -> bool:
        """Whether the parts of a term are of the right kinds."""
        children = g.children[n]
        return all(i < len(children) and g.has(children[i], kind) for i, kind in self.heads)

    def matches(self, g: EGraph, n: int) -> Iterator[Bound]:
        """The ways in which a term fits, side conditions included."""
        assert isinstance(self.left, OperatorTerm)
        for bound in match_node(g, self.left, n, {}, top=True):
            found = self.conditions(g, bound)
            if found is not None:
                yield found
                if self.law.first:
                    return

    def conditions(self, g: EGraph, bound: Bound) -> Bound | None:
        """What is bound, with the sizes; None when a side condition does not hold."""
        found = dict(bound)
        for given in self.law.given:
            what = found.get(given.name)
            if what is None:
                continue
            if given.is_operator:
                if not given.flags <= g.flags(what):
                    return None
                shape: tuple[Any, ...] = g.terms[what].shape
            else:
                shape = _shape(given, what)
            sizes = given.sizes[:1] if "index" in given.words else given.sizes
            if len(shape) != len(sizes):
                return None
            for name, size in zip(sizes, shape, strict=True):
                if (name if isinstance(name, int) else found.setdefault(name, size)) != size:
                    return None
        return found

    def apply(self, g: EGraph, n: int, bound: Bound) -> tuple[Operator, Operator] | None:
        """Both sides as terms; None when the law would change the dtype or needs unknown parts."""
        env = {k: _terms(g, k, v) for k, v in bound.items()}
        a = g.terms[n]
        try:
            left = a if self.shallow else build(self.left, env, a.dtype)
            right = build(self.right, env, a.dtype)
        except TooMuch:
            return None
        if right.dtype is not a.dtype or right.shape != a.shape:
            return None
        if self.law.known and not all(g.knows(p) for p in right.parts):
            return None
        return left, right


def _shape(given: LetterFacts, what: Any) -> tuple[Any, ...]:
    if given.words & {"table", "index"}:
        return (len(what),)
    if given.words & {"transform", "line"}:
        return _transform_shape(given, what)
    return () if given.words & {"int", "grid", "offset", "kernel"} else what.shape


def _transform_shape(given: LetterFacts, what: Any) -> tuple[Any, ...]:
    """The size of a Fourier transform; none when it is not along a line, or not back, as wanted."""
    sizes, _, inverse = what
    wrong = "line" in given.words and len(sizes) != 1
    wrong |= "back" in given.words and not inverse
    wrong |= "to" in given.words and inverse
    return () if wrong else (math.prod(sizes),)


def _terms(g: EGraph, name: str, bound: Any) -> Any:
    if name == REST:
        return tuple(g.terms[n] for n in bound)
    return g.terms[bound] if name[0].isupper() else bound
