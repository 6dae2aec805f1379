"""The compiler: one list of passes from a traced graph to something that runs.

Read this file first.  Each pass is named, timed and recorded; the inspector, `--stop-at` and the
tests read that record.  Two targets exist: `numpy` runs the graph by the ops' references, `cpu` takes
it through Schedule IR and Tile IR to machine code.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tessera.core.constraints import solve
from tessera.core.errors import OperandError
from tessera.core.flags import flags
from tessera.core.types import TensorType
from tessera.ir.graph import interp
from tessera.ir.graph.interp import Plan, specialise
from tessera.ir.graph.ir import Array, Graph, substitute_params
from tessera.ir.graph.verify import verify
from tessera.ir.schedule import lower as to_schedule
from tessera.ir.schedule.ir import HostCall, Kernel, Program
from tessera.ir.tile import ir as tile
from tessera.ir.tile import lower as to_tile
from tessera.transform.decompose import decompose
from tessera.transform.inline import inline_all
from tessera.transform.simplify import simplify

TARGETS = ("numpy", "cpu")


@dataclass(frozen=True)
class Pass:
    """A named step from Graph to Graph."""

    name: str
    run: Callable[[Graph], Graph]


PASSES: tuple[Pass, ...] = (
    Pass("inline", inline_all),  # calls of modules and jitted functions become their bodies
    Pass("simplify", simplify),  # fold constants, apply laws, merge equal nodes, drop dead ones
)
# For machine code the graph must consist of loop nests: what is defined by other ops becomes them.
LOOP_PASSES: tuple[Pass, ...] = (
    Pass("decompose", decompose),
    Pass("simplify again", simplify),
)


@dataclass(frozen=True)
class Step:
    """What one pass did."""

    name: str
    seconds: float
    graph: Graph  # after the pass


class Executable:
    """A compiled graph, run by the references of its ops, and the record of how it was made."""

    def __init__(self, graph: Graph, record: Sequence[Step]):
        self.graph = graph
        self.record = tuple(record)
        self._captured = [v.data for v in graph.captured if v.data is not None]
        self._plan = Plan(graph) if graph.static else None
        self._sized: dict[tuple[tuple[int, ...], ...], Plan] = {}

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs for these inputs."""
        xs = [*inputs, *self._captured] if self._captured else inputs
        if self._plan is not None:
            return self._plan.run(xs)
        key = tuple(x.shape for x in xs)
        plan = self._sized.get(key)
        if plan is None:
            plan = self._sized[key] = specialise(self.graph, key)
        return plan.run(xs)


class MachineExecutable(Executable):
    """A program of kernels in machine code, and of calls to the host."""

    def __init__(self, graph: Graph, record: Sequence[Step], program: Program):
        self.graph, self.record, self.schedule = graph, tuple(record), program
        types = {n: b.type for n, b in program.buffers.items()}
        self.tiles: dict[str, tile.Kernel] = {
            s.name: to_tile.lower(s, types) for s in program.steps if isinstance(s, Kernel)
        }
        # llvmlite is heavy: it is loaded when the first program is compiled, never by `import tessera`
        runtime: Any = importlib.import_module("tessera.runtime.kernel")
        self._kernels = dict(
            zip(self.tiles, runtime.compile_kernels(list(self.tiles.values())), strict=True)
        )
        self._captured = [v.data for v in graph.captured if v.data is not None]
        self._plans: dict[tuple[tuple[int, ...], ...], list[_Action]] = {}

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs for these inputs."""
        xs = [*inputs, *self._captured]
        key = tuple(x.shape for x in xs)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._planned(key)
        buffers: dict[str, Array] = dict(zip(self.schedule.inputs, xs, strict=True))
        for action in plan:
            action(buffers)
        return [buffers[n] for n in self.schedule.outputs]

    def _planned(self, shapes: Sequence[tuple[int, ...]]) -> list[_Action]:
        """The steps at the sizes of a call."""
        p = self.schedule
        names = [*self.graph.input_names, *p.inputs[len(self.graph.input_names) :]]
        wanted = [
            (n, p.buffers[b].type.shape, s) for n, b, s in zip(names, p.inputs, shapes, strict=True)
        ]
        sizes = solve(wanted, list(p.guards))
        types = {n: b.type.substitute(sizes) for n, b in p.buffers.items()}
        return [
            _host_action(s, types, sizes)
            if isinstance(s, HostCall)
            else _kernel_action(s, self._kernels[s.name], types)
            for s in p.steps
        ]


_Action = Callable[[dict[str, Array]], None]


def _host_action(s: HostCall, types: Mapping[str, TensorType], sizes: dict[str, int]) -> _Action:
    n = s.node
    ins, outs = [types[x] for x in s.operands], [types[x] for x in s.results]
    run = interp.kernel(n.op, ins, outs, substitute_params(n.params, sizes), n.regions)

    def action(buffers: dict[str, Array]) -> None:
        y = interp.quietly(run, [buffers[x] for x in s.operands])
        buffers.update(zip(s.results, y if n.op.multiple else (y,), strict=True))

    return action


def _kernel_action(s: Kernel, kernel: Any, types: Mapping[str, TensorType]) -> _Action:
    inputs = s.inputs()
    outs: list[tuple[Any, Any]] = [(types[n].shape, types[n].dtype.np) for n in s.outputs]

    def action(buffers: dict[str, Array]) -> None:
        made = [interp.empty(shape, dtype) for shape, dtype in outs]
        kernel.run([*(interp.contiguous(buffers[n]) for n in inputs), *made])
        buffers.update(zip(s.outputs, made, strict=True))

    return action


def compile_graph(graph: Graph, target: str = "numpy") -> Executable:
    """Take a traced graph through every pass of a target."""
    if target not in TARGETS:
        raise OperandError(f"jit: target is {target!r}, expected one of {', '.join(TARGETS)}")
    record = [Step("trace", 0.0, graph)]
    for p in PASSES if target == "numpy" else (*PASSES, *LOOP_PASSES):
        start = time.perf_counter()
        graph = p.run(graph)
        record.append(Step(p.name, time.perf_counter() - start, graph))
        if flags().verify:
            verify(graph)
    if target == "numpy":
        return Executable(graph, record)
    return MachineExecutable(graph, record, to_schedule.lower(graph))
