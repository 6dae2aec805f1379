"""Choices: how a model is laid out over a machine, and what that costs each layer, stage and step."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from tessera.plan.cost import DeviceGroup, collective_time, product_time, send_time, stream_time
from tessera.plan.machine import Machine
from tessera.plan.model import WIDTH, Layer, LayerCut, Transformer

SCHEDULES = ("gpipe", "1f1b", "interleaved")
RECOMPUTE = ("none", "full")
GRADIENT, STATE = 4, 12  # bytes of a parameter: an f32 gradient; an f32 master and two moments
UPDATE = 30  # bytes that the update of one parameter reads and writes
BUFFERS = 1.5e9  # bytes of the driver, the libraries and the buckets of collectives


@dataclass(frozen=True)
class Choice:
    """A layout of training: dp x tp x pp devices, with experts cut over ep of the dp."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    zero: int = 0  # 1: state is cut over dp, 2: gradients too, 3: parameters too
    micro: int = 1  # sequences of a microbatch
    chunks: int = 1  # parts of the model that a device of the pipeline holds
    schedule: str = "1f1b"
    recompute: str = "none"
    sequence: bool = True
    overlap: bool = True  # collectives of dp run beside the backward pass
    stages: tuple[
        int, ...
    ] = ()  # layers of each part, in order; cut by dynamic programming unless given

    @property
    def devices(self) -> int:
        """How many devices it uses."""
        return self.dp * self.tp * self.pp

    def microbatches(self, batch: int) -> int:
        """How many microbatches a replica runs in a step."""
        return batch // (self.dp * self.micro)

    def __str__(self) -> str:
        parts = [f"dp={self.dp}", f"tp={self.tp}", f"pp={self.pp}"]
        parts += [f"ep={self.ep}"] if self.ep > 1 else []
        parts += [f"zero={self.zero}"] if self.zero else []
        parts += [f"micro={self.micro}"]
        parts += (
            [f"{self.schedule} of {self.chunks}" if self.chunks > 1 else self.schedule]
            if self.pp > 1
            else []
        )
        parts += [f"recompute={self.recompute}"] if self.recompute != "none" else []
        parts += ["sequence"] if self.sequence and self.tp > 1 else []
        return " ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """The choice as plain values."""
        return asdict(self)


@dataclass(frozen=True)
class LayerCost:
    """Seconds and bytes of one layer for one microbatch."""

    layer: Layer
    compute: float  # of the forward pass
    inner: float  # collectives of tp and ep in the forward pass
    inner_back: float  # in the backward pass, with those of recomputation
    gathered: float  # collectives that fetch parameters under zero 3, for one pass
    scattered: float  # collectives that add up gradients under zero 2 and 3, after each microbatch

    def forward(self, overlap: bool) -> float:
        """Seconds of the forward pass."""
        return _beside(self.compute + self.inner, self.gathered, overlap)

    def backward(self, recompute: bool, overlap: bool) -> float:
        """Seconds of the backward pass, with recomputation."""
        again = self.compute if recompute and self.layer.again else 0.0
        moved = self.gathered + self.scattered
        return _beside(2 * self.compute + again + self.inner_back, moved, overlap)


def _beside(compute: float, moved: float, overlap: bool) -> float:
    return max(compute, moved) if overlap else compute + moved


@lru_cache(maxsize=4096)
def layer_costs(model: Transformer, machine: Machine, c: Choice) -> tuple[LayerCost, ...]:
    """The cost of every layer; `c` without what layers do not depend on."""
    made: dict[Layer, LayerCost] = {}
    found = []
    for layer in model.on_device(LayerCut(c.tp, c.ep, c.micro, c.sequence and c.tp > 1)):
        key = _nameless(layer)
        if key not in made:
            made[key] = _cost(layer, model, machine, c)
        found.append(made[key])
    return tuple(found)


def _nameless(layer: Layer) -> Any:
    return (layer.params, layer.experts, layer.products, layer.traffic, layer.dispatched)


def _cost(layer: Layer, model: Transformer, machine: Machine, c: Choice) -> LayerCost:
    device = machine.device
    compute = sum(product_time(p, device, model.dtype) for p in layer.products)
    compute += stream_time(layer.traffic, device)
    # all_reduce, or reduce_scatter and all_gather along the sequence: the same bytes
    one = collective_time("all_reduce", layer.reduced, DeviceGroup(c.tp), machine)
    sent = collective_time("all_to_all", layer.dispatched / c.tp, DeviceGroup(c.ep, c.tp), machine)
    inner = layer.reductions * one + 2 * sent
    passes = 2 if c.recompute == "full" else 1
    held = (
        (layer.params, DeviceGroup(c.dp, c.tp)),
        (layer.experts, DeviceGroup(c.dp // c.ep, c.tp * c.ep)),
    )
    gathered = sum(collective_time("all_gather", n * WIDTH, g, machine) for n, g in held)
    scattered = sum(collective_time("reduce_scatter", n * WIDTH, g, machine) for n, g in held)
    return LayerCost(layer, compute, inner, inner * passes, gathered if c.zero == 3 else 0.0,
                     scattered if c.zero >= 2 else 0.0)  # fmt: skip


# Stages -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PipelineStage:
    """A part of the model on one device of the pipeline."""

    first: int  # layers first to last - 1
    last: int
    forward: float
    backward: float
    params: float
    experts: float
    kept: float  # bytes of one microbatch
    working: float

    def busy(self) -> float:
        """Seconds for one microbatch."""
        return self.forward + self.backward


def stage_of(costs: tuple[LayerCost, ...], first: int, last: int, c: Choice) -> PipelineStage:
    """The stage of layers first to last - 1."""
    mine, full = costs[first:last], c.recompute == "full"
    return PipelineStage(
        first, last,
        sum(x.forward(c.overlap) for x in mine),
        sum(x.backward(full, c.overlap) for x in mine),
        sum(x.layer.params for x in mine),
        sum(x.layer.experts for x in mine),
        sum(x.layer.entry if full and x.layer.again else x.layer.kept for x in mine),
        max((x.layer.working + (x.layer.kept if full and x.layer.again else 0.0) for x in mine), default=0.0),
    )  # fmt: skip


def layer_times(costs: tuple[LayerCost, ...], c: Choice) -> list[float]:
    """Seconds of both passes of each layer."""
    full, made = c.recompute == "full", dict[int, float]()
    for x in costs:
        if id(x) not in made:
            made[id(x)] = x.forward(c.overlap) + x.backward(full, c.overlap)
    return [made[id(x)] for x in costs]


@dataclass(frozen=True)
class MemoryUse:
    """Bytes on the fullest device."""

    params: float
    gradients: float
    state: float
    activations: float
    buffers: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.params + self.gradients + self.state + self.activations + self.buffers

    def __str__(self) -> str:
        parts = {"parameters": self.params, "gradients": self.gradients, "optimiser state": self.state,
                 "activations": self.activations, "buffers": self.buffers}  # fmt: skip
        unit, size = (
            ("GB", 1e9) if self.total >= 1e8 else ("MB", 1e6) if self.total >= 1e5 else ("kB", 1e3)
        )
        listed = ", ".join(f"{v / size:.1f} {k}" for k, v in parts.items())
        return f"{self.total / size:.1f} {unit} = {listed}"


def memory_of(stages: list[PipelineStage], in_flight: float, c: Choice) -> MemoryUse:
    """The memory of a device that holds these stages, with activations of `in_flight`
    microbatches of each.
    """
    dense, experts = sum(s.params for s in stages), sum(s.experts for s in stages)
    spread = c.dp // c.ep
    cut = [dense / c.dp + experts / spread if c.zero >= z else dense + experts for z in (1, 2, 3)]
    # Of cut parameters a device also holds the layers that it gathers: the widest, twice.
    held = cut[2] * WIDTH + (
        2 * WIDTH * (dense + experts) / max(1, _layers(stages)) if c.zero == 3 else 0
    )
    kept = sum(s.kept for s in stages) / len(stages) * in_flight
    working = max(s.working for s in stages)
    return MemoryUse(held, cut[1] * GRADIENT, cut[0] * STATE, kept + working, BUFFERS)


def _layers(stages: list[PipelineStage]) -> int:
    return sum(s.last - s.first for s in stages)


def in_flight(c: Choice, position: int, microbatches: int) -> int:
    """Parts of microbatches whose activations a device of the pipeline keeps at once."""
    if c.schedule == "gpipe":
        return microbatches * c.chunks
    if c.chunks == 1:
        return min(c.pp - position, microbatches)
    ahead = (c.pp - position - 1) * 2 + (c.chunks - 1) * c.pp + 1
    return min(ahead, microbatches * c.chunks)


# The end of a step --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finish:
    """Seconds after the last backward pass, and the collectives of dp in them."""

    reduce: float  # of gradients
    gather: float  # of updated parameters
    update: float
    kinds: tuple[tuple[str, float], ...]  # collectives and the bytes of the whole tensor


def finish_of(params: float, experts: float, machine: Machine, c: Choice) -> Finish:
    """What follows the backward passes on a device with these parameters."""
    both = ((params, DeviceGroup(c.dp, c.tp)), (experts, DeviceGroup(c.dp // c.ep, c.tp * c.ep)))
    reduce = gather = 0.0
    how = "all_reduce" if c.zero < 2 else "reduce_scatter"
    for n, group in both:
        reduce += collective_time(how, n * GRADIENT, group, machine) if c.zero < 2 else 0.0
        gather += (
            collective_time("all_gather", n * WIDTH, group, machine) if c.zero in (1, 2) else 0.0
        )
    share = params / (c.dp if c.zero else 1) + experts / (c.dp // c.ep if c.zero else 1)
    update = stream_time(share * UPDATE, machine.device)
    kinds = [(how, (params + experts) * GRADIENT)] if c.dp > 1 else []
    kinds += [("all_gather", (params + experts) * WIDTH)] if c.dp > 1 and c.zero in (1, 2) else []
    return Finish(reduce, gather, update, tuple(kinds))


def hop(model: Transformer, machine: Machine, c: Choice) -> float:
    """Seconds to send the activation of a microbatch to the next stage; tp devices send a part each."""
    nbytes = c.micro * model.length * model.width * WIDTH / c.tp
    over = send_time(nbytes, c.tp * c.dp, machine)
    if c.sequence or c.tp == 1:
        return over
    return over + collective_time("all_gather", nbytes * c.tp, DeviceGroup(c.tp), machine)
