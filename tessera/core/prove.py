"""Proofs about positions: whether integer polynomials can satisfy inequalities together.

A fact is a size that is at least 0.  What is not a polynomial (quotients, remainders, minima) gets the
inequalities that define it; each monomial is then a variable of its own, and the linear system is
refuted exactly, with rational pivots, rounding of constants and branches over integers.  A refutation
is a proof; "not refuted" says nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache

from tessera.core.dims import (
    Atom,
    Dim,
    Monomial,
    Size,
    SizeFunction,
    Symbol,
    bounds,
    call,
    symbol,
    symbols,
    times,
)

Row = dict[Monomial, int]  # coefficients; the empty monomial is the constant

_SPLITS = 4  # minima and maxima that are taken apart
_BRANCHES = 3  # integer branches, one below the other
_PIVOTS = 400  # bounds a proof's time, not measured: a proof that needs more fails
_ROWS = 120  # inequalities; products stop there
_ALL = 1 << 10  # hops: every fact that has to do with a size


def prove(facts: Sequence[Size], e: Size) -> bool:
    """Whether e is at least 0 wherever every fact is."""
    if bounds(e)[0] >= 0 or _is_natural(e):
        return True
    counters = {s for s in symbols(e) if s.startswith("_")}
    tried: list[Size] | None = None
    # Few facts refute quickly, where they refute at all: those of the same loops come first.
    for near in (
        [f for f in facts if symbols(f) & counters],
        *(_about(facts, e, hops) for hops in (1, 2, _ALL)),
    ):
        if near != tried and refute([*near, -1 - e]):
            return True
        tried = near
    return False


def refute(facts: Sequence[Size]) -> bool:
    """Whether no integers make every fact at least 0."""
    known = frozenset(normal(f) for f in facts)
    return _refute(known, 0, 0) or _refute(known, _SPLITS, _BRANCHES)


def _about(facts: Sequence[Size], e: Size, hops: int) -> list[Size]:
    """The facts that share names with e, directly or through at most so many others."""
    names, left = set(symbols(e)), list(facts)
    found: list[Size] = []
    while hops and (near := [f for f in left if symbols(f) & names]):
        left = [f for f in left if not symbols(f) & names]
        names.update(*map(symbols, near))
        found += near
        hops -= 1
    return found


def _is_natural(e: Size) -> bool:
    """Whether e is a sum of terms none of which can be negative."""
    return all(c >= 0 and all(_natural(a) for a, _ in m) for m, c in _row(e).items())


@lru_cache(maxsize=1 << 14)
def _refute(facts: frozenset[Size], splits: int, branches: int) -> bool:
    """Refute with so many minima and maxima being either side, one after the other."""
    if any(bounds(f)[1] < 0 for f in facts):
        return True
    known = sorted((f for f in facts if bounds(f)[0] < 0), key=str)
    atom = _choice(known) if splits else None
    if atom is None:
        rows = [_row(f) for f in known]
        system = [*rows, *_definitions(rows)]
        system += _products(system)
        return _refute_linear(*_numbered(system), branches)
    sign = 1 if atom.function == "max" else -1
    for mine, other in ((atom.left, atom.right), (atom.right, atom.left)):
        case = [normal(_replaced(f, atom, mine)) for f in known]
        case.append(normal(sign * (mine - other)))
        if not _refute(frozenset(case), splits - 1, branches):
            return False
    return True


def _choice(facts: Sequence[Size]) -> SizeFunction | None:
    """A minimum or maximum without another inside, one that most facts have."""
    found: Counter[SizeFunction] = Counter()
    for f in facts:
        for a in _atoms([_row(f)]):
            if isinstance(a, SizeFunction) and a.function in ("min", "max"):
                inner = _atoms([_row(a.left), _row(a.right)])
                if not any(
                    isinstance(x, SizeFunction) and x.function in ("min", "max") for x in inner
                ):
                    found[a] += 1
    return max(found, key=lambda a: (found[a], str(a))) if found else None


def _replaced(x: Size, atom: SizeFunction, value: Size) -> Size:
    """x with a value in the place of an atom."""
    if isinstance(x, int):
        return x

    def at(a: Atom) -> Size:
        if a == atom:
            return value
        if isinstance(a, Symbol):
            return symbol(a.name)
        return call(a.function, _replaced(a.left, atom, value), _replaced(a.right, atom, value))

    return _mapped(x, at)


@lru_cache(maxsize=1 << 14)
def normal(x: Size) -> Size:
    """x, whose remainders by numbers are quotients: a % 4 is a - 4*(a // 4)."""
    return x if isinstance(x, int) else _mapped(x, _normal_atom)


def _normal_atom(a: Atom) -> Size:
    if isinstance(a, Symbol):
        return symbol(a.name)
    left, right = normal(a.left), normal(a.right)
    if a.function != "%" or not isinstance(right, int) or right < 1:
        return call(a.function, left, right)
    return left - right * (left // right)


def _mapped(x: Dim, at: Callable[[Atom], Size]) -> Size:
    """x with other values of its atoms."""
    total: Size = 0
    for monomial, factor in x.terms:
        term: Size = factor
        for atom, power in monomial:
            value = at(atom)
            for _ in range(power):
                term = term * value
        total = total + term
    return total


def _row(x: Size) -> Row:
    return {(): x} if isinstance(x, int) else dict(x.terms)


def _atoms(rows: Iterable[Row]) -> Iterator[Atom]:
    """The atoms of the rows, and those inside of them, each once."""
    seen: set[Atom] = set()
    stack = [a for r in rows for m in r for a, _ in m]
    while stack:
        a = stack.pop()
        if a in seen:
            continue
        seen.add(a)
        yield a
        if isinstance(a, SizeFunction):
            inner = [x for x in (a.left, a.right) if isinstance(x, Dim)]
            stack += [b for x in inner for m, _ in x.terms for b, _ in m]


def _definitions(rows: Sequence[Row]) -> list[Row]:
    """What holds of every atom by its meaning."""
    out: list[Size] = []
    for a in _atoms(rows):
        me = Dim(((((a, 1),), 1),))
        if isinstance(a, Symbol):
            out.append(me if a.name.startswith("_") else me - 1)
        elif a.function in ("min", "max"):
            sign = 1 if a.function == "max" else -1
            out += [sign * (me - a.left), sign * (me - a.right)]
        elif bounds(a.right)[0] >= 1:
            out += _division(a, me)
    return [_row(f) for f in out]


def _division(a: SizeFunction, me: Dim) -> list[Size]:
    """b q <= a < b q + b, for a quotient or for the quotient that a remainder belongs to."""
    if a.function == "//":
        left = a.left - a.right * me
        return [left, a.right - 1 - left]
    quotient = Dim(((((SizeFunction("//", a.left, a.right), 1),), 1),))
    whole = a.left - a.right * quotient
    return [me, a.right - 1 - me, whole - me, me - whole]


def _products(rows: Sequence[Row]) -> list[Row]:
    """Facts times an atom that is not negative, where that gives monomials which the facts have."""
    high = {m for r in rows for m in r if sum(p for _, p in m) > 1}
    out: list[Row] = []
    for m in sorted(high, key=str):
        for a, _ in m:
            if not _natural(a):
                continue
            rest = _without(m, a)
            for r in rows:
                if rest in r and len(rows) + len(out) < _ROWS:
                    out.append({times(n, ((a, 1),)): c for n, c in r.items()})
    return out


def _without(m: Monomial, a: Atom) -> Monomial:
    return tuple((b, p - (b == a)) for b, p in m if p > (b == a))


def _natural(a: Atom) -> bool:
    """Whether an atom is never negative."""
    if isinstance(a, Symbol):
        return True
    if a.function == "%":
        return bounds(a.right)[0] >= 1
    return bounds(Dim(((((a, 1),), 1),)))[0] >= 0


# Linear systems: a monomial is a number, 0 for the constant, so that what follows hashes no polynomials.

Line = dict[int, int]  # coefficients
Natural = Sequence[bool]  # of each variable, whether it is never negative


def _numbered(rows: Sequence[Row]) -> tuple[list[Line], Natural]:
    """The rows with numbers for their monomials, in the order in which they come."""
    number: dict[Monomial, int] = {(): 0}
    lines = [{number.setdefault(m, len(number)): c for m, c in r.items()} for r in rows]
    return lines, [all(_natural(a) for a, _ in m) for m in number]


def _refute_linear(rows: Sequence[Line], natural: Natural, branches: int) -> bool:
    rows = _eliminated(rows, natural)
    return _infeasible([*rows, *_rounded(rows, natural)], natural, branches)


def _tight(r: Line) -> Line:
    """The same fact with the smallest coefficients: 4 q - 4 j - 1 >= 0 is q - j - 1 >= 0."""
    g = math.gcd(*[c for m, c in r.items() if m])
    return {m: c // g for m, c in r.items()} if g > 1 else r


def _rounded(rows: Sequence[Line], natural: Natural) -> Iterator[Line]:
    """Facts without terms that only lower them, where what is left can be rounded.

    16 j - 4 q - i - 1 >= 0 for i >= 0 gives 4 j - q - 1 >= 0.
    """
    for r in rows:
        for g in {abs(c) for m, c in r.items() if m and abs(c) > 1}:
            kept = {m: c for m, c in r.items() if not m or c % g == 0}
            dropped = [(m, c) for m, c in r.items() if m not in kept]
            if dropped and all(c < 0 and natural[m] for m, c in dropped):
                yield _tight(kept)


def _eliminated(rows: Sequence[Line], natural: Natural) -> list[Line]:
    """The rows with variables that an equation gives put in, so that what is left can be rounded.

    x = 2 q and x = 2 r + 1 become 2 q - 2 r - 1 = 0, which rounding refutes.
    """
    rows = [_tight({m: c for m, c in r.items() if c}) for r in rows]
    keys = [frozenset(r.items()) for r in rows]
    used: set[int] = set()
    while (found := _equation(rows, keys, used)) is not None:
        r, m = found
        used.add(m)
        value = {n: -c * r[m] for n, c in r.items() if n != m}  # what m is equal to
        made: list[tuple[Line, frozenset[tuple[int, int]]]] = []
        for x, key in zip(rows, keys, strict=True):
            if m in x:
                x = _tight(_put(x, m, value))
                key = frozenset(x.items())
            made.append((x, key))
        if natural[m]:
            made.append((value, frozenset(value.items())))
        kept = [(x, key) for x, key in made if any(x) or x.get(0, 0) < 0]
        rows, keys = [x for x, _ in kept], [key for _, key in kept]
    return list(rows)


def _equation(
    rows: Sequence[Line], keys: Sequence[frozenset[tuple[int, int]]], used: set[int]
) -> tuple[Line, int] | None:
    """A row whose opposite is a row too, and a variable of it that is not used, whose coefficient is 1 or
    -1.
    """
    there = set(keys)
    for r in rows:
        if frozenset([(n, -c) for n, c in r.items()]) in there:
            for m, c in r.items():
                if m and abs(c) == 1 and m not in used:
                    return r, m
    return None


def _put(r: Line, m: int, value: Line) -> Line:
    """A row with a value in the place of a variable."""
    out = {n: c for n, c in r.items() if n != m}
    for n, c in value.items():
        out[n] = out.get(n, 0) + r[m] * c
    return {n: c for n, c in out.items() if c}


def _infeasible(rows: Sequence[Line], natural: Natural, branches: int) -> bool:
    rows = [_tight(r) for r in rows]
    point = _feasible(rows, natural)
    if point is None:
        return True
    if branches == 0:
        return False
    broken = next((m for m, v in point.items() if v.denominator > 1), None)
    if broken is None:
        return False
    low = math.floor(point[broken])
    return _infeasible([*rows, {broken: -1, 0: low}], natural, branches - 1) and _infeasible(
        [*rows, {broken: 1, 0: -low - 1}], natural, branches - 1
    )


def _feasible(rows: Sequence[Line], natural: Natural) -> Mapping[int, Fraction] | None:
    """A rational point where every row is at least 0, or None when there is none.

    The dual simplex method without an objective, by Bland's rule: each row is a slack variable
    that must not be negative, written in variables that are 0.  A negative one that nothing can
    raise refutes the system.  After too many pivots some point is claimed, which proves nothing.
    """
    columns: list[tuple[int, int]] = []
    for m in dict.fromkeys(m for r in rows for m in r if m):
        columns.append((m, 1))
        if not natural[m]:
            columns.append((m, -1))
    number = {c: i for i, c in enumerate(columns)}
    table: dict[int, Scaled] = {}
    for i, r in enumerate(rows):
        made = {-1: r.get(0, 0)}
        for m, c in r.items():
            if m and c:
                made[number[m, 1]] = c
                if not natural[m]:
                    made[number[m, -1]] = -c
        table[len(columns) + i] = 1, made
    for _ in range(_PIVOTS):
        low = min([v for v, (_, r) in table.items() if r[-1] < 0], default=None)
        if low is None:
            break
        enter = min([j for j, c in table[low][1].items() if j >= 0 and c > 0], default=None)
        if enter is None:
            return None
        _pivot(table, low, enter)
    point = {m: Fraction(0) for m, _ in columns}
    for (m, sign), j in number.items():
        if j in table:
            scale, line = table[j]
            point[m] += sign * Fraction(line[-1], scale)
    return point


# scale * variable = the sum of these coefficients of other variables; -1 is the constant
Scaled = tuple[int, Line]


def _pivot(table: dict[int, Scaled], leave: int, enter: int) -> None:
    """Exchange a variable that is written in others with one of those."""
    scale, row = table.pop(leave)
    by = row.pop(enter)
    solved = {j: -c for j, c in row.items()}
    solved[leave] = scale
    for v, (k, r) in table.items():
        c = r.pop(enter, 0)
        if not c:
            continue
        out = {j: by * d for j, d in r.items()}
        for j, d in solved.items():
            total = out.get(j, 0) + c * d
            if total or j == -1:
                out[j] = total
            else:
                out.pop(j, None)
        g = math.gcd(k * by, *out.values())
        table[v] = k * by // g, {j: d // g for j, d in out.items()}
    g = math.gcd(by, *solved.values())
    table[enter] = by // g, {j: d // g for j, d in solved.items()}
