"""Groups of a large graph: runs of ops of one function of the source, few enough to be read in one picture.

Groups are stretches of the graph's own order, so their picture has no cycles.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from tessera.inspect.page_layout import layered

MANY = 300  # nodes: a smaller graph is shown whole
_MOST = 120  # groups of a picture
_LETTER, _SIDE = 7.2, 22.0
_ROWS, _APART = 14, 60.0  # layers of a column, and the room between columns
_ORDER = ("contraction", "control", "whole", "fold", "elementwise", "move", "constant")


def groups_of(nodes: Sequence[dict[str, Any]], functions: Sequence[str]) -> list[dict[str, Any]]:
    """The groups of a graph, with their places in the picture; none where the graph is small."""
    own = [i for i, n in enumerate(nodes) if n["kind"] != "input"]
    if len(own) <= MANY:
        return []
    runs = _runs(own, [_name(nodes[i], functions) for i in own])
    if len(runs) > _MOST:
        runs = _runs(own, [_name(nodes[i], functions).partition(".")[0] for i in own])
    while len(runs) > _MOST:  # neighbours together
        pairs = [runs[i : i + 2] for i in range(0, len(runs), 2)]
        runs = [(_joined([name for name, _ in p]), [n for _, ns in p for n in ns]) for p in pairs]
    return _placed(nodes, runs)


_Run = tuple[str, list[int]]


def _name(n: dict[str, Any], functions: Sequence[str]) -> str:
    return functions[n["place"]] if n["place"] >= 0 else ""


def _runs(own: Sequence[int], names: Sequence[str]) -> list[_Run]:
    """Neighbours of one name together; a node whose line is not known belongs to those before it."""
    filled, last = [], ""
    for name in names:
        last = name or last
        filled.append(last)
    found = groupby(zip(filled, own, strict=True), key=lambda x: x[0])
    return [(name or "program", [i for _, i in run]) for name, run in found]


def _joined(names: Sequence[str]) -> str:
    parts = list(dict.fromkeys(p for n in names for p in n.split(", ")))
    return ", ".join(parts[:2]) + (", …" if len(parts) > 2 and parts[1] != "…" else "")


def _folded(spots: Sequence[tuple[float, int]], widths: Sequence[float]) -> list[tuple[float, int]]:
    """A tall picture in columns, from the left to the right, so that it fits a screen."""
    columns: dict[int, list[float]] = {}  # the left and the right end of each
    for (x, y), w in zip(spots, widths, strict=True):
        ends = columns.setdefault(y // _ROWS, [x - w / 2, x + w / 2])
        ends[:] = min(ends[0], x - w / 2), max(ends[1], x + w / 2)
    starts, at = {}, 0.0
    for c in sorted(columns):
        starts[c], at = at - columns[c][0], at + columns[c][1] - columns[c][0] + _APART
    return [(x + starts[y // _ROWS], y % _ROWS) for x, y in spots]


def _placed(nodes: Sequence[dict[str, Any]], runs: Sequence[_Run]) -> list[dict[str, Any]]:
    owner = {i: g for g, (_, ns) in enumerate(runs) for i in ns}
    operands = []
    for g, (_, ns) in enumerate(runs):
        read = (owner[m] for i in ns for m in nodes[i]["in"] if m in owner)
        operands.append(list(dict.fromkeys(m for m in read if m != g)))
    labels = [f"{name.rpartition('.')[2]} · {len(ns)}" for name, ns in runs]
    widths = [_LETTER * len(x) + _SIDE for x in labels]
    spots = _folded(layered(operands, widths), widths)
    out = []
    for (name, ns), label, given, w, (x, y) in zip(
        runs, labels, operands, widths, spots, strict=True
    ):
        kinds = {nodes[i]["kind"] for i in ns}
        kind = next((k for k in _ORDER if k in kinds), "move")
        out.append({
            "op": label, "name": name, "kind": kind, "in": given, "nodes": ns, "x": round(x, 1), "y": y,
            "w": round(w, 1),
        })  # fmt: skip
    return out
