"""The target cpu: machine code that runs a graph, and the levels that it went through."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tessera.compile.artifact import Image, demand_fit, key_of, load, save
from tessera.compile.cpu.bound_program import Prepared
from tessera.compile.cpu.constants import Split, is_constant, split
from tessera.compile.cpu.loop_layout import ENDLESS, Branches, KernelSteps, Region, Steps
from tessera.compile.cpu.native_loop import NativeStep, native, native_check
from tessera.compile.executable import Executable, PassResult, last_of, tell_unused
from tessera.compile.fallback import PlainRun, Task, Way, first_that_works, plain_runs
from tessera.compile.passes import GRAPH, SCHEDULE, TARGET, TILE, Context
from tessera.core.constraints import solve
from tessera.core.deferred import Deferred
from tessera.core.during import During
from tessera.core.errors import OutOfMemoryError, TesseraError
from tessera.core.flags import flags, override
from tessera.core.kernels import Kernels
from tessera.core.source import Location
from tessera.core.types import TensorType
from tessera.ir.graph import interp
from tessera.ir.graph.ir import Array, Graph, Node, eager_kernel, substitute_params
from tessera.ir.schedule.ir import Group, HostCall, Kernel, Program
from tessera.ir.schedule.memory import MemoryPlan, shortage, size_of
from tessera.ir.schedule.nests.nest import Nest
from tessera.runtime import memory, tuned
from tessera.runtime.allocator import blocks
from tessera.runtime.call import Caller, CallRecord, Expected, has_calls
from tessera.runtime.call_ir import MOST_ARGUMENTS
from tessera.runtime.code import loaded
from tessera.runtime.kernel import FAST, CompiledKernel
from tessera.runtime.loop import ROWS, Scan, While
from tessera.runtime.threads import thread_count

if TYPE_CHECKING:  # a program from the disk needs nothing that lowers
    from tessera.ir.tile import ir as tile

# Of calls that keep other Python threads waiting, in units of what is worth a thread: about 20 us.
_SHORT = 2.0
_MOST_SHAPES = 1024  # sets of sizes that a program is kept prepared for


_build = Deferred("tessera.compile.cpu.build:build")
_lowered = Deferred("tessera.compile.cpu.build:lowered")
_schedule_of = Deferred("tessera.compile.cpu.build:schedule_of")


def executable(
    graph: Graph, record: Sequence[PassResult], numerics: str = "deterministic"
) -> MachineExecutable:
    """What runs a graph: its artefact from the disk if it is there, otherwise built and kept.

    What lowers takes longer to import than an artefact to load, so it is loaded when something is built.
    """
    # Verification wants every level to be made.
    key = None if flags().verify else key_of(graph, numerics)
    with During("load"):
        image = None if key is None else load(key, graph)
    if image is None or loaded(image.codes) is None:
        image, record = _build(graph, Context("cpu", numerics), record)
        if key is not None:
            save(key, image, graph)
        elif flags().verify:
            demand_fit(image, graph)  # what a later process asks of it
    return MachineExecutable(graph, record, image, numerics)


class MachineExecutable(Executable):
    """A program of kernels in machine code, and of calls to the host.

    Running takes the image alone.  The record has every level when it was built here; when the image came
    from the disk, the levels below Graph IR are made for those who look at them, once.
    """

    def __init__(
        self, graph: Graph, record: Sequence[PassResult], image: Image, numerics: str = "deterministic",
        kernels: list[CompiledKernel] | None = None, captured: Sequence[Array] = (),
    ):  # fmt: skip
        self.graph, self.record, self.image = graph, tuple(record), image
        self.numerics = numerics
        self._kernels = _kernels_of(image) if kernels is None else kernels
        self._variants: dict[tuple[Nest | None, ...], _Variant] = {}  # by their nests
        self._captured = [*captured, *(v.storage for v in graph.captured if v.storage is not None)]
        self._captured += [t.array() for t in image.tables]
        hosted = {i: s.node for i, s in enumerate(image.steps) if isinstance(s, HostCall)}
        self._loops = {hosted[i]: self._kernels[k] for i, k in image.loops.items()}
        self._regions = {r: executable(r, (), numerics) for n in self.host_nodes for r in n.regions}
        self._static = graph.static
        self._prepared: dict[Hashable, Prepared] = {}

    @property
    def host_nodes(self) -> list[Node]:
        """The nodes that run on the host, by their references."""
        hosted = [s.node for s in self.image.steps if isinstance(s, HostCall)]
        return [n for n in hosted if n not in self._loops]

    @cached_property
    def regions(self) -> Mapping[Graph, MachineExecutable]:
        """The programs of the regions of those nodes, and of loops that run as one kernel."""
        loops = {r: executable(r, (), self.numerics) for n in self._loops for r in n.regions}
        return {**self._regions, **loops}

    @property
    def full_record(self) -> tuple[PassResult, ...]:
        """The record of every level."""
        if all(s.level != TARGET for s in self.record):
            self.record = tuple(_lowered(self.graph, self.record, "cpu", {}, self.numerics))
        return self.record

    def record_at(self, shapes: Sequence[tuple[int, ...]]) -> tuple[PassResult, ...]:
        """The record of every level for inputs of these shapes."""
        return self.full_record

    def record_for(self, sizes: Mapping[str, int]) -> tuple[PassResult, ...]:
        """The record of the program that runs at these sizes, which may have nests of its own."""
        found = self._variant_at(sizes)
        return self.full_record if found is None else found.record

    @property
    def schedule(self) -> Program:
        """Schedule IR."""
        return last_of(self.full_record, SCHEDULE)

    @property
    def schedules(self) -> list[Program]:
        """Schedule IR of the program and of every region in it."""
        return [self.schedule, *(p for e in self.regions.values() for p in e.schedules)]

    @property
    def every_tile(self) -> list[tuple[str, tile.Kernel]]:
        """The Tile IR of each kernel with its name, those in loops and branches on the host too."""
        return [*self.tiles.items(), *(x for e in self._regions.values() for x in e.every_tile)]

    @property
    def tiles(self) -> Kernels[tile.Kernel]:
        """The Tile IR of each kernel, by name."""
        return last_of(self.full_record, TILE)

    @property
    def target(self) -> Kernels[str]:
        """The LLVM IR of each kernel, by name."""
        return last_of(self.full_record, TARGET)

    def run(self, inputs: Sequence[Array], donated: frozenset[int] = frozenset()) -> list[Array]:
        """The outputs for these inputs; the memory of those that are donated may be used."""
        xs = [*inputs, *self._captured] if self._captured else inputs
        prepared = self.prepared(xs, donated)
        if prepared.peak >= memory.notable():
            self._demand(prepared.plan)
        return prepared.run(xs if prepared.constants is None else [*inputs, *prepared.constants])

    def prepared(self, xs: Sequence[Array], donated: frozenset[int] = frozenset()) -> Prepared:
        """This program for inputs and captured arrays of such shapes, and the threads in force."""
        threads = thread_count()
        key: Hashable = threads if self._static else (threads, *[x.shape for x in xs])
        if donated:
            key = key, donated
        prepared = self._prepared.get(key)
        if prepared is None:
            if len(self._prepared) >= _MOST_SHAPES:
                self._prepared.clear()
            prepared = self._prepared[key] = self._made(self._sizes([x.shape for x in xs]), donated)
        return prepared

    def _made(self, sizes: Mapping[str, int], donated: frozenset[int]) -> Prepared:
        """This program at known sizes, or what runs it instead where the compiler fails."""
        written = self.written
        types = [v.type.substitute(sizes) for v in written.inputs]
        task = Task(written, "cpu", self.numerics, types)
        whole: Way[Prepared | PlainRun] = ("", lambda: self.at(sizes, donated))
        made = first_that_works(task, whole, *plain_runs(self.plain))
        if isinstance(made, PlainRun):
            return cast("Prepared", made)  # which has all that a run asks for
        if donated:
            buffers = {i: made.image.inputs[i] for i in donated}
            tell_unused(self.graph, made.plan, buffers)
        return made

    def shortcut(
        self, inputs: Sequence[Array], expected: tuple[tuple[object, ...], int, tuple[str, ...]],
        out: object,
    ) -> CallRecord | None:  # fmt: skip
        """How a run on such inputs is called without Python; None: it is not so simple."""
        if self._captured or len(expected[0]) > MOST_ARGUMENTS or not has_calls():
            return None
        run = self.prepared(inputs).direct(_SHORT)
        return None if run is None else CallRecord(Expected(*expected), out, run)

    @staticmethod
    def caller(
        slow: Callable[..., Any], name: str, tensors: type, fields: dict[str, Any]
    ) -> Caller:
        """A function that follows a record, and else calls a slow one."""
        return Caller(slow, name, tensors, fields)

    def tiles_at(self, shapes: Sequence[tuple[int, ...]]) -> Kernels[tile.Kernel]:
        """The Tile IR of each kernel, which serves all sizes."""
        return self.tiles

    def target_at(self, shapes: Sequence[tuple[int, ...]]) -> Kernels[str]:
        """The LLVM IR of each kernel, which serves all sizes."""
        return self.target

    def memory_plan(self, shapes: Sequence[tuple[int, ...]]) -> MemoryPlan:
        """Where everything lies in a run on inputs of these shapes, and how much memory it takes."""
        return self.at(self.sizes_at(shapes)).plan

    def sizes_at(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """The symbolic sizes of a run on inputs of these shapes."""
        return self._sizes([*shapes, *(x.shape for x in self._captured)])

    def at(self, sizes: Mapping[str, int], donated: frozenset[int] = frozenset()) -> Prepared:
        """This program at known sizes, for the number of threads in force."""
        with During("prepare"):
            image, kernels = self._variant(sizes)
            names = frozenset(image.inputs[i] for i in donated)
            parts = self._split if image is self.image else None
            if parts is not None:
                image = parts.each
            made = Prepared(
                self.graph.name, image, kernels, sizes, thread_count(), self._host, names
            )
            made.executable = self
            if parts is not None:
                made.constants = self._constants
            return made

    @cached_property
    def _split(self) -> Split | None:
        """The steps that read constants alone, and the others."""
        given = len(self.image.inputs) - len(self._captured)
        tables = len(self._captured) - len(self.image.tables)
        constant = [i >= tables or is_constant(x) for i, x in enumerate(self._captured)]
        return split(self.image, given, constant) if any(constant) else None

    @cached_property
    def _constants(self) -> list[Array]:
        """What the program reads of captured arrays, and what the steps of constants have made of them."""
        parts = self._split
        assert parts is not None
        once = Prepared(
            f"{self.graph.name}.constants",
            parts.once,
            self._kernels,
            {},
            thread_count(),
            self._host,
        )
        made = once.run([self._captured[i] for i in parts.constants])
        return [*(self._captured[i] for i in parts.kept), *made]

    def _variant(self, sizes: Mapping[str, int]) -> tuple[Image, list[CompiledKernel]]:
        """The program that serves all sizes, or one of other nests that the tuner found at these."""
        found = self._variant_at(sizes)
        return (self.image, self._kernels) if found is None else (found.image, found.kernels)

    def _variant_at(self, sizes: Mapping[str, int]) -> _Variant | None:
        if self._static or not tuned.has_sizes():
            return None
        nests = _nests(_schedule_of(self.graph, sizes, self.numerics))
        if nests == self._nests:
            return None
        if nests not in self._variants:
            context = Context("cpu", self.numerics, sizes)
            before = [s for s in self.record if s.level == GRAPH]
            image, record = _build(self.graph, context, before)
            self._variants[nests] = _Variant(image, _kernels_of(image), tuple(record))
        return self._variants[nests]

    @cached_property
    def _nests(self) -> tuple[Nest | None, ...]:
        """The nests of the program that serves all sizes; one from the disk is taken to Schedule IR alone."""
        if any(s.level == SCHEDULE for s in self.record):
            return _nests(last_of(self.record, SCHEDULE))
        return _nests(_schedule_of(self.graph, None, self.numerics))

    def _sizes(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        p = self.image
        names = [*self.graph.input_names, *p.inputs[len(self.graph.input_names) :]]
        wanted = [
            (n, p.buffers[b].shape, s) for n, b, s in zip(names, p.inputs, shapes, strict=True)
        ]
        return solve(wanted, list(self.graph.guards))

    def _host(
        self, s: HostCall, types: Mapping[str, TensorType], sizes: Mapping[str, int]
    ) -> tuple[Callable[..., Any], int]:
        """What runs a host call, and the bytes that its regions need while they run."""
        n = s.node
        params = substitute_params(n.params, sizes)
        if n in self._loops:
            return self._loop(n, params, [types[x] for x in s.results])
        if n.regions:
            regions = tuple(_CompiledRegion(self._regions[r], sizes) for r in n.regions)
            assert n.op.numpy is not None, n
            steps = partial(n.op.numpy, regions=regions, **params)
            return self._without_python(s, params, types, regions, steps)
        ins, outs = [types[x] for x in s.operands], [types[x] for x in s.results]
        # Of symbolic sizes the host has what no kernel serves at all sizes; at these there may be one.
        symbolic = not all(v.type.static for v in (*n.operands, *n.results))
        with override(numerics=self.numerics):
            run = (eager_kernel if symbolic else interp.kernel)(n.op, ins, outs, params)

        def call(*xs: Array) -> Any:
            try:
                return run(*xs) if n.op.multiple else (run(*xs),)
            except TesseraError as e:
                raise e.at(n.location) from None

        return (native_check(call, ins) if n.op.call == "sound" else call), 0

    def _without_python(
        self,
        s: HostCall,
        params: Mapping[str, Any],
        types: Mapping[str, TensorType],
        regions: Sequence[_CompiledRegion],
        run: Callable[..., Any],
    ) -> tuple[Callable[..., Any], int]:
        """What runs regions, and the bytes that it needs: without Python between steps if that can be."""
        most = max(r.bytes for r in regions)
        control = s.node.op.control if FAST else None
        if control == "branch":
            return NativeStep(run, Branches([r.region() for r in regions])), most
        if control not in ("scan", "while"):
            return run, most
        body, results = regions[-1], [types[x] for x in s.results]
        scan = control == "scan"
        carry = params["carry"] if scan else len(results)
        steps = Steps(
            body.region(carry),
            None if scan else regions[0].region(),
            carry,
            params["xs"] if scan else 0,
            params["length"] if scan else ENDLESS,
            scan and params["reverse"],
        )
        loop = native(steps, results, run)
        return (run, most) if loop is None else (loop, max(most, loop.bytes))

    def _loop(
        self, n: Node, params: dict[str, Any], results: Sequence[TensorType]
    ) -> tuple[Callable[..., Any], int]:
        """What runs a loop that is one kernel, and the bytes that it needs beside its results."""
        kernel = self._loops[n]
        held = (v.storage for r in n.regions for v in r.captured)
        captured = [x for x in held if x is not None]
        if n.op.control == "scan":
            scan = Scan(kernel, captured, params, results)
            own = KernelSteps(kernel, captured, params["carry"], params["length"])
            short = params["length"] <= ROWS
            return NativeStep(scan, own) if short else scan, 0
        loop = While(kernel, captured, len(results))
        steps = KernelSteps(kernel, captured, len(results), None)
        return NativeStep(loop, steps), sum(map(size_of, results))

    def _demand(self, plan: MemoryPlan) -> None:
        """Raise when a run would need more memory than there is."""
        if plan.peak <= memory.available():
            return
        memory.clear()
        free = memory.available()
        if plan.peak > free:
            raise OutOfMemoryError(shortage(plan, free, _locations(self.schedule)))


@dataclass(frozen=True)
class _Variant:
    """The program with nests of its own for some sizes."""

    image: Image
    kernels: list[CompiledKernel]
    record: tuple[PassResult, ...]


def _kernels_of(image: Image) -> list[CompiledKernel]:
    blocks()
    codes = loaded(image.codes)
    assert codes is not None, (
        f"machine code of {', '.join(e.name for e in image.kernels)} is missing"
    )
    return [CompiledKernel(e, code=c) for e, c in zip(image.kernels, codes, strict=True)]


def _nests(p: Program) -> tuple[Nest | None, ...]:
    return tuple(s.nest for s in p.steps if isinstance(s, Kernel))


class _CompiledRegion:
    """A region of a node as a program, at the sizes of a call."""

    def __init__(self, e: MachineExecutable, sizes: Mapping[str, int]):
        self._executable, self._sizes = e, sizes
        self._prepared = e.at(sizes)
        constants = self._prepared.constants
        self._captured = e._captured if constants is None else constants
        types = self._prepared.types
        self.types = [types[n] for n in e.image.outputs]
        # A loop holds what it carries into a step while the step makes what it carries out.
        self.bytes = self._prepared.plan.peak + sum(map(size_of, self.types))

    def region(self, carry: int = 0) -> Region:
        """Its program, which may write over what it is the only one to hold: its first operands."""
        program = self._prepared
        if carry:
            program = self._executable.at(self._sizes, frozenset(range(carry)))
        return Region(program, self._captured)

    def __call__(self, *xs: Array) -> list[Array]:
        return self._prepared.run([*xs, *self._captured])

    def again(self, carry: int) -> Callable[..., list[Array]]:
        """What runs the steps after the first one: large tensors that only the loop holds
        are written over.
        """
        names = self._executable.image.inputs[:carry]
        large = [i for i, n in enumerate(names) if size_of(self._prepared.types[n]) >= _LARGE]
        if not large:
            return self
        donating = self._executable.at(self._sizes, frozenset(large))
        used = [i for i in large if donating.plan.is_reused(names[i])]
        if not used:
            return self

        def run(*xs: Array) -> list[Array]:
            free = all(sys.getrefcount(xs[i]) <= _ALONE and _owns(xs[i]) for i in used)
            return (donating if free else self._prepared).run([*xs, *self._captured])

        return run


_LARGE = 1 << 16  # bytes of a tensor that is worth a look at who holds it


def _count_alone() -> int:
    """How many references an array has in `again` that the list of what a loop carries alone holds."""
    carried = [np.empty(1)]

    def run(*xs: Array) -> int:
        return sys.getrefcount(xs[0])

    return run(*carried, *())


_ALONE = _count_alone()


def _owns(x: Array) -> bool:
    """Whether an array has memory of its own, or is all that sees the array that has."""
    base = x.base
    if base is None:
        return x.flags.writeable
    # The array on it, this name, and the count.
    return type(base) is np.ndarray and base.base is None and sys.getrefcount(base) <= 3


def _locations(p: Program) -> dict[str, Location | None]:
    """The user's line of every buffer."""
    found: dict[str, Location | None] = {}
    for s in p.steps:
        if isinstance(s, Kernel | Group):
            found |= {t.name: t.location for t in s.stages}
        else:
            location = s.node.location if isinstance(s, HostCall) else s.location
            found |= dict.fromkeys(s.results, location)
    return found
