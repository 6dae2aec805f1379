"""What Triton is asked for, and what a launch of the code needs: from a kernel and how threads run it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tessera.core.dims import substitute
from tessera.core.errors import ScheduleError
from tessera.ir.target.gluon.flash_forward_emit import box_type, boxes_of, instances
from tessera.ir.target.triton.types import pointer
from tessera.ir.target.triton.writer import plain_name
from tessera.ir.tile import ir as tile
from tessera.ir.tile.launch import Launch, Threads

Device = tuple[str, int | str, int]  # of Triton: kind, architecture, threads of a warp
_PLAIN_STAGES = 3  # Triton's default on NVIDIA
_ROLES_FROM = 100  # compute capability, as sm_100


@dataclass(frozen=True)
class TritonSource:
    """A kernel to build: its module, and what it is built for."""

    text: str
    name: str
    signature: tuple[tuple[str, str], ...]
    aligned: tuple[int, ...]  # parameters that are addresses at multiples of 16 bytes
    target: Device
    warps: int
    stages: int
    registers: int | None  # of a thread, at most

    def request(self) -> dict[str, object]:
        """What a worker is asked for."""
        options = {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": False}
        if self.registers is not None and self.target[0] == "cuda":
            options["maxnreg"] = self.registers
        whole = asdict(self)
        return {
            "source": self.text, "name": self.name, "signature": dict(self.signature),
            "aligned": self.aligned, "target": whole["target"], "options": options, "lines": False,
        }  # fmt: skip


def source_of(
    kernel: tile.Kernel, text: str, threads: Threads, arch: Device, scratch: int
) -> TritonSource:
    """What Triton is asked to build for a kernel."""
    demand_roles(kernel, threads, arch)
    found = boxes_of(kernel) if threads.roles else {}
    given = [
        (plain_name(m.name), box_type(found[m]) if m in found else pointer(m.type.dtype))
        for m in kernel.parameters
    ]
    given += [(plain_name(n), "i32") for n in kernel.sizes]
    given += [("scratch", "*i8")] if scratch else []
    aligned = tuple(i for i, m in enumerate(kernel.parameters) if m not in found)
    stages = threads.stages or _PLAIN_STAGES
    name, warps = plain_name(kernel.name), threads.warps
    return TritonSource(text, name, tuple(given), aligned, arch, warps, stages, threads.registers)


def demand_roles(k: tile.Kernel, threads: Threads, arch: Device) -> None:
    """Raise ScheduleError where Triton gives the warps of an architecture no roles."""
    if threads.specialise and not (arch[0] == "cuda" and int(arch[1]) >= _ROLES_FROM):
        raise ScheduleError(
            f"{k.name}: specialise does nothing on {arch[0]} {arch[1]}: Triton gives warps of loops roles "
            f"from "
            f"sm_{_ROLES_FROM} on; leave it out"
        )


def blocks_of(launch: Launch, sizes: Mapping[str, int]) -> int:
    """How many blocks of threads a launch has."""
    counts = [int(substitute(n, sizes)) for _, n in launch.kernel.grid]
    if launch.threads.roles:
        counts[-1] = -(-counts[-1] // instances(launch.kernel))
    return math.prod(counts)
