"""Programs on a GPU: a graph at the sizes of a call, as launches in a device's memory.

Everything runs on the main stream of a device, in order; a call returns when its kernels are launched.
What a GPU has no form for runs on the host, and its operands travel there and back.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from tessera.accelerator.program import GpuProgram
from tessera.core.constraints import solve
from tessera.core.types import TensorType
from tessera.executable import Executable, Kernels, Step
from tessera.ir.graph.ir import Builder, Graph, Node, bind, building, substitute_params
from tessera.ir.schedule.at import at_sizes
from tessera.ir.schedule.collapse import collapsed
from tessera.ir.schedule.ir import HostCall, Program
from tessera.ir.schedule.lower import CHEAP_ON_GPU, lower
from tessera.ir.schedule.memory import MemoryPlan
from tessera.ir.schedule.merge import merged
from tessera.machine import executable as on_the_host
from tessera.runtime.cuda.device import gpu
from tessera.runtime.cuda.memory import DeviceArray, to_device

_MOST_SHAPES = 256  # sets of sizes that a program is kept prepared for


class GpuExecutable(Executable):
    """A program of GPU kernels, compiled for the sizes that it is called with."""

    def __init__(self, graph: Graph, record: Sequence[Step], index: int = 0):
        self.graph, self.record = graph, tuple(record)
        self.gpu = gpu(index)
        self.schedule: Program = schedule_for_gpu(graph)
        self._constants: list[DeviceArray] | None = None
        self._prepared: dict[Any, GpuProgram] = {}

    @property
    def host_nodes(self) -> list[Node]:
        """The nodes that run on the host."""
        return [s.node for s in self.schedule.steps if isinstance(s, HostCall)]

    @property
    def regions(self) -> Mapping[Graph, Any]:
        """Regions run on the host, with the node that they belong to."""
        return {}

    def run(self, inputs: Sequence[Any], donated: frozenset[int] = frozenset()) -> list[Any]:
        """The outputs for these inputs, which may still be computed when this returns."""
        if self._constants is None:
            data = [v.data for v in self.graph.captured if v.data is not None]
            self._constants = [self._here(x) for x in data]
        xs = [*(self._here(x) for x in inputs), *self._constants]
        return self.prepared([x.shape for x in xs], donated).run(xs)

    def _here(self, x: Any) -> DeviceArray:
        return x if isinstance(x, DeviceArray) else to_device(x, self.gpu)

    def prepared(
        self, shapes: Sequence[tuple[int, ...]], donated: frozenset[int] = frozenset()
    ) -> GpuProgram:
        """This program for arrays of such shapes."""
        key = (tuple(shapes), donated)
        found = self._prepared.get(key)
        if found is None:
            if len(self._prepared) >= _MOST_SHAPES:
                self._prepared.clear()
            sizes = self.sizes(shapes)
            static = at_sizes(self.schedule, sizes)
            names = frozenset(static.inputs[i] for i in donated)
            found = self._prepared[key] = GpuProgram(static, self.gpu, _hosted, names, sizes)
        return found

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
        return Kernels(self._at(shapes).tiles)

    def target_at(self, shapes: Sequence[tuple[int, ...]]) -> Kernels:
        """The Triton source of each kernel at the sizes of a call, by name."""
        return Kernels(self._at(shapes).sources)

    def memory_plan(self, shapes: Sequence[tuple[int, ...]]) -> MemoryPlan:
        """Where everything lies in a run on inputs of these shapes, and how much memory it takes."""
        return self._at(shapes).plan

    def sizes_at(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """The symbolic sizes of a run on inputs of these shapes."""
        return self.sizes([*shapes, *self._captured_shapes()])

    @property
    def schedules(self) -> list[Program]:
        """Schedule IR of the program; regions run on the host."""
        return [self.schedule]

    def _at(self, shapes: Sequence[tuple[int, ...]]) -> GpuProgram:
        return self.prepared([*shapes, *self._captured_shapes()])

    def _captured_shapes(self) -> list[tuple[int, ...]]:
        return [v.data.shape for v in self.graph.captured if v.data is not None]


def schedule_for_gpu(graph: Graph) -> Program:
    """Schedule IR of a graph for a GPU, which computes cheap values again rather than keep them."""
    return merged(collapsed(lower(graph, CHEAP_ON_GPU)))


_WARNED: set[str] = set()


def _hosted(s: HostCall, types: Mapping[str, TensorType], sizes: Mapping[str, int]) -> Any:
    """What runs a node on arrays of the host."""
    n = s.node
    if n.op.name not in _WARNED:
        _WARNED.add(n.op.name)
        warnings.warn(
            f"{n.op.name}: has no GPU form yet; it runs on the host, and its operands travel there and back",
            RuntimeWarning,
            stacklevel=2,
        )
    b = Builder()
    with building(b):
        inputs = [b.input(types[x]) for x in s.operands]
        out = bind(n.op, *inputs, regions=n.regions, **substitute_params(n.params, sizes))
        g, _ = b.finish(out if n.op.multiple else (out,), n.op.name)
    return on_the_host(g, ()).run
