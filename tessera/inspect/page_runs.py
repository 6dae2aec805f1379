"""Runs of a program for its page: the time of a run as `tessera bench` measures it, and in turn with these
runs others in which every step notes its time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tessera.compile.artifact import KernelCall
from tessera.compile.cpu.executable import MachineExecutable
from tessera.inspect.profile import Profile, profile
from tessera.inspect.profile_loop import StepwiseProgram
from tessera.inspect.profile_program import WatchedProgram
from tessera.inspect.profile_record import Noted
from tessera.ir.graph.ir import Array
from tessera.tune.measure import Timed

_BUDGET = 0.15  # seconds for the runs of a program, those that are watched included


@dataclass(frozen=True)
class TimedRuns:
    """How long a program takes: a run as such, and its steps in runs that note them."""

    seconds: float  # of a run, which nothing watches: the median
    # The usual time of each step of each program, by the identity of the program and the name of the step.
    # A host call goes by the first buffer that it writes; its time holds that of the programs that it runs.
    steps: Mapping[int, Mapping[str, float]]
    noted: Sequence[Noted]


def timed_runs(e: MachineExecutable, inputs: Sequence[Array]) -> TimedRuns:
    """Time a program on these inputs."""
    timed = Timed(lambda: e.run(inputs))
    profiles: list[Profile] = []

    def watch() -> None:
        with profile() as p:
            for _ in range(timed.repeats):
                e.run(inputs)
        profiles.append(p)

    watch()  # makes what notes the times
    profiles.clear()
    timed.sampled(_BUDGET, watch)
    return TimedRuns(timed.seconds, _steps(profiles), [x for p in profiles for x in p.noted])


def _steps(profiles: Sequence[Profile]) -> dict[int, dict[str, float]]:
    runs: dict[int, dict[str, list[float]]] = {}

    def add(made: WatchedProgram | StepwiseProgram, step: int, nanoseconds: float) -> None:
        own = runs.setdefault(id(made.executable), {})
        own.setdefault(name_of(made, step), []).append(nanoseconds / 1e9)

    for p in profiles:
        for made, records in p.programs:
            for step, first, last in made.spans(records):
                add(made, step, last - first)
        for loop in p.loops:
            for part, ran in zip(loop.parts, loop.steps, strict=True):
                for s in ran:
                    add(part.program, s.step, s.nanoseconds / s.runs)
    return {i: {n: median(ts) for n, ts in own.items()} for i, own in runs.items()}


def runs_of(noted: Sequence[Noted]) -> Counter[int]:
    """How often each program ran, by its identity."""
    runs = Counter(id(x.what[0].executable) for x in noted if x.kind == "program")
    for x in noted:
        if x.kind == "loop":
            for i, part in enumerate(x.what.parts):
                runs[id(part.program.executable)] += x.what.runs(i)
    return runs


def name_of(made: WatchedProgram | StepwiseProgram, step: int) -> str:
    """What a step of a run is called: a kernel by its name, a host call by the first buffer it writes."""
    access = made.steps[step]
    is_host = not any(c.name == access.name for c in made.image.steps if isinstance(c, KernelCall))
    return f"={access.writes[0]}" if is_host and access.writes else access.name
