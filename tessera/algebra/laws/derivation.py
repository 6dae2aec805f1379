"""Derivation: the steps from an operator to a cheaper equal one, to print, to replay and to check."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from tessera.algebra.kind import Cost
from tessera.algebra.laws import numbers as exact
from tessera.algebra.laws.check import (
    EXACT,
    EXACT_FUNCTIONS,
    LawError,
    equal,
    matrix,
    random_array,
    random_matrix,
)
from tessera.algebra.laws.cost import data_cost, total_cost
from tessera.algebra.laws.datum import Datum, leaf
from tessera.algebra.laws.egraph import COMMUTE, EGraph
from tessera.algebra.laws.form import SYMBOLIC
from tessera.algebra.laws.law import Law
from tessera.algebra.laws.numbers import Matrix, NoInverse, NumberSystem
from tessera.algebra.laws.saved import TermReader, TermWriter, dumped, parsed
from tessera.algebra.laws.show import Letters, shown
from tessera.algebra.laws.table import LAWS
from tessera.algebra.operator import Operator
from tessera.core.errors import OperandError, TesseraError, located
from tessera.core.picture import Pictured

Path = tuple[int, ...]
LARGEST = 64  # sizes up to which a step is evaluated exactly


@dataclass(frozen=True)
class LawStep:
    """A law that was applied at one place of a term."""

    law: Law | str
    forward: bool
    path: Path  # from the whole term down: which part, which part of that ...
    before: Operator  # what stood there
    after: Operator  # what stands there now
    whole: Operator  # the whole term after the step
    conditions: tuple[str, ...]

    @property
    def name(self) -> str:
        """What the step does."""
        if isinstance(self.law, str):
            return self.law
        return self.law.name if self.forward else f"{self.law.name}, from right to left"


@dataclass(frozen=True, repr=False)
class Derivation(Pictured):
    """The steps from one operator to another, with the number of columns that costs are for."""

    start: Operator
    steps: tuple[LawStep, ...]
    columns: float | None  # None: the matrix is wanted
    assumed: dict[int, frozenset[str]]  # what is known of leaves, by identity

    @property
    def end(self) -> Operator:
        """The last term."""
        return self.steps[-1].whole if self.steps else self.start

    def cost(self, a: Operator) -> Cost:
        """What a term costs for these columns."""
        if self.columns is None:
            if a.kind == "dense":
                return data_cost(a.data)
            return total_cost(a, float(a.shape[1]))
        return total_cost(a, self.columns)

    def replay(self) -> Operator:
        """Apply every step again, by the laws alone; LawError when one does not lead where it says."""
        term = self.start
        for s in self.steps:
            at = part(term, s.path)
            if not same(at, s.before):
                raise LawError(f"{s.name}: expected {s.before} at {s.path}, found {at}")
            if not _leads(s, self.assumed):
                raise LawError(f"{s.name} does not lead from {s.before} to {s.after}")
            term = replaced(term, s.path, s.after)
            if not same(term, s.whole):
                raise LawError(f"{s.name}: the step gives another term than it says")
        return term

    def check(self, seed: int = 0) -> int:
        """Evaluate both sides of every step exactly; how many were small enough to be decided."""
        return sum(self._decided(s, Random(seed + i)) for i, s in enumerate(self.steps))

    def _decided(self, s: LawStep, rng: Random) -> bool:
        if max(*s.before.shape, *s.after.shape) > LARGEST:
            return False
        for _ in range(3):
            numbers = _numbers(s)
            given = leaves((s.before, s.after), self.assumed, numbers, rng)
            try:
                left, right = (matrix(x, numbers, given) for x in (s.before, s.after))
            except NoInverse:
                continue
            if not equal(left, right):
                raise LawError(f"{s.name}: {s.before} is not {s.after}")
            return True
        return False

    def to_text(self) -> str:
        """The derivation as text that `from_text` reads: terms, laws and flags, no numbers."""
        terms = [self.start, *(t for s in self.steps for t in (s.before, s.after, s.whole))]
        w = TermWriter(terms, self.assumed)
        steps = [
            [s.name if isinstance(s.law, str) else s.law.name, s.forward, list(s.path),
             *(w.at(t) for t in (s.before, s.after, s.whole)), list(s.conditions)]
            for s in self.steps
        ]  # fmt: skip
        return dumped(
            {"columns": self.columns, "start": w.at(self.start), **w.tables(), "steps": steps}
        )

    @classmethod
    def from_text(cls, text: str) -> Derivation:
        """The derivation that a text tells; its tensors are symbols, so that it can be replayed and
        checked.
        """
        whole = parsed(text)
        try:
            r = TermReader(whole)
            steps = tuple(_step(r.terms, *entry) for entry in whole["steps"])
            return cls(r.terms[whole["start"]], steps, whole["columns"], r.flags)
        except TesseraError as e:
            error: TesseraError = e
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as e:
            error = OperandError(f"derivation: the text is damaged: {type(e).__name__} {e}")
        raise located(error)

    def save(self, path: str | pathlib.Path) -> None:
        """Write the text to a file."""
        pathlib.Path(path).write_text(self.to_text(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | pathlib.Path) -> Derivation:
        """Read the text of a file."""
        return cls.from_text(pathlib.Path(path).read_text(encoding="utf-8"))

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        return f"<derivation of {len(self.steps)} steps>"

    def lines(self) -> Iterator[str]:
        """The derivation as text, a step a line, with costs."""
        letters = Letters()
        what = "its matrix" if self.columns is None else f"{self.columns:g} columns"
        what = "one column" if self.columns == 1 else what
        yield f"{shown(self.start, letters)}    {_cost(self.cost(self.start))} for {what}"
        for s in self.steps:
            yield f"= {shown(s.whole, letters)}    {_cost(self.cost(s.whole))}"
            yield f"    by {s.name}{': ' + s.law.equation if isinstance(s.law, Law) else ''}"
            if s.conditions:
                yield f"    where {', '.join(s.conditions)}"
        yield from letters.lines()


_BY_NAME = {law.name: law for law in LAWS}


def _step(
    terms: list[Operator], name: str, forward: bool, path: list[int], before: int, after: int,
    whole: int, conditions: list[str],
) -> LawStep:  # fmt: skip
    if name != COMMUTE and name not in _BY_NAME:
        raise OperandError(f"derivation: there is no law {name!r}")
    law = _BY_NAME.get(name, name)
    return LawStep(
        law, forward, tuple(path), terms[before], terms[after], terms[whole], tuple(conditions)
    )


def _cost(c: Cost) -> str:
    return f"{c.flops:.4g} flops, {c.bytes:.4g} bytes, {c.launches:g} launches"


# Terms ------------------------------------------------------------------------------------------


def same(a: Operator, b: Operator) -> bool:
    """Whether two terms are written alike."""
    return a is b or (
        a.kind == b.kind
        and a.static == b.static
        and len(a.data) == len(b.data)
        and all(x is y for x, y in zip(a.data, b.data, strict=True))
        and len(a.parts) == len(b.parts)
        and all(same(p, q) for p, q in zip(a.parts, b.parts, strict=True))
    )


def part(a: Operator, path: Path) -> Operator:
    """The part of a term at a place."""
    return part(a.parts[path[0]], path[1:]) if path else a


def replaced(a: Operator, path: Path, new: Operator) -> Operator:
    """The term with another part at a place."""
    if not path:
        return new
    parts = list(a.parts)
    parts[path[0]] = replaced(parts[path[0]], path[1:], new)
    return Operator(a.kind, parts, a.data, a.static)


def _leads(s: LawStep, assumed: dict[int, frozenset[str]]) -> bool:
    """Whether the law, applied anew to one side alone, gives the other."""
    if isinstance(s.law, str):
        return s.law == COMMUTE and sorted(map(id, s.before.parts)) == sorted(
            map(id, s.after.parts)
        )
    for rule in s.law.rules:
        source, goal = (s.before, s.after) if rule.forward == s.forward else (s.after, s.before)
        g = EGraph(10**6)
        n, m = g.add(known(source, assumed)), g.add(known(goal, assumed))
        for bound in list(rule.matches(g, n)):
            sides = rule.apply(g, n, bound)
            if sides is not None and g.find(g.add(sides[1])) == g.find(m):
                return True
    return False


def known(a: Operator, assumed: dict[int, frozenset[str]]) -> Operator:
    """The term with what is known of its parts."""
    parts = [known(p, assumed) for p in a.parts]
    new = Operator(a.kind, parts, a.data, a.static)
    return new.assume(*assumed.get(id(a), ()))


# Exact instances of terms -----------------------------------------------------------------------


def _numbers(s: LawStep) -> NumberSystem:
    """Numbers in which both sides can be evaluated: with roots of unity, or series, as they need."""
    kinds = {a.kind: a for t in (s.before, s.after) for a in _walk(t)}
    if "function" in kinds:
        return exact.series(exact.modulo())
    orders = [
        math.prod(a.static[0]) for t in (s.before, s.after) for a in _walk(t) if a.kind == "fft"
    ]
    needs_roots = isinstance(s.law, Law) and s.law.numbers == "roots"
    if not orders and not needs_roots:
        return exact.modulo()
    return exact.with_roots(math.lcm(*orders) if orders else max(1, s.before.shape[0]))


def _walk(a: Operator) -> Iterator[Operator]:
    yield a
    for p in a.parts:
        yield from _walk(p)


def _is_opaque(a: Operator) -> bool:
    """Whether nothing but flags is known of its matrix over exact numbers.

    The data of kinds into which laws do not look may have to fit the kind, as in a projector.
    """
    if not a.parts and a.data and a.kind not in SYMBOLIC:
        return True
    if a.kind == "function":
        return a.static[0] not in EXACT_FUNCTIONS
    return a.kind not in EXACT and a.record.exact is None


def leaves(
    terms: tuple[Operator, ...],
    assumed: dict[int, frozenset[str]],
    numbers: NumberSystem,
    rng: Random,
) -> dict[Any, Matrix]:
    """Random exact numbers for the tensors of terms, that have the flags of their operators."""
    drawn = _Drawn(assumed, numbers, rng)
    for how in (*_INSIDE.values(), ""):
        for t in terms:
            drawn.visit(t, "", how)
    return drawn.given


# What stands under a function is a series: without a constant term, or with that of the identity.
_INSIDE = {"exp": "small", "sqrt": "near"}


class _Drawn:
    """Exact numbers for the leaves of terms, as they are met."""

    def __init__(self, assumed: dict[int, frozenset[str]], numbers: NumberSystem, rng: Random):
        self.assumed, self.numbers, self.rng = assumed, numbers, rng
        self.given: dict[Any, Matrix] = {}

    def visit(self, a: Operator, inside: str, how: str) -> None:
        """Draw the leaves of a term that lie inside of one function, or of none."""
        if _is_opaque(a):
            if inside == how and a not in self.given:
                self.given[a] = self._matrix(a, how)
            return
        within = _INSIDE.get(a.static[0], inside) if a.kind == "function" else inside
        for p in a.parts:
            self.visit(p, inside or within, how)
        if inside == how:
            for d in a.data:
                self._draw(a, leaf(d), how)

    def _matrix(self, a: Operator, how: str, real: bool = False) -> Matrix:
        words = self.assumed.get(id(a), frozenset()) | ({"real"} if real else frozenset())
        if how and not words & {"unitary", "orthogonal_columns"}:
            words |= {how}
        return random_matrix(self.numbers, self.rng, *a.shape, words)

    def _draw(self, a: Operator, d: Datum, how: str) -> None:
        for x in d.args:
            self._draw(a, x, how)
        if d.fn != "leaf" or d in self.given:
            return
        real = d.dtype.kind != "c"
        held: tuple[Any, ...] = a.data
        if a.kind == "dense" and held[0] is d:
            self.given[d] = self._matrix(a, how, real)
            return
        found = random_array(self.numbers, self.rng, *d.shape, real=real)
        if a.kind == "toeplitz" and a.static[2]:  # one diagonal on both sides
            found = found + found[::-1]
        self.given[d] = (
            self._near(a, found) if how == "near" else exact.times_t(found) if how else found
        )

    def _near(self, a: Operator, found: Matrix) -> Matrix:
        """The tensor of something near the identity, where the kind tells it."""
        small = exact.times_t(found)
        if a.kind == "circulant":
            small[0] = small[0] + self.numbers.of(1)
        return small + self.numbers.of(1) if a.kind == "diag" else small
