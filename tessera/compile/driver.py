"""The driver: the only loop over passes.  It runs, times, verifies and records each, and stops where it is
asked to.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias, cast, overload

from tessera.compile.executable import PassResult
from tessera.compile.passes import LEVELS, TARGET, Context, Pass
from tessera.core.deferred import Deferred
from tessera.core.during import During
from tessera.core.flags import flags
from tessera.core.kernels import Kernels
from tessera.core.observe import Observed
from tessera.ir.graph.ir import Graph
from tessera.ir.graph.scheduled import with_schedules
from tessera.ir.graph.verify import verify as verify_graph
from tessera.ir.target.code import Code
from tessera.ir.tile.unit import Unit

if TYPE_CHECKING:  # the levels below Graph IR are loaded with the first program that is lowered
    from tessera.core.constraints import Guard
    from tessera.ir.schedule.ir import Program
    from tessera.ir.target.triton.triton_source import TritonSource
    from tessera.ir.tile.ir import Kernel
    from tessera.runtime.triton_builder import BuiltCode

# What a pass makes.
Made: TypeAlias = "Graph | Program | Unit | Code | list[BuiltCode]"

# The verifiers of the levels below, which are loaded with the first program that is lowered.
_facts = Deferred("tessera.ir.schedule.inside:facts_of")
_verify_schedule = Deferred("tessera.ir.schedule.verify:verify")
_verify_tile = Deferred("tessera.ir.tile.verify:verify")
_verify_inside = Deferred("tessera.ir.tile.inside:verify_inside")
_verify_shares = Deferred("tessera.ir.tile.clashes:verify_shares")
_shareable = Deferred("tessera.ir.tile.sharing:shareable")

PASSES: Observed[Callable[[Pass, Made], None]] = Observed(
    "passes", "passes of every level, with what they made"
)


class Driver:
    """The passes of one compilation, and the record of those that ran."""

    def __init__(
        self,
        passes: Sequence[Pass],
        context: Context,
        record: Iterable[PassResult] = (),
        stop: str | None = None,
    ):
        self.context, self.stop = context, stop
        self.passes = [p for p in passes if p.runs(context)]
        self.record: list[PassResult] = list(record)
        self._steps = {(s.level, s.name): s for s in self.record}
        self._last = next((p.level for p in self.passes if p.name == stop), LEVELS[-1])
        # What is verified already, kept so that its id stays its own.
        self._sound: dict[int, object] = {}
        self._program: Program | None = None  # the one that was verified last
        self._guards: Sequence[Guard] = ()

    def wants(self, level: str) -> bool:
        """Whether passes of a level are to run; those after the one to stop at are not."""
        return LEVELS.index(level) <= LEVELS.index(self._last)

    @overload
    def run(self, ir: Graph, *levels: Literal["graph"]) -> Graph: ...
    @overload
    def run(self, ir: Graph | Program, *levels: Literal["schedule"]) -> Program: ...
    @overload
    def run(self, ir: Unit, *levels: Literal["tile"]) -> Unit: ...
    @overload
    def run(self, ir: Code, *levels: Literal["target"]) -> Code: ...
    def run(self, ir: Graph | Program | Unit | Code, *levels: str) -> Made:
        """What the passes of these levels make of a program, or of a unit of one."""
        made: Made = ir
        for p in self.passes:
            if p.level in levels and not p.batch and self.wants(p.level):
                made = self._ran(p, made)
                if p.name == self.stop:
                    break
        return made

    def batch(self, every: list[TritonSource]) -> list[BuiltCode]:
        """What the passes of the Target level that take all kernels at once make of them."""
        made: Made | list[TritonSource] = every
        for p in self.passes:
            if p.level == TARGET and p.batch:
                made = self._ran(p, made)
        return cast("list[BuiltCode]", made)

    def _ran(self, p: Pass, ir: Made | list[TritonSource]) -> Made:
        begin = time.perf_counter()
        if isinstance(ir, Graph) and ir.schedules:
            self.context = replace(self.context, schedules=ir.schedules)
        with During(p.name):
            made: Made = p.run(ir, *(getattr(self.context, n) for n in p.given))
            if isinstance(made, Graph):  # passes make graphs of nodes
                made = with_schedules(made, self.context.schedules)
            seconds = time.perf_counter() - begin
            if flags().verify:
                self.verify(made)
        self._write(p, made, seconds)
        PASSES.tell(p, made)
        return made

    # The record

    def _write(self, p: Pass, made: Made, seconds: float) -> None:
        step = self._steps.get((p.level, p.name))
        if step is None:
            kernels: Kernels[Kernel | str] = Kernels()
            result = kernels if isinstance(made, Unit | Code) else made
            step = self._steps[p.level, p.name] = PassResult(p.name, 0.0, result, p.level)
            self.record.append(step)
        step.seconds += seconds
        if isinstance(step.result, Kernels):
            if isinstance(made, Unit):
                step.result.update(made.kernels())
            elif isinstance(made, Code):
                step.result[made.name] = made.text

    def same(self, name: str, known: str) -> None:
        """Record that a kernel is one which was lowered already."""
        for s in self.record:
            if isinstance(s.result, Kernels) and known in s.result:
                s.result[name] = s.result[known]

    # Verification

    def verify(self, made: Made) -> None:
        """Raise VerifyError when IR breaks an invariant of its level."""
        if self._sound.get(id(made)) is made:
            return
        if isinstance(made, list):  # machine code, of which the drivers of devices judge
            return
        if isinstance(made, Graph):
            verify_graph(made)
        elif isinstance(made, Unit):
            for _, k in made.kernels():
                self._verify_kernel(k, made.form == "written")
        elif isinstance(made, Code):
            self._verify_code(made)
        else:
            self._verify_program(made)
        self._sound[id(made)] = made

    def _verify_program(self, p: Program) -> None:
        """Verify Schedule IR, unless its steps are those of the program that was verified last."""
        last, self._program = self._program, p
        if last is not None and type(last) is type(p) and last.buffers.keys() == p.buffers.keys():
            if len(last.steps) == len(p.steps):
                if all(a is b for a, b in zip(last.steps, p.steps, strict=True)):
                    return
        self._guards = p.guards
        own = getattr(p, "verify", None)  # of a program of a target's own
        if own is None:
            _verify_schedule(p, self.context.sizes)
        else:
            own(self.context.sizes)

    def _verify_kernel(self, k: Kernel, written: bool) -> None:
        if self._sound.get(id(k)) is k:
            return
        _verify_tile(k)
        if not written:  # whose accesses the checks of the kernel language look at
            _verify_inside(k, _facts(self._guards))
        self._sound[id(k)] = k

    def _verify_code(self, c: Code) -> None:
        self._verify_kernel(c.launch.kernel, c.written)
        if not c.written:
            _verify_shares(c.launch.kernel, _shareable(c.launch.kernel))
        if c.text.startswith(("import ", "from ")):  # Triton and Gluon are Python
            ast.parse(c.text)
