"""What Triton is asked for, and what a launch of the code needs: from a kernel and how threads run it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tessera.core.dims import product, substitute
from tessera.core.errors import ScheduleError
from tessera.core.types import TensorType
from tessera.ir.target.gluon.flash_forward_emit import box_type, boxes_of, instances
from tessera.ir.target.triton.memory import fetched
from tessera.ir.target.triton.types import pointer
from tessera.ir.target.triton.writer import plain_name
from tessera.ir.tile import ir as tile
from tessera.ir.tile.launch import Launch, Threads, threads_said
from tessera.runtime.triton_builder import TritonSource

WRITTEN_STAGES = 2  # of kernels that people write, where their schedules say nothing
_PLAIN_STAGES = 3  # Triton's default on NVIDIA
_ROLES_FROM = 100  # compute capability, as sm_100
_LARGE = 128 * 128  # elements of a tile that four warps would not have registers for


def source_of(
    kernel: tile.Kernel, text: str, threads: Threads, arch: tuple[str, Any, int], scratch: int
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


def written_threads(k: tile.Kernel, said: Sequence[int] | None) -> Threads:
    """Launch options of a user's kernel; an option that would do nothing here is an error."""
    threads = threads_said(said or (usual_warps(k), WRITTEN_STAGES))
    if threads.descriptors and not fetched(k):
        raise ScheduleError(
            f"{k.name}: tma does nothing: no factor of a product is loaded as a box of a tensor of known "
            f"columns "
            "whose rows begin at multiples of 16 bytes; leave it out"
        )
    if threads.specialise and not threads.descriptors:
        raise ScheduleError(
            f"{k.name}: specialise does nothing without tma: warps that fetch have the copy engine fetch; "
            f"add .tma()"
        )
    return threads


def demand_roles(k: tile.Kernel, threads: Threads, arch: tuple[str, Any, int]) -> None:
    """Raise ScheduleError where Triton gives the warps of an architecture no roles."""
    if threads.specialise and not (arch[0] == "cuda" and int(arch[1]) >= _ROLES_FROM):
        raise ScheduleError(
            f"{k.name}: specialise does nothing on {arch[0]} {arch[1]}: Triton gives warps of loops roles "
            f"from "
            f"sm_{_ROLES_FROM} on; leave it out"
        )


def usual_warps(k: tile.Kernel) -> int:
    """Warps for a kernel whose schedule names none: more where tiles are large."""
    tiles = (x.shape for op in tile.walk(k.body) for x in op.results)
    return 8 if max((product(shape) for shape in tiles), default=0) >= _LARGE else 4


def as_pairs(t: TensorType) -> TensorType:
    """A tensor of complex numbers as one of real numbers."""
    return TensorType(t.dtype.real, (*t.shape, 2)) if t.dtype.kind == "c" else t


def blocks_of(launch: Launch, sizes: Mapping[str, int]) -> int:
    """How many blocks of threads a launch has."""
    counts = [int(substitute(n, sizes)) for _, n in launch.kernel.grid]
    if launch.threads.roles:
        counts[-1] = -(-counts[-1] // instances(launch.kernel))
    return math.prod(counts)
