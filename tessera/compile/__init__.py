"""The compiler: one list of passes from a traced graph to something that runs.

Read this file first.  Each pass is named, timed and recorded; the inspector, `--stop-at` and the
tests read that record.  The target `numpy` runs the graph by the ops' references; `cpu`, `cuda` and `hip`
take it through Schedule IR and Tile IR to machine code.
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tessera.compile.executable import Executable, Step
from tessera.compile.fallback import Task, Way, first_that_works, plain_ways
from tessera.core.device import GPUS, Device
from tessera.core.during import During
from tessera.core.errors import OperandError
from tessera.core.flags import flags
from tessera.core.mesh import mesh_of
from tessera.core.spans import span
from tessera.ir.graph.ir import Graph
from tessera.ir.graph.verify import verify
from tessera.transform.decompose import decompose
from tessera.transform.hoist import hoist
from tessera.transform.inline import inline_all
from tessera.transform.policies import legalize_policies
from tessera.transform.simplify import simplify
from tessera.transform.sink import sink, sink_on_cpu

TARGETS = ("numpy", "cpu", *GPUS)
# A GPU may have a number, or be an architecture, for which a program is compiled and not run.
_FORMS = re.compile(r"numpy|cpu|cuda(:\d+|:sm_\d+a?)?|hip(:\d+|:gfx[0-9a-f]+)?|mesh:\d+")


@dataclass(frozen=True)
class Pass:
    """A named step from Graph to Graph."""

    name: str
    run: Callable[[Graph], Graph]


PASSES: tuple[Pass, ...] = (
    Pass("inline", inline_all),  # calls of modules and jitted functions become their bodies
    Pass("simplify", simplify),  # fold constants, apply laws, merge equal nodes, drop dead ones
    Pass("hoist", hoist),  # what is the same at every step of a loop is computed before it
)
# For machine code the graph must consist of loop nests: what is defined by other ops becomes them.
LOOP_PASSES: tuple[Pass, ...] = (
    Pass("policies", legalize_policies),  # before primitives are recognised, which have no policies
    Pass("decompose", decompose),
    Pass("sink", sink),  # simplify again; broadcasts and reshapes go behind elementwise ops
)


def passes_of(target: str) -> tuple[Pass, ...]:
    """The passes over Graph IR for a target."""
    if target == "numpy":
        return PASSES
    if target.partition(":")[0] not in GPUS:
        return (*PASSES, *LOOP_PASSES[:2], Pass("sink", sink_on_cpu))
    gpu: Any = importlib.import_module("tessera.accelerator.kept")
    first = Pass("decompose", lambda g: decompose(g, gpu.is_kept))
    return (*PASSES, first, *LOOP_PASSES[2:])


def demand_target(target: Any) -> None:
    """Raise unless there is such a target."""
    if not isinstance(target, str) or not _FORMS.fullmatch(target):
        raise OperandError(f"jit: target is {target!r}, expected one of {', '.join(TARGETS)}")


def compile_graph(graph: Graph, target: str = "numpy", numerics: str | None = None) -> Executable:
    """Take a traced graph through every pass of a target; numerics are those in force unless given.

    Where the compiler fails, the graph runs op by op (fallback.py).
    """
    task = Task(graph, target, numerics or flags().numerics)
    return compile_task(task, *_plain(task))


def compile_task(task: Task, *plain: Way[Executable]) -> Executable:
    """The program of a task, or the first of the plain ways to run it that works."""
    demand_target(task.target)
    with span("compile", task.graph.name):
        compiled = ("", lambda: _compiled(task.program, task.target, task.numerics))
        made = first_that_works(task, compiled, *plain)
        made.plain = plain
        return made


def _plain(task: Task) -> Sequence[Way[Executable]]:
    """How a program runs where the compiler fails; for an architecture there is nothing to run."""
    kind, _, which = task.target.partition(":")
    if kind == "mesh":
        return ()  # what a rank runs has plain ways of its own
    if kind not in GPUS:
        return plain_ways(task)
    if not (which or "0").isdecimal():
        return ()
    gpu: Any = importlib.import_module("tessera.compile.gpu.plain")
    found: Sequence[Way[Executable]] = gpu.plain_ways(task, int(which or 0), kind)
    return found


def _compiled(graph: Graph, target: str, numerics: str) -> Executable:
    record = [Step("trace", 0.0, graph)]
    if target.startswith("mesh:"):
        sharded: Any = importlib.import_module("tessera.sharded.executable")
        mesh = mesh_of(Device("mesh", int(target.partition(":")[2])))
        on_mesh: Executable = sharded.MeshExecutable(
            graph, record, mesh, lambda g: compile_graph(g, flags().target, numerics)
        )
        return on_mesh
    for p in passes_of(target):
        start = time.perf_counter()
        with During(p.name):
            graph = p.run(graph)
            record.append(Step(p.name, time.perf_counter() - start, graph))
            if flags().verify:
                verify(graph)
    if target == "numpy":
        return Executable(graph, record)
    kind, _, which = target.partition(":")
    if kind in GPUS and (which or "0").isdecimal():
        gpu: Any = importlib.import_module("tessera.compile.gpu.executable")
        on_gpu: Executable = gpu.GpuExecutable(graph, record, int(which or 0), kind)
        return on_gpu
    if kind in GPUS:
        offline: Any = importlib.import_module("tessera.compile.gpu.offline")
        not_here: Executable = offline.OfflineExecutable(graph, record, kind, which)
        return not_here
    # The levels below Graph IR are loaded when the first program is compiled for the machine.
    machine: Any = importlib.import_module("tessera.compile.cpu.executable")
    made: Executable = machine.executable(graph, record, numerics)
    return made
