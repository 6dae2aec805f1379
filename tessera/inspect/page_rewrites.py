"""The rewrites of operators on the page: every form with its cost and the law that led to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.algebra.laws.law import Law
from tessera.algebra.laws.log import Rewrite
from tessera.algebra.laws.show import Letters, shown
from tessera.algebra.operator import Operator
from tessera.inspect.page_data import SourcePlaces


def rewrites_data(log: Sequence[Rewrite], places: SourcePlaces) -> list[dict[str, Any]]:
    """The derivation of every operator that was simplified while the function was traced."""
    return [_one(r, places) for r in log]


def _one(r: Rewrite, places: SourcePlaces) -> dict[str, Any]:
    d, letters = r.derive(), Letters()
    forms: list[tuple[Operator, str, str, tuple[str, ...]]] = [(d.start, "", "", ())]
    for s in d.steps:
        forms.append(
            (s.whole, s.name, s.law.equation if isinstance(s.law, Law) else "", s.conditions)
        )
    rows = []
    for term, law, equation, conditions in forms:
        c = d.cost(term)
        rows.append({
            "term": shown(term, letters), "law": law, "equation": equation, "where": ", ".join(conditions),
            "flops": c.flops, "bytes": c.bytes, "launches": c.launches,
        })  # fmt: skip
    return {
        "place": places.number(r.location), "columns": d.columns, "terms": r.terms,
        "saturated": r.saturated, "rows": rows, "letters": list(letters.lines()),
    }  # fmt: skip
