"""Machines: devices with memory and speeds, and the links between them at each level of the network."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tessera.core.errors import FileError, OperandError, located

FORMAT = "tessera machine 1"
GB = 1e9  # bytes, as vendors count


@dataclass(frozen=True)
class Accelerator:
    """One device; `flops` has the dense peak of each dtype, and the efficiencies what
    programs reach of it.
    """

    name: str
    memory: float  # bytes
    bandwidth: float  # bytes a second
    flops: tuple[tuple[str, float], ...]
    units: int  # multiprocessors: tiles of a product run in waves of this many
    launch: float = 4e-6  # seconds before a kernel starts
    product_efficiency: float = (
        0.7  # of the peak, for large products in a training step (decision 063)
    )
    memory_efficiency: float = 0.8  # of the bandwidth, for streaming kernels

    def peak(self, dtype: str) -> float:
        """Operations a second for a dtype."""
        found = dict(self.flops).get(dtype)
        if found is None:
            raise located(
                OperandError(
                    f"machine: {self.name} has no speed for {dtype}; it has "
                    f"{', '.join(d for d, _ in self.flops)}"
                )
            )
        return found


@dataclass(frozen=True)
class Link:
    """What joins the devices of a level; bandwidth is bytes a second that one device sends."""

    name: str
    bandwidth: float
    latency: float
    reduces: bool = False  # switches add up what passes (NVLink SHARP, InfiniBand SHARP)
    efficiency: float = 0.8


@dataclass(frozen=True)
class Level:
    """A level of the network: `size` of what lies below, joined by a link."""

    size: int
    link: Link


@dataclass(frozen=True)
class Machine:
    """Devices of one kind under levels of links, innermost first."""

    name: str
    device: Accelerator
    levels: tuple[Level, ...]

    @property
    def size(self) -> int:
        """How many devices there are."""
        return math.prod(level.size for level in self.levels)

    @property
    def node(self) -> int:
        """How many devices share the innermost links."""
        first = self.levels[0].link.name
        inner = [level.size for level in self.levels if level.link.name == first]
        return math.prod(inner)

    def with_reduction(self, on: bool = True) -> Machine:
        """This machine with in-network reduction at every level, or without."""
        levels = tuple(replace(v, link=replace(v.link, reduces=on)) for v in self.levels)
        return replace(self, levels=levels)

    def __str__(self) -> str:
        parts = " x ".join(f"{v.size} by {v.link.name}" for v in self.levels)
        return f"{self.name}: {self.size} {self.device.name}, {parts}"

    def to_dict(self) -> dict[str, Any]:
        """The description as plain values."""
        return {"format": FORMAT, **asdict(self)}

    def save(self, path: str | Path) -> None:
        """Write the description as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n")

    @staticmethod
    def load(path: str | Path) -> Machine:
        """Read a description that `save` wrote or that was written by hand."""
        try:
            return machine_of(json.loads(Path(path).read_text()))
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise located(
                FileError(
                    f"Machine.load: {path} is no description of a machine ({type(e).__name__}: {e}); save "
                    "one with "
                    "Machine.save to see the form"
                )
            ) from None


def machine_of(d: Any) -> Machine:
    """The machine of plain values."""
    if not isinstance(d, Mapping) or d.get("format") != FORMAT:
        raise ValueError(f"the format is not {FORMAT!r}")
    device = dict(d["device"])
    device["flops"] = tuple((str(n), float(v)) for n, v in device["flops"])
    levels = tuple(Level(int(v["size"]), Link(**v["link"])) for v in d["levels"])
    made = Machine(d["name"], Accelerator(**device), levels)
    if not levels or min(v.size for v in levels) < 1:
        raise ValueError("levels need sizes of 1 or more")
    return made


# The published figures of the makers: dense peaks, memory, one direction of the links.
A100 = Accelerator(
    "A100-80GB", 80 * GB, 2039 * GB, (("f16", 312e12), ("bf16", 312e12), ("tf32", 156e12), ("f32", 19.5e12)),
    108
)  # fmt: skip
H100 = Accelerator(
    "H100-80GB", 80 * GB, 3350 * GB,
    (("f16", 989e12), ("bf16", 989e12), ("tf32", 494e12), ("f32", 67e12), ("f8e4m3", 1979e12)), 132,
)  # fmt: skip
GB200 = Accelerator(
    "GB200", 186 * GB, 8000 * GB,
    (("f16", 2500e12), ("bf16", 2500e12), ("tf32", 1250e12), ("f32", 80e12), ("f8e4m3", 5000e12)), 148,
)  # fmt: skip
CORE = Accelerator("CPU core", 4 * GB, 20 * GB, (("f32", 39e9), ("f64", 19e9), ("bf16", 20e9)), 1)

NVLINK3 = Link("NVLink 3", 300 * GB, 4e-6)
NVLINK4 = Link("NVLink 4", 450 * GB, 4e-6)
NVLINK5 = Link("NVLink 5", 900 * GB, 4e-6)
HDR = Link("InfiniBand HDR", 25 * GB, 8e-6)
NDR = Link("InfiniBand NDR", 50 * GB, 8e-6)
SHARED = Link("shared memory", 5 * GB, 50e-6)


def _cluster(name: str, device: Accelerator, inner: Link, nodes: int, outer: Link) -> Machine:
    return Machine(name, device, (Level(8, inner), Level(nodes, outer)))


MACHINES: dict[str, Machine] = {
    m.name: m
    for m in (
        Machine("8xh100", H100, (Level(8, NVLINK4),)),
        Machine("8xa100", A100, (Level(8, NVLINK3),)),
        Machine("nvl72", GB200, (Level(4, NVLINK5), Level(18, NVLINK5))),
        _cluster("128xa100", A100, NVLINK3, 128, HDR),
        _cluster("1024xa100", A100, NVLINK3, 1024, HDR),
        _cluster("128xh100", H100, NVLINK4, 128, NDR),
        _cluster("1024xh100", H100, NVLINK4, 1024, NDR),
    )
}


def machine(name: str | Machine, devices: int | None = None) -> Machine:
    """A machine by name; with `devices` as many of its innermost groups as have that many devices."""
    if isinstance(name, Machine):
        made = name
    elif name in MACHINES:
        made = MACHINES[name]
    else:
        raise located(
            OperandError(
                f"machine: there is no {name!r}; known are {', '.join(MACHINES)}, or give a dist.Machine"
            )
        )
    return made if devices is None else _part(made, devices)


def _part(m: Machine, devices: int) -> Machine:
    """The same machine with fewer or more groups at its outermost level."""
    below = math.prod(v.size for v in m.levels[:-1])
    if len(m.levels) > 1 and devices % below == 0:
        levels = (*m.levels[:-1], replace(m.levels[-1], size=devices // below))
    elif devices <= m.levels[0].size or len(m.levels) == 1:
        levels = (replace(m.levels[0], size=devices),)
    else:
        raise located(
            OperandError(f"machine: {devices} devices are no whole groups of {below} of {m.name}")
        )
    return replace(m, name=f"{m.name}[{devices}]", levels=levels)


def ranks(count: int) -> Machine:
    """Processes of this computer, joined by shared memory, as `tessera run -n` starts them."""
    return Machine(f"{count} ranks", CORE, (Level(count, SHARED),))
