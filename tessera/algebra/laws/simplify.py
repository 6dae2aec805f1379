"""simplify and explain: the cheapest operator that is equal to one, and the derivation of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from tessera.algebra.apply import as_operator
from tessera.algebra.laws.cost import seconds, total_cost
from tessera.algebra.laws.derivation import Derivation, LawStep, replaced
from tessera.algebra.laws.egraph import EGraph
from tessera.algebra.laws.extract import EPSILON, Extractor
from tessera.algebra.laws.form import realised, symbolic
from tessera.algebra.laws.law import DirectedLaw, Law
from tessera.algebra.laws.log import note
from tessera.algebra.laws.saturate import LIMITS, SaturationLimits, saturate
from tessera.algebra.laws.table import LAWS
from tessera.algebra.laws.truncate import Truncated, truncated
from tessera.algebra.operator import Operator, function
from tessera.core.errors import OperandError


@dataclass(frozen=True)
class Simplified:
    """The outcome: a symbolic operator, how it was derived, and how far the search went."""

    term: Operator
    graph: EGraph
    start: int  # what was asked for, in the graph
    best: int  # what was found
    columns: float | None
    terms: int  # in the graph when the search ended
    saturated: bool  # whether every law was applied everywhere

    def operator(self) -> Operator:
        """The operator, with its data computed."""
        return realised(self.term, {}, {})

    @cached_property
    def derivation(self) -> Derivation:
        """The steps from what was asked for to what was found."""
        return _derivation(self.graph, self.start, self.best, self.columns)


@cache
def _rules(groups: frozenset[str]) -> tuple[DirectedLaw, ...]:
    return tuple(r for law in LAWS if law.group in groups for r in law.rules)


def search(
    a: Operator, columns: float | None = 1, limits: SaturationLimits = LIMITS, laws: Any = None
) -> Simplified:
    """Find the cheapest term equal to an operator, for so many columns (None: for its matrix)."""
    g = EGraph(limits.terms)
    start = g.add(symbolic(a, {}))
    g.know(start, a.flags)
    groups = {"algebra"} if columns is not None and columns <= 1 else {"algebra", "matrix"}
    rules = _rules(frozenset(groups)) if laws is None else tuple(r for x in laws for r in x.rules)
    saturated = saturate(g, rules, limits)
    count, g.limit = len(g.terms), 10**9
    extractor = Extractor(g)
    best = extractor.matrix(start) if columns is None else None
    if best is None:
        best = extractor.best(start, float(a.shape[1]) if columns is None else columns)
    if columns is not None and _price(g.terms[best], columns) >= _price(g.terms[start], columns):
        best = start
    known = {id(t): g.flags(n) for n, t in enumerate(g.terms)}
    term = _with_flags(g.terms[best], known)
    return Simplified(term, g, start, best, columns, count, saturated)


def _price(a: Operator, columns: float) -> float:
    return seconds(total_cost(a, columns)) + EPSILON * _count(a)


def _count(a: Operator) -> int:
    return 1 + sum(map(_count, a.parts))


def _with_flags(a: Operator, known: dict[int, frozenset[str]]) -> Operator:
    """The term with all that was found out about its parts."""
    parts = [_with_flags(p, known) for p in a.parts]
    return Operator(a.kind, parts, a.data, a.static).assume(*known.get(id(a), ()))


def _derivation(g: EGraph, start: int, best: int, columns: float | None) -> Derivation:
    """The steps from one term to another, without detours that come back to where they were."""
    wholes, steps = [g.terms[start]], list[LawStep]()
    seen = {g.add(wholes[0]): 0}
    for s in list(g.steps(start, best)):
        before, after = g.terms[s.before], g.terms[s.after]
        whole = replaced(wholes[-1], s.path, after)
        conditions = tuple(map(str, s.law.given)) if isinstance(s.law, Law) else ()
        steps.append(LawStep(s.law, s.forward, s.path, before, after, whole, conditions))
        wholes.append(whole)
        at = seen.setdefault(g.add(whole), len(steps))
        if at < len(steps):
            steps, wholes = steps[:at], wholes[: at + 1]
            seen = {n: i for n, i in seen.items() if i <= at}
    assumed = {id(t): g.flags(n) for n, t in enumerate(g.terms)}
    return Derivation(g.terms[start], tuple(steps), columns, assumed)


@function
def simplify(a: Any, eps: float | None = None, columns: Any = 1) -> Operator:
    """The cheapest operator that is equal to A when it is applied to so many columns.

    columns=None asks for the operator whose matrix is cheapest to make.  Under an error budget eps the
    result may be of lower rank: the spectral norm of the difference is at most eps.
    """
    found = as_operator("simplify", a)
    outcome = search(found, _columns("simplify", columns))
    note(lambda: outcome.derivation, outcome.terms, outcome.saturated)
    exact = outcome.operator()
    return exact if eps is None else within("simplify", exact, eps, columns).operator


def within(user: str, a: Operator, eps: Any, columns: Any) -> Truncated:
    """The operator of lower rank that a budget allows, with its certified residual."""
    if isinstance(eps, bool) or not isinstance(eps, int | float) or not eps >= 0:
        raise OperandError(f"{user}: got eps={eps!r}, expected a number that is not negative")
    return truncated(a, float(eps), float(a.shape[1]) if columns is None else float(columns))


@function
def explain(a: Any, eps: float | None = None, columns: Any = 1) -> Derivation:
    """Print how simplify(A) is derived: every law, where it holds, and what each form costs."""
    found = search(as_operator("explain", a), _columns("explain", columns))
    note(lambda: found.derivation, found.terms, found.saturated)
    print(found.derivation)
    if eps is not None:
        cut = within("explain", found.operator(), eps, columns)
        ranks = ", ".join(map(str, cut.ranks))
        done = f"truncated to rank {ranks}" if ranks else "nothing is truncated"
        print(f"{done}: the residual is at most {cut.residual:.3g}")
    return found.derivation


def _columns(user: str, columns: Any) -> float | None:
    if columns is None:
        return None
    if isinstance(columns, bool) or not isinstance(columns, int | float) or columns < 1:
        raise OperandError(
            f"{user}: got columns={columns!r}, expected a number from 1 on, or None for the matrix"
        )
    return float(columns)
