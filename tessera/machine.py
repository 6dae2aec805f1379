"""The target cpu: a graph of loop nests through Schedule IR and Tile IR to machine code that runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tessera.core.constraints import solve
from tessera.core.flags import flags
from tessera.core.types import TensorType
from tessera.executable import Executable, Kernels, Step
from tessera.ir.graph import interp
from tessera.ir.graph.ir import Array, Graph, substitute_params
from tessera.ir.schedule import lower as to_schedule
from tessera.ir.schedule.ir import HostCall, Program
from tessera.ir.schedule.verify import verify as verify_schedule
from tessera.ir.target.cpu.emit import emit
from tessera.ir.tile import lower as to_tile
from tessera.ir.tile.launch import Expansion, Launch
from tessera.ir.tile.verify import verify as verify_tile
from tessera.runtime import memory
from tessera.runtime.kernel import CompiledKernel, compile_kernels


class MachineExecutable(Executable):
    """A program of kernels in machine code, and of calls to the host."""

    def __init__(self, graph: Graph, record: Sequence[Step]):
        self.graph, self.record = graph, tuple(record)
        self.schedule: Program = to_schedule.lower(graph)
        types = {n: b.type for n, b in self.schedule.buffers.items()}
        if flags().verify:
            verify_schedule(self.schedule)
        self._expansions: dict[str, Expansion] = {
            s.name: to_tile.expand(s, types)
            for s in self.schedule.steps
            if not isinstance(s, HostCall)
        }
        self.tiles = Kernels(
            {name: k for s, e in self._expansions.items() for name, k in e.named(s)}
        )
        if flags().verify:
            for k in self.tiles.values():
                verify_tile(k)
        compiled = compile_kernels(list(self.tiles.values()))
        self._kernels = dict(zip(self.tiles, compiled, strict=True))
        self._captured = [v.data for v in graph.captured if v.data is not None]
        self._plans: dict[tuple[tuple[int, ...], ...], list[_Action]] = {}

    @property
    def target(self) -> Kernels:
        """The LLVM IR of each kernel, by name."""
        return Kernels({name: emit(k) for name, k in self.tiles.items()})

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
        return [action for s in p.steps for action in self._actions(s, types, sizes)]

    def _actions(
        self, s: Any, types: Mapping[str, TensorType], sizes: dict[str, int]
    ) -> list[_Action]:
        if isinstance(s, HostCall):
            return [_host_action(s, types, sizes)]
        e = self._expansions[s.name]
        types = {**types, **{n: t.substitute(sizes) for n, t in e.between.items()}}
        return [
            _launch_action(launch, self._kernels[name], types, sizes)
            for launch, (name, _) in zip(e.launches, e.named(s.name), strict=True)
        ]


_Action = Callable[[dict[str, Array]], None]


def _host_action(s: HostCall, types: Mapping[str, TensorType], sizes: dict[str, int]) -> _Action:
    n = s.node
    ins, outs = [types[x] for x in s.operands], [types[x] for x in s.results]
    run = interp.kernel(n.op, ins, outs, substitute_params(n.params, sizes), n.regions, sizes)

    def action(buffers: dict[str, Array]) -> None:
        y = interp.quietly(run, [buffers[x] for x in s.operands])
        buffers.update(zip(s.results, y if n.op.multiple else (y,), strict=True))

    return action


def _launch_action(
    launch: Launch, kernel: CompiledKernel, types: Mapping[str, TensorType], sizes: dict[str, int]
) -> _Action:
    inputs, outputs = launch.inputs, launch.outputs
    outs: list[tuple[Any, Any]] = [(types[n].shape, types[n].dtype.np) for n in outputs]

    def action(buffers: dict[str, Array]) -> None:
        made = [memory.empty(shape, dtype) for shape, dtype in outs]
        kernel.run([*(interp.contiguous(buffers[n]) for n in inputs), *made], sizes)
        buffers.update(zip(outputs, made, strict=True))

    return action
