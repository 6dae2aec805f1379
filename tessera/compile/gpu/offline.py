"""Programs for GPUs that are not here: compiled, to be looked at or taken elsewhere, and not run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar, cast

from tessera.compile.executable import PassResult, last_of
from tessera.compile.gpu import libraries
from tessera.compile.gpu.executable import GpuExecutable
from tessera.compile.gpu.kept import decompose_rest
from tessera.compile.gpu.lowering import (
    GpuCall,
    GpuImage,
    context_of,
    lower_at,
    symbolic_schedule,
    tiles_of,
)
from tessera.compile.gpu.program import GpuProgram
from tessera.compile.gpu.tma_tile import TmaDescriptor, described
from tessera.compile.gpu.triton_sources import blocks_of
from tessera.compile.gpu.undecided import alone_at, is_undecided
from tessera.compile.passes import SCHEDULE
from tessera.core.errors import DeviceError
from tessera.core.kernels import Kernels
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Graph
from tessera.ir.schedule.ir import HostCall
from tessera.ir.schedule.memory import StepAccess, size_of
from tessera.ir.target.gluon.flash_forward_emit import boxes_of
from tessera.ir.tile import ir as tile
from tessera.runtime.cuda.device import Gpu, gpu
from tessera.runtime.cuda.launch import FixedValue, Pointer, i32
from tessera.runtime.cuda.memory import DeviceArray
from tessera.runtime.triton_builder import BuiltCode, build

Device = tuple[str, Any, int]  # of Triton: kind, architecture, threads of a warp
T = TypeVar("T")
_WIDE = re.compile(r"gfx[89]")  # whose waves have 64 threads; newer ones have 32


class Boxed(NamedTuple):
    """A parameter: a descriptor of the copy engine, which only a driver can write, for memory in a cell."""

    map: TmaDescriptor
    cell: int
    offset: int


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
    steps = symbolic_schedule(g, target, record)
    context = context_of(target, device, sizes, frozenset())
    return OfflineProgram(lower_at(last_of(steps, SCHEDULE), context, steps), device)


class OfflineProgram(GpuProgram):
    """A program that is made for a GPU and not run: its kernels as text, its memory as a plan."""

    def __init__(self, image: GpuImage, device: Device):
        self.calls: list[tuple[StepAccess, Any]] = []
        self.inside: dict[str, OfflineProgram] = {}  # the programs of regions
        self.hosted: dict[str, str] = {}  # the steps that have no kernel, and why
        self.device = device
        gpu = SimpleNamespace(target=device, kind=device[0], warp=device[2])
        super().__init__(image, cast(Gpu, gpu), self._beside)

    def _beside(
        self, s: HostCall, types: Mapping[str, TensorType], sizes: Mapping[str, int]
    ) -> tuple[Any, int]:
        """Nothing runs an op that is no kernel; regions are compiled, and nodes whose form their sizes
        decide.
        """
        if is_undecided(s.node):
            parts: Sequence[Graph] = (decompose_rest(alone_at(s, types, sizes)),)
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
        return self._with_regions(lambda p: p.tiles, tiles_of(self.image))

    @property
    def sources(self) -> dict[str, str]:
        """The sources in the order of the steps, those of regions where their op stands."""
        return self._with_regions(lambda p: p.sources, self.image.sources)

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
        """The name of a step that is no kernel, and who computes it; a view needs no work."""
        if s.node.op.view is not None:
            return {}
        own = self.device[0] == "cuda" and libraries.serves(s.node.op)
        why = (
            "a library of the device computes it where CuPy is installed, the host elsewhere"
            if own
            else "it has no GPU form yet and runs on the host, where its operands travel"
        )
        return {f"{s.node.op.name}_{len(self.hosted)}": why}

    def _hold(self) -> list[DeviceArray]:
        return []

    def _segments(self, steps: Sequence[tuple[StepAccess, Any]]) -> list[Any]:
        self.calls = [(a, c) for a, c in steps if isinstance(c, GpuCall)]
        return []

    def place(self, name: str) -> tuple[int, int]:
        """The cell and the offset of a buffer: inputs come first, then tables, results, the arena and
        scratch.
        """
        return self._place(name)

    @property
    def result_sizes(self) -> list[int]:
        """The bytes of the cells of results."""
        return [s.size for s in self._results]

    def built(self) -> list[tuple[GpuCall, BuiltCode]]:
        """The launches in order, with the code that Triton builds for them."""
        calls = [c for _, c in self.calls]
        return list(zip(calls, build([c.source for c in calls]) if calls else [], strict=True))

    def blocks(self, c: GpuCall) -> int:
        """How many blocks of threads a launch has."""
        return blocks_of(c.launch, self.image.known.get(c.name, {}))

    def parameters(self, c: GpuCall, scratch: int) -> list[Pointer | FixedValue | Boxed]:
        """What a launch is given, before what Triton adds; scratch is in a cell of this number."""
        kernel, known = c.launch.kernel, self.image.known.get(c.name, {})
        boxes = boxes_of(kernel) if c.launch.threads.roles else {}
        given: list[Pointer | FixedValue | Boxed] = []
        for m, n in zip(kernel.parameters, (*c.inputs, *c.outputs), strict=True):
            cell, offset = self._place(n)
            if m in boxes:
                whole, rest = described(boxes[m])
                given += [Boxed(whole, cell, offset), *rest]
            else:
                given.append(Pointer(cell, offset if size_of(self.types[n]) else 0))
        given += [i32(known[n]) for n in kernel.sizes]
        return [*given, Pointer(scratch)] if c.scratch else given

    def images(self) -> dict[str, bytes]:
        """The code of every launch, which Triton builds, by name."""
        own = {c.name: code.image for c, code in self.built()}
        parts = {f"{n}.{k}": x for n, p in self.inside.items() for k, x in p.images().items()}
        return own | parts


class OfflineExecutable(GpuExecutable):
    """A program that is compiled for a GPU by name."""

    def __init__(self, graph: Graph, record: Sequence[PassResult], kind: str, name: str):
        self.kind, self.name = kind, name
        self.target = target_named(kind, name)
        self._begin(graph, record)

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

    def tiles_at(self, shapes: Sequence[tuple[int, ...]]) -> Kernels:
        """The Tile IR of each kernel at the sizes of a call, by name, those of regions too."""
        return Kernels(self._at(shapes).tiles)

    def target_at(self, shapes: Sequence[tuple[int, ...]]) -> Kernels:
        """The source of each kernel at the sizes of a call, by name, those of regions too."""
        return Kernels(self._at(shapes).sources)

    def program_at(self, shapes: Sequence[tuple[int, ...]]) -> OfflineProgram:
        """This program at the sizes of a call."""
        return cast(OfflineProgram, self._at(shapes))

    def hosted_at(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, str]:
        """The steps that have no kernel at the sizes of a call, and why."""
        return self.program_at(shapes).hosted

    def code_at(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, bytes]:
        """The code of each kernel at the sizes of a call, by name."""
        return self.program_at(shapes).images()


def executable(g: Graph, record: Sequence[PassResult], kind: str, which: str) -> GpuExecutable:
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
    steps = symbolic_schedule(g, target, record, stop)
    if any(s.name == stop for s in steps):
        return steps
    context = context_of(target, device, sizes, frozenset())
    made: list[PassResult] = lower_at(last_of(steps, SCHEDULE), context, steps, stop).driver.record
    return made
