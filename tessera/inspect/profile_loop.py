"""Loops whose steps run without Python, with clocks between what a step does.

The loop runs as it always does: the same kernels on the same threads in the same phases, driven by machine
code.  Its words are laid out once more, with an item around each phase, copy, inner loop and choice that
looks at the clock (runtime/steps_ir.py).  What is short is timed every so manieth time; how often it ran is
counted always.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tessera.compile.cpu.bound_program import HostAction, Prepared
from tessera.compile.cpu.loop_layout import Item, Ref, Words
from tessera.compile.cpu.native_loop import LoopState, NativeLoop
from tessera.ir.graph.ir import Array
from tessera.ir.schedule.memory import StepAccess
from tessera.runtime.kernel import address
from tessera.runtime.pool import Job, Series, Task
from tessera.runtime.stamps import BUSY, Records, clock
from tessera.runtime.steps_ir import TALLY, TIMED

_LOGGED = 2000  # pieces of a run of a loop whose begin and end are kept
_COUNTED = TALLY.index("cost")  # words of a tally that a run begins with at 0
_RUNS, _TOTAL, _WEIGHT = (TALLY.index(x) for x in ("runs", "total", "weight"))


class StepwiseProgram(Prepared):
    """The program of a step, cut into what can be timed: a phase, a copy, or what the host would do."""

    def __init__(self, p: Prepared):
        super().__init__(p.name, p.image, p.kernels, p.sizes, p.threads, p.host, p.donated)
        self.executable = p.executable

    def _segmented(self, steps: Sequence[tuple[StepAccess, Any]]) -> list[Series | HostAction]:
        self.steps = [access for access, _ in steps]
        self.records = Records(len(steps))
        self.numbers: dict[int, Sequence[int]] = {}  # the steps of a segment, by its identity
        self._known = {id(access): i for i, access in enumerate(self.steps)}
        return super()._segmented(steps)

    def _series(self, calls: Sequence[tuple[StepAccess, Task]]) -> list[Series]:
        """One for each phase; of a phase on one thread, one for each of its jobs."""
        out: list[Series] = []
        left = [self._known[id(access)] for access, _ in calls]
        for phase in self._phases(calls):
            numbers, left = left[: len(phase)], left[len(phase) :]
            made = Series([phase], self.threads)
            if made.seats:  # its jobs run side by side: each notes how long threads were in it
                stamped = [
                    (self._stamped(job, i), ps) for i, (job, ps) in zip(numbers, phase, strict=True)
                ]
                own = [(Series([stamped], self.threads), numbers)]
            else:
                own = [(Series([[task]]), [i]) for i, task in zip(numbers, phase, strict=True)]
            for series, steps in own:
                self.numbers[id(series)] = steps
                out.append(series)
        return out

    def _stamped(self, job: Job, number: int) -> Job:
        made = self.records.stamped(job, number)
        assert made is not None, "loops are timed where there is a clock"
        return made

    def _copy(self, name: str) -> HostAction:
        made = super()._copy(name)
        number = next(i for i, a in enumerate(self.steps) if not a.host and a.writes == (name,))
        self.numbers[id(made)] = [number]
        return made

    def _hosted(self, access: StepAccess, run: Callable[..., Any]) -> HostAction:
        made = super()._hosted(access, run)
        self.numbers[id(made)] = [self._known[id(access)]]
        return made


@dataclass
class LoopPart:
    """A program in a loop: of its steps, of its test, or of a branch or a loop inside."""

    program: StepwiseProgram
    parent: int  # the number of the part that it is inside of; -1: the loop itself
    step: int  # which step of that it is
    pieces: list[Sequence[int]]  # the steps of each piece
    tallies: list[int]  # the first word of the tally of each piece


@dataclass(frozen=True)
class StepRan:
    """What a step of a part did in one run of the loop."""

    step: int
    runs: int
    nanoseconds: int  # of all its runs
    busy: float  # threads, on average


class PartSpan(NamedTuple):
    """When a step of a part ran."""

    part: int
    step: int
    begin: int
    end: int


class LoopRan:
    """What one run of a loop did; computed at the first access, not while the program runs."""

    def __init__(self, words: _TimedWords, noted: Array):
        self.parts: Sequence[LoopPart] = words.parts
        self._places, self._noted = words.places, noted
        self._entries = words.entries[: int(noted[words.log])].copy()
        self._records = [p.program.records.take() for p in words.parts]

    @cached_property
    def steps(self) -> Sequence[Sequence[StepRan]]:
        """What the steps of each part did."""
        given = zip(self.parts, self._records, strict=True)
        return [_steps(p, self._noted, records) for p, records in given]

    @cached_property
    def log(self) -> Sequence[tuple[int, int, int, int]]:
        """Part, step, begin and end of the first pieces that were timed."""
        return [(*self._places[n], begin, end) for n, begin, end in self._entries.tolist()]

    @property
    def whole(self) -> bool:
        """Whether the log has all that ran."""
        ran = sum(int(self._noted[t + _RUNS]) for p in self.parts for t in p.tallies)
        split = any(len(piece) > 1 for p in self.parts for piece in p.pieces)
        return len(self._entries) == ran and not split

    def runs(self, part: int) -> int:
        """How often a part ran."""
        return max((s.runs for s in self.steps[part]), default=0)

    def spans(self, begin: int, end: int) -> Iterator[PartSpan]:
        """What ran when, in a loop that ran then: as it was, or all runs of a step together."""
        if self.whole:
            yield from (PartSpan(*x) for x in self.log)
        else:
            yield from self._together(-1, -1, begin, end)

    def _together(self, parent: int, step: int, begin: int, end: int) -> Iterator[PartSpan]:
        """All runs of each step inside of another, one after another."""
        inside = [i for i, p in enumerate(self.parts) if (p.parent, p.step) == (parent, step)]
        whole = sum(s.nanoseconds for i in inside for s in self.steps[i])
        scale = min(1.0, (end - begin) / whole) if whole else 1.0
        at = begin
        for i in inside:
            for s in self.steps[i]:
                until = at + int(s.nanoseconds * scale)
                yield PartSpan(i, s.step, at, until)
                yield from self._together(i, s.step, at, until)
                at = until


class _TimedWords(Words):
    """The words of a loop with clocks."""

    def __init__(self, clock: int, cost: int):
        super().__init__()
        self.parts: list[LoopPart] = []
        self.places: list[tuple[int, int]] = []  # part and first step of each tally
        self.entries: Array = np.zeros((_LOGGED, 3), np.int64)
        self._clock, self._cost = clock, cost
        self.log = self.add(0, _LOGGED, address(self.entries))
        self._inside = (-1, -1)
        self._part: dict[int, int] = {}

    def entered(self, program: Prepared) -> Prepared:
        made = StepwiseProgram(program)
        self._part[id(made)] = len(self.parts)
        self.parts.append(LoopPart(made, *self._inside, [], []))
        return made

    def noted(
        self, program: Prepared, segment: Any, items: Callable[[], list[Item]]
    ) -> Sequence[Item]:
        assert isinstance(program, StepwiseProgram)
        numbers = program.numbers.get(id(segment))
        if numbers is None:
            return items()
        at, outer = self._part[id(program)], self._inside
        self._inside = at, numbers[0]
        made = items()
        self._inside = outer
        if not made:
            return made
        first: dict[str, int | Ref] = {
            "cost": self._cost, "number": len(self.places), "log": Ref(self.log)
        }  # fmt: skip
        tally = self.add(*(first.get(name, 0) for name in TALLY))
        self.places.append((at, numbers[0]))
        self.parts[at].pieces.append(numbers)
        self.parts[at].tallies.append(tally)
        return [(TIMED, Ref(self.add(self._clock, self.rows(made), len(made), Ref(tally))), 0)]

    def taken(self, words: Array) -> LoopRan:
        """What has been noted; afterwards nothing is."""
        ran = LoopRan(self, words.copy())
        words[self.log] = 0
        words[self._cleared] = 0
        return ran

    @cached_property
    def _cleared(self) -> Array:
        """The words of tallies that a run begins with at 0."""
        every = [t + i for p in self.parts for t in p.tallies for i in range(_COUNTED)]
        return np.array(every, np.int64)


def _steps(p: LoopPart, words: Array, records: Array) -> Sequence[StepRan]:
    """The runs and the time of each step; jobs that ran side by side share it as threads were in them."""
    out = []
    for numbers, tally in zip(p.pieces, p.tallies, strict=True):
        runs, total, weight = (int(words[tally + i]) for i in (_RUNS, _TOTAL, _WEIGHT))
        if not runs:
            continue
        took = total * runs // max(weight, 1)
        busy = [int(records[i, BUSY]) for i in numbers]
        every = sum(busy)
        threads = max(1.0, every / took) if took else 1.0
        for i, own in zip(numbers, busy, strict=True):
            share = took * own // every if every else took // len(numbers)
            out.append(StepRan(i, runs, share, round(threads, 2)))
    return out


class WatchedLoop:
    """A loop that notes what its steps do."""

    def __init__(self, loop: NativeLoop, known: tuple[int, int]):
        self.name = loop.steps.body.program.name
        self.loop, self.lock = loop, threading.RLock()
        self.words = _TimedWords(*known)
        self.state = LoopState(loop.steps, self.words)

    def run(self, operands: Sequence[Array]) -> list[Array]:
        """Run it once; `taken` says what it did."""
        return self.loop.run(self.state, operands)

    def taken(self) -> LoopRan:
        """What the last run did."""
        return self.words.taken(self.state.words)


def watched(loop: NativeLoop) -> WatchedLoop | None:
    """A loop that notes what its steps do; None where there is no clock for it."""
    known = clock()
    if known is None:
        return None
    if loop.watched is None:
        loop.watched = WatchedLoop(loop, known)
    made = loop.watched
    assert isinstance(made, WatchedLoop)
    return made
