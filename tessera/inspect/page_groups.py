"""Groups of a graph, few enough to be read: by module, function, kernel or part of a training step.

Modules and functions are stretches of the graph's own order, kernels and parts stand in the order in which
they run, so their picture has no cycles.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from tessera.inspect.page_layout import layered

FEW = 12  # ops of a graph that has groups
PHASES = ("forward", "backward", "update")
_MOST = 120  # groups of a picture
_LETTER, _SIDE, _LONGEST = 7.2, 22.0, 34
_ROWS, _APART = 14, 60.0  # layers of a column, and the room between columns
_Run = tuple[str, list[int]]
_ORDER = ("contraction", "control", "whole", "fold", "elementwise", "move", "constant")


def groupings(
    nodes: Sequence[dict[str, Any]],
    functions: Sequence[str],
    modules: Sequence[str] = (),
    steps: Sequence[str] = (),
) -> dict[str, list[dict[str, Any]]]:
    """The groups of a graph, with their places in the picture; none where the graph is small.

    By module, by function of the source, by kernel, and by the parts of a training step.
    """
    own = [i for i, n in enumerate(nodes) if n["kind"] != "input"]
    if len(own) < FEW:
        return {}
    out = {}
    if any(nodes[i].get("module") for i in own):
        names = [_part(modules[nodes[i]["module"]], nodes[i]["phase"]) for i in own]
        out["module"] = _placed(nodes, _shorter(own, names))
    out["function"] = _placed(nodes, _shorter(own, [_name(nodes[i], functions) for i in own]))
    if len({nodes[i].get("phase", 0) for i in own}) > 1:
        out["phase"] = _placed(nodes, _gathered(own, [nodes[i]["phase"] for i in own], PHASES))
    if steps:
        last = [max(nodes[i]["steps"], default=-1) for i in own]
        out["kernel"] = _placed(nodes, _joint(_gathered(own, last, steps)))
    return out


def _part(module: str, phase: int) -> str:
    """A module in a part of a step: its name, and which part unless it is the forward one."""
    return f"{module} {PHASES[phase]}".strip() if phase else module


def _gathered(own: Sequence[int], keys: Sequence[int], names: Sequence[str]) -> list[_Run]:
    """The nodes of one key together, in the order of the keys; what has none belongs to the first."""
    found: dict[int, list[int]] = {}
    for i, k in zip(own, keys, strict=True):
        found.setdefault(max(k, 0), []).append(i)
    return [(names[k], found[k]) for k in sorted(found)]


def _shorter(own: Sequence[int], names: Sequence[str]) -> list[_Run]:
    """Runs of one name, by names of fewer parts where there are too many to be read."""
    runs = _runs(own, names)
    for depth in range(max((x.count(".") for x in names), default=0), 0, -1):
        if len(runs) <= _MOST:
            return runs
        runs = _runs(own, [_cut(x, depth) for x in names])
    return _joint(runs)


def _cut(name: str, depth: int) -> str:
    path, _, phase = name.partition(" ")
    return " ".join(x for x in (".".join(path.split(".")[:depth]), phase) if x)


def _joint(runs: list[_Run]) -> list[_Run]:
    """Neighbours together, until there are few enough."""
    while len(runs) > _MOST:
        pairs = [runs[i : i + 2] for i in range(0, len(runs), 2)]
        runs = [(_joined([name for name, _ in p]), [n for _, ns in p for n in ns]) for p in pairs]
    return runs


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


def _short(name: str) -> str:
    """The end of a path that says which one it is: layers.3.up of model.layers.3.up, up of mlp.up."""
    path, _, phase = name.partition(" ")
    if "," in name or "." not in path:
        return _clipped(name)
    parts = path.split(".")
    numbered = [i for i, x in enumerate(parts) if x.isdecimal()]
    begin = max(numbered[-1] - 1, 0) if numbered else len(parts) - 1
    return _clipped(f"{'.'.join(parts[begin:])} {phase}".strip())


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


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
        # Groups of one kernel or part may read each other both ways: an edge goes down.
        operands.append(list(dict.fromkeys(m for m in read if m < g)))
    labels = [f"{_short(name)} · {len(ns)}" for name, ns in runs]
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
