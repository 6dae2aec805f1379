"""Programs on a GPU: a graph at the sizes of a call, as launches in a device's memory.

Everything runs on the main stream of a device, in order; a call returns when its kernels are launched.
Regions are programs of their own (control.py), and libraries of the device compute what no kernel does
(libraries.py).  What a GPU has no form for runs on the host, and its operands travel there and back.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from tessera.compile.cpu.executable import executable as on_the_host
from tessera.compile.driver import Driver
from tessera.compile.executable import PassResult, last_of, tell_unused
from tessera.compile.fallback import Task, plain_ways
from tessera.compile.gpu import control, libraries
from tessera.compile.gpu.bind import Bound, bind
from tessera.compile.gpu.collectives import collective, is_collective
from tessera.compile.gpu.compilation import GpuCompilation
from tessera.compile.gpu.image import GpuImage, demand_fit, key_of, load, save
from tessera.compile.gpu.planned import PlannedProgram
from tessera.compile.gpu.undecided import alone_at, is_undecided
from tessera.compile.passes import SCHEDULE, TARGET, Context
from tessera.compile.pipeline import passes_of
from tessera.core.deferred import Deferred
from tessera.core.during import During
from tessera.core.errors import DeviceError, TesseraError
from tessera.core.flags import flags
from tessera.core.source import Location
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Array, Graph, substitute_params
from tessera.ir.graph.op import Op
from tessera.ir.schedule.ir import HostCall, Program
from tessera.ir.target.triton.triton_source import Device
from tessera.ops.callbacks import ensure
from tessera.ops.places import checked_index
from tessera.ops.small_matrices import no_factor
from tessera.runtime.cuda.device import Gpu, gpu
from tessera.runtime.cuda.memory import DeviceArray, to_device
from tessera.runtime.gpu.bound_program import BoundProgram
from tessera.runtime.gpu.clock import Timed
from tessera.runtime.gpu.control import DeviceRegion, Run, apart
from tessera.transform.decompose import decompose_on_gpu

_symbolic_schedule = Deferred("tessera.compile.gpu.lowering:symbolic_schedule")


class GpuExecutable(GpuCompilation[Bound]):
    """A program of GPU kernels on a device, compiled for the sizes that it is called with."""

    def __init__(
        self, graph: Graph, record: Sequence[PassResult], index: int = 0, kind: str = "cuda"
    ):
        super().__init__(graph, record, kind)
        self.gpu = gpu(index, kind)
        self._constants: list[DeviceArray] | None = None
        self._regions: dict[Graph, GpuExecutable] = {}

    @property
    def place(self) -> str:
        """The target that it is compiled for."""
        return f"{self.gpu.kind}:{self.gpu.index}"

    @property
    def device(self) -> Device:
        """What Triton builds for."""
        return self.gpu.target

    def run(self, inputs: Sequence[Any], donated: frozenset[int] = frozenset()) -> list[Any]:
        """The outputs for these inputs, which may still be computed when this returns."""
        xs = [x if type(x) is DeviceArray else self._here(x) for x in inputs] + self.constants
        return self.prepared([x.shape for x in xs], donated).run(xs)

    def ready(
        self, inputs: Sequence[Array | DeviceArray]
    ) -> tuple[Callable[[], list[DeviceArray]], int]:
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

    def _here(self, x: Array | DeviceArray) -> DeviceArray:
        return x if isinstance(x, DeviceArray) else to_device(x, self.gpu)

    def _placed(self, x: Array | DeviceArray) -> DeviceArray:
        """A tensor that the program has from elsewhere."""
        if isinstance(x, DeviceArray) and x.gpu is not self.gpu:
            raise DeviceError(
                f"{self.graph.name}: it runs on {self.gpu} but uses a tensor {x.dtype}{list(x.shape)} on "
                f"{x.gpu}; "
                f"move it with x.to('{self.gpu.kind}:{self.gpu.index}')"
            )
        return self._here(x)

    def _made(self, sizes: Mapping[str, int], donated: frozenset[int]) -> Bound:
        made = super()._made(sizes, donated)
        if donated and type(made) is BoundProgram:
            p = made.planned
            tell_unused(self.graph, p.plan, {i: p.inputs[i] for i in donated})
        return made

    def at(self, sizes: Mapping[str, int], donated: frozenset[int] = frozenset()) -> Bound:
        """This program at known sizes."""
        with During("prepare"):
            return bind(self._planned(sizes, donated, self._beside), self.gpu)

    def planned_at(self, shapes: Sequence[tuple[int, ...]]) -> PlannedProgram:
        """This program with its memory planned, for inputs of these shapes."""
        return self.prepared([*shapes, *self._captured_shapes()]).planned

    def _image_of(self, key: Hashable, c: Context) -> tuple[GpuImage, Driver]:
        """The image of a context: from the disk if it is there, otherwise lowered and kept."""
        # Verification wants every level to be made.
        entry = None if flags().verify else key_of(self.graph, c)
        with During("load"):
            image = None if entry is None else load(entry, self.graph)
        if image is not None:
            return image, Driver(passes_of(c.target, TARGET), c)
        made = self._lower(key, c)
        if entry is not None:
            save(entry, made[0], self.graph)
        elif flags().verify:
            demand_fit(made[0], self.graph)  # what a later process asks of it
        return made

    def _beside(
        self, s: HostCall, types: Mapping[str, TensorType], sizes: Mapping[str, int]
    ) -> tuple[Run, int]:
        """What runs an op that is no kernel, and the bytes that it takes meanwhile."""
        if is_undecided(s.node):
            return self._alone(decompose_on_gpu(alone_at(s, types, sizes)))
        if s.node.op.call == "sound":
            return _check(s, sizes), 0
        if is_collective(s):
            return collective(s, types, sizes, self.gpu)
        if not s.node.op.control:
            if s.node.op in (checked_index.op, ensure.op):  # the user asked for it
                return _hosted(s, types, sizes, self.gpu, ""), 0
            return _library(s, types, sizes, self.gpu) or _hosted(s, types, sizes, self.gpu), 0

        def make(g: Graph, donated: frozenset[int]) -> DeviceRegion:
            if g not in self._regions:
                self._regions[g] = GpuExecutable(g, (), self.gpu.index, self.gpu.kind)
            e = self._regions[g]
            return control.region_of(e.at(sizes, donated), e.constants)

        return control.controlled(s.node, substitute_params(s.node.params, sizes), make)

    def _alone(self, g: Graph) -> tuple[Run, int]:
        """What runs one node as a program of its own on the device, and the bytes that it takes meanwhile."""
        e = GpuExecutable(g, (), self.gpu.index, self.gpu.kind)
        region = control.region_of(e.at({}), e.constants)
        return partial(apart, region), region.bytes


def schedule_for_gpu(graph: Graph, target: str = "cuda") -> Program:
    """Schedule IR of a graph for a GPU, for all sizes."""
    return last_of(_symbolic_schedule(graph, target), SCHEDULE)


_WARNED: set[Op] = set()


def _library(
    s: HostCall, types: Mapping[str, TensorType], sizes: Mapping[str, int], place: Gpu
) -> Run | None:
    """What runs a node by a library of the device; None where there is none."""
    ins, outs = [types[x] for x in s.operands], [types[x] for x in s.results]
    found = libraries.library(s.node.op, ins, outs, substitute_params(s.node.params, sizes))
    if found is None or place.kind != "cuda":
        return None
    instead = partial(_hosted, s, types, sizes, place)
    return partial(apart, lambda xs: found.run(xs, place, instead))


def _hosted(
    s: HostCall, types: Mapping[str, TensorType], sizes: Mapping[str, int], place: Gpu,
    why: str = "has no GPU form yet",
) -> Run:  # fmt: skip
    """What runs a node on the host, and warns of it if there is a reason."""
    n = s.node
    travels = any(0 not in types[x].shape for x in s.operands)
    if why and travels and n.op not in _WARNED:
        _WARNED.add(n.op)
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


def _check(s: HostCall, sizes: Mapping[str, int]) -> Run:
    """What reads whether factors exist, and raises the error of the op where they do not."""
    params, of = s.node.params, s.node.types[2].substitute(sizes)

    def run(xs: Sequence[DeviceArray]) -> list[DeviceArray]:
        if not xs[0].numpy():
            raise no_factor(of, **params).at(s.node.location)
        return []

    return run


def _travel(
    run: Callable[[Sequence[Array]], Sequence[Array]],
    place: Gpu,
    location: Location | None,
    xs: Sequence[DeviceArray],
) -> list[DeviceArray]:
    """What the host makes of arrays of a device, there again."""
    try:
        made = run([x.numpy() for x in xs])
    except TesseraError as e:
        raise e.at(location) from None
    return [to_device(np.asarray(y, order="C"), place) for y in made]
