"""The rows of a profile: kernels, source lines, spans and memory, made of what was recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from types import CodeType
from typing import Any

from tessera.checks.roofline import work as tile_work
from tessera.inspect.profile_facts import (
    Facts,
    Roof,
    RunMemory,
    facts_here,
    facts_on_gpu,
    roof_of,
)
from tessera.inspect.profile_gpu import OnGpu
from tessera.inspect.profile_loop import LoopRan, StepwiseProgram
from tessera.inspect.profile_program import WatchedProgram
from tessera.inspect.profile_record import Noted, Recorder
from tessera.inspect.work import StepWork
from tessera.tune.roofline import Peaks, peaks_here

PARTS = (
    "kernel",
    "host",
    "copy",
    "launch",
)  # kinds of spans that have a row in the table of kernels


@dataclass(frozen=True)
class TimeSpan:
    """Something that took time, in nanoseconds from the beginning of the profile."""

    kind: str
    name: str
    begin: int
    end: int
    thread: int  # 0 is the one that began the profile
    stack: tuple[str, ...]  # of the user's, outermost first
    row: int = -1  # of the table of kernels
    device: str = ""  # that it ran on, where that is no thread of the host


@dataclass
class ProfileRow:
    """A kernel, a host call, a copy or a launch: all of its runs together."""

    program: str
    name: str
    kind: str
    what: str  # its loops in a few words
    lines: dict[str, float]  # the part of its time that each line of the source gets
    launches: int = 0
    runs: list[float] = field(default_factory=list)  # seconds
    work: StepWork = field(default_factory=StepWork)  # of all runs
    least: float = 0.0  # seconds that the machine needs for all runs at best
    bound: str = ""  # what limits it: arithmetic, a cache or memory

    @property
    def seconds(self) -> float:
        """Of all runs, without what has rows of its own."""
        return sum(self.runs)

    @property
    def usual(self) -> float:
        """Of one run: the median."""
        return median(self.runs) if self.runs else 0.0

    @property
    def flops(self) -> float:
        """Arithmetic of all runs."""
        return self.work.flops

    @property
    def bytes(self) -> float:
        """Bytes that all runs read and write at least."""
        return self.work.bytes

    @property
    def fraction(self) -> float:
        """How much of the roofline is reached: of arithmetic, or of what holds the data."""
        return self.least / self.seconds if self.seconds else 0.0

    def ran(self, nanoseconds: int, work: StepWork, roof: Roof | None) -> None:
        """Add a run; without a roof it is not known what the machine needs."""
        self.runs.append(nanoseconds / 1e9)
        self.work += work
        if roof is None:
            return
        self.least += work.least(*roof)
        self._bind(roof, "memory")

    def ran_often(self, count: int, nanoseconds: int, work: StepWork) -> None:
        """Add so many runs that took so long together, each of so much work."""
        self.runs += [nanoseconds / 1e9 / count] * count
        self.work += work * count

    def needs(self, work: StepWork, roof: Roof, level: str) -> None:
        """Set what the machine needs for all runs, where each does so much work."""
        self.least = work.least(*roof) * len(self.runs)
        self._bind(roof, level)

    def _bind(self, roof: Roof, level: str) -> None:
        flops, bandwidth = roof
        if self.work.cost or self.work.bytes:
            by_level = self.work.bytes / bandwidth >= self.work.cost / flops
            self.bound = level if by_level else "arithmetic"


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's source, with its part of what kernels do."""

    where: str
    seconds: float
    flops: float
    bytes: float


class Resolved:
    """What a recorder noted, as rows."""

    def __init__(self, r: Recorder):
        self._recorder = r
        self.spans: list[TimeSpan] = []
        self.rows: list[ProfileRow] = []
        self.memory: list[RunMemory] = []
        self._found: dict[tuple[str, str], int] = {}
        self._runs: dict[int, int] = {}  # which run of its row a span belongs to
        self._threads: dict[int | str, int] = {r.thread: 0}
        self._here: set[int] = set()  # rows of this machine's processor
        self._facts: dict[tuple[int, str], Facts] = {}
        for n in r.noted:
            self._add(n)
        if self._here:
            self._settle(peaks_here())
        for facts in self._facts.values():
            self.memory += facts.memory(r.begin)
        self.spans.sort(key=lambda s: (s.thread, s.begin, -s.end))
        self._leave_out_what_has_rows_of_its_own()

    def _settle(self, peaks: Peaks) -> None:
        """What this machine needs for each row, by peaks that are not below what a run of a row reached."""
        own = [r for i, r in enumerate(self.rows) if i in self._here and r.runs]
        each = [r.work * (1 / len(r.runs)) for r in own]
        best = peaks.raised((w, min(r.runs)) for r, w in zip(own, each, strict=True))
        for r, w in zip(own, each, strict=True):
            r.needs(w, best.roof(w), best.level(w.bytes).name)

    def _leave_out_what_has_rows_of_its_own(self) -> None:
        """A host call, such as a loop, runs programs: their time is theirs."""
        for s, own in zip(self.spans, self_times(self.spans), strict=True):
            inner = s.end - s.begin - own
            if inner and id(s) in self._runs:
                row = self.rows[s.row]
                row.runs[self._runs[id(s)]] -= inner / 1e9
                row.least, row.bound = 0.0, ""  # its work is that of the rows inside

    def _add(self, n: Noted) -> None:
        thread = self._threads.setdefault(n.thread, len(self._threads))
        stack = tuple(_frame(*f) for f in n.stack)
        if n.kind == "device":
            self._steps(n, thread, (*stack, n.name), roof_of(n.what[0].program.gpu.name))
            return
        if n.kind == "launch":
            source, sizes, moved = n.what
            row = self._row("kernels", n.name, "launch", "by hand", {_line(n.stack): 1.0})
            self.rows[row].launches += 1
            self.rows[row].ran(n.end - n.begin, _launched(source, sizes, moved), None)
            self._here.add(row)
            self._span("launch", n.name, n.begin, n.end, thread, stack, row)
            return
        self._span(n.kind, n.name, n.begin, n.end, thread, stack)
        if n.kind == "program":
            self._here |= self._steps(n, thread, (*stack, n.name), None)
        if n.kind == "loop":
            self._loop(n, thread, stack)

    def _steps(
        self, n: Noted, thread: int, stack: tuple[str, ...], roof: Roof | None
    ) -> set[int]:  # fmt: skip
        """Add the steps of a program; the rows they belong to."""
        watched, records = n.what
        facts = self._facts_of(watched)
        ran: dict[int, tuple[int, int]] = {}  # nanoseconds of a row in this run, and a step of it
        spans = watched.spans(records)
        for i, begin, end in spans:
            name, kind = facts.names[i]
            row = self._row_of(n.name, facts, i)
            self.rows[row].launches += 1
            took, _ = ran.get(row, (0, i))
            ran[row] = (took + end - begin, i)
            made = self._span(kind, name, begin, end, thread, stack, row, facts.device)
            self._runs[id(made)] = len(self.rows[row].runs)
        for row, (took, i) in ran.items():
            self.rows[row].ran(took, facts.work(i), roof)
        if not getattr(watched, "engine", ""):
            facts.last = spans
        return set(ran)

    def _loop(self, n: Noted, thread: int, stack: tuple[str, ...]) -> None:
        """Add a loop whose steps ran without Python: what its parts did, as often as they ran."""
        ran: LoopRan = n.what
        spans = list(ran.spans(n.begin, n.end))
        spent: dict[tuple[int, int], int] = defaultdict(int)  # a step's, as its spans have it
        for x in spans:
            spent[x.part, x.step] += x.end - x.begin
        for number, (part, steps) in enumerate(zip(ran.parts, ran.steps, strict=True)):
            facts = self._facts_of(part.program)
            own: dict[
                int, tuple[int, int, int]
            ] = {}  # runs and nanoseconds of a row, and a step of it
            for s in steps:
                row = self._row_of(part.program.name, facts, s.step)
                runs, took, _ = own.get(row, (0, 0, 0))
                own[row] = max(runs, s.runs), took + spent[number, s.step], s.step
                self.rows[row].launches += s.runs
            for row, (runs, took, step) in own.items():
                self.rows[row].ran_often(runs, took, facts.work(step))
            self._here |= set(own)
        lasts: dict[int, dict[int, tuple[int, int, int]]] = {}
        for x in spans:
            facts = self._facts_of(ran.parts[x.part].program)
            name, kind = facts.names[x.step]
            program = ran.parts[x.part].program.name
            row = self._row_of(program, facts, x.step)
            self._span(kind, name, x.begin, x.end, thread, (*stack, program), row, facts.device)
            lasts.setdefault(x.part, {}).setdefault(x.step, (x.step, x.begin, x.end))
        for at, last in lasts.items():
            self._facts_of(ran.parts[at].program).last = list(last.values())

    def _row_of(self, program: str, facts: Facts, step: int) -> int:
        name, kind = facts.names[step]
        return self._row(program, name, kind, facts.what(step), facts.lines(step))

    def _facts_of(self, watched: WatchedProgram | StepwiseProgram | OnGpu) -> Facts:
        if isinstance(watched, OnGpu):
            key = id(watched.program), watched.engine
            return self._facts.setdefault(key, facts_on_gpu(watched))
        return self._facts.setdefault((id(watched), ""), facts_here(watched))

    def _row(self, program: str, name: str, kind: str, what: str, lines: dict[str, float]) -> int:
        key = (program, name)
        if key not in self._found:
            self._found[key] = len(self.rows)
            self.rows.append(ProfileRow(program, name, kind, what, lines))
        return self._found[key]

    def _span(
        self, kind: str, name: str, begin: int, end: int, thread: int, stack: tuple[str, ...],
        row: int = -1, device: str = "",
    ) -> TimeSpan:  # fmt: skip
        zero = self._recorder.begin
        made = TimeSpan(kind, name, begin - zero, end - zero, thread, stack, row, device)
        self.spans.append(made)
        return made


def _launched(source: Any, sizes: Mapping[str, int], moved: int) -> StepWork:
    """The work of a kernel that was written by hand."""
    if source is None:
        return StepWork(bytes=moved)
    w = tile_work(source, sizes)
    return StepWork(w.flops, w.flops, w.bytes)


def _line(stack: Sequence[tuple[CodeType, int]]) -> str:
    """The innermost line of the user's."""
    return f"{stack[-1][0].co_filename}:{stack[-1][1]}" if stack else ""


def _frame(code: CodeType, line: int) -> str:
    return f"{code.co_name} ({code.co_filename}:{line})"


def self_times(spans: Sequence[TimeSpan]) -> list[int]:
    """The time of each span without that of the spans inside; spans lie in order of their begin."""
    own = [s.end - s.begin for s in spans]
    open_: list[int] = []
    for i, s in enumerate(spans):
        while open_ and (spans[open_[-1]].thread != s.thread or spans[open_[-1]].end <= s.begin):
            open_.pop()
        if open_:
            own[open_[-1]] -= s.end - s.begin
        open_.append(i)
    return own


def by_line(rows: Sequence[ProfileRow]) -> list[SourceLine]:
    """The lines of the source, the longest first."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for r in rows:
        for where, part in r.lines.items():
            for k, x in enumerate((r.seconds, r.flops, r.bytes)):
                sums[where][k] += part * x
    return sorted((SourceLine(w, *x) for w, x in sums.items()), key=lambda x: -x.seconds)
