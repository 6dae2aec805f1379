"""A program run by the Schedule interpreter: slowly, with the bits of machine code.

It takes the passes that lowering cannot do without, and none below Schedule IR.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.compile.executable import Executable
from tessera.compile.fallback import BY_REFERENCES, Task, first_that_works
from tessera.ir.graph.ir import Array, Graph, Node
from tessera.ir.schedule.interp import interpret
from tessera.ir.schedule.ir import HostCall
from tessera.ir.schedule.lower import lower
from tessera.transform.decompose import decompose
from tessera.transform.inline import inline_all
from tessera.transform.policies import legalize_policies


class InterpretedExecutable(Executable):
    """A graph run by the Schedule interpreter, or by references where that fails too."""

    def __init__(self, graph: Graph, task: Task):
        self.graph, self.record = graph, ()
        self._task = task
        self._schedule = lower(decompose(legalize_policies(inline_all(graph))))

    @property
    def host_nodes(self) -> list[Node]:
        """The nodes that run by their references."""
        return [s.node for s in self._schedule.steps if isinstance(s, HostCall)]

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs for these inputs."""
        by_schedule = ("", lambda: interpret(self._schedule, inputs))
        plain = (BY_REFERENCES, lambda: Executable(self.graph, ()).run(inputs))
        return first_that_works(self._task, by_schedule, plain)
