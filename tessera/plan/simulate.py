"""Simulate a step as discrete events: devices run their tasks in order, links carry activations between
them.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field, replace
from functools import lru_cache

from tessera.core.errors import OperandError, OutOfMemoryError
from tessera.plan.choice import (
    Choice,
    LayerCost,
    MemoryUse,
    PipelineStage,
    finish_of,
    hop,
    in_flight,
    layer_costs,
    layer_times,
    memory_of,
    stage_of,
)
from tessera.plan.machine import Machine
from tessera.plan.model import WIDTH, Transformer
from tessera.plan.order import MicrobatchTask, order_of
from tessera.plan.stages import cut_stages


@dataclass(frozen=True)
class DeviceSpan:
    """What a device did from one time to another."""

    device: int
    start: float
    end: float
    what: str  # forward, backward, reduce, update, gather
    micro: int = -1
    part: int = -1


@dataclass(frozen=True)
class Simulation:
    """A step: its time, what is idle, what the links carried, and the memory of each device of the
    pipeline.
    """

    step: float  # seconds
    pipeline: float  # seconds until the last backward pass
    bubble: float  # the share of the pipeline's time in which a device waits, on average
    busy: tuple[float, ...]  # seconds of passes on each device
    memory: tuple[MemoryUse, ...]
    sent: float  # bytes that the fullest link between stages carries
    link_use: float  # the share of the step in which that link is busy
    timeline: tuple[DeviceSpan, ...] = field(default=(), repr=False)

    @property
    def peak(self) -> MemoryUse:
        """The memory of the fullest device."""
        return max(self.memory, key=lambda m: m.total)


@dataclass
class _Device:
    order: list[MicrobatchTask]
    at: int = 0
    free: float = 0.0
    link: float = 0.0  # when what it sends is gone
    busy: float = 0.0
    sending: float = 0.0
    kept: int = 0
    most: int = 0


class _StepRun:
    """The events of one step."""

    def __init__(
        self, c: Choice, stages: list[PipelineStage], microbatches: int, wait: float, keep: bool
    ):
        self.c, self.stages, self.wait = c, stages, wait
        self.devices = [
            _Device(order_of(c.schedule, i, c.pp, microbatches, c.chunks)) for i in range(c.pp)
        ]
        self.arrived: dict[MicrobatchTask, float] = {}
        self.events: list[tuple[float, int]] = []
        self.spans: list[DeviceSpan] = []
        self.keep = keep
        first = c.pp * c.chunks
        for m in range(microbatches):
            self.arrived[MicrobatchTask(False, m, 0)] = 0.0
        self.last = first - 1

    def run(self) -> None:
        self.events = [(0.0, i) for i in range(self.c.pp)]
        heapq.heapify(self.events)
        while self.events:
            now, i = heapq.heappop(self.events)
            self._advance(now, i)
        stuck = [i for i, d in enumerate(self.devices) if d.at < len(d.order)]
        assert not stuck, f"the schedule waits for itself on devices {stuck}"

    def _advance(self, now: float, i: int) -> None:
        """Start the next task of a device, if what it needs is here."""
        d = self.devices[i]
        if d.at == len(d.order) or d.free > now:
            return
        task = d.order[d.at]
        ready = self.arrived.get(task)
        if ready is None or ready > now:
            return
        s = self.stages[task.part]
        took = s.backward if task.back else s.forward
        end = now + took
        d.at, d.free, d.busy = d.at + 1, end, d.busy + took
        d.kept += -1 if task.back else 1
        d.most = max(d.most, d.kept)
        if self.keep:
            self.spans.append(
                DeviceSpan(
                    i, now, end, "backward" if task.back else "forward", task.micro, task.part
                )
            )
        self._send(task, i, end)
        heapq.heappush(self.events, (d.free, i))

    def _send(self, task: MicrobatchTask, i: int, end: float) -> None:
        if not task.back and task.part == self.last:
            self._arrive(MicrobatchTask(True, task.micro, task.part), i, end)
        elif not (task.back and task.part == 0):
            part = task.part + (-1 if task.back else 1)
            to, d = part % self.c.pp, self.devices[i]
            wait = self.wait if to != i else 0.0
            start = max(end, d.link)
            d.link, d.sending = start + wait, d.sending + wait
            if not self.c.overlap:
                d.free = max(d.free, d.link)
            self._arrive(MicrobatchTask(task.back, task.micro, part), to, start + wait)

    def _arrive(self, task: MicrobatchTask, device: int, at: float) -> None:
        self.arrived[task] = at
        heapq.heappush(self.events, (max(at, self.devices[device].free), device))


def stages_of(
    model: Transformer, machine: Machine, c: Choice, microbatches: int
) -> list[PipelineStage] | None:
    """The stages of a choice: those it names, or cut so that the longest is shortest and each fits."""
    costs = layer_costs(model, machine, of_layers(c))
    sizes = c.stages or _cut(model, machine, _of_stages(c), microbatches)
    if sizes is None:
        return None
    if sum(sizes) != len(costs) or len(sizes) != c.pp * c.chunks:
        raise OperandError(
            f"simulate: stages {sizes} hold {sum(sizes)} layers in {len(sizes)} parts, expected "
            f"{len(costs)} layers "
            f"in {c.pp * c.chunks} parts"
        )
    ends = [sum(sizes[:k]) for k in range(len(sizes) + 1)]
    return [stage_of(costs, a, b, c) for a, b in itertools.pairwise(ends)]


def of_layers(c: Choice) -> Choice:
    """What the cost of a layer depends on."""
    return replace(c, pp=1, chunks=1, schedule="1f1b", stages=(), dp=c.dp if c.zero >= 2 else c.ep,
                   zero=c.zero if c.zero >= 2 else 0, overlap=True)  # fmt: skip


def _of_stages(c: Choice) -> Choice:
    return replace(c, stages=())


@lru_cache(maxsize=1024)
def _cut(
    model: Transformer, machine: Machine, c: Choice, microbatches: int
) -> tuple[int, ...] | None:
    costs = layer_costs(model, machine, of_layers(c))
    times = layer_times(costs, c)
    even = cut_stages(times, c.pp * c.chunks)
    if even is None or c.chunks > 1 or _fits_all(even, costs, machine, c, microbatches):
        return even

    def fits(stage: int, first: int, last: int) -> bool:
        held = memory_of([stage_of(costs, first, last, c)], in_flight(c, stage, microbatches), c)
        return held.total <= machine.device.memory

    return cut_stages(times, c.pp, fits)


def _fits_all(
    sizes: tuple[int, ...],
    costs: tuple[LayerCost, ...],
    machine: Machine,
    c: Choice,
    microbatches: int,
) -> bool:
    ends = [sum(sizes[:k]) for k in range(len(sizes) + 1)]
    made = [stage_of(costs, a, b, c) for a, b in itertools.pairwise(ends)]
    most = (memory_of([s], in_flight(c, i, microbatches), c).total for i, s in enumerate(made))
    return all(m <= machine.device.memory for m in most)


def simulate(
    model: Transformer, machine: Machine, c: Choice, batch: int, timeline: bool = False
) -> Simulation:
    """One training step of `batch` sequences as discrete events."""
    m = c.microbatches(batch)
    if m < 1 or m * c.dp * c.micro != batch:
        raise OperandError(
            f"simulate: {c.dp} replicas of microbatches of {c.micro} do not divide a batch of {batch}"
        )
    if c.chunks > 1 and m % c.pp:
        raise OperandError(
            f"simulate: an interleaved pipeline of {c.pp} devices needs a multiple of {c.pp} microbatches, "
            f"got {m}"
        )
    stages = stages_of(model, machine, c, m)
    if stages is None:
        raise OutOfMemoryError(
            f"simulate: no cut of {model.name} into {c.pp * c.chunks} stages fits"
        )
    run = _StepRun(c, stages, m, hop(model, machine, c), timeline)
    run.run()
    return _measured(model, machine, c, stages, run)


def _measured(
    model: Transformer, machine: Machine, c: Choice, stages: list[PipelineStage], run: _StepRun
) -> Simulation:
    ends, memory = [], []
    pipeline = max(d.free for d in run.devices)
    for i, d in enumerate(run.devices):
        mine = stages[i :: c.pp]
        done = finish_of(sum(s.params for s in mine), sum(s.experts for s in mine), machine, c)
        last = sum(s.backward for s in mine)  # the backward pass that collectives can run beside
        reduce = max(0.0, done.reduce - last) if c.overlap else done.reduce
        marks = (("reduce", reduce), ("update", done.update), ("gather", done.gather))
        at = d.free
        for what, took in marks:
            if run.keep and took:
                run.spans.append(DeviceSpan(i, at, at + took, what))
            at += took
        ends.append(at)
        memory.append(memory_of(mine, d.most, c))
    busy = tuple(d.busy for d in run.devices)
    step = max(ends)
    carried = max(d.sending for d in run.devices)
    one = c.micro * model.length * model.width * WIDTH / c.tp
    sends = max(sum(1 for t in d.order if _leaves(t, c)) for d in run.devices)
    return Simulation(
        step, pipeline, 1 - sum(busy) / (len(busy) * pipeline), busy, tuple(memory),
        one * sends, carried / step, tuple(run.spans),
    )  # fmt: skip


def _leaves(t: MicrobatchTask, c: Choice) -> bool:
    """Whether the result of a task goes to another device."""
    if c.pp == 1:
        return False
    return t.part > 0 if t.back else t.part < c.pp * c.chunks - 1
