"""What a profile knows of the steps of a program: their work, their lines, their memory, and what a GPU
reaches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tessera.checks.roofline import MACHINES
from tessera.core.source import Location
from tessera.core.types import TensorType
from tessera.inspect.profile_gpu import OnGpu
from tessera.inspect.profile_loop import StepwiseProgram
from tessera.inspect.profile_program import WatchedProgram
from tessera.inspect.work import StepWork, described, lines_of, work_of
from tessera.ir.schedule.ir import HostCall, Step

Types = Mapping[str, TensorType]
Roof = tuple[float, float]  # operations and bytes a second
# Products of the size queries by keys that an attention has, and its derivative.
_PRODUCTS = {"attention": 2, "attention_grad": 5}


def roof_of(gpu: str) -> Roof | None:
    """What a GPU reaches by its data sheet; None for one that is not known."""
    for name, m in MACHINES.items():
        if name in gpu.lower():
            return m.flops, m.bandwidth
    return None


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
class RunMemory:
    """The memory of one run of a program: its tensors, and the bytes in use at each step."""

    program: str
    peak: int  # what a run takes beside its inputs
    tensors: tuple[Held, ...]
    points: tuple[tuple[int, int], ...]  # (nanoseconds, bytes in use) as steps begin


class Facts:
    """What is known of the steps of a program."""

    def __init__(
        self, w: WatchedProgram | StepwiseProgram | OnGpu, types: Types, steps: Sequence[Step | None],
        names: Sequence[tuple[str, str]], device: str = "",
    ):  # fmt: skip
        self.watched, self.steps, self.names, self.device = w, steps, names, device
        self.last: Sequence[tuple[int, int, int]] = ()  # the spans of the last run
        self._types = types
        self._work: dict[int, StepWork] = {}
        self._lines: dict[int, dict[str, float]] = {}

    def work(self, i: int) -> StepWork:
        """The work of a step."""
        if i not in self._work:
            s = self.steps[i]
            types = self.watched.types if isinstance(s, HostCall) else self._types
            self._work[i] = StepWork() if s is None else work_of(s, types, self.watched.sizes)
            if isinstance(s, HostCall) and self.names[i][1] == "kernel":
                self._work[i] += attention_work(s, types)
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

    def memory(self, zero: int) -> Iterator[RunMemory]:
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
        yield RunMemory(self.watched.name, plan.peak, held, points)


def facts_here(w: WatchedProgram | StepwiseProgram) -> Facts:
    """Of a program on threads of the host."""
    e = w.executable
    types = {} if e is None else {n: b.type for n, b in e.schedule.buffers.items()}
    known = () if e is None else e.schedule.steps
    named: dict[str, Step] = {s.name: s for s in known if not isinstance(s, HostCall)}
    hosted = {s.results: s for s in w.image.steps if isinstance(s, HostCall)}
    steps = [
        hosted.get(a.writes) if a.host else named.get(a.name) or named.get(a.name.rsplit("_", 1)[0])
        for a in w.steps
    ]  # fmt: skip
    names = [
        (a.name, "host" if a.host else "copy")
        if a.host or a.name.startswith("copy ")
        else (a.name if s is None else getattr(s, "name", a.name), "kernel")
        for a, s in zip(w.steps, steps, strict=True)
    ]
    return Facts(w, types, steps, names)


def facts_on_gpu(on: OnGpu) -> Facts:
    """Of a program on a GPU; the launches of a step go by its name."""
    origin = on.program.planned.origin
    steps = [origin.get(a.name) for a in on.steps]
    copies = set(on.program.planned.moves.values())
    names = [
        (a.name, "copy" if i in copies else "host")
        if a.host or i in copies
        else (_name(s) or a.name, "kernel")
        for i, (a, s) in enumerate(zip(on.steps, steps, strict=True))
    ]
    return Facts(on, on.types, steps, names, on.device)


def _name(s: Step | None) -> str:
    return f"{s.node.op.name}_{s.results[0]}" if isinstance(s, HostCall) else getattr(s, "name", "")


def attention_work(s: HostCall, types: Types) -> StepWork:
    """An attention that stays whole counts by its products, over the keys that a mask leaves."""
    count = _PRODUCTS.get(s.node.op.name, 0)
    if not count:
        return StepWork()
    *lead, queries, size = (int(n) for n in types[s.operands[0]].shape)
    keys = int(types[s.operands[1]].shape[-2])
    seen = queries * keys
    if s.node.params["causal"]:
        seen = sum(min(max(r + 1 + keys - queries, 0), keys) for r in range(queries))
    flops = 2.0 * count * prod(lead) * seen * size
    return StepWork(flops, flops)


def _place(where: Location | None) -> str:
    return "" if where is None else f"{where.file}:{where.line}"
