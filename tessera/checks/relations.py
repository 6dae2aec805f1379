"""Relations between elements: what softmax needs, whichever way it is computed.

Intervals forget that x - max(x) is at most 0 and that the largest element gives exp(0) = 1.  So three
facts are kept of single elements, by their keys:

    maxima    m is the largest of these elements
    below     d is a - m for a maximum m of which a is one element (or the maximum of some)
    weights   w is at least 1 if the maximum m is one of these elements

A sum of weights that has all elements of its maximum is at least 1; so is one that was built before,
times the weight of the maximum that it belongs to: the online softmax.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tessera.checks.intervals import Array, Hull

Keys = frozenset[int]


class Relations:
    """The facts known so far."""

    def __init__(self) -> None:
        self.maxima: dict[int, Keys] = {}
        self.below: dict[int, tuple[Keys, int]] = {}
        self.weights: dict[int, dict[int, Keys]] = {}

    def parts(self, key: int) -> Keys:
        """The elements that one is the largest of."""
        return self.maxima.get(key) or frozenset((key,))

    def apply(self, name: str, xs: Sequence[Hull], out: Hull) -> None:
        """Learn from an operation, and tighten what it gives."""
        rule = getattr(self, f"_{name}", None)
        if rule is not None and out.lo.size <= _MOST:
            flat = [np.broadcast_to(x.key, out.shape).reshape(-1).tolist() for x in xs]
            rule(flat, xs, out)

    # Maxima

    def _max(self, keys: list[list[int]], xs: Sequence[Hull], out: Hull) -> None:
        low = [np.broadcast_to(x.hi, out.shape).reshape(-1) == -np.inf for x in xs]
        for i, (a, b, o) in enumerate(zip(*keys, out.key.reshape(-1).tolist(), strict=True)):
            left = frozenset() if low[0][i] else self.parts(a)
            right = frozenset() if low[1][i] else self.parts(b)
            if left | right:
                self.maxima[o] = left | right

    # Differences

    def _sub(self, keys: list[list[int]], xs: Sequence[Hull], out: Hull) -> None:
        if not self.maxima:
            return
        hi = out.hi.reshape(-1).copy()
        finite = np.isfinite(np.broadcast_to(xs[1].lo, out.shape)).reshape(-1)
        for i, (a, m, o) in enumerate(zip(*keys, out.key.reshape(-1).tolist(), strict=True)):
            whole = self.maxima.get(m)
            if whole is None or not finite[i]:
                continue
            parts = self.parts(a)
            if parts <= whole:
                hi[i] = min(hi[i], 0.0)
                self.below[o] = parts, m
        out.hi = hi.reshape(out.shape)

    def _mul(self, keys: list[list[int]], xs: Sequence[Hull], out: Hull) -> None:
        """A difference times a positive number; a sum of weights times the weight of its maximum."""
        if not self.below and not self.weights:
            return
        positive = [np.broadcast_to(x.lo, out.shape).reshape(-1) > 0 for x in xs]
        for i, (a, b, o) in enumerate(zip(*keys, out.key.reshape(-1).tolist(), strict=True)):
            for j, (x, y) in enumerate(((a, b), (b, a))):
                if x in self.below and positive[1 - j][i]:
                    self.below[o] = self.below[x]
                self._join(o, self._carried(x, y))
        self._raise(out)

    def _carried(self, total: int, factor: int) -> dict[int, Keys]:
        """The weights of a sum times exp(old maximum - new maximum)."""
        out = {}
        for old, have in self.weights.get(total, {}).items():
            if not self.maxima.get(old, _NEVER) <= have:
                continue
            for new, parts in self.weights.get(factor, {}).items():
                if parts == self.maxima[old]:
                    out[new] = parts
        return out

    def _exp(self, keys: list[list[int]], xs: Sequence[Hull], out: Hull) -> None:
        for a, o in zip(keys[0], out.key.reshape(-1).tolist(), strict=True):
            if a in self.below:
                parts, m = self.below[a]
                self._join(o, {m: parts})
        self._raise(out)

    _exp2 = _exp

    # Sums

    def _add(self, keys: list[list[int]], xs: Sequence[Hull], out: Hull) -> None:
        if not self.weights:
            return
        natural = [np.broadcast_to(x.lo, out.shape).reshape(-1) >= 0 for x in xs]
        for i, (a, b, o) in enumerate(zip(*keys, out.key.reshape(-1).tolist(), strict=True)):
            if natural[0][i] and natural[1][i]:
                self._join(o, self.weights.get(a, {}))
                self._join(o, self.weights.get(b, {}))
        self._raise(out)

    def _fma(self, keys: list[list[int]], xs: Sequence[Hull], out: Hull) -> None:
        """A sum carried on in one step: both terms are not negative."""
        if not self.weights:
            return
        natural = np.ones(out.lo.size, bool)
        for x in xs:
            natural &= np.broadcast_to(x.lo, out.shape).reshape(-1) >= 0
        for i, (a, b, c, o) in enumerate(zip(*keys, out.key.reshape(-1).tolist(), strict=True)):
            if natural[i]:
                for found in (self._carried(a, b), self._carried(b, a), self.weights.get(c, {})):
                    self._join(o, found)
        self._raise(out)

    def _join(self, key: int, more: dict[int, Keys]) -> None:
        if more:
            mine = self.weights.setdefault(key, {})
            for m, parts in more.items():
                mine[m] = mine.get(m, frozenset()) | parts

    def _raise(self, out: Hull) -> None:
        """Weights that have all elements of their maximum are at least 1."""
        lo: Array = out.lo.reshape(-1).copy()
        for i, o in enumerate(out.key.reshape(-1).tolist()):
            for m, parts in self.weights.get(o, {}).items():
                if self.maxima.get(m, _NEVER) <= parts:
                    lo[i] = max(lo[i], 1.0)
        out.lo = lo.reshape(out.shape)


_NEVER: Keys = frozenset((-1,))
_MOST = 1 << 14  # elements of a tile that are followed one by one
