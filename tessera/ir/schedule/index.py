"""Index arithmetic: quotients and remainders that the ranges of the axes settle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tessera.core.dims import Dim, Size, SizeFunction, Symbol, call, split_terms, symbol, symbols
from tessera.core.intervals import extremes, inside


def narrow(x: Size, sizes: Mapping[str, Size]) -> Size:
    """x, simplified for axes that run from 0 to their sizes: (i*n + j) // n is i when j < n."""
    if isinstance(x, int) or all(
        type(a) is Symbol and sizes.get(a.name) != 1 for m, _ in x.terms for a, _ in m
    ):
        return x
    return _mapped(x, lambda a: _symbol(a, sizes), lambda a: _apply(a, sizes))


def _mapped(
    x: Size, of_symbol: Callable[[Symbol], Size], of_apply: Callable[[SizeFunction], Size]
) -> Size:
    """x, whose symbols and functions of sizes are replaced."""
    if isinstance(x, int):
        return x
    total: Size = 0
    for monomial, factor in x.terms:
        term: Size = factor
        for atom, power in monomial:
            value = of_symbol(atom) if isinstance(atom, Symbol) else of_apply(atom)
            for _ in range(power):
                term = term * value
        total = total + term
    return total


def _symbol(atom: Symbol, sizes: Mapping[str, Size]) -> Size:
    return 0 if sizes.get(atom.name) == 1 else symbol(atom.name)


class Wrap(NamedTuple):
    """The place (axis + before) % size + after, whose dividend runs from 0 to less than 2 * size."""

    axis: str
    before: Size
    size: Size
    after: Size


def wrap_of(x: Size, axes: Mapping[str, Size]) -> Wrap | None:
    """How a place goes along one of the axes and around the end at most once; None: it does not."""
    if isinstance(x, int):
        return None
    moving = [(m, c) for m, c in x.terms if symbols(Dim(((m, c),))) & axes.keys()]
    match moving:
        case [(((SizeFunction("%", left, size), 1),), 1)]:
            own = symbols(left) & axes.keys()
            if len(own) != 1 or symbols(size) & axes.keys():
                return None
            (axis,) = own
            before = left - symbol(axis)
            if axis in symbols(before) or not inside(left, 2 * size, axes):
                return None
            return Wrap(axis, before, size, x - left % size)
    return None


def _apply(atom: SizeFunction, sizes: Mapping[str, Size]) -> Size:
    left, right = narrow(atom.left, sizes), narrow(atom.right, sizes)
    if atom.function not in ("//", "%"):
        return call(atom.function, left, right)
    if atom.function == "%":
        left = _without_periods(left, right)
    quotient, rest = split_terms(left, right)
    if inside(rest, right, sizes):
        return quotient if atom.function == "//" else rest
    if isinstance(left, Dim) and isinstance(right, int) and right > 0:
        found = _in_one_period(left, right, sizes)
        if found is not None:
            return found[0 if atom.function == "//" else 1]
    return call(atom.function, left, right)


def _without_periods(x: Size, n: Size) -> Size:
    """x less multiples of n, for what is taken by n: (i % n + 7) % n is (i + 7) % n."""
    if isinstance(x, int):
        return x
    total: Size = 0
    for monomial, factor in x.terms:
        match monomial:
            case ((SizeFunction("%", inner, by), 1),) if by == n:
                total = total + _without_periods(inner, n) * factor
            case () if isinstance(n, int) and n > 0:
                total = total + factor % n
            case _:
                total = total + Dim(((monomial, factor),))
    return total


def _in_one_period(x: Dim, n: int, sizes: Mapping[str, Size]) -> tuple[Size, Size] | None:
    """(q, r) with x = q*n + r and 0 <= r < n, both polynomials: 7*i + 7 for i < 8 is (i, 7 - i) by 8."""
    near: Size = 0
    for m, c in x.terms:
        near = near + (Dim(((m, 1),)) * ((c + n // 2) % n - n // 2) if m else c)
    low, high = extremes(near, sizes)
    if not isinstance(low, int) or not isinstance(high, int) or low // n != high // n:
        return None
    rest = near - low // n * n
    return split_terms(x - rest, n)[0], rest


def rejoined(x: Size) -> Size:
    """x, in which n*(a // n) + a % n is a."""
    total = _mapped(x, lambda a: symbol(a.name), _rejoined_inside)
    for monomial, factor in () if isinstance(total, int) else total.terms:
        match monomial:
            case ((SizeFunction("%", a, n), 1),):
                rest = total - (a % n) * factor - (a // n) * n * factor
                if _length(rest) == _length(total) - 2:
                    return rejoined(rest + a * factor)
    return total


def _rejoined_inside(atom: SizeFunction) -> Size:
    return call(atom.function, rejoined(atom.left), rejoined(atom.right))


def _length(x: Size) -> int:
    """How many terms a sum has."""
    return int(x != 0) if isinstance(x, int) else len(x.terms)
