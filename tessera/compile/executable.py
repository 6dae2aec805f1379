"""What the compiler gives: a program that runs, with the record of how it was made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

from tessera.core.kernels import Kernels
from tessera.core.observe import Observed
from tessera.core.source import warn_caller
from tessera.ir.graph.interp import KernelOf, SlotPlan, reference, specialise
from tessera.ir.graph.ir import Array, Graph, Node

if TYPE_CHECKING:  # the numpy target plans no memory and has no levels below Graph IR
    from tessera.ir.schedule.ir import Program
    from tessera.ir.schedule.memory import MemoryPlan
    from tessera.ir.tile.ir import Kernel
    from tessera.runtime.call import CallRecord
    from tessera.runtime.triton_builder import BuiltCode


@dataclass
class PassResult:
    """What one pass did: the IR after it, of one kernel after the other at the Tile and Target levels."""

    name: str
    seconds: float
    result: Graph | Program | Kernels[Kernel | str] | list[BuiltCode]
    level: str = "graph"

    @property
    def graph(self) -> Graph:
        """Graph IR after the pass."""
        assert isinstance(self.result, Graph), f"{self.name} is a pass of the {self.level} level"
        return self.result

    @property
    def text(self) -> str:
        """The text of the IR after the pass."""
        assert not isinstance(self.result, list), f"{self.name}: what is built is no text"
        return self.result.text


@overload
def last_of(record: Sequence[PassResult], level: Literal["graph"]) -> Graph: ...
@overload
def last_of(record: Sequence[PassResult], level: Literal["schedule"]) -> Program: ...
@overload
def last_of(record: Sequence[PassResult], level: Literal["tile"]) -> Kernels[Kernel]: ...
@overload
def last_of(record: Sequence[PassResult], level: Literal["target"]) -> Kernels[str]: ...
def last_of(record: Sequence[PassResult], level: str) -> object:
    """What the last pass of a level made; a program without kernels has none at the levels of those."""
    made = (s.result for s in reversed(record) if s.level == level)
    found = next((x for x in made if not isinstance(x, list)), None)
    if found is None:
        assert level in ("tile", "target"), f"the record has no pass of the {level} level"
        return Kernels()
    return found


def tell_unused(g: Graph, plan: MemoryPlan, donated: Mapping[int, str]) -> None:
    """Warn of arguments that were donated for nothing: no leaf of theirs is used again.

    `donated` has the buffer of each donated input by its number.  An argument of which a leaf could not be
    taken in this call, since something else holds it too, is not judged by the others.
    """
    names = dict(enumerate(n.partition(".")[0] for n in g.input_names))
    used = {name: True for i, name in names.items() if i not in donated}
    for i, buffer in donated.items():
        name = names.get(i, f"input {i}")
        used[name] = used.get(name, False) or plan.is_reused(buffer)
    idle = [name for name, is_used in used.items() if not is_used]
    if idle:
        warn_caller(
            f"{g.name}: the memory of the donated argument{'s' * (len(idle) > 1)} {', '.join(idle)} is not "
            "used again: "
            "no result or intermediate of its size is made after its last use; do not donate it"
        )


# (what runs it, the executable, inputs) -> outputs
REFERENCES: Observed[Callable[..., list[Array]]] = Observed(
    "references", "runs of programs by the references of their ops"
)


class Executable:
    """A compiled graph, run by the references of its ops, and the record of how it was made."""

    kernel_of: KernelOf = staticmethod(reference)  # how it runs an op
    plain: Sequence[
        tuple[str, Callable[[], Executable]]
    ] = ()  # how it runs where the compiler fails

    def __init__(self, graph: Graph, record: Sequence[PassResult]):
        self.graph = graph
        self.record: tuple[PassResult, ...] = tuple(record)
        self._captured = [v.storage for v in graph.captured if v.storage is not None]
        self._plan = SlotPlan(graph, None, self.kernel_of) if graph.static else None
        self._sized: dict[tuple[tuple[int, ...], ...], SlotPlan] = {}

    is_whole: bool = True  # whether it runs on whole arrays, not on the blocks of a rank

    def of_rank(self, data: Sequence[Any]) -> tuple[Executable, Sequence[Any]]:
        """The program that this rank runs on these arrays, and its blocks of them."""
        return self, data

    def record_at(self, shapes: Sequence[tuple[int, ...]]) -> tuple[PassResult, ...]:
        """The record of every level for inputs of these shapes."""
        return self.record

    def forget_levels(self) -> None:
        """Keep the record of Graph IR alone; the levels below are made again when they are looked at."""
        self.record = tuple(s for s in self.record if s.level == "graph")

    @property
    def written(self) -> Graph:
        """The graph as it was traced, with the policies of its dtypes."""
        first = self.record[0].result if self.record else None
        return (
            first if isinstance(first, Graph) else self.graph
        )  # a region has no passes of its own

    @property
    def host_nodes(self) -> Sequence[Node]:
        """The nodes that run by their references, outside machine code."""
        return self.graph.nodes

    def shortcut(
        self, inputs: Sequence[Array], expected: tuple[tuple[object, ...], int, tuple[str, ...]],
        out: object,
    ) -> CallRecord | None:  # fmt: skip
        """How a short run of machine code is called without Python; None: this is none."""
        return None

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs for these inputs."""
        if REFERENCES.observers:
            outs: list[Array] = REFERENCES.around(Executable._run)(self, inputs)
            return outs
        return self._run(inputs)

    def _run(self, inputs: Sequence[Array]) -> list[Array]:
        xs = [*inputs, *self._captured] if self._captured else inputs
        if self._plan is not None:
            return self._plan.run(xs)
        key = tuple(x.shape for x in xs)
        plan = self._sized.get(key)
        if plan is None:
            plan = self._sized[key] = specialise(self.graph, key, self.kernel_of)
        return plan.run(xs)
