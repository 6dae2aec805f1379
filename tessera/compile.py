"""The compiler: one list of passes from a traced graph to something that runs.

Read this file first.  Each pass is named, timed and recorded; the inspector, `--stop-at` and the
tests read that record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tessera.core.flags import flags
from tessera.ir.graph.interp import Plan, specialise
from tessera.ir.graph.ir import Array, Graph
from tessera.ir.graph.verify import verify
from tessera.transform.inline import inline
from tessera.transform.simplify import simplify


@dataclass(frozen=True)
class Pass:
    """A named step from Graph to Graph."""

    name: str
    run: Callable[[Graph], Graph]


PASSES: tuple[Pass, ...] = (
    Pass("inline", inline),  # calls of modules and jitted functions become their bodies
    Pass(
        "simplify", simplify
    ),  # fold constants, apply identities, merge equal nodes, drop dead ones
)


@dataclass(frozen=True)
class Step:
    """What one pass did."""

    name: str
    seconds: float
    graph: Graph  # after the pass


class Executable:
    """A compiled graph and the record of how it was made."""

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


def compile_graph(graph: Graph) -> Executable:
    """Take a traced graph through every pass."""
    record = [Step("trace", 0.0, graph)]
    for p in PASSES:
        start = time.perf_counter()
        graph = p.run(graph)
        record.append(Step(p.name, time.perf_counter() - start, graph))
        if flags().verify:
            verify(graph)
    return Executable(graph, record)
