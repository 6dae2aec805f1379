"""Programs on a GPU: a graph at the sizes of a call, as launches in a device's memory.

Everything runs on the main stream of a device, in order; a call returns when its kernels are launched.
Regions are programs of their own (control.py), and libraries of the device compute what no kernel does
(libraries.py).  What a GPU has no form for runs on the host, and its operands travel there and back.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, cast

import numpy as np

from tessera.compile.cpu.executable import executable as on_the_host
from tessera.compile.executable import Executable, PassResult, last_of, tell_unused
from tessera.compile.fallback import Task, Way, first_that_works, plain_runs, plain_ways
from tessera.compile.gpu import control, libraries
from tessera.compile.gpu.clock import Timed
from tessera.compile.gpu.kept import decompose_rest
from tessera.compile.gpu.lowering import GpuImage, context_of, lower_at, symbolic_schedule, tiles_of
from tessera.compile.gpu.program import GpuProgram
from tessera.compile.gpu.undecided import alone_at, is_undecided
from tessera.compile.passes import SCHEDULE
from tessera.core.constraints import solve
from tessera.core.during import During
from tessera.core.errors import DeviceError, TesseraError
from tessera.core.flags import flags
from tessera.core.garbage import collected_later
from tessera.core.kernels import Kernels
from tessera.core.source import Location
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Graph, Node, substitute_params
from tessera.ir.schedule.ir import HostCall, Program
from tessera.ir.schedule.memory import MemoryPlan
from tessera.ops.callbacks import ensure
from tessera.ops.places import checked_index
from tessera.runtime.cuda.device import Gpu, gpu
from tessera.runtime.cuda.memory import DeviceArray, to_device

_MOST_SHAPES = 256  # sets of sizes that a program is kept prepared for
_FEW_SIZES = 4  # sets that have code of their own; kernels for more of them serve buckets


class GpuExecutable(Executable):
    """A program of GPU kernels, compiled for the sizes that it is called with."""

    _last: tuple[Any, GpuProgram | None] = (None, None)  # of those that are prepared

    def __init__(
        self, graph: Graph, record: Sequence[PassResult], index: int = 0, kind: str = "cuda"
    ):
        self.gpu = gpu(index, kind)
        self._begin(graph, record)
        self._constants: list[DeviceArray] | None = None
        self._regions: dict[Graph, GpuExecutable] = {}

    def _begin(self, graph: Graph, record: Sequence[PassResult]) -> None:
        """Take the graph as far as a program for all sizes goes."""
        self.graph = graph
        self.record = tuple(symbolic_schedule(graph, self.place, record))
        self.schedule: Program = last_of(self.record, SCHEDULE)
        self._prepared: dict[Any, GpuProgram] = {}
        self._lowered: dict[Any, GpuImage] = {}  # to be looked at or to be prepared

    @property
    def place(self) -> str:
        """The target that it is compiled for."""
        return f"{self.gpu.kind}:{self.gpu.index}"

    @property
    def host_nodes(self) -> list[Node]:
        """The nodes that run on the host."""
        return [s.node for s in self.schedule.steps if isinstance(s, HostCall)]

    @property
    def regions(self) -> Mapping[Graph, Any]:
        """The programs of the regions in it; a page shows none of them."""
        return {}

    def run(self, inputs: Sequence[Any], donated: frozenset[int] = frozenset()) -> list[Any]:
        """The outputs for these inputs, which may still be computed when this returns."""
        xs = [x if type(x) is DeviceArray else self._here(x) for x in inputs] + self.constants
        return self.prepared([x.shape for x in xs], donated).run(xs)

    def ready(self, inputs: Sequence[Any]) -> tuple[Callable[[], list[Any]], int]:
        """What runs this program on these inputs when all that it keeps has been made, and the program's
        number.
        """
        xs = [x if type(x) is DeviceArray else self._here(x) for x in inputs] + self.constants
        p = self.prepared([x.shape for x in xs])
        return lambda: p.run(xs), id(p)

    def timed(self, inputs: Sequence[DeviceArray]) -> Timed:
        """This program on inputs that stay, to be timed."""
        xs = [*inputs, *self.constants]
        return Timed(self.prepared([x.shape for x in xs]), xs)

    @property
    def constants(self) -> list[DeviceArray]:
        """The arrays that the graph has captured."""
        if self._constants is None:
            data = [v.storage for v in self.graph.captured if v.storage is not None]
            self._constants = [self._placed(x) for x in data]
        return self._constants

    def _here(self, x: Any) -> DeviceArray:
        return x if isinstance(x, DeviceArray) else to_device(x, self.gpu)

    def _placed(self, x: Any) -> DeviceArray:
        """A tensor that the program has from elsewhere."""
        if isinstance(x, DeviceArray) and x.gpu is not self.gpu:
            raise DeviceError(
                f"{self.graph.name}: it runs on {self.gpu} but uses a tensor {x.dtype}{list(x.shape)} on "
                f"{x.gpu}; "
                f"move it with x.to('{self.gpu.kind}:{self.gpu.index}')"
            )
        return self._here(x)

    def prepared(
        self, shapes: Sequence[tuple[int, ...]], donated: frozenset[int] = frozenset()
    ) -> GpuProgram:
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

    def _made(self, sizes: Mapping[str, int], donated: frozenset[int]) -> GpuProgram:
        """This program at known sizes, or what runs it instead where the compiler fails."""
        written = self.written
        types = [v.type.substitute(sizes) for v in written.inputs]
        task = Task(written, self.place, flags().numerics, types)
        plain = (cast(Way[GpuProgram], w) for w in plain_runs(self.plain))
        made = first_that_works(task, ("", lambda: self.at(sizes, donated)), *plain)
        if donated and type(made) is GpuProgram:
            tell_unused(self.graph, made.plan, {i: made.p.inputs[i] for i in donated})
        return made

    def at(self, sizes: Mapping[str, int], donated: frozenset[int] = frozenset()) -> GpuProgram:
        """This program at known sizes."""
        with During("prepare"):
            return GpuProgram(self.lowered(sizes, donated), self.gpu, self._beside)

    @property
    def device(self) -> tuple[str, Any, int]:
        """What Triton builds for."""
        return self.gpu.target

    def lowered(self, sizes: Mapping[str, int], donated: frozenset[int] = frozenset()) -> GpuImage:
        """The compile half of this program at known sizes; what is looked at is what will run."""
        key = tuple(sizes.items()), donated
        found = self._lowered.get(key)
        if found is None:
            if len(self._lowered) >= _MOST_SHAPES:
                self._lowered.clear()
            many = bool(sizes) and len(self._lowered) >= _FEW_SIZES
            context = context_of(self.place, self.device, sizes, donated, many)
            found = self._lowered[key] = lower_at(self.schedule, context, self.record)
        return found

    def record_at(self, shapes: Sequence[tuple[int, ...]]) -> tuple[PassResult, ...]:
        """The record of every level for inputs of these shapes."""
        return tuple(self._image_at(shapes).driver.record)

    def _image_at(self, shapes: Sequence[tuple[int, ...]]) -> GpuImage:
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

    def tiles_at(self, shapes: Sequence[tuple[int, ...]]) -> Kernels:
        """The Tile IR of each kernel at the sizes of a call, by name."""
        return Kernels(tiles_of(self._image_at(shapes)))

    def target_at(self, shapes: Sequence[tuple[int, ...]]) -> Kernels:
        """The Triton source of each kernel at the sizes of a call, by name."""
        return Kernels(self._image_at(shapes).sources)

    def memory_plan(self, shapes: Sequence[tuple[int, ...]]) -> MemoryPlan:
        """Where everything lies in a run on inputs of these shapes, and how much memory it takes."""
        return self._at(shapes).plan

    def sizes_at(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """The symbolic sizes of a run on inputs of these shapes."""
        return self.sizes([*shapes, *self._captured_shapes()])

    @property
    def schedules(self) -> list[Program]:
        """Schedule IR of the program, without its regions."""
        return [self.schedule]

    def _at(self, shapes: Sequence[tuple[int, ...]]) -> GpuProgram:
        return self.prepared([*shapes, *self._captured_shapes()])

    def _beside(
        self, s: HostCall, types: Mapping[str, TensorType], sizes: Mapping[str, int]
    ) -> tuple[Any, int]:
        """What runs an op that is no kernel, and the bytes that it takes meanwhile."""
        if is_undecided(s.node):
            return self._alone(decompose_rest(alone_at(s, types, sizes)))
        if not s.node.op.control:
            if s.node.op in (checked_index.op, ensure.op):  # the user asked for it
                return _hosted(s, types, sizes, self.gpu, ""), 0
            return _library(s, types, sizes, self.gpu) or _hosted(s, types, sizes, self.gpu), 0

        def make(g: Graph, donated: frozenset[int]) -> control.DeviceRegion:
            if g not in self._regions:
                self._regions[g] = GpuExecutable(g, (), self.gpu.index, self.gpu.kind)
            e = self._regions[g]
            return control.DeviceRegion(e.at(sizes, donated), e.constants)

        return control.controlled(s.node, substitute_params(s.node.params, sizes), make)

    def _alone(self, g: Graph) -> tuple[Any, int]:
        """What runs one node as a program of its own on the device, and the bytes that it takes meanwhile."""
        e = GpuExecutable(g, (), self.gpu.index, self.gpu.kind)
        region = control.DeviceRegion(e.at({}), e.constants)
        return partial(control.apart, region), region.bytes

    def _captured_shapes(self) -> list[tuple[int, ...]]:
        return [v.storage.shape for v in self.graph.captured if v.storage is not None]


def schedule_for_gpu(graph: Graph, target: str = "cuda") -> Program:
    """Schedule IR of a graph for a GPU, for all sizes."""
    made: Program = last_of(symbolic_schedule(graph, target), SCHEDULE)
    return made


_WARNED: set[str] = set()


def _library(
    s: HostCall, types: Mapping[str, TensorType], sizes: Mapping[str, int], place: Gpu
) -> Any:
    """What runs a node by a library of the device; None where there is none."""
    ins, outs = [types[x] for x in s.operands], [types[x] for x in s.results]
    found = libraries.library(s.node.op, ins, outs, substitute_params(s.node.params, sizes))
    if found is None or place.kind != "cuda":
        return None
    instead = partial(_hosted, s, types, sizes, place)
    return partial(control.apart, lambda xs: found.run(xs, place, instead))


def _hosted(
    s: HostCall, types: Mapping[str, TensorType], sizes: Mapping[str, int], place: Gpu,
    why: str = "has no GPU form yet",
) -> Any:  # fmt: skip
    """What runs a node on the host, and warns of it if there is a reason."""
    n = s.node
    travels = any(0 not in types[x].shape for x in s.operands)
    if why and travels and n.op.name not in _WARNED:
        _WARNED.add(n.op.name)
        warnings.warn(
            f"{n.op.name}: {why}; it runs on the host, and its operands travel there and back",
            RuntimeWarning,
            stacklevel=2,
        )
    g = alone_at(s, types, sizes)
    here = on_the_host(g, ())
    here.plain = plain_ways(Task(g, "cpu", here.numerics))
    run = partial(_travel, here.run, place, n.location)
    if s.operands or n.op.effects:
        return run
    once = cache(lambda: run(()))  # what nothing changes travels once
    return lambda xs: once()


def _travel(
    run: Any, place: Gpu, location: Location | None, xs: Sequence[DeviceArray]
) -> list[DeviceArray]:
    """What the host makes of arrays of a device, there again."""
    try:
        made = run([x.numpy() for x in xs])
    except TesseraError as e:
        raise e.at(location) from None
    return [to_device(np.asarray(y, order="C"), place) for y in made]
