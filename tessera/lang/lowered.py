"""A function at the levels of the compiler."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from tessera.compile import PASSES
from tessera.compile.executable import Executable, PassResult
from tessera.compile.fallback import PlainExecutable, failed
from tessera.compile.passes import GRAPH
from tessera.core.deferred import Deferred
from tessera.core.dims import symbols
from tessera.core.errors import OperandError, located
from tessera.core.kernels import Kernels
from tessera.ir.graph.ir import Graph, Node
from tessera.lang.schedules import save

if TYPE_CHECKING:  # loaded by the first function that is compiled for the machine
    from tessera.compile.cpu.executable import MachineExecutable
    from tessera.ir.schedule.ir import Program
    from tessera.ir.schedule.memory import MemoryPlan
    from tessera.ir.tile.ir import Kernel


# Loaded when the nests of a program are first saved.
_default_nest = Deferred("tessera.ir.schedule.nests.choose:default_nest")

_OF_ALL_SIZES = frozenset(("schedule", "tile", "target", "host", "record"))


class Lowered:
    """A function at the levels of the compiler, for arguments of given types."""

    def __init__(self, executable: Executable, shapes: Sequence[tuple[int, ...]] = ()):
        self._executable, self._shapes = executable, shapes

    def __repr__(self) -> str:
        name, nodes = self._executable.graph.name, len(self.graph.nodes)
        if type(self._executable) is Executable or isinstance(self._executable, PlainExecutable):
            return f"<lowered {name}: {nodes} nodes, each run by its reference>"
        kernels, hosted = len(self.target), len(self.host_steps)
        host = f", {hosted} steps on the host" if hosted else ""
        return (
            f"<lowered {name}: {nodes} nodes, {kernels} kernels{host}; .graph .schedule .tile .target "
            ".memory>"
        )

    def _repr_html_(self) -> str:
        """The summary and the graph, for a notebook."""
        return f"<div><code>{escape(repr(self))}</code>{self.graph._repr_html_()}</div>"

    @property
    def graph(self) -> Graph:
        """Graph IR after the passes that all targets share; `record` has the others too."""
        shared = {"trace", *(p.name for p in PASSES)}
        record = [s for s in self._executable.record if s.level == GRAPH]
        return next(s.graph for s in reversed(record) if s.name in shared)

    @property
    def traced(self) -> Graph:
        """Graph IR as it was traced."""
        return self._executable.written

    @property
    def schedule(self) -> Program:
        """Schedule IR: kernels and the order in which they run."""
        return self._machine("schedule").schedule

    @property
    def tile(self) -> Kernels[Kernel]:
        """Tile IR of each kernel, by name."""
        return self._machine("tile").tiles_at(self._shapes)

    @property
    def every_tile(self) -> list[tuple[str, Kernel]]:
        """Tile IR of each kernel with its name, those in the bodies of loops and branches too."""
        machine = self._machine("tile")
        return getattr(machine, "every_tile", None) or list(machine.tiles_at(self._shapes).items())

    @property
    def target(self) -> Kernels[str]:
        """LLVM IR of each kernel, or its Triton source on a GPU, by name."""
        return self._machine("target").target_at(self._shapes)

    @property
    def code(self) -> dict[str, bytes]:
        """Code of each kernel for an architecture that the target names, by name: cubins, or hsacos of AMD.

        Steps that have no kernel are in `host_steps`; a warning names them.
        """
        made = getattr(self._executable, "code_at", None)
        self._demand_numbers("code")
        if made is None:
            raise located(
                OperandError(
                    'lower: code is of targets that are architectures, such as jit(target="hip:gfx942")'
                )
            )
        found: dict[str, bytes] = made(self._shapes)
        hosted = self.host_steps
        if hosted:
            steps = "; ".join(f"{name}: {why}" for name, why in hosted.items())
            warnings.warn(
                f"{self._executable.graph.name}: {len(found)} kernels have code and {len(hosted)} steps have "
                f"none: {steps}",
                RuntimeWarning,
                stacklevel=2,
            )
        return found

    @property
    def host_steps(self) -> dict[str, str]:
        """The steps that are no kernels, by name, and why each of them is none."""
        machine = self._machine("host")
        made = getattr(machine, "hosted_at", None)
        if made is not None:
            found: dict[str, str] = made(self._shapes)
            return found
        nodes = [n for n in machine.host_nodes if n.op.view is None]
        return {f"{n.op.name}_{i}": _why(n) for i, n in enumerate(nodes)}

    def save_schedules(self, path: str | os.PathLike[str]) -> None:
        """Write the nest of every kernel to a file, which `jit(schedules=path)` reads."""
        kernels: list[Any] = [s for s in self.schedule.steps if hasattr(s, "nest")]
        if not hasattr(self._executable, "image"):
            raise located(OperandError('save_schedules: nests are of CPUs; use jit(target="cpu")'))
        save(path, {k.name: str(k.nest or _default_nest(k)) for k in kernels})

    @property
    def memory(self) -> MemoryPlan:
        """Where every buffer lies at the sizes of the arguments, and the peak of a run."""
        return self._machine("memory").memory_plan(self._shapes)

    @property
    def schedules(self) -> list[Program]:
        """Schedule IR of the function and of every region in it."""
        return self._machine("schedule").schedules

    @property
    def sizes(self) -> dict[str, int]:
        """What the symbolic sizes are for the arguments."""
        return self._machine("sizes").sizes_at(self._shapes)

    def _machine(self, level: str) -> MachineExecutable:
        self._demand_numbers(level)
        if isinstance(self._executable, PlainExecutable):
            raise located(failed("lower", f"{level} level"))
        if type(self._executable) is Executable:
            raise located(
                OperandError(f"lower: target 'numpy' has no {level} level; use jit(target=\"cpu\")")
            )
        return self._executable  # type: ignore[return-value]

    @property
    def record(self) -> tuple[PassResult, ...]:
        """Every pass of every level, with its time and its result.

        It is the record of the compilation that ran; only what a program from the disk has skipped is run
        now.
        """
        self._demand_numbers("record")
        return self._executable.record_at(self._shapes)

    def _demand_numbers(self, level: str) -> None:
        """Refuse a level that depends on sizes which have no number."""
        on_cpu = hasattr(self._executable, "image")  # whose code serves all sizes
        if level == "schedule" or (on_cpu and level in _OF_ALL_SIZES):
            return
        names = sorted({n for shape in self._shapes for s in shape for n in symbols(s)})
        if names:
            raise located(
                OperandError(
                    f"lower: {level} needs a number for {', '.join(names)}; lower with tensors, or with "
                    "types of numbers such as Tensor[8, 64]"
                )
            )


def _why(n: Node) -> str:
    """Why a step is no kernel."""
    if n.regions:
        return "the host decides what its regions, which are programs, do next"
    return "it has no kernel and runs on the host by its reference"
