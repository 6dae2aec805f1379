"""Traces: a profile in the trace event format that Perfetto and chrome://tracing open.

Spans are complete events ("X") nested inside each other on the track of their thread, memory is a counter
("C"), and names are metadata ("M"); times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tessera.inspect.profile_facts import RunMemory
from tessera.inspect.profile_rows import ProfileRow, TimeSpan

_PROCESS = 1  # the number of the only process of a trace
# Readers count whole nanoseconds and some cut what is left of them: 1.001 us would become 1000 ns, and an
# event end after the one that it lies in.  This much more, in nanoseconds, keeps every time what it is.
_MORE = 1e-3


def trace_events(
    spans: Sequence[TimeSpan], rows: Sequence[ProfileRow], memory: Sequence[RunMemory]
) -> dict[str, Any]:
    """The whole trace."""
    events = [*_names(spans), *(_complete(s, rows) for s in spans), *_counters(memory)]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _names(spans: Sequence[TimeSpan]) -> Iterator[dict[str, Any]]:
    yield _named("process_name", _track(0), "tessera")
    for thread, device in sorted({(s.thread, s.device) for s in spans}):
        name = device or ("main" if thread == 0 else f"thread {thread}")
        yield _named("thread_name", _track(thread), name)


def _named(what: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": _PROCESS, "tid": track, "args": {"name": name}}


def _complete(s: TimeSpan, rows: Sequence[ProfileRow]) -> dict[str, Any]:
    event: dict[str, Any] = {
        "ph": "X", "name": s.name, "cat": s.kind, "pid": _PROCESS, "tid": _track(s.thread),
        "ts": _us(s.begin), "dur": _us(s.end - s.begin),
    }  # fmt: skip
    if s.row >= 0:
        r = rows[s.row]
        event["args"] = {
            "flops": r.flops / len(r.runs), "bytes": r.bytes / len(r.runs),
            "lines": [x for x in r.lines if x],
            "program": r.program,
        }  # fmt: skip
    elif s.stack:
        event["args"] = {"called from": s.stack[-1]}
    return event


def _counters(memory: Sequence[RunMemory]) -> Iterator[dict[str, Any]]:
    for m in memory:
        for at, used in m.points:
            yield {
                "ph": "C", "name": f"memory of {m.program}", "pid": _PROCESS, "tid": _track(0),
                "ts": _us(at), "args": {"bytes": used},
            }  # fmt: skip


def _track(thread: int) -> int:
    """Readers take the thread of the process's number for its main one, and 0 for the same."""
    return _PROCESS + thread


def _us(nanoseconds: int) -> float:
    return (nanoseconds + _MORE) / 1e3
