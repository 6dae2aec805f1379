"""tessera.profile: where the time and the memory of a block go, kernel by kernel and line by line.

    with tessera.profile() as p:
        step(params, batch)
    print(p)

While a profile is on, programs run with the same kernels on the same threads, which note their times; when
none is, nothing is asked and nothing is noted.
"""

from __future__ import annotations

import json
import linecache
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from tessera.core.blame import wanting
from tessera.core.errors import OperandError, located
from tessera.inspect.files import write_whole
from tessera.inspect.plots import roofline
from tessera.inspect.profile_compare import Comparison, compared
from tessera.inspect.profile_facts import Held, RunMemory
from tessera.inspect.profile_flame import flame_graph
from tessera.inspect.profile_loop import LoopRan
from tessera.inspect.profile_record import Noted, Recorder
from tessera.inspect.profile_rows import (
    PARTS,
    ProfileRow,
    Resolved,
    SourceLine,
    TimeSpan,
    by_line,
    self_times,
)
from tessera.inspect.profile_trace import trace_events
from tessera.inspect.profile_tracks import tracks_page
from tessera.inspect.work import StepWork
from tessera.ir.schedule.memory import readable
from tessera.tune.roofline import peaks_here

VERSION = 1  # of the file of a profile
# What the time of a profile is made of, and the kinds of spans whose own time it is.
TOTALS = {
    "kernels": ("kernel", "launch"), "host calls and copies": ("host", "copy"),
    "between kernels": ("program", "loop"), "calling": ("call",), "single ops": ("op", "references"),
    "tracing": ("trace",), "launching on a GPU": ("enqueue",), "waiting for data": ("data",),
    "compiling": ("compile",), "tuning": ("tune",), "profiler": ("profiler",),
}  # fmt: skip


class Profile:
    """What ran while a profile was on; prints as tables."""

    def __init__(self, recorder: Recorder | None = None) -> None:
        self._recorder = recorder

    @cached_property
    def _resolved(self) -> Any:
        if self._recorder is None or not self._recorder.end:
            raise located(
                OperandError("profile: the profile is still on; look at it after its block")
            )
        return Resolved(self._recorder)

    @property
    def programs(self) -> list[Any]:
        """The watched programs that ran and the times of their steps, as they were noted."""
        assert self._recorder is not None
        return [x.what for x in self._recorder.noted if x.kind == "program"]

    @property
    def loops(self) -> list[LoopRan]:
        """What loops did whose steps ran without Python."""
        assert self._recorder is not None
        return [x.what for x in self._recorder.noted if x.kind == "loop"]

    @property
    def noted(self) -> list[Noted]:
        """Everything that took time, as it was noted."""
        assert self._recorder is not None
        return self._recorder.noted

    @cached_property
    def wall(self) -> float:
        """Seconds from the beginning of the block to its end."""
        assert self._recorder is not None
        return (self._recorder.end - self._recorder.begin) / 1e9

    @cached_property
    def spans(self) -> list[TimeSpan]:
        """Everything that took time, by thread and begin."""
        found: list[TimeSpan] = self._resolved.spans
        return found

    @cached_property
    def kernels(self) -> list[ProfileRow]:
        """Kernels, host calls, copies and launches, the longest first."""
        return sorted(self._rows, key=lambda r: -r.seconds)

    @cached_property
    def _rows(self) -> list[ProfileRow]:
        """The rows in the order of their numbers."""
        found: list[ProfileRow] = self._resolved.rows
        return found

    @cached_property
    def memory(self) -> list[RunMemory]:
        """The memory of the last run of each program."""
        found: list[RunMemory] = self._resolved.memory
        return found

    @cached_property
    def lines(self) -> list[SourceLine]:
        """Lines of the user's source with their part of the kernels, the longest first."""
        return by_line(self._rows)

    @cached_property
    def totals(self) -> dict[str, float]:
        """Seconds by what the host spent them on; `python` is all that is not Tessera's, on the first
        thread.
        """
        own = [
            (s, t) for s, t in zip(self.spans, self_times(self.spans), strict=True) if not s.device
        ]
        found = {
            name: sum(t for s, t in own if s.kind in kinds) / 1e9 for name, kinds in TOTALS.items()
        }
        first = sum(t for s, t in own if s.thread == 0) / 1e9
        return {**found, "python": self.wall - first}

    @cached_property
    def busy(self) -> dict[str, float]:
        """Seconds that the kernels of each GPU took, while the host did what `totals` say."""
        found: dict[str, float] = {}
        for s in self.spans:
            if s.device:
                found[s.device] = found.get(s.device, 0.0) + (s.end - s.begin) / 1e9
        return found

    @property
    def total(self) -> float:
        """Seconds that Tessera spent, on everything but the Python around it."""
        return sum(s for name, s in self.totals.items() if name != "python")

    def compare(self, other: Profile) -> Comparison:
        """This profile beside an earlier one."""
        return compared(other._rows, self._rows)

    # Files

    def trace(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """A trace in the format of Chrome and Perfetto; written to a file if one is named."""
        made = trace_events(self.spans, self._rows, self.memory)
        if path is not None:
            _written(path, json.dumps(made))
        return made

    def flame(self, path: str | os.PathLike[str] | None = None) -> str:
        """A flame graph as a page of its own; written to a file if one is named."""
        made = flame_graph(self.spans, self.wall)
        if path is not None:
            _written(path, made)
        return made

    def timeline(self, path: str | os.PathLike[str] | None = None, title: str = "timeline") -> str:
        """A page of what ran when, by thread, stream and device; written to a file if one is named."""
        made = tracks_page(self.spans, title)
        if path is not None:
            _written(path, made)
        return made

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "version": VERSION, "wall": self.wall, "totals": self.totals, "busy": self.busy,
            "kernels": [_plain(r) for r in self._rows],
            "lines": [asdict(x) for x in self.lines],
            "spans": [asdict(s) for s in self.spans],
            "memory": [asdict(m) for m in self.memory],
        }  # fmt: skip

    def save(self, path: str | os.PathLike[str]) -> None:
        """Keep the profile in a file, to compare with it later."""
        _written(path, json.dumps(self.as_dict()))

    # Text

    def table(self, top: int = 20) -> str:
        """The totals, and the longest kernels and lines."""
        parts = [
            self._head(),
            _kernel_table(self.kernels[:top], self.wall),
            _line_table(self.lines[:top]),
        ]
        if self.memory:
            m = max(self.memory, key=lambda m: m.peak)
            parts.append(f"peak memory {readable(m.peak)} beside the inputs, in {m.program}")
        return "\n\n".join(x for x in parts if x)

    def _head(self) -> str:
        shown = [
            f"{name} {t * 1e3:.3f} ms ({t / self.wall:.0%})"
            for name, t in self.totals.items()
            if t > 0
        ]
        busy = [
            f"; {d} was busy {t * 1e3:.3f} ms ({t / self.wall:.0%})" for d, t in self.busy.items()
        ]
        return f"{self.wall * 1e3:.3f} ms: {', '.join(shown)}{''.join(busy)}"

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        if self._recorder is not None and not self._recorder.end:
            return "<profile: still on>"
        first = f", the longest {self.kernels[0].name}" if self.kernels else ""
        return f"<profile: {self.wall * 1e3:.3f} ms, {len(self.kernels)} kernels{first}; print it for tables>"

    def plot(self, ax: Any = None) -> Any:
        """Draw the kernels below the roofline of this machine, with matplotlib; returns the axes."""
        return roofline(self.kernels, peaks_here(), ax)

    def _repr_html_(self) -> str:
        """The flame graph above the tables, for a notebook."""
        page = escape(self.flame(), quote=True)
        return (
            f'<iframe srcdoc="{page}" style="width:100%;height:24em;border:0"></iframe>'
            f"<pre>{escape(self.table())}</pre>"
        )


def _written(path: str | os.PathLike[str], text: str) -> None:
    try:
        write_whole(path, text)
    except OSError as e:
        raise located(OperandError(f"profile: {path} cannot be written ({e.strerror})")) from None


def _plain(r: ProfileRow) -> dict[str, Any]:
    return {
        **asdict(r), "seconds": r.seconds, "flops": r.flops, "bytes": r.bytes,
        "fraction": r.fraction,
    }  # fmt: skip


def _kernel_table(rows: Sequence[ProfileRow], wall: float) -> str:
    if not rows:
        return ""
    cells = [("ms", "share", "launches", "GF/s", "GB/s", "roof", "bound", "kernel", "what", "line")]
    for r in rows:
        t = r.seconds or 1e-12
        counted = bool(r.work.flops or r.work.bytes)
        line = max(r.lines, key=lambda k: r.lines[k], default="")
        cells.append((
            f"{t * 1e3:.3f}", f"{t / wall:.1%}", str(r.launches),
            f"{r.flops / t / 1e9:.1f}" if r.work.flops else "", f"{r.bytes / t / 1e9:.1f}" if counted else "",
            f"{r.fraction:.0%}" if counted else "", r.bound,
            f"{r.program}: {r.name}" if r.kind in ("host", "copy", "launch") else r.name,
            r.what, _short(line),
        ))  # fmt: skip
    return _aligned(cells, left=4)


def _line_table(lines: Sequence[SourceLine]) -> str:
    if not lines:
        return ""
    cells = [("ms", "GFLOP", "MB", "line", "")]
    for x in lines:
        file, _, number = x.where.rpartition(":")
        text = linecache.getline(file, int(number)).strip() if number.isdecimal() else ""
        cells.append((
            f"{x.seconds * 1e3:.3f}", f"{x.flops / 1e9:.3f}", f"{x.bytes / 1e6:.1f}",
            _short(x.where) or "unknown", text,
        ))  # fmt: skip
    return _aligned(cells, left=2)


def _short(where: str) -> str:
    return where.rpartition(os.sep)[2]


def _aligned(rows: Sequence[Sequence[str]], left: int) -> str:
    """Rows in columns; the last so many stand at the left."""
    widths = [max(map(len, c)) for c in zip(*rows, strict=True)]
    split = len(widths) - left
    lines = (
        "  ".join(c.rjust(w) if i < split else c.ljust(w) for i,
                  (c, w) in enumerate(zip(r, widths, strict=True)))
        for r in rows
    )  # fmt: skip
    return "\n".join(line.rstrip() for line in lines)


@wanting
@contextmanager
def profile() -> Iterator[Profile]:
    """Profile what runs in the block, in all threads."""
    recorder = Recorder()
    recorder.start()
    try:
        yield Profile(recorder)
    finally:
        recorder.stop()


def load(path: str | os.PathLike[str]) -> Profile:
    """A profile that `Profile.save` has written."""
    try:
        whole = json.loads(Path(path).read_text())
        return _loaded(whole)
    except OSError as e:
        raise OperandError(f"profile: {path} cannot be read ({e.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise OperandError(f"profile: {path} is no profile that was saved") from None


def _loaded(whole: Mapping[str, Any]) -> Profile:
    if whole["version"] != VERSION:
        raise ValueError(whole["version"])
    p = Profile()
    p.wall = float(whole["wall"])
    p._rows = [_row(r) for r in whole["kernels"]]
    p.spans = [TimeSpan(**{**s, "stack": tuple(s["stack"])}) for s in whole["spans"]]
    p.memory = [
        RunMemory(
            m["program"], m["peak"], tuple(Held(**t) for t in m["tensors"]),
            tuple((a, b) for a, b in m["points"]),
        )
        for m in whole["memory"]
    ]  # fmt: skip
    return p


def _row(r: Mapping[str, Any]) -> ProfileRow:
    return ProfileRow(
        str(r["program"]), str(r["name"]), str(r["kind"]), str(r["what"]), dict(r["lines"]),
        int(r["launches"]), [float(t) for t in r["runs"]], StepWork(**r["work"]), float(r["least"]),
        str(r["bound"]),
    )  # fmt: skip


__all__ = ["PARTS", "Profile", "load", "profile"]
