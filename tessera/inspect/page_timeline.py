"""The timeline of one run of a program: when its steps ran, and what loop bodies did meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.compile.artifact import KernelCall
from tessera.inspect.profile_program import WatchedProgram
from tessera.inspect.profile_record import Noted
from tessera.ir.schedule.ir import HostCall, Step
from tessera.runtime.stamps import BUSY, FIRST, LAST, RUNS

_MOST = 3000  # spans of a row, beyond which a page would be slow to open


def name_of(made: WatchedProgram, step: int) -> str:
    """What a step of a run is called: a kernel by its name, a host call by the first buffer it writes."""
    access = made.steps[step]
    is_host = not any(c.name == access.name for c in made.image.steps if isinstance(c, KernelCall))
    return f"={access.writes[0]}" if is_host and access.writes else access.name


def numbers_of(steps: Sequence[Step]) -> dict[str, int]:
    """The numbers of the steps of a schedule by the names that `name_of` gives."""
    out = {}
    for i, s in enumerate(steps):
        if isinstance(s, HostCall):
            out.update({f"={s.results[0]}": i} if s.results else {})
        else:
            out[s.name] = i
    return out


def timeline_of(
    noted: Sequence[Noted], top: Any, programs: Mapping[int, int], numbers: Sequence[Mapping[str, int]]
) -> dict[str, Any]:  # fmt: skip
    """The run of the top program that is in the middle by its time, in nanoseconds from its begin.

    A row is a program; a span is [step, begin, end, threads that were busy on average].  The number of a
    program on the page is found by the identity of its executable.
    """
    ran = [x for x in noted if x.kind == "program" and id(x.what[0].executable) in programs]
    whole = sorted((x for x in ran if x.what[0].executable is top), key=lambda x: x.end - x.begin)
    if not whole:
        return {}
    chosen = whole[len(whole) // 2]
    inside = [x for x in ran if chosen.begin <= x.begin and x.end <= chosen.end]
    rows: dict[int, list[list[float]]] = {}
    for x in inside:
        number = programs[id(x.what[0].executable)]
        rows.setdefault(number, []).extend(
            [_number(numbers[number], name), begin - chosen.begin, end - chosen.begin, busy]
            for name, begin, end, busy in _spans(*x.what)
        )
    return {
        "wall": chosen.end - chosen.begin,
        "rows": [
            {"program": n, "spans": sorted(x, key=lambda s: s[1])[:_MOST], "left": max(0, len(x) - _MOST)}
            for n, x in sorted(rows.items())
        ],
    }  # fmt: skip


def _number(numbers: Mapping[str, int], name: str) -> int:
    """The step of a launch: it has its name, and a number where there are several; -1 for a copy."""
    first, _, last = name.rpartition("_")
    return numbers.get(name, numbers.get(first, -1) if last.isdecimal() else -1)


def _spans(made: WatchedProgram, records: Any) -> list[tuple[str, int, int, float]]:
    out = []
    for step, begin, end in made.spans(records):
        r = records[step]
        took = int(r[LAST]) - int(r[FIRST])
        busy = int(r[BUSY]) / took if took > 0 and r[RUNS] > 1 else 1.0
        out.append((name_of(made, step), begin, end, round(busy, 2)))
    return out
