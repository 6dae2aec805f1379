"""Plans: a layout of a model on a machine as a value that prints, saves, hashes, explains itself and draws
itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tessera.core.errors import FileError, located
from tessera.plan.choice import Choice, MemoryUse
from tessera.plan.machine import Machine, machine_of
from tessera.plan.model import Transformer
from tessera.plan.picture import drawn

FORMAT = "tessera plan 1"


@dataclass(frozen=True)
class PlannedCollective:
    """Collectives of one kind over one axis in a step: how many, and the bytes that a device sends in all."""

    kind: str
    axis: str
    count: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.count} {self.kind} over {self.axis}, {_bytes(self.bytes)} a device"


@dataclass(frozen=True)
class Plan:
    """How a model trains on a machine: axes, stages, memory, time, collectives, and why."""

    name: str
    machine: Machine
    batch: int
    choice: Choice
    step: float  # seconds, simulated
    bubble: float
    link_use: float
    memory: MemoryUse  # of the fullest device
    flops: float  # of the model in a step, all devices together
    collectives: tuple[PlannedCollective, ...]
    reasons: tuple[str, ...]
    model: Transformer | None = None
    rules: tuple[tuple[str, int], ...] = ()  # parameters that tp cuts, and along which axis
    layers: tuple[str, ...] = field(default=(), repr=False)

    @property
    def axes(self) -> dict[str, int]:
        """The mesh: the size of each axis that is larger than one."""
        c = self.choice
        return {a: n for a, n in (("pp", c.pp), ("dp", c.dp), ("tp", c.tp)) if n > 1} or {"dp": 1}

    @property
    def utilization(self) -> float:
        """Operations of the model a second, as a share of the peak of all devices."""
        dtype = self.model.dtype if self.model else self.machine.device.flops[0][0]
        return self.flops / self.step / (self.machine.device.peak(dtype) * self.machine.size)

    def __str__(self) -> str:
        rows = [
            f"{self.name} on {self.machine.name} ({self.machine.size} {self.machine.device.name}), batch "
            f"{self.batch}",
            f"  layout   {self.choice}",
            f"  step     {_seconds(self.step)}, bubble {self.bubble:.1%}, {self.utilization:.1%} of the peak",
            f"  memory   {self.memory} of {self.machine.device.memory / 1e9:.0f} GB",
        ]
        if self.choice.pp > 1:
            rows.append(f"  stages   {_runs(self.choice.stages)} layers")
        if self.rules:
            rows.append("  cut      " + ", ".join(f"{n} along {a}" for n, a in self.rules))
        rows += [f"  moves    {c}" for c in self.collectives]
        return "\n".join(rows)

    def explain(self) -> str:
        """The plan, and why it was chosen."""
        return "\n".join([str(self), *(f"  because  {r}" for r in self.reasons)])

    # Files ----------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values."""
        made = asdict(self)
        made["machine"] = self.machine.to_dict()
        return {"format": FORMAT, **made}

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical text."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n")

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read a plan that `save` wrote."""
        try:
            return _plan_of(json.loads(Path(path).read_text()))
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise located(
                FileError(
                    f"Plan.load: {path} is no plan ({type(e).__name__}: {e}); write one with plan.save(path)"
                )
            ) from None

    # Pictures -------------------------------------------------------------------------------------

    def svg(self) -> str:
        """The mesh and the timeline of a step as SVG."""
        return drawn(self.model, self.machine, self.choice, self.batch, str(self).splitlines()[0])

    def _repr_html_(self) -> str:
        return self.svg()


def _plan_of(d: Any) -> Plan:
    if not isinstance(d, Mapping) or d.get("format") != FORMAT:
        raise ValueError(f"the format is not {FORMAT!r}")
    choice = {**d["choice"], "stages": tuple(d["choice"]["stages"])}
    return Plan(
        d["name"], machine_of(d["machine"]), d["batch"], Choice(**choice), d["step"], d["bubble"],
        d["link_use"],
        MemoryUse(**d["memory"]), d["flops"], tuple(PlannedCollective(**c) for c in d["collectives"]),
        tuple(d["reasons"]),
        None if d["model"] is None else Transformer(**d["model"]), tuple((n, a) for n, a in d["rules"]),
        tuple(d["layers"]),
    )  # fmt: skip


def _runs(sizes: tuple[int, ...]) -> str:
    """5 5 5 4 4 as 3 x 5, 2 x 4."""
    found: list[list[int]] = []
    for n in sizes:
        if found and found[-1][1] == n:
            found[-1][0] += 1
        else:
            found.append([1, n])
    return ", ".join(f"{k} x {n}" if k > 1 else str(n) for k, n in found)


def _seconds(s: float) -> str:
    return f"{s:.3g} s" if s >= 1 else f"{s * 1e3:.3g} ms" if s >= 1e-3 else f"{s * 1e6:.3g} us"


def _bytes(n: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return f"{n:.0f} bytes"
