"""The timeline of one run of a program: when its steps ran, and what loop bodies did meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tessera.inspect.page_runs import TimedRuns, name_of
from tessera.inspect.profile_loop import LoopRan, StepwiseProgram
from tessera.inspect.profile_program import WatchedProgram
from tessera.inspect.profile_record import Noted
from tessera.ir.schedule.ir import HostCall, Step
from tessera.runtime.stamps import BUSY, FIRST, LAST, RUNS

# (program, name of the step, begin, end, threads that were busy)
Span = tuple[WatchedProgram | StepwiseProgram, str, int, int, float]

_MOST = 3000  # spans of a row, beyond which a page would be slow to open


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
    timed: TimedRuns, top: Any, programs: Mapping[int, int], numbers: Sequence[Mapping[str, int]]
) -> dict[str, Any]:  # fmt: skip
    """The run of the top program that is in the middle by its time, in nanoseconds from its begin.

    A row is a program; a span is [step, begin, end, threads that were busy on average].  The number of a
    program on the page is found by the identity of its executable.
    """
    kinds: dict[str, Callable[[Any], Iterator[Span]]] = {"program": _spans, "loop": _looped}
    ran = [x for x in timed.noted if x.kind in kinds]
    whole = [x for x in ran if x.kind == "program" and x.what[0].executable is top]
    if not whole:
        return {}
    whole.sort(key=lambda x: x.end - x.begin)
    chosen = whole[len(whole) // 2]
    rows: dict[int, list[list[float]]] = {}
    left: Counter[int] = Counter()
    for x in ran:
        if x.begin < chosen.begin or x.end > chosen.end:
            continue
        for made, name, begin, end, busy in kinds[x.kind](x.what):
            number = programs.get(id(made.executable))
            if number is not None:
                step = _number(numbers[number], name)
                rows.setdefault(number, []).append(
                    [step, begin - chosen.begin, end - chosen.begin, busy]
                )
        for made, count in _not_noted(x):
            left[programs.get(id(made.executable), -1)] += count
    return {
        "wall": chosen.end - chosen.begin, "usual": timed.seconds,
        "rows": [
            {"program": n, "spans": sorted(x, key=lambda s: s[1])[:_MOST],
             "left": max(0, len(x) - _MOST) + left[n]}
            for n, x in sorted(rows.items())
        ],
    }  # fmt: skip


def _number(numbers: Mapping[str, int], name: str) -> int:
    """The step of a launch: it has its name, and a number where there are several; -1 for a copy."""
    first, _, last = name.rpartition("_")
    return numbers.get(name, numbers.get(first, -1) if last.isdecimal() else -1)


def _spans(what: tuple[WatchedProgram, Any]) -> Iterator[Span]:
    """What the steps of a program did."""
    made, records = what
    for step, begin, end in made.spans(records):
        r = records[step]
        took = int(r[LAST]) - int(r[FIRST])
        busy = int(r[BUSY]) / took if took > 0 and r[RUNS] > 1 else 1.0
        yield made, name_of(made, step), begin, end, round(busy, 2)


def _looped(what: LoopRan) -> Iterator[Span]:
    """What the steps of a loop did, as far as it was noted one by one."""
    busy = {(i, s.step): s.busy for i, own in enumerate(what.steps) for s in own}
    for part, step, begin, end in what.log:
        made = what.parts[part].program
        yield made, name_of(made, step), begin, end, busy[part, step]


def _not_noted(x: Noted) -> Iterator[tuple[StepwiseProgram, int]]:
    """How many runs of steps of a loop were counted only."""
    if x.kind == "loop":
        seen = Counter(part for part, *_ in x.what.log)
        for i, part in enumerate(x.what.parts):
            yield part.program, max(0, sum(s.runs for s in x.what.steps[i]) - seen[i])
