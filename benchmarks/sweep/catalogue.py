"""All cases, and how many there must be."""

from __future__ import annotations

from sweep import elementwise, folds, movement, order, products
from sweep.candidates import candidates
from sweep.case import Case


def all_cases() -> list[Case]:
    """Every case, in the order of the families."""
    families = (elementwise, folds, order, products, movement)
    found = [c for f in families for c in f.cases()]
    names = [str(c) for c in found]
    twice = {n for n in names if names.count(n) > 1}
    assert not twice, twice
    return found


def with_candidates() -> list[Case]:
    """Every case, and then the other schedules that are tried."""
    found = all_cases()
    return [*found, *candidates(found)]
