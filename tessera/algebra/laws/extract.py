"""Extraction: the cheapest term of a class.

The cost of an operator depends on the number of columns it is applied to, and a Kronecker product
applies its factors to more columns than it has itself.  So what is sought is the cheapest term of a
class for so many columns: a shortest path over pairs (class, columns), by relaxation until nothing
improves.  Costs are positive, so the best terms contain no cycle.
"""

from __future__ import annotations

import math
from typing import Any

from tessera.algebra.laws.cost import own_cost, seconds, uses
from tessera.algebra.laws.egraph import EGraph
from tessera.algebra.operator import Operator

State = tuple[int, float]  # a class and a number of columns
EPSILON = 1e-12  # seconds for each term: among equal costs the smaller term is taken


class Extractor:
    """The cheapest terms of a graph."""

    def __init__(self, g: EGraph):
        self.g = g
        self._options: dict[State, list[tuple[float, int, list[tuple[float, State]]]]] = {}
        self._best: dict[State, tuple[float, int]] = {}
        self._every = False  # whether terms that were dropped count too

    def best(self, n: int, columns: float) -> int:
        """The number of the cheapest term that is equal to one, for so many columns."""
        root = (self.g.find(n), columns)
        self._relax(self._reach(root))
        if root not in self._best:  # the terms that are left lean on each other
            self._options.clear()
            self._every = True
            self._relax(self._reach(root))
        return self.g.add(self._term(root))

    def _relax(self, order: list[State]) -> None:
        changed = True
        while changed:
            changed = False
            for state in order:
                found = min(
                    (
                        (own + sum(t * self._cost(s) for t, s in parts), m)
                        for own, m, parts in self._options[state]
                    ),
                    default=(math.inf, -1),
                )
                if found < self._best.get(state, (math.inf, -1)):
                    self._best[state] = found
                    changed = True

    def _cost(self, s: State) -> float:
        found = self._best.get(s)
        return math.inf if found is None else found[0]

    def _reach(self, root: State) -> list[State]:
        """All states that the root can need, the deepest first."""
        order: list[State] = []
        todo: list[Any] = [root]
        while todo:
            state = todo.pop()
            if state in self._options:
                continue
            order.append(state)
            nodes = self.g.classes[state[0]].every if self._every else self.g.nodes(state[0])
            options = self._options[state] = [self._option(m, state[1]) for m in nodes]
            todo += [s for _, _, parts in options for _, s in parts]
        return order[::-1]

    def _option(self, m: int, columns: float) -> tuple[float, int, list[tuple[float, State]]]:
        a = self.g.terms[m]
        parts = [
            (u.times, (self.g.find(c), u.columns))
            for u, c in zip(uses(a, columns), self.g.children[m], strict=True)
        ]
        return seconds(own_cost(a, columns)) + EPSILON, m, parts

    def _term(self, state: State) -> Operator:
        """The best term with the best terms for its parts."""
        a = self.g.terms[self._best[state][1]]
        parts = next(p for _, m, p in self._options[state] if m == self._best[state][1])
        if not parts:
            return a
        return Operator(a.kind, [self._term(s) for _, s in parts], a.data, a.static)

    def matrix(self, n: int) -> int | None:
        """The term that is a matrix and cheapest to compute, if there is one."""
        found = self.g.of_kind(n, "dense")
        return found[0] if found else None
