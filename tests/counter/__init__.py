"""A toy target: the Schedule interpreter, which counts the operations that a program computes.

It is a folder and one call of `register`: docs/compiler.md shows it as the way to add a target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.compile.driver import Driver
from tessera.compile.executable import Executable, PassResult, last_of
from tessera.compile.passes import GRAPH, SCHEDULE, Context, Pass
from tessera.compile.pipeline import passes_of
from tessera.compile.target import Target, register
from tessera.ir.graph.ir import Array, Graph, Node
from tessera.ir.schedule.interp import arguments, interpret, sizes_of
from tessera.ir.schedule.ir import HostCall, Program
from tests.counter.count import drop_idle, operations

PASSES: tuple[Pass, ...] = (
    *passes_of("cpu", GRAPH),
    *(p for p in passes_of("cpu", SCHEDULE) if p.name in ("fuse", "group")),
    Pass(SCHEDULE, "drop_idle", drop_idle, "drop kernels that nothing reads"),
)


class CountingExecutable(Executable):
    """A program that the Schedule interpreter runs; `operations` is what the last run has computed."""

    def __init__(self, graph: Graph, record: Sequence[PassResult], program: Program):
        super().__init__(graph, record)
        self.program, self.operations = program, 0

    @property
    def host_nodes(self) -> list[Node]:
        """The nodes that run by their references."""
        return [s.node for s in self.program.steps if isinstance(s, HostCall)]

    def run(self, inputs: Sequence[Array], donated: frozenset[int] = frozenset()) -> list[Array]:
        """The outputs for these inputs."""
        sizes = sizes_of(self.program, arguments(self.program, inputs))
        self.operations = operations(self.program, sizes)
        return interpret(self.program, inputs)


def lowered(
    g: Graph, record: Sequence[PassResult], target: str, sizes: Mapping[str, int], numerics: str,
    stop: str | None = None,
) -> list[PassResult]:  # fmt: skip
    """The record of a graph at every level, to a pass to stop at."""
    d = Driver(passes_of("counter"), Context(target, numerics, sizes), record, stop)
    d.run(g, SCHEDULE)
    return d.record


def executable(
    g: Graph, record: Sequence[PassResult], which: str, numerics: str
) -> CountingExecutable:
    """What runs a graph after its passes."""
    whole = lowered(g, record, "counter", {}, numerics)
    return CountingExecutable(g, whole, last_of(whole, SCHEDULE))


COUNTER = Target("counter", "an interpreter that counts operations", executable, lowered)


def add() -> Target:
    """The one registration."""
    return register(COUNTER, PASSES)
