"""Index arithmetic: quotients and remainders that the ranges of the axes settle."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tessera.core.dims import (
    Apply,
    Dim,
    Size,
    Symbol,
    bounds,
    call,
    split_terms,
    substitute,
    symbol,
    symbols,
)


def narrow(x: Size, sizes: Mapping[str, Size]) -> Size:
    """x, simplified for axes that run from 0 to their sizes: (i*n + j) // n is i when j < n."""
    if isinstance(x, int) or all(
        type(a) is Symbol and sizes.get(a.name) != 1 for m, _ in x.terms for a, _ in m
    ):
        return x
    return _mapped(x, lambda a: _symbol(a, sizes), lambda a: _apply(a, sizes))


def _mapped(
    x: Size, of_symbol: Callable[[Symbol], Size], of_apply: Callable[[Apply], Size]
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


def _apply(atom: Apply, sizes: Mapping[str, Size]) -> Size:
    left, right = narrow(atom.left, sizes), narrow(atom.right, sizes)
    if atom.function not in ("//", "%"):
        return call(atom.function, left, right)
    quotient, rest = split_terms(left, right)
    if inside(rest, right, sizes):
        return quotient if atom.function == "//" else rest
    return call(atom.function, left, right)


def rejoined(x: Size) -> Size:
    """x, in which n*(a // n) + a % n is a."""
    total = _mapped(x, lambda a: symbol(a.name), _rejoined_inside)
    for monomial, factor in () if isinstance(total, int) else total.terms:
        match monomial:
            case ((Apply("%", a, n), 1),):
                rest = total - (a % n) * factor - (a // n) * n * factor
                if _length(rest) == _length(total) - 2:
                    return rejoined(rest + a * factor)
    return total


def _rejoined_inside(atom: Apply) -> Size:
    return call(atom.function, rejoined(atom.left), rejoined(atom.right))


def _length(x: Size) -> int:
    """How many terms a sum has."""
    return int(x != 0) if isinstance(x, int) else len(x.terms)


def inside(x: Size, limit: Size, sizes: Mapping[str, Size]) -> bool:
    """Whether 0 <= x < limit for all values of the axes."""
    low, high = extremes(x, sizes)
    return bounds(low)[0] >= 0 and bounds(limit - high)[0] > 0


def extremes(x: Size, sizes: Mapping[str, Size]) -> tuple[Size, Size]:
    """The smallest and largest value of x over its axes, term by term."""
    if isinstance(x, int):
        return x, x
    low: Size = 0
    high: Size = 0
    for monomial, factor in x.terms:
        term: Size = Dim(((monomial, factor),)) if monomial else factor
        axes = {a for a in symbols(term) if a in sizes}
        least = substitute(term, dict.fromkeys(axes, 0))
        most = substitute(term, {a: sizes[a] - 1 for a in axes})
        low, high = (low + least, high + most) if factor > 0 else (low + most, high + least)
    return low, high
