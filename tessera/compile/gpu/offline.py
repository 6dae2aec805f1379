"""Programs for GPUs that are not here: compiled, to be looked at or taken elsewhere, and not run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

from tessera.accelerator import libraries
from tessera.compile.executable import Step
from tessera.compile.gpu import control
from tessera.compile.gpu.executable import GpuExecutable, schedule_for_gpu
from tessera.compile.gpu.program import GpuProgram
from tessera.core.errors import DeviceError
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Graph
from tessera.ir.schedule.at import at_sizes
from tessera.ir.schedule.ir import HostCall, Program
from tessera.ir.schedule.memory import Access
from tessera.runtime.cuda.device import Gpu
from tessera.runtime.cuda.memory import DeviceArray
from tessera.runtime.triton_builder import build

Target = tuple[str, Any, int]  # of Triton: kind, architecture, threads of a warp
_WIDE = re.compile(r"gfx[89]")  # whose waves have 64 threads; newer ones have 32


def target_named(kind: str, name: str) -> Target:
    """What Triton builds for: sm_90 of cuda, gfx942 of hip."""
    if kind == "cuda":
        return kind, int(name.removeprefix("sm_").rstrip("a")), 32
    return kind, name, 64 if _WIDE.match(name) else 32


class OfflineProgram(GpuProgram):
    """A program that is made for a GPU and not run: its kernels as text, its memory as a plan."""

    def __init__(
        self,
        p: Program,
        target: Target,
        sizes: Mapping[str, int],
        donated: frozenset[str] = frozenset(),
    ):
        self.calls: list[tuple[Access, Any]] = []
        self.inside: dict[str, OfflineProgram] = {}  # the programs of regions
        self.hosted: dict[str, str] = {}  # the steps that have no kernel, and why
        gpu = SimpleNamespace(target=target, kind=target[0], warp=target[2])
        super().__init__(p, cast(Gpu, gpu), self._beside, donated, sizes)

    def _beside(
        self, s: HostCall, types: Mapping[str, TensorType], sizes: Mapping[str, int]
    ) -> tuple[Any, int]:
        """Nothing runs an op that is no kernel; regions are compiled."""
        if s.node.op.name not in control.NAMES:
            self.hosted |= self._without_kernel(s)
            return None, 0
        for r in s.node.regions:
            part = OfflineProgram(at_sizes(schedule_for_gpu(r), sizes), self.arch, sizes)
            name = f"{s.node.op.name}_{len(self.inside)}"
            self.tiles |= {f"{name}.{n}": k for n, k in part.tiles.items()}
            self.sources |= {f"{name}.{n}": text for n, text in part.sources.items()}
            self.hosted |= {f"{name}.{n}": why for n, why in part.hosted.items()}
            self.inside[name] = part
        return None, 0

    def _without_kernel(self, s: HostCall) -> dict[str, str]:
        """The name of a step that is no kernel, and who computes it; a view needs no work."""
        if s.node.op.view is not None:
            return {}
        own = self.arch[0] == "cuda" and libraries.serves(s.node.op)
        why = (
            "a library of the device computes it where CuPy is installed, the host elsewhere"
            if own
            else "it has no GPU form yet and runs on the host, where its operands travel"
        )
        return {f"{s.node.op.name}_{len(self.hosted)}": why}

    def _hold(self) -> list[DeviceArray]:
        return []

    def _segments(self, steps: Sequence[tuple[Access, Any]]) -> list[Any]:
        self.calls = [(a, c) for a, c in steps if not a.host]
        return []

    def images(self) -> dict[str, bytes]:
        """The code of every launch, which Triton builds, by name."""
        codes = build([c.source for _, c in self.calls]) if self.calls else []
        own = {a.name: code.image for (a, _), code in zip(self.calls, codes, strict=True)}
        parts = {f"{n}.{k}": x for n, p in self.inside.items() for k, x in p.images().items()}
        return own | parts


class OfflineExecutable(GpuExecutable):
    """A program that is compiled for a GPU by name."""

    def __init__(self, graph: Graph, record: Sequence[Step], kind: str, name: str):
        self.graph, self.record = graph, tuple(record)
        self.kind, self.name = kind, name
        self.target = target_named(kind, name)
        self.schedule: Program = schedule_for_gpu(graph)
        self._prepared: dict[Any, GpuProgram] = {}

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
        static = at_sizes(self.schedule, sizes)
        names = frozenset(static.inputs[i] for i in donated)
        return OfflineProgram(static, self.target, sizes, names)

    def hosted_at(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, str]:
        """The steps that have no kernel at the sizes of a call, and why."""
        return cast(OfflineProgram, self._at(shapes)).hosted

    def code_at(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, bytes]:
        """The code of each kernel at the sizes of a call, by name."""
        return cast(OfflineProgram, self._at(shapes)).images()
