"""An e-graph: many operators at once, with what is known to be equal, and why.

Every term is kept as it was written and has a number; a union-find says which numbers are equal.  Terms
of the same kind and fields with equal parts are equal too (congruence).  Beside the union-find stands a
forest of reasons: its edges are laws, or congruence, so that the way from one term to an equal one can
be given step by step (Nieuwenhuis and Oliveras, Proof-producing congruence closure, 2005).

All that is iterated is in the order of numbers, so that equal inputs give equal results.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tessera.algebra.flags import closure, of_product
from tessera.algebra.laws.cost import data_cost, seconds
from tessera.algebra.operator import Operator

Path = tuple[int, ...]


class Reason(NamedTuple):
    """Why two terms are equal: a law; none for congruence."""

    law: Any
    forward: bool = True  # from the left side of the law to the right one


class TermRewrite(NamedTuple):
    """One law applied at one place: the part of a term at `path` goes from `before` to `after`."""

    path: Path
    law: Any
    forward: bool
    before: int
    after: int


@dataclass(slots=True)
class Class:
    """Terms that are equal, and what is known of all of them."""

    kinds: dict[str, list[int]]  # the terms by kind
    every: list[int]  # also those that were dropped
    flags: frozenset[str]
    parents: list[int] = field(default_factory=list)
    changed: int = 0  # the round in which it changed last
    dense: tuple[float, int] | None = None  # the matrix among them that is computed fastest


class Full(Exception):
    """There is no room for another term."""


COMMUTE = "the order of a sum"


def _flagged(a: Operator, flags: frozenset[str]) -> Operator:
    """A term of which just so much is known."""
    new = a.assume()
    object.__setattr__(new, "_flags", flags)
    return new


class EGraph:
    """Terms, classes of equal terms, and reasons."""

    def __init__(self, limit: int = 1000):
        self.limit = limit
        self.terms: list[Operator] = []
        self.children: list[tuple[int, ...]] = []
        self.classes: dict[int, Class] = {}
        self.by_kind: dict[str, list[int]] = {}
        self.round = 0
        self._labels: list[Hashable] = []
        self._numbers: dict[Hashable, int] = {}  # of terms as written
        self._seen: dict[int, int] = {}  # of Operator objects
        self._congruent: dict[Hashable, int] = {}  # of terms up to equality of parts
        self._up: list[int] = []  # the union-find
        self._why: list[tuple[int, Reason] | None] = []  # the forest of reasons
        self._pending: list[int] = []
        self.dead: set[int] = set()  # terms that laws need not look at: others stand for them

    # Terms

    def add(self, a: Operator) -> int:
        """The number of a term; its parts are added too."""
        found = self._seen.get(id(a))
        if found is not None and self.terms[found] is a:
            return found
        children = tuple([self.add(p) for p in a.parts])
        label = (a.kind, a.static, tuple(map(id, a.data)))
        key = (label, children)
        found = self._numbers.get(key)
        if found is None:
            found = self._new(a, label, key, children)
        if a.assumed:
            self.know(found, a.assumed)
        return found

    def knows(self, a: Operator) -> bool:
        """Whether a term, up to equality of parts, is there."""
        return self._lookup(a) is not None

    def _lookup(self, a: Operator) -> int | None:
        found = self._seen.get(id(a))
        if found is not None and self.terms[found] is a:
            return self.find(found)
        parts = [self._lookup(p) for p in a.parts]
        if any(p is None for p in parts):
            return None
        label = (a.kind, a.static, tuple(map(id, a.data)))
        classes = sorted(parts) if a.kind == "plus" else parts  # type: ignore[type-var]
        found = self._congruent.get((label, tuple(classes)))
        return None if found is None else self.find(found)

    def _new(self, a: Operator, label: Any, key: Hashable, children: tuple[int, ...]) -> int:
        if self.alive >= self.limit or len(self.terms) >= 2 * self.limit:
            raise Full
        n = len(self.terms)
        fresh = any(self.terms[c] is not p for c, p in zip(children, a.parts, strict=True))
        if fresh or a.assumed:  # what is assumed belongs to the class
            a = Operator(a.kind, [self.terms[c] for c in children], a.data, a.static)
        self.terms.append(a)
        self.children.append(children)
        self._labels.append(label)
        self._up.append(n)
        self._why.append(None)
        self._numbers[key] = n
        self._seen[id(a)] = n
        self.by_kind.setdefault(a.kind, []).append(n)
        self.classes[n] = Class({a.kind: [n]}, [n], frozenset(), changed=self.round)
        if a.kind == "dense":
            self.classes[n].dense = (seconds(data_cost(a.data)), n)
        for c in children:
            self.classes[self.find(c)].parents.append(n)
        self._know(n, self._flags(n))
        twin = self._congruent.setdefault(self._canonical(n), n)
        if twin != n:
            self.drop(n)
            self.union(n, twin, Reason(None))
        return n

    def drop(self, n: int) -> None:
        """Leave a term out of what laws look at and of what can be extracted."""
        if n not in self.dead:
            self.dead.add(n)
            self.classes[self.find(n)].kinds[self.terms[n].kind].remove(n)

    @property
    def alive(self) -> int:
        """How many terms laws look at."""
        return len(self.terms) - len(self.dead)

    def _canonical(self, n: int) -> Hashable:
        """Equal for terms whose parts are equal; a sum has no order."""
        classes = [self.find(c) for c in self.children[n]]
        return self._labels[n], tuple(sorted(classes) if self.terms[n].kind == "plus" else classes)

    # What is equal

    def find(self, n: int) -> int:
        """The number that stands for the class of a term."""
        up = self._up
        while up[n] != n:
            up[n] = up[up[n]]
            n = up[n]
        return n

    def union(self, a: int, b: int, reason: Reason) -> bool:
        """State that two terms are equal; whether that is news."""
        x, y = self.find(a), self.find(b)
        if x == y:
            return False
        self._link(a, b, reason)
        if len(self.classes[x].parents) > len(self.classes[y].parents):
            x, y = y, x
        gone, kept = self.classes.pop(x), self.classes[y]
        self._up[x] = y
        for kind, nodes in gone.kinds.items():
            kept.kinds[kind] = kept.kinds.get(kind, []) + nodes
        kept.every += gone.every
        self._pending += gone.parents
        before = (gone.flags, kept.flags)
        kept.dense = min((d for d in (kept.dense, gone.dense) if d is not None), default=None)
        kept.parents += gone.parents
        self._mark(y)
        for flags in before:
            self._know(y, flags)
        return True

    def rebuild(self) -> None:
        """Make terms with equal parts equal."""
        while self._pending:
            todo, self._pending = sorted(set(self._pending)), []
            for n in todo:
                twin = self._congruent.setdefault(self._canonical(n), n)
                if twin != n:
                    self.drop(n)
                    self.union(n, twin, Reason(None))

    def nodes(self, n: int) -> list[int]:
        """The terms that are equal to one."""
        return [m for nodes in self.classes[self.find(n)].kinds.values() for m in nodes]

    def of_kind(self, n: int, kind: str) -> list[int]:
        """The terms of a kind that are equal to one; of matrices only the one computed fastest.

        Every way to bracket a chain computes the same matrix.  To go on from the fastest only is what
        dynamic programming does, and keeps their number from growing as that of the ways.
        """
        c = self.classes[self.find(n)]
        if kind != "dense":
            return list(c.kinds.get(kind, ()))
        return [] if c.dense is None else [c.dense[1]]

    def has(self, n: int, kind: str) -> bool:
        """Whether a term of a kind is equal to one."""
        return bool(self.classes[self.find(n)].kinds.get(kind))

    def _mark(self, root: int, depth: int = 3) -> None:
        """Note that a class has changed, for patterns that look at it from up to three levels above."""
        c = self.classes[root]
        c.changed = self.round
        if depth:
            for p in c.parents:
                above = self.find(p)
                if self.classes[above].changed != self.round:
                    self._mark(above, depth - 1)

    # What is known

    def flags(self, n: int) -> frozenset[str]:
        """What is known of a term."""
        return self.classes[self.find(n)].flags

    def know(self, n: int, flags: frozenset[str]) -> None:
        """State flags of a term."""
        self._know(self.find(n), flags)

    def _know(self, root: int, flags: frozenset[str]) -> None:
        c = self.classes[root]
        if flags <= c.flags:
            return
        rows, columns = self.terms[root].shape
        c.flags = closure(c.flags | flags, rows == columns)
        for p in list(c.parents):
            self._know(self.find(p), self._flags(p))

    def _flags(self, n: int) -> frozenset[str]:
        """The flags of a term, given what is known of its parts."""
        a = self.terms[n]
        children = self.children[n]
        if a.kind == "compose":
            return self._product_flags(children)
        if not children:
            return a.flags
        if a.kind == "block":  # its rule looks at adjoints of parts, whose data are symbolic
            return frozenset({"real"} if all("real" in self.flags(c) for c in children) else ())
        parts = [_flagged(p, self.flags(c)) for p, c in zip(a.parts, children, strict=True)]
        return Operator(a.kind, parts, a.data, a.static).flags

    def _product_flags(self, children: tuple[int, ...]) -> frozenset[str]:
        """Those of a product; A.H @ A is positive."""
        known = [_flagged(self.terms[c], self.flags(c)) for c in children]
        found = of_product(known)
        left, right = (self.find(c) for c in children)
        for one, other in ((left, right), (right, left)):
            if any(self.find(self.children[m][0]) == other for m in self.of_kind(one, "adjoint")):
                found |= {"positive"}
        return found

    # Why it is equal

    def _link(self, a: int, b: int, reason: Reason) -> None:
        """Add an edge to the forest: turn the tree of a so that a is its root, hang it below b."""
        here, edge = a, (b, reason)
        while True:
            old = self._why[here]
            self._why[here] = edge
            if old is None:
                return
            above, why = old
            edge = (here, Reason(why.law, not why.forward))
            here = above

    def _ancestors(self, n: int) -> list[int]:
        path = [n]
        while (edge := self._why[path[-1]]) is not None:
            path.append(edge[0])
        return path

    def steps(self, a: int, b: int) -> Iterator[TermRewrite]:
        """The laws that lead from one term to an equal one, each with its place."""
        if a == b:
            return
        up, down = self._ancestors(a), self._ancestors(b)
        shared = next(n for n in up if n in set(down))
        for n in up[: up.index(shared)]:
            edge = self._why[n]
            assert edge is not None
            yield from self._edge(n, edge[0], edge[1])
        for n in reversed(down[: down.index(shared)]):
            edge = self._why[n]
            assert edge is not None
            yield from self._edge(edge[0], n, Reason(edge[1].law, not edge[1].forward))

    def _edge(self, a: int, b: int, reason: Reason) -> Iterator[TermRewrite]:
        if reason.law is not None:
            yield TermRewrite((), reason.law, reason.forward, a, b)
            return
        left, right = self.children[a], self.children[b]
        if self.terms[a].kind == "plus":
            order = sorted(range(len(left)), key=lambda i: (self.find(left[i]), i))
            places = sorted(range(len(right)), key=lambda i: (self.find(right[i]), i))
            moved = dict(zip(places, order, strict=True))
            swapped = tuple(left[moved[i]] for i in range(len(right)))
            if swapped != left:
                middle = self._reordered(a, swapped)
                yield TermRewrite((), COMMUTE, True, a, middle)
                left = swapped
        for i, (x, y) in enumerate(zip(left, right, strict=True)):
            for s in self.steps(x, y):
                yield s._replace(path=(i, *s.path))

    def _reordered(self, n: int, children: tuple[int, ...]) -> int:
        a = self.terms[n]
        limit, self.limit = self.limit, 10**9
        try:
            return self.add(Operator(a.kind, [self.terms[c] for c in children], a.data, a.static))
        finally:
            self.limit = limit
