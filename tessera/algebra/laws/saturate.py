"""Equality saturation: apply all laws to all terms until nothing is new or the room is used up.

A law that matches too often rests for a while, longer each time (backoff, as in egg, Willsey et al.
2021), so that associativity does not crowd out the others.  The limits count terms, rounds and matches,
not seconds, so that the same operator gives the same result on every machine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tessera.algebra.laws.egraph import EGraph, Full, Reason
from tessera.algebra.laws.law import DirectedLaw


@dataclass(frozen=True)
class SaturationLimits:
    """How much work is done; seconds only as a last resort, since they depend on the machine."""

    terms: int = 200
    rounds: int = 8
    matches: int = 24  # of one law in one round, before it rests
    seconds: float | None = None


LIMITS = SaturationLimits()


class _Schedule:
    """When a law rests."""

    def __init__(self, limits: SaturationLimits):
        self.limits = limits
        self.until: dict[DirectedLaw, int] = {}
        self.times: dict[DirectedLaw, int] = {}
        self.seen: dict[DirectedLaw, int] = {}  # the last round in which it looked at all

    def may(self, rule: DirectedLaw, now: int) -> bool:
        return self.until.get(rule, 0) <= now

    def rest(self, rule: DirectedLaw, now: int) -> None:
        times = self.times.get(rule, 0)
        self.times[rule] = times + 1
        self.until[rule] = now + 1 + 2**times

    def room(self, rule: DirectedLaw) -> int:
        return self.limits.matches << self.times.get(rule, 0)


def saturate(g: EGraph, rules: Sequence[DirectedLaw], limits: SaturationLimits) -> bool:
    """Apply rules to a graph; whether nothing is left to apply."""
    schedule = _Schedule(limits)
    done: set[Any] = set()
    start = time.perf_counter()
    for now in range(1, limits.rounds + 1):
        g.round = now
        found = [
            (r, *m) for r in rules if schedule.may(r, now) for m in _matches(g, r, schedule, now)
        ]
        resting = any(not schedule.may(r, now + 1) for r in rules)
        try:
            news = _apply(g, found, done)
        except Full:
            g.rebuild()
            return False
        g.rebuild()
        if not news and not resting:
            return True
        if limits.seconds is not None and time.perf_counter() - start > limits.seconds:
            return False
    return False


def _matches(g: EGraph, rule: DirectedLaw, schedule: _Schedule, now: int) -> list[tuple[int, Any]]:
    """Where a rule applies, among terms that changed since it looked last."""
    since = schedule.seen.get(rule, 0)
    out: list[tuple[int, Any]] = []
    room = schedule.room(rule)
    for n in g.by_kind.get(rule.kind, ()):
        if n in g.dead or g.classes[g.find(n)].changed < since - 1:
            continue
        if rule.may_match(g, n):
            out += [(n, b) for b in islice(rule.matches(g, n), room + 1 - len(out))]
        if len(out) > room:
            schedule.rest(rule, now)
            return out[:room]
    schedule.seen[rule] = now
    return out


def _apply(g: EGraph, found: Sequence[tuple[DirectedLaw, int, Any]], done: set[Any]) -> bool:
    news = False
    for rule, n, bound in found:
        key = (
            rule,
            n,
            tuple(
                sorted((k, v if isinstance(v, int | tuple) else id(v)) for k, v in bound.items())
            ),
        )
        if key in done or n in g.dead:
            continue
        done.add(key)
        sides = rule.apply(g, n, bound)
        if sides is None:
            continue
        count = len(g.terms)
        left, right = g.add(sides[0]), g.add(sides[1])
        news |= g.union(left, right, Reason(rule.law, rule.forward)) or len(g.terms) > count
        if rule.law.drop and not _returns(g, right):
            g.drop(n)
    return news


def _returns(g: EGraph, n: int) -> bool:
    """Whether a term is equal to one of its own parts: it cannot stand for what it came from."""
    return any(g.find(c) == g.find(n) for c in g.children[n])
