"""build: a graph of loop nests through Schedule IR and Tile IR to an artefact of machine code.

Kernels go to LLVM one by one: workers build a kernel while the next one is lowered.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import fields, replace

from tessera.compile.artifact import Image, KernelCall
from tessera.compile.cpu.forms import form_of, form_of_primitive, sizes_of
from tessera.compile.cpu.nests import identity
from tessera.compile.driver import Driver
from tessera.compile.executable import PassResult
from tessera.compile.passes import SCHEDULE, TARGET, TILE, Context
from tessera.compile.pipeline import passes_of
from tessera.core.during import During
from tessera.core.tables import Table
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Graph
from tessera.ir.schedule.ir import Group, HostCall, Kernel, Primitive, Program
from tessera.ir.target.code import Code
from tessera.ir.target.cpu.entry import Entry
from tessera.ir.target.cpu.program import program
from tessera.ir.tile.launch import Expansion, Launch
from tessera.ir.tile.unit import Unit
from tessera.runtime import builder
from tessera.runtime.allocator import blocks_source
from tessera.runtime.code import Loading, ModuleBuilder
from tessera.runtime.kernel import source_of
from tessera.runtime.pool import pool_source

__all__ = ["build", "emit_llvm", "form_of", "identity", "lowered", "schedule_of", "sizes_of"]


def build(
    g: Graph, context: Context, record: Iterable[PassResult] = ()
) -> tuple[Image, list[PassResult]]:
    """The artefact of a graph, whose machine code is in memory and on disk afterwards, and the record.

    Kernels have the nests that the tuner found for them, at the sizes of the context if it has any.
    """
    builder.start(len(g.nodes))  # there are no more kernels than nodes, nor more workers than cores
    with Loading() as loading:
        d = Driver(passes_of("cpu"), replace(context, loading=loading), record)
        schedule = d.run(g, SCHEDULE)
        with During("LLVM"):
            loading.add(pool_source())
            loading.add(blocks_source())
            image = Building(schedule, d).image()
            loading.finish()
    return image, d.record


def lowered(
    g: Graph, record: Iterable[PassResult], target: str, sizes: Mapping[str, int], numerics: str,
    stop: str | None = None,
) -> list[PassResult]:  # fmt: skip
    """The record of a graph at every level, of which no machine code is built, to a pass to stop at."""
    passes = [p for p in passes_of("cpu") if p.name != "build"]
    d = Driver(passes, Context(target, numerics, sizes), record, stop)
    schedule = d.run(g, SCHEDULE)
    if d.wants(TILE):
        Building(schedule, d).walk()
    return d.record


def schedule_of(
    g: Graph, sizes: Mapping[str, int] | None = None, numerics: str = "deterministic"
) -> Program:
    """The Schedule IR of a graph, with the nests that the tuner found at these sizes."""
    context = Context(numerics=numerics, sizes=sizes or {})
    return Driver(passes_of("cpu", SCHEDULE), context).run(g, SCHEDULE)


def emit_llvm(c: Code) -> Code:
    """The LLVM IR of a kernel, with all that a launch must know about it."""
    p = program(c.launch.kernel)
    return replace(c, text=p.text, entry=p)


def begin_build(c: Code, loading: ModuleBuilder) -> Code:
    """Look the machine code of a kernel up, or begin to build it."""
    assert isinstance(c.entry, Entry), c.name
    return replace(c, key=loading.add(source_of(c.entry)))


def image_of(schedule: Program, loading: ModuleBuilder) -> Image:
    """The artefact of a schedule whose machine code is built by `loading`."""
    return Building(schedule, Driver(passes_of("cpu"), Context(loading=loading))).image()


class Building:
    """Turns steps into calls; kernels that differ only in names are lowered once."""

    def __init__(self, schedule: Program, driver: Driver):
        self.schedule, self.driver = schedule, driver
        self.types: dict[str, TensorType] = {n: b.type for n, b in schedule.buffers.items()}
        self.steps: list[KernelCall | HostCall] = []
        self.kernels: list[Code] = []
        self.known: dict[str, tuple[int, str]] = {}  # the kernel of each form, and its name
        self.expanded: dict[
            Hashable, tuple[Primitive, Expansion, int]
        ] = {}  # the same of primitives
        self.tables: dict[Table, str] = {}
        self.loops: dict[int, int] = {}  # the kernel of each loop, by its step

    def image(self) -> Image:
        """The artefact, after all steps went through the passes."""
        self.walk()
        entries = tuple(
            Entry(**{f.name: getattr(c.entry, f.name) for f in fields(Entry)}) for c in self.kernels
        )
        codes = tuple(c.key for c in self.kernels if c.key is not None)
        assert len(codes) == len(entries), "an image of a program that was not built"
        return Image(
            self.types, tuple(self.steps), (*self.schedule.inputs, *self.tables.values()),
            self.schedule.outputs, entries, codes, tuple(self.tables),
            self.loops,
        )  # fmt: skip

    def walk(self) -> None:
        """Take every step through the Tile and Target levels."""
        for s in self.schedule.steps:
            if isinstance(s, HostCall):
                self.host(s)
            elif isinstance(s, Primitive):
                self.primitive(s)
            else:
                self.call(s)

    def host(self, s: HostCall) -> None:
        name = "_".join((s.node.op.name, *s.results[:1]))
        u = self.driver.run(Unit(name, s, self.types), TILE)
        if u.made is not None:
            self.loops[len(self.steps)] = self.kernel(name, u.made.launches[0])
        self.steps.append(s)

    def call(self, s: Kernel | Group) -> None:
        form = form_of(s, self.types)
        known = self.known.get(form)
        if known is not None:
            number, name = known
            self.driver.same(s.name, name)
            self.steps.append(KernelCall(s.name, number, tuple(s.inputs()), s.outputs))
            return
        u = self.driver.run(Unit(s.name, s, self.types), TILE)
        if u.made is None:  # it stopped before a lowering served it
            return
        if u.form != "spread":
            self.known[form] = len(self.kernels), s.name
        self.expand(s, u.made)

    def primitive(self, s: Primitive) -> None:
        """Take a primitive through the levels, or do as an equal one before it did."""
        form = form_of_primitive(s, self.types)
        known = None if form is None else self.expanded.get(form)
        if known is not None:
            self.repeat(s, *known)
            return
        u = self.driver.run(Unit(s.name, s, self.types), TILE)
        if u.made is None:
            return
        first = len(self.kernels)
        self.expand(s, u.made)
        if form is not None:
            self.expanded[form] = s, u.made, first

    def repeat(self, s: Primitive, like: Primitive, e: Expansion, first: int) -> None:
        """The calls of a primitive like another one, whose kernels begin with this number."""
        names = dict(zip((*like.operands, *like.results), (*s.operands, *s.results), strict=True))
        pairs = zip(e.named(s.name), e.named(like.name), strict=True)
        for i, (wires, ((name, _), (known, _))) in enumerate(
            zip(self.wired(s, e, names), pairs, strict=True)
        ):
            self.driver.same(name, known)
            self.steps.append(KernelCall(name, first + i, *wires))

    def expand(self, s: Kernel | Group | Primitive, e: Expansion) -> None:
        """Calls of the launches of a step."""
        launches = zip(e.launches, self.wired(s, e), e.named(s.name), strict=True)
        for launch, wires, (name, _) in launches:
            self.steps.append(KernelCall(name, self.kernel(name, launch), *wires))

    def wired(
        self, s: Kernel | Group | Primitive, e: Expansion, names: Mapping[str, str] | None = None
    ) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        """The buffers that each launch of a step reads, and those it makes; some have other names here."""
        inner = {**(names or {}), **{n: f"{s.name}.{n}" for n in e.between}}
        self.types.update({inner[n]: t for n, t in e.between.items()})
        inner |= {n: self.table(t) for n, t in e.tables.items()}
        return [
            (tuple(inner.get(n, n) for n in x.inputs), tuple(inner.get(n, n) for n in x.outputs))
            for x in e.launches
        ]

    def table(self, t: Table) -> str:
        """The buffer of a table, one for all who read it."""
        name = self.tables.setdefault(t, f"table.{len(self.tables)}")
        self.types[name] = t.type
        return name

    def kernel(self, name: str, launch: Launch) -> int:
        """Take a kernel through the Target level, where its machine code begins to be built; its number."""
        self.kernels.append(self.driver.run(Code(name, launch), TARGET))
        return len(self.kernels) - 1
