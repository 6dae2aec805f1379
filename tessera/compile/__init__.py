"""The compiler: from a traced graph to something that runs.

Read pipeline.py first: it lists every pass of every level for each target.  driver.py runs them, target.py
says what a target is, executable.py what a compilation gives, artifact.py how it is kept on disk, and
fallback.py what runs where the compiler fails.
"""

from __future__ import annotations

from collections.abc import Mapping

from tessera.compile.driver import Driver
from tessera.compile.executable import Executable, PassResult
from tessera.compile.fallback import Task, Way, first_that_works
from tessera.compile.passes import GRAPH, LEVELS, Context, Pass
from tessera.compile.pipeline import SHARED as PASSES
from tessera.compile.pipeline import passes_of as all_passes
from tessera.compile.target import REGISTRY, demand_target, target_of
from tessera.core.flags import flags
from tessera.core.modules import refuse_calls
from tessera.core.notice import notice
from tessera.core.spans import span
from tessera.ir.graph.ir import Graph
from tessera.transform.sink import sink

__all__ = [
    "LOOP_PASSES", "PASSES", "REGISTRY", "TARGETS", "Pass", "compile_graph", "compile_task", "demand_target",
    "lower_to", "passes_of",
    "run_passes", "stop_pass", "target_of",
]  # fmt: skip


refuse_calls(__name__, "compile: ts.compile is a package of the compiler; write ts.jit(f)")
TARGETS = tuple(name for name, t in REGISTRY.items() if t.listed)  # those that Tessera has itself
# What a graph needs to consist of loop nests, for whichever target.
LOOP_PASSES = (
    *all_passes("cpu", GRAPH)[len(PASSES) : -1],
    Pass(GRAPH, "sink", sink, "simplify; move broadcasts and reshapes behind elementwise ops"),
)


def passes_of(target: str) -> tuple[Pass, ...]:
    """The passes over Graph IR for a target."""
    return all_passes(target, GRAPH)


def compile_graph(graph: Graph, target: str = "numpy", numerics: str | None = None) -> Executable:
    """Take a traced graph through every pass of a target; numerics are those in force unless given.

    Where the compiler fails, the graph runs op by op (fallback.py).
    """
    demand_target(target)
    task = Task(graph, target, numerics or flags().numerics)
    with notice(f"compiling {graph.name} for {target}, {len(graph.nodes)} nodes"):
        return compile_task(task, *target_of(target)[0].plain(task))


def compile_task(task: Task, *plain: Way[Executable]) -> Executable:
    """The program of a task, or the first of the plain ways to run it that works."""
    demand_target(task.target)
    with span("compile", task.graph.name):
        compiled = ("", lambda: _compiled(task.program, task.target, task.numerics))
        made = first_that_works(task, compiled, *plain)
        made.plain = plain
        return made


def _compiled(graph: Graph, target: str, numerics: str) -> Executable:
    record = run_passes(graph, target, numerics)
    found, which = target_of(target)
    return found.executable(record[-1].graph, record, which, numerics)


def run_passes(
    graph: Graph, target: str, numerics: str = "deterministic", stop: str | None = None
) -> list[PassResult]:
    """The record of the passes over Graph IR, whose last entry has the graph that is lowered."""
    d = Driver(
        passes_of(target), Context(target, numerics), [PassResult("trace", 0.0, graph)], stop
    )
    if stop != "trace":
        d.run(graph, GRAPH)
    return d.record


def lower_to(
    graph: Graph, target: str, stop: str | None = None, sizes: Mapping[str, int] | None = None,
    numerics: str | None = None,
) -> list[PassResult]:  # fmt: skip
    """The record of a graph on its way to a pass or the last pass of a level, where it stops; nothing is
    built.
    """
    demand_target(target)
    how = numerics or flags().numerics
    found, _ = target_of(target)
    last = stop_pass(target, stop)
    record = run_passes(graph, target, how, last)
    if found.lower is None or any(s.name == last for s in record):
        return record
    return found.lower(record[-1].graph, record, target, sizes or {}, how, last)


def stop_pass(target: str, stop: str | None) -> str | None:
    """The pass to stop at: the one of this name, or the last one of a level of this name."""
    if stop not in LEVELS:
        return stop
    found = [p.name for p in all_passes(target, stop) if p.name != "build"]
    return found[-1] if found else None
