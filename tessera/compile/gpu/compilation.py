"""What compiles a graph for a GPU: schedule for all sizes, and an image for each set of sizes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from tessera.compile.driver import Driver
from tessera.compile.executable import Executable, PassResult, last_of
from tessera.compile.fallback import Task, Way, first_that_works, plain_runs
from tessera.compile.gpu.context import context_of
from tessera.compile.gpu.image import GpuImage
from tessera.compile.gpu.planned import Host, PlannedProgram
from tessera.compile.passes import SCHEDULE, Context
from tessera.core.constraints import solve
from tessera.core.deferred import Deferred
from tessera.core.flags import flags
from tessera.core.garbage import collected_later
from tessera.core.kernels import Kernels
from tessera.ir.graph.ir import Graph, Node
from tessera.ir.schedule.ir import HostCall, Program
from tessera.ir.schedule.memory import MemoryPlan
from tessera.ir.target.triton.triton_source import Device

if TYPE_CHECKING:  # a program from the disk needs nothing that lowers
    from tessera.compile.gpu.lowering import LoweredProgram
    from tessera.ir.tile import ir as tile

_MOST_SHAPES = 256  # sets of sizes that a program is kept prepared for
_FEW_SIZES = 4  # sets that have code of their own; kernels for more of them serve buckets


_symbolic_schedule = Deferred("tessera.compile.gpu.lowering:symbolic_schedule")
_lower_at = Deferred("tessera.compile.gpu.lowering:lower_at")
R = TypeVar("R")


class GpuCompilation(Executable, ABC, Generic[R]):
    """A program of GPU kernels, compiled for the sizes that it is called with; R is what that gives.

    What lowers takes longer to import than an artefact to load, so it is loaded when something is lowered.
    """

    def __init__(self, graph: Graph, record: Sequence[PassResult], kind: str):
        self.graph, self.record, self.kind = graph, tuple(record), kind
        self._prepared: dict[Hashable, R] = {}
        self._last: tuple[Hashable, R | None] = (None, None)  # of those that are prepared
        self._images: dict[Hashable, tuple[GpuImage, Driver]] = {}
        self._lowered: dict[Hashable, LoweredProgram] = {}  # to be looked at or to be prepared

    @property
    @abstractmethod
    def place(self) -> str:
        """The target that it is compiled for."""

    @property
    @abstractmethod
    def device(self) -> Device:
        """What Triton builds for."""

    @abstractmethod
    def at(self, sizes: Mapping[str, int], donated: frozenset[int] = frozenset()) -> R:
        """This program at known sizes."""

    @abstractmethod
    def planned_at(self, shapes: Sequence[tuple[int, ...]]) -> PlannedProgram:
        """This program with its memory planned, for inputs of these shapes."""

    # All sizes

    @cached_property
    def _symbolic(self) -> list[PassResult]:
        """The record to the last pass that serves all sizes."""
        made: list[PassResult] = _symbolic_schedule(self.graph, self.place, self.record)
        return made

    @property
    def schedule(self) -> Program:
        """Schedule IR for all sizes."""
        return last_of(self._symbolic, SCHEDULE)

    @property
    def schedules(self) -> list[Program]:
        """Schedule IR of the program, without its regions."""
        return [self.schedule]

    @property
    def host_nodes(self) -> list[Node]:
        """The nodes that run on the host."""
        return [s.node for s in self.schedule.steps if isinstance(s, HostCall)]

    @property
    def regions(self) -> Mapping[Graph, Executable]:
        """The programs of the regions in it; a page shows none of them."""
        return {}

    # Known sizes

    def prepared(
        self, shapes: Sequence[tuple[int, ...]], donated: frozenset[int] = frozenset()
    ) -> R:
        """This program for arrays of such shapes."""
        key = (tuple(shapes), donated)
        last, found = self._last
        if found is not None and key == last:  # faster than a hash
            return found
        found = self._prepared.get(key)
        if found is None:
            if len(self._prepared) >= _MOST_SHAPES:
                self._prepared.clear()
            with collected_later():
                found = self._prepared[key] = self._made(self.sizes(shapes), donated)
        self._last = (key, found)
        return found

    def _made(self, sizes: Mapping[str, int], donated: frozenset[int]) -> R:
        """This program at known sizes, or what runs it instead where the compiler fails."""
        written = self.written
        types = [v.type.substitute(sizes) for v in written.inputs]
        task = Task(written, self.place, flags().numerics, types)
        plain = (cast(Way[R], w) for w in plain_runs(self.plain))
        return first_that_works(task, ("", lambda: self.at(sizes, donated)), *plain)

    def _planned(
        self, sizes: Mapping[str, int], donated: frozenset[int], host: Host
    ) -> PlannedProgram:
        """This program at known sizes with its memory planned."""
        image, driver = self._image(sizes, donated)
        return PlannedProgram(image, driver, lambda: self.lowered(sizes, donated), host)

    def _image(self, sizes: Mapping[str, int], donated: frozenset[int]) -> tuple[GpuImage, Driver]:
        """The program at known sizes as data, and what builds its code."""
        key = tuple(sizes.items()), donated
        found = self._images.get(key)
        if found is None:
            if len(self._images) >= _MOST_SHAPES:
                self._images.clear()
                self._lowered.clear()
            many = bool(sizes) and len(self._images) >= _FEW_SIZES
            context = context_of(self.place, self.device, sizes, donated, many)
            found = self._images[key] = self._image_of(key, context)
        return found

    def _image_of(self, key: Hashable, c: Context) -> tuple[GpuImage, Driver]:
        """The image of a context; a program that is only looked at does not come from the disk."""
        return self._lower(key, c)

    def _lower(self, key: Hashable, c: Context) -> tuple[GpuImage, Driver]:
        found = self._lowered[key] = _lower_at(self.schedule, c, self._symbolic)
        return found.image, found.driver

    def lowered(
        self, sizes: Mapping[str, int], donated: frozenset[int] = frozenset()
    ) -> LoweredProgram:
        """The program at known sizes with its IR of every level; what is looked at is what runs."""
        key = tuple(sizes.items()), donated
        _, driver = self._image(sizes, donated)
        if key not in self._lowered:  # the image is from the disk
            self._lower(key, driver.context)
        return self._lowered[key]

    def record_at(self, shapes: Sequence[tuple[int, ...]]) -> tuple[PassResult, ...]:
        """The record of every level for inputs of these shapes."""
        return tuple(self._lowered_at(shapes).driver.record)

    def _lowered_at(self, shapes: Sequence[tuple[int, ...]]) -> LoweredProgram:
        return self.lowered(self.sizes_at(shapes))

    def sizes(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """The symbolic sizes of a run on arrays of these shapes."""
        g = self.graph
        names = [
            g.input_names[i] if i < len(g.input_names) else f"input {i}"
            for i in range(len(g.inputs))
        ]
        wanted = [(n, v.type.shape, s) for n, v, s in zip(names, g.inputs, shapes, strict=True)]
        return solve(wanted, list(g.guards))

    def tiles_at(self, shapes: Sequence[tuple[int, ...]]) -> Kernels[tile.Kernel]:
        """The Tile IR of each kernel at the sizes of a call, by name."""
        return Kernels(self._lowered_at(shapes).tiles)

    def target_at(self, shapes: Sequence[tuple[int, ...]]) -> Kernels[str]:
        """The source of each kernel at the sizes of a call, by name."""
        return Kernels(self._lowered_at(shapes).sources)

    def memory_plan(self, shapes: Sequence[tuple[int, ...]]) -> MemoryPlan:
        """The place of every buffer in a run on inputs of these shapes, and how much memory it takes."""
        return self.planned_at(shapes).plan

    def sizes_at(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """The symbolic sizes of a run on inputs of these shapes."""
        return self.sizes([*shapes, *self._captured_shapes()])

    def _captured_shapes(self) -> list[tuple[int, ...]]:
        return [v.storage.shape for v in self.graph.captured if v.storage is not None]
