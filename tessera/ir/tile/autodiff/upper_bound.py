"""most: a size that a position never exceeds and that no counter appears in, for scratch."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.core.dims import Atom, Size, Symbol, call, symbol, symbols

Counters = Mapping[str, tuple[Size, Size]]


def most(x: Size, counters: Counters) -> Size:
    """An upper bound of a position, with counters between the given sizes."""
    if isinstance(x, int):
        return x
    total: Size = 0
    for monomial, factor in x.terms:
        term: Size = factor
        for atom, power in monomial:
            for _ in range(power):
                term = term * _end(atom, counters, up=factor > 0)
        total = total + term
    return total


def _end(atom: Atom, counters: Counters, up: bool) -> Size:
    """The largest or the least that a factor can be."""
    if isinstance(atom, Symbol):
        return counters[atom.name][up] if atom.name in counters else symbol(atom.name)
    if not (symbols(atom.left) | symbols(atom.right)) & counters.keys():
        return call(atom.function, atom.left, atom.right)
    if atom.function == "%":
        return most(atom.right, counters) - 1 if up else 0
    left = most(atom.left, counters) if up else -most(-atom.left, counters)
    if atom.function == "//":
        return left // atom.right
    right = most(atom.right, counters) if up else -most(-atom.right, counters)
    return call(atom.function, left, right)
