"""Programs for GPUs that are not here: compiled, to be looked at or taken elsewhere, and not run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from tessera.compile.executable import PassResult, last_of
from tessera.compile.gpu import libraries
from tessera.compile.gpu.collectives import is_collective
from tessera.compile.gpu.compilation import GpuCompilation
from tessera.compile.gpu.context import context_of
from tessera.compile.gpu.executable import GpuExecutable
from tessera.compile.gpu.image import GpuCall
from tessera.compile.gpu.planned import PlannedProgram
from tessera.compile.gpu.undecided import alone_at, is_undecided
from tessera.compile.passes import SCHEDULE
from tessera.core.deferred import Deferred
from tessera.core.errors import DeviceError
from tessera.core.kernels import Kernels
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Graph
from tessera.ir.schedule.ir import HostCall
from tessera.ir.target.triton.triton_source import Device
from tessera.runtime.cuda.device import gpu
from tessera.transform.decompose import decompose_on_gpu

if TYPE_CHECKING:  # a program from the disk needs nothing that lowers
    from tessera.compile.gpu.lowering import LoweredProgram
    from tessera.ir.tile import ir as tile

T = TypeVar("T")
_symbolic_schedule = Deferred("tessera.compile.gpu.lowering:symbolic_schedule")
_lower_at = Deferred("tessera.compile.gpu.lowering:lower_at")
_WIDE = re.compile(r"gfx[89]")  # whose waves have 64 threads; newer ones have 32


def target_named(kind: str, name: str) -> Device:
    """What Triton builds for: sm_90 of cuda, gfx942 of hip."""
    if kind == "cuda":
        return kind, int(name.removeprefix("sm_").rstrip("a")), 32
    return kind, name, 64 if _WIDE.match(name) else 32


def offline_program(
    g: Graph, device: Device, sizes: Mapping[str, int], record: Sequence[PassResult] = ()
) -> OfflineProgram:
    """A graph after its passes, compiled for a device that need not be there, at known sizes."""
    target = device[0]
    steps: list[PassResult] = _symbolic_schedule(g, target, record)
    context = context_of(target, device, sizes, frozenset())
    return OfflineProgram(_lower_at(last_of(steps, SCHEDULE), context, steps), device)


class OfflineProgram(PlannedProgram):
    """A program that is made for a GPU and not run: its kernels as text, its memory as a plan."""

    def __init__(self, made: LoweredProgram, device: Device):
        self.inside: dict[str, OfflineProgram] = {}  # the programs of regions
        self.hosted: dict[str, str] = {}  # the steps that have no kernel, and why
        self.device = device
        super().__init__(made.image, made.driver, lambda: made, self._beside)

    def _beside(
        self, s: HostCall, types: Mapping[str, TensorType], sizes: Mapping[str, int]
    ) -> tuple[None, int]:
        """Nothing runs an op that is no kernel; regions are compiled, and nodes whose form their sizes
        decide.
        """
        if is_undecided(s.node):
            parts: Sequence[Graph] = (decompose_on_gpu(alone_at(s, types, sizes)),)
        elif s.node.op.control:
            parts = s.node.regions
        else:
            self.hosted |= self._without_kernel(s)
            return None, 0
        for r in parts:
            part = offline_program(r, self.device, sizes)
            name = f"{s.node.op.name}_{len(self.inside)}"
            self.hosted |= {f"{name}.{n}": why for n, why in part.hosted.items()}
            self.inside[name] = part
        return None, 0

    @property
    def tiles(self) -> dict[str, tile.Kernel]:
        """The Tile kernels in the order of the steps, those of regions where their op stands."""
        return self._with_regions(lambda p: p.tiles, self.lowered.tiles)

    @property
    def sources(self) -> dict[str, str]:
        """The sources in the order of the steps, those of regions where their op stands."""
        return self._with_regions(lambda p: p.sources, self.lowered.sources)

    def _with_regions(
        self, of: Callable[[OfflineProgram], Mapping[str, T]], own: Mapping[str, T]
    ) -> dict[str, T]:
        out: dict[str, T] = {}
        inside = iter(self.inside.items())
        for _, c in self.image.steps:
            if isinstance(c, GpuCall):
                out[c.name] = own[c.name]
            elif c.node.op.control or is_undecided(c.node):
                for name, part in islice(inside, max(len(c.node.regions), 1)):
                    out |= {f"{name}.{n}": x for n, x in of(part).items()}
        return out

    def _without_kernel(self, s: HostCall) -> dict[str, str]:
        """The name of a step that is no kernel, and who computes it; views and checks need no work."""
        if s.node.op.view is not None or s.node.op.call == "sound":
            return {}
        own = self.device[0] == "cuda" and libraries.serves(s.node.op)
        why = (
            "ranks exchange what it has; kernels of its own pack and add that"
            if is_collective(s)
            else "a library of the device computes it where CuPy is installed, the host elsewhere"
            if own
            else "it has no GPU form yet and runs on the host, where its operands travel"
        )
        return {f"{s.node.op.name}_{len(self.hosted)}": why}

    def images(self) -> dict[str, bytes]:
        """The code of every launch, which Triton builds, by name."""
        own = {c.name: code.image for c, code in self.built()}
        parts = {f"{n}.{k}": x for n, p in self.inside.items() for k, x in p.images().items()}
        return own | parts


class OfflineExecutable(GpuCompilation[OfflineProgram]):
    """A program that is compiled for a GPU by name."""

    def __init__(self, graph: Graph, record: Sequence[PassResult], kind: str, name: str):
        super().__init__(graph, record, kind)
        self.name, self.target = name, target_named(kind, name)

    @property
    def device(self) -> Device:
        """What Triton builds for."""
        return self.target

    @property
    def place(self) -> str:
        """The target that it is compiled for."""
        return f"{self.kind}:{self.name}"

    def run(self, inputs: Sequence[Any], donated: frozenset[int] = frozenset()) -> list[Any]:
        """An error: there is no such device."""
        raise DeviceError(
            f"{self.graph.name}: it is compiled for {self.kind}:{self.name}, which is an architecture and no "
            f"device; look at it with .lower(...), or use the target '{self.kind}'"
        )

    def at(self, sizes: Mapping[str, int], donated: frozenset[int] = frozenset()) -> OfflineProgram:
        """This program at known sizes."""
        return OfflineProgram(self.lowered(sizes, donated), self.target)

    def planned_at(self, shapes: Sequence[tuple[int, ...]]) -> PlannedProgram:
        """This program with its memory planned, for inputs of these shapes."""
        return self.program_at(shapes)

    def tiles_at(self, shapes: Sequence[tuple[int, ...]]) -> Kernels[tile.Kernel]:
        """The Tile IR of each kernel at the sizes of a call, by name, those of regions too."""
        return Kernels(self.program_at(shapes).tiles)

    def target_at(self, shapes: Sequence[tuple[int, ...]]) -> Kernels[str]:
        """The source of each kernel at the sizes of a call, by name, those of regions too."""
        return Kernels(self.program_at(shapes).sources)

    def program_at(self, shapes: Sequence[tuple[int, ...]]) -> OfflineProgram:
        """This program at the sizes of a call."""
        return self.prepared([*shapes, *self._captured_shapes()])

    def hosted_at(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, str]:
        """The steps that have no kernel at the sizes of a call, and why."""
        return self.program_at(shapes).hosted

    def code_at(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, bytes]:
        """The code of each kernel at the sizes of a call, by name."""
        return self.program_at(shapes).images()


def executable(
    g: Graph, record: Sequence[PassResult], kind: str, which: str
) -> GpuExecutable | OfflineExecutable:
    """What runs a graph on a device that `which` numbers, or shows it for an architecture that it names."""
    if (which or "0").isdecimal():
        return GpuExecutable(g, record, int(which or 0), kind)
    return OfflineExecutable(g, record, kind, which)


def lowered(
    g: Graph, record: Sequence[PassResult], target: str, sizes: Mapping[str, int], numerics: str,
    stop: str | None
) -> list[PassResult]:  # fmt: skip
    """The record of a graph at every level to the pass to stop at, for a device or an architecture."""
    kind, _, which = target.partition(":")
    named = not (which or "0").isdecimal()
    device = target_named(kind, which) if named else gpu(int(which or 0), kind).target
    steps: list[PassResult] = _symbolic_schedule(g, target, record, stop)
    if any(s.name == stop for s in steps):
        return steps
    context = context_of(target, device, sizes, frozenset())
    made: LoweredProgram = _lower_at(last_of(steps, SCHEDULE), context, steps, stop)
    return made.driver.record
