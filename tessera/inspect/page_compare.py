"""Two pages side by side: what changed between them in steps, arithmetic, bytes, memory, time and code."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from tessera.core.errors import OperandError

Data = dict[str, Any]
Shown = tuple[Data, Data]  # at once, and when it is looked at
_SCRIPT = re.compile(r'<script type="application/json" id="([^"]+)">(.*?)</script>', re.DOTALL)
_CONTEXT = 3  # lines around a change
_MOST = 1500  # lines of a difference, beyond which a page would be slow to open


def programs_in(text: str, name: str) -> list[Shown]:
    """The programs of a page, read back from its text."""
    found: dict[int, Data] = {}
    try:
        for m in _SCRIPT.finditer(text):
            number, _, rest = m[1].partition(".")
            at, key = (int(number), rest) if rest else (0, number)
            found.setdefault(at, {})[key] = json.loads(m[2])
        shown = [(x.pop("data"), x) for _, x in sorted(found.items())]
        if not all({"steps", "kernels", "nodes", "schedule", "passes"} <= set(d) for d, _ in shown):
            shown = []
    except (ValueError, KeyError, TypeError, AttributeError):
        shown = []
    if not shown:
        raise OperandError(f"inspect: {name} is not a page of `tessera inspect`")
    return shown


def with_comparison(now: Sequence[Shown], before: Sequence[Shown], title: str) -> list[Shown]:
    """The programs of a page, each with what changed since the program of that name on another page; a page
    of one program is compared with the first of the other.
    """
    old = {data["name"]: (data, texts) for data, texts in reversed(before)}
    out = []
    for i, (data, texts) in enumerate(now):
        was = old.get(data["name"], before[0] if i == 0 and len(old) == 1 else None)
        if was is None:
            out.append((data | {"compared": ""}, texts))
            continue
        found = comparison(was, (data, texts)) | {"before": title}
        out.append((data | {"compared": title}, texts | {"comparison": found}))
    return out


def comparison(before: Shown, now: Shown) -> Data:
    """What changed between two programs: totals, steps in pairs, and the lines of each level."""
    a, b = before[0], now[0]
    pairs = list(_paired(_steps(a), _steps(b)))
    old, new = _figures(*before), _figures(*now)
    return {
        "totals": [[name, unit, old[name, unit], new[name, unit]] for name, unit in new],
        "rows": [_row(a, b, i, j) for i, j in pairs],
        "lines": {
            "source": _difference(_source(a), _source(b)),
            "graph": _difference(_graph(*before), _graph(*now)),
            "schedule": _difference(a["schedule"]["lines"], b["schedule"]["lines"]),
            "tile": _difference(_tiles(*before), _tiles(*now)),
        },
    }  # fmt: skip


def _figures(data: Data, texts: Data) -> dict[tuple[str, str], float]:
    steps = data["steps"]
    mixes = [texts[f"target{k['target']}"].get("mix") or {} for k in data["kernels"]]
    return {
        ("ops", ""): sum(n["kind"] != "input" for n in data["nodes"]),
        ("steps", ""): len(_steps(data)),
        ("kernels", ""): len(data["kernels"]),
        ("arithmetic", "flop"): sum(s["flops"] for s in steps),
        ("read and written", "B"): sum(s["bytes"] for s in steps),
        ("peak memory", "B"): (data.get("memory") or {}).get("peak", 0),
        ("instructions", ""): sum(sum(m.get("counts", {}).values()) for m in mixes),
        ("time of the steps", "s"): sum(s["seconds"] for s in steps),
    }


def _steps(data: Data) -> list[tuple[int, str]]:
    """The steps that do something, by number and name."""
    steps = enumerate(data["steps"])
    return [(i, s["label"] or s["name"]) for i, s in steps if s["kind"] != "view"]


def _paired(
    a: Sequence[tuple[int, str]], b: Sequence[tuple[int, str]]
) -> Iterator[tuple[int | None, int | None]]:
    """Steps of two programs in pairs: those of one name in order, then those that begin with one op."""
    match = difflib.SequenceMatcher(None, [n for _, n in a], [n for _, n in b], autojunk=False)
    for kind, i0, i1, j0, j1 in match.get_opcodes():
        if kind == "equal":
            yield from zip((i for i, _ in a[i0:i1]), (j for j, _ in b[j0:j1]), strict=True)
            continue
        left = list(b[j0:j1])
        for i, name in a[i0:i1]:
            alike = next((x for x in left if x[1].split()[0] == name.split()[0]), None)
            if alike is not None:
                left.remove(alike)
            yield i, None if alike is None else alike[0]
        yield from ((None, j) for j, _ in left)


def _row(a: Data, b: Data, i: int | None, j: int | None) -> Data:
    """A pair of steps, or one that only one program has, with what differs."""
    x, y = None if i is None else a["steps"][i], None if j is None else b["steps"][j]
    kind = "added" if x is None else "removed" if y is None else ""
    if x is not None and y is not None:
        kind = "same" if _nature(x) == _nature(y) else "changed"
    return {"kind": kind, "step": j, "before": _brief(x), "now": _brief(y)}


def _nature(s: Data) -> tuple[Any, ...]:
    """What a step is, but for names of buffers and for time."""
    return (s["label"] or s["name"], s["kind"], s["flops"], s["bytes"], _nest(s))


def _nest(s: Data) -> str:
    return " ".join(n["nest"] for n in s["nests"])


def _brief(s: Data | None) -> Data | None:
    if s is None:
        return None
    return {"name": s["label"] or s["name"], "flops": s["flops"], "bytes": s["bytes"],
            "seconds": s["seconds"], "nest": _nest(s)}  # fmt: skip


def _source(data: Data) -> list[str]:
    """The lines of the files that the program is from, the first of which is the user's."""
    return list(data["files"][0]["lines"]) if data.get("files") else []


def _graph(data: Data, texts: Data) -> list[str]:
    return list(texts[f"pass{len(data['passes']) - 1}"]["lines"])


def _tiles(data: Data, texts: Data) -> list[str]:
    lines: list[str] = []
    for k in range(len(data["kernels"])):
        lines += [*texts[f"tile{k}"]["lines"], ""]
    return lines


def _difference(a: Sequence[str], b: Sequence[str]) -> list[list[str]]:
    """Changed lines with some around them, as [kind, text]: e equal, d gone, a new, s left out."""
    if list(a) == list(b):
        return []
    out: list[list[str]] = []
    match = difflib.SequenceMatcher(None, a, b, autojunk=False)
    for number, group in enumerate(match.get_grouped_opcodes(_CONTEXT)):
        if number or group[0][3] > 0:
            out.append(["s", f"line {group[0][3] + 1}"])
        for kind, i0, i1, j0, j1 in group:
            if kind == "equal":
                out += [["e", x] for x in b[j0:j1]]
                continue
            out += [["d", x] for x in a[i0:i1]]
            out += [["a", x] for x in b[j0:j1]]
    left = len(out) - _MOST
    return out if left <= 0 else [*out[:_MOST], ["s", f"{left} more lines"]]
