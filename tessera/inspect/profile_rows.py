"""The rows of a profile: kernels, source lines, spans and memory, made of what was recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from types import CodeType
from typing import Any

from tessera.checks.roofline import work as tile_work
from tessera.core.source import Location
from tessera.inspect.profile_program import Watched
from tessera.inspect.profile_record import Noted, Recorder
from tessera.inspect.work import Work, described, lines_of, work_of
from tessera.ir.schedule.ir import HostCall, Step
from tessera.tune.roofline import peaks_here

PARTS = (
    "kernel",
    "host",
    "copy",
    "launch",
)  # kinds of spans that have a row in the table of kernels


@dataclass(frozen=True)
class Span:
    """Something that took time, in nanoseconds from the beginning of the profile."""

    kind: str
    name: str
    begin: int
    end: int
    thread: int  # 0 is the one that began the profile
    stack: tuple[str, ...]  # of the user's, outermost first
    row: int = -1  # of the table of kernels


@dataclass
class Row:
    """A kernel, a host call, a copy or a launch: all of its runs together."""

    program: str
    name: str
    kind: str
    what: str  # its loops in a few words
    lines: dict[str, float]  # the part of its time that each line of the source gets
    launches: int = 0
    runs: list[float] = field(default_factory=list)  # seconds
    work: Work = field(default_factory=Work)  # of all runs
    least: float = 0.0  # seconds that the machine needs for all runs at best
    bound: str = ""  # what limits it: arithmetic or memory

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
        """How much of the roofline is reached; above 1 when the data stay in a cache."""
        return self.least / self.seconds if self.seconds else 0.0

    def ran(self, nanoseconds: int, work: Work, roof: tuple[float, float]) -> None:
        """Add a run."""
        flops, bandwidth = roof
        self.runs.append(nanoseconds / 1e9)
        self.work += work
        self.least += work.least(flops, bandwidth)
        if self.work.cost or self.work.bytes:
            by_memory = self.work.bytes / bandwidth >= self.work.cost / flops
            self.bound = "memory" if by_memory else "arithmetic"


@dataclass(frozen=True)
class Line:
    """A line of the user's source, with its part of what kernels do."""

    where: str
    seconds: float
    flops: float
    bytes: float


@dataclass(frozen=True)
class Held:
    """A tensor in memory, from the step that writes it to the last one that reads it."""

    name: str
    type: str
    bytes: int
    kind: str  # input, arena, result or host
    first: int
    last: int
    line: str


@dataclass(frozen=True)
class Memory:
    """The memory of one run of a program: its tensors, and the bytes in use at each step."""

    program: str
    peak: int  # what a run takes beside its inputs
    tensors: tuple[Held, ...]
    points: tuple[tuple[int, int], ...]  # (nanoseconds, bytes in use) as steps begin


class Resolved:
    """What a recorder noted, as rows."""

    def __init__(self, r: Recorder):
        self._recorder = r
        self.spans: list[Span] = []
        self.rows: list[Row] = []
        self.memory: list[Memory] = []
        self._found: dict[tuple[str, str], int] = {}
        self._runs: dict[int, int] = {}  # which run of its row a span belongs to
        self._threads = {r.thread: 0}
        self._roof = (1.0, 1.0)
        if any(n.kind in ("program", "launch") for n in r.noted):
            peaks = peaks_here()
            self._roof = (peaks.flops, peaks.bandwidth)
        self._facts: dict[int, _Facts] = {}
        for n in r.noted:
            self._add(n)
        for facts in self._facts.values():
            self.memory += facts.memory(r.begin)
        self.spans.sort(key=lambda s: (s.thread, s.begin, -s.end))
        self._leave_out_what_has_rows_of_its_own()

    def _leave_out_what_has_rows_of_its_own(self) -> None:
        """A host call, such as a loop, runs programs: their time is theirs."""
        for s, own in zip(self.spans, self_times(self.spans), strict=True):
            inner = s.end - s.begin - own
            if inner and id(s) in self._runs:
                self.rows[s.row].runs[self._runs[id(s)]] -= inner / 1e9

    def _add(self, n: Noted) -> None:
        thread = self._threads.setdefault(n.thread, len(self._threads))
        stack = tuple(_frame(*f) for f in n.stack)
        if n.kind == "launch":
            source, sizes, moved = n.what
            row = self._row("kernels", n.name, "launch", "by hand", {_line(n.stack): 1.0})
            self.rows[row].launches += 1
            self.rows[row].ran(n.end - n.begin, _launched(source, sizes, moved), self._roof)
            self._span("launch", n.name, n.begin, n.end, thread, stack, row)
            return
        self._span(n.kind, n.name, n.begin, n.end, thread, stack)
        if n.kind == "program":
            self._steps(n, thread, (*stack, n.name))

    def _steps(self, n: Noted, thread: int, stack: tuple[str, ...]) -> None:
        watched, records = n.what
        facts = self._facts.setdefault(id(watched), _Facts(watched))
        ran: dict[int, tuple[int, int]] = {}  # nanoseconds of a row in this run, and a step of it
        spans = watched.spans(records)
        for i, begin, end in spans:
            name, kind = facts.names[i]
            row = self._row(n.name, name, kind, facts.what(i), facts.lines(i))
            self.rows[row].launches += 1
            took, _ = ran.get(row, (0, i))
            ran[row] = (took + end - begin, i)
            made = self._span(kind, name, begin, end, thread, stack, row)
            self._runs[id(made)] = len(self.rows[row].runs)
        for row, (took, i) in ran.items():
            self.rows[row].ran(took, facts.work(i), self._roof)
        facts.last = spans

    def _row(self, program: str, name: str, kind: str, what: str, lines: dict[str, float]) -> int:
        key = (program, name)
        if key not in self._found:
            self._found[key] = len(self.rows)
            self.rows.append(Row(program, name, kind, what, lines))
        return self._found[key]

    def _span(
        self, kind: str, name: str, begin: int, end: int, thread: int, stack: tuple[str, ...],
        row: int = -1,
    ) -> Span:  # fmt: skip
        zero = self._recorder.begin
        made = Span(kind, name, begin - zero, end - zero, thread, stack, row)
        self.spans.append(made)
        return made


class _Facts:
    """What is known of the steps of a program."""

    def __init__(self, w: Watched):
        self.watched = w
        self.last: Sequence[tuple[int, int, int]] = ()  # the spans of the last run
        e = w.executable
        self._types = {} if e is None else {n: b.type for n, b in e.schedule.buffers.items()}
        known = () if e is None else e.schedule.steps
        named: dict[str, Step] = {s.name: s for s in known if not isinstance(s, HostCall)}
        hosted = {s.results: s for s in w.image.steps if isinstance(s, HostCall)}
        self.steps = [
            hosted.get(a.writes) if a.host else named.get(a.name) or named.get(a.name.rsplit("_", 1)[0])
            for a in w.steps
        ]  # fmt: skip
        self.names = [
            (a.name, "host" if a.host else "copy")
            if a.host or a.name.startswith("copy ")
            else (a.name if s is None else getattr(s, "name", a.name), "kernel")
            for a, s in zip(w.steps, self.steps, strict=True)
        ]
        self._work: dict[int, Work] = {}
        self._lines: dict[int, dict[str, float]] = {}

    def work(self, i: int) -> Work:
        """The work of a step."""
        if i not in self._work:
            s = self.steps[i]
            types = self.watched.types if isinstance(s, HostCall) else self._types
            self._work[i] = Work() if s is None else work_of(s, types, self.watched.sizes)
        return self._work[i]

    def what(self, i: int) -> str:
        """A step in a few words."""
        s = self.steps[i]
        return self.names[i][1] if s is None else described(s)

    def lines(self, i: int) -> dict[str, float]:
        """The parts of a step's time that lines of the source get."""
        if i not in self._lines:
            s = self.steps[i]
            found = {None: 1.0} if s is None else lines_of(s, self.watched.sizes)
            self._lines[i] = {_place(where): x for where, x in found.items()}
        return self._lines[i]

    @cached_property
    def _written(self) -> Mapping[str, str]:
        """The line that each buffer comes from."""
        out = {}
        for i, a in enumerate(self.watched.steps):
            lines = self.lines(i)
            out.update(dict.fromkeys(a.writes, max(lines, key=lambda k: lines[k], default="")))
        return out

    def memory(self, zero: int) -> Iterator[Memory]:
        """The memory of the last run."""
        plan = self.watched.plan
        if not self.last:
            return
        held = tuple(
            Held(b, str(plan.types[b]), s.size, s.kind, first, last, self._written.get(b, ""))
            for s in plan.storages
            for b, (first, last) in s.lives.items()
        )
        points = tuple(
            (begin - zero, plan.steps[i].temporary
             + sum(s.size for s in plan.storages if s.first <= i <= s.last))
            for i, begin, _ in self.last
        )  # fmt: skip
        yield Memory(self.watched.name, plan.peak, held, points)


def _launched(source: Any, sizes: Mapping[str, int], moved: int) -> Work:
    """The work of a kernel that was written by hand."""
    if source is None:
        return Work(bytes=moved)
    w = tile_work(source, sizes)
    return Work(w.flops, w.flops, w.bytes)


def _place(where: Location | None) -> str:
    return "" if where is None else f"{where.file}:{where.line}"


def _line(stack: Sequence[tuple[CodeType, int]]) -> str:
    """The innermost line of the user's."""
    return f"{stack[-1][0].co_filename}:{stack[-1][1]}" if stack else ""


def _frame(code: CodeType, line: int) -> str:
    return f"{code.co_name} ({code.co_filename}:{line})"


def self_times(spans: Sequence[Span]) -> list[int]:
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


def by_line(rows: Sequence[Row]) -> list[Line]:
    """The lines of the source, the longest first."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for r in rows:
        for where, part in r.lines.items():
            for k, x in enumerate((r.seconds, r.flops, r.bytes)):
                sums[where][k] += part * x
    return sorted((Line(w, *x) for w, x in sums.items()), key=lambda x: -x.seconds)
