"""lowering: the compile half of a GPU program: from Schedule IR at known sizes to launches, views and tables.

Every kernel goes through the passes of the Tile and Target levels here; nothing is allocated, built or
loaded, so no GPU needs to be there.  What is made is an image (image.py), which bind.py binds to a device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tessera.compile.driver import Driver
from tessera.compile.executable import PassResult
from tessera.compile.gpu.image import GpuCall, GpuImage, TmaParameter
from tessera.compile.gpu.tma_tile import described
from tessera.compile.passes import SCHEDULE, TARGET, TILE, Context
from tessera.compile.pipeline import passes_of, split_at_sizes
from tessera.compile.slots import Views
from tessera.core.constraints import solve
from tessera.core.dims import Size
from tessera.core.gpu_kernels import ATTENDS
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Graph, substitute_params
from tessera.ir.schedule.device_program import DeviceProgram
from tessera.ir.schedule.device_steps import DeviceStep, Laid, Placed, SplitStep
from tessera.ir.schedule.gpu_blocks import power
from tessera.ir.schedule.index import narrow
from tessera.ir.schedule.ir import (
    Axis,
    Group,
    HostCall,
    Kernel,
    Primitive,
    Program,
    Read,
    Stage,
    Step,
)
from tessera.ir.schedule.layout import is_row_major, row_major
from tessera.ir.schedule.memory import StepAccess
from tessera.ir.schedule.passes.specialize import specialize_kernel
from tessera.ir.schedule.rename import renamed
from tessera.ir.schedule.thin_products import Thin
from tessera.ir.target.code import Code
from tessera.ir.target.gluon.flash_forward_emit import boxes_of
from tessera.ir.target.triton.dependent_launch import is_product
from tessera.ir.target.triton.triton_source import TritonSource, blocks_of
from tessera.ir.tile import ir as tile
from tessera.ir.tile.gpu.attention_launches import problem
from tessera.ir.tile.gpu.buckets import counts_rows_alone
from tessera.ir.tile.gpu.joint import Joint, of_products, of_thin
from tessera.ir.tile.gpu.lower_steps import Attention, Written
from tessera.ir.tile.gpu.primitives import kernels_of
from tessera.ir.tile.launch import Expansion, Launch
from tessera.ir.tile.sharing import shareable
from tessera.ir.tile.text import parse_kernel
from tessera.ir.tile.unit import Unit
from tessera.runtime.cuda.memory import ALIGNED


@dataclass
class LoweredProgram:
    """A program for a GPU at known sizes, with the IR that it came from."""

    image: GpuImage
    driver: Driver  # which has the record, and builds the code
    p: Program  # before its steps shared launches
    origin: dict[str, Step] = field(default_factory=dict)  # the step that each access belongs to
    known: dict[str, Mapping[str, int]] = field(default_factory=dict)  # of kernels for all sizes
    launches: dict[str, Launch] = field(default_factory=dict)  # by their names
    laid: Mapping[str, Laid] = field(default_factory=dict)  # what lies in columns of other tensors

    @property
    def tiles(self) -> dict[str, tile.Kernel]:
        """The Tile kernel of every launch, by name."""
        return {name: launch.kernel for name, launch in self.launches.items()}

    @property
    def sources(self) -> dict[str, str]:
        """The Triton or Gluon source of every launch, by name."""
        return {c.name: c.source.text for c in self.image.calls}


def symbolic_schedule(
    g: Graph, target: str, record: Iterable[PassResult] = (), stop: str | None = None
) -> list[PassResult]:
    """The record of a graph to the last pass that serves all sizes."""
    before, _ = split_at_sizes(passes_of(target))
    d = Driver(before, Context(target), record, stop)
    d.run(g, SCHEDULE)
    return d.record


def lower_at(
    p: Program, context: Context, record: Iterable[PassResult] = (), stop: str | None = None
) -> LoweredProgram:
    """A program at the sizes of the context, through the rest of the passes."""
    _, after = split_at_sizes(passes_of(context.target))
    d = Driver(after, context, record, stop)
    made = d.run(p, SCHEDULE)
    if not d.wants(TILE):
        return LoweredProgram(_empty_image(made, context), d, made)
    assert isinstance(made, DeviceProgram), made.name
    return GpuLowering(made, d, p if context.buckets else None).lowered()


def _empty_image(p: Program, c: Context) -> GpuImage:
    types = {n: b.type for n, b in p.buffers.items()}
    donated = frozenset(p.inputs[i] for i in c.donated)
    return GpuImage(p.name, tuple(p.inputs), tuple(p.outputs), c.sizes, donated, types)


# Passes of the Target level


def call_of(c: Code, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> GpuCall:
    """What the driver is told of a launch."""
    assert isinstance(c.entry, TritonSource), c.name
    kernel, threads, sizes = c.launch.kernel, c.launch.threads, c.sizes
    found = boxes_of(kernel) if threads.roles else {}
    boxes = []
    for i, m in enumerate(kernel.parameters):
        if m in found:
            whole, rest = described(found[m])
            boxes.append(TmaParameter(i, whole, tuple(x.data for x in rest)))
    return GpuCall(
        c.name, inputs, outputs, tuple(m.writable for m in kernel.parameters), c.entry, c.scratch,
        blocks_of(c.launch, sizes), tuple(int(sizes[n]) for n in kernel.sizes), tuple(boxes),
        threads.early, threads.early and is_product(kernel),
    )  # fmt: skip


class GpuLowering(Views):
    """Turns steps into launches; kernels that differ only in names are lowered once."""

    def __init__(self, p: DeviceProgram, driver: Driver, symbolic: Program | None = None):
        self.p, self.driver, self.sizes = p, driver, driver.context.sizes
        self.laid: Mapping[str, Laid] = p.laid
        self.image = _empty_image(p, driver.context)
        self.types, self.views = self.image.types, self.image.views
        self.tables, self.steps = self.image.tables, self.image.steps
        self.made = LoweredProgram(self.image, driver, p.plain or p, laid=p.laid)
        self.checks: list[tuple[StepAccess, HostCall]] = []  # that factors exist: last of all
        self._units: dict[Hashable, Unit] = {}
        # What primitives made of tensors, for others.
        self._copies: dict[Hashable, tuple[str, ...]] = {}
        self._twins: dict[str, Kernel] = {}  # kernels before sizes were put in, and their types
        self._symbolic: dict[str, TensorType] = {}
        for s in () if symbolic is None else symbolic.steps:
            kernels = s.kernels if isinstance(s, Group) else (s,) if isinstance(s, Kernel) else ()
            self._twins |= {k.name: k for k in kernels if counts_rows_alone(k)}
            self._symbolic |= s.local if isinstance(s, Group) else {}
        if symbolic is not None:
            self._symbolic |= {n: b.type for n, b in symbolic.buffers.items()}

    def lowered(self) -> LoweredProgram:
        """The program, after all steps went through the passes."""
        for s in self.p.device_steps:
            known = len(self.steps)
            origin = self._add(s)
            self.made.origin.update({access.name: origin for access, _ in self.steps[known:]})
        self.steps += self.checks
        self.made.origin.update({access.name: s for access, s in self.checks})
        return self.made

    # Steps

    def _add(self, s: DeviceStep) -> Step:
        """The launches of a step or of several, and the last of these."""
        if isinstance(s, tuple):
            self._add_joint(of_products(s, self.types))
            return s[-1]
        if isinstance(s, Thin):
            self._add_joint(of_thin(s, self.types))
            return s.kernel
        if isinstance(s, Placed):
            self._add_updates(s)
            return s.calls[-1]
        if isinstance(s, SplitStep):
            self.types |= {n: t for n, t in s.local.items() if n not in self.types}
            for k in s.kernels:
                self._add_kernels(k)
            return s.step
        if isinstance(s, HostCall):
            self._add_call(s)
        else:
            assert not isinstance(s, Group), s  # split_kernels has made several of it
            self._add_kernels(s)
        return s

    def _add_call(self, s: HostCall) -> None:
        """Lower a host call: alias, dedicated kernel, or a call of the host."""
        if s.node.op.call == "barrier":
            for view in self.shown(s) or ():
                self.alias(*view)
        elif s.node.op.call == "sound":
            self._add_check(s)
        elif s.node.op.makes == "data":
            self.tables[s.results[0]] = s.node
        elif self._is_empty(s):
            for y in s.results:
                self.alias(y, s.operands[0], (0, row_major(self.types[y])))
        elif s.node.op.kernel in ATTENDS:
            self._add_attention(s)
        elif s.node.op.call == "kernel":
            self._add_written(s)
        elif s.node.op.view is not None:
            self._add_view(s)
        elif kernels_of(step := self._primitive(s), self.types) is not None:
            self._add_kernels(step)
        else:
            access = StepAccess(s.node.op.name, s.operands, s.results, host=True)
            self.steps.append((access, s))

    def _add_check(self, s: HostCall) -> None:
        """A result whose factors exist if a bool holds: the host reads the bool at the end."""
        x, ok, _ = s.operands
        self.alias(s.results[0], x, self.layout(x))
        check = replace(s, operands=(ok,), results=())
        self.checks.append((StepAccess(s.node.op.name, (ok,), (), host=True), check))

    def _is_empty(self, s: HostCall) -> bool:
        """Whether a call makes tensors without elements, and nothing else happens."""
        acts = s.node.op.effects or s.node.regions or not s.operands
        return not acts and all(0 in self.types[y].shape for y in s.results)

    def _primitive(self, s: HostCall) -> Primitive:
        """A call as a primitive, which a GPU may have kernels for."""
        name, params = s.node.op.name, substitute_params(s.node.params, self.sizes)
        own = "_".join((name, *s.results[:1]))
        return Primitive(own, name, params, s.operands, s.results)

    def _unit(
        self, key: Hashable, name: str, step: object, types: Mapping[str, TensorType],
        bucket: Mapping[str, int] = MappingProxyType({}),
    ) -> Unit:  # fmt: skip
        """A step through the Tile level; what is equal but for names goes there once."""
        found = self._units.get(key)
        if found is None:
            found = self._units[key] = self.driver.run(Unit(name, step, types, bucket=bucket), TILE)
        elif found.made is not None and name != found.name:
            names = zip(found.made.named(name), found.kernels(), strict=True)
            for (new, _), (old, _) in names:
                self.driver.same(new, old)
        return found

    def _add_kernels(
        self, s: Kernel | Primitive, types: Mapping[str, TensorType] | None = None
    ) -> None:
        known = types or self.types
        old: dict[str, str] = {}
        if isinstance(s, Kernel) and types is None and self._in_bucket(s):
            u, old = self._bucket_of(s)
        elif isinstance(s, Kernel):
            plain, old = renamed(s)
            own = {new: known[n] for new, n in old.items() if n in known}
            u = self._unit((str(plain), plain.seen, *own.items()), s.name, plain, own)
        else:
            u = self.driver.run(Unit(s.name, s, known), TILE)
        e = u.made
        if e is None:  # it stopped before a lowering served it
            return
        inner = {n: old[n] if n in old and old[n] in known else f"{s.name}.{n}" for n in e.between}
        self.types.update({inner[n]: t for n, t in e.between.items() if inner[n] not in known})
        inner = old | inner
        for n, table in e.tables.items():
            inner[n] = f"table.{len(self.tables)}"
            self.types[inner[n]] = table.type
            self.tables[inner[n]] = table
        for launch, (name, kernel) in zip(e.launches, e.named(s.name), strict=True):
            if kernel.sizes:
                self.made.known[name] = {n: self.sizes[n] for n in kernel.sizes}
            ins, outs = (
                tuple(inner.get(n, n) for n in names) for names in (launch.inputs, launch.outputs)
            )
            if isinstance(s, Primitive) and (there := self._made_before(e, launch, ins, outs)):
                inner |= dict(zip(launch.outputs, there, strict=True))
                continue
            names = (*ins, *outs)
            shares = frozenset((names[i], names[j]) for i, j in shareable(kernel))
            self._launch(name, launch, ins, outs, shares)

    def _made_before(
        self, e: Expansion, launch: Launch, ins: tuple[str, ...], outs: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Where the same was made of the same tensors for another primitive, as channels last; () if nowhere.

        A buffer that a later launch writes again, as the words of a sort, belongs to one primitive alone.
        """
        once = Counter(n for each in e.launches for n in each.outputs)
        if any(n not in e.between or once[n] > 1 for n in launch.outputs):
            return ()
        there = self._copies.setdefault((launch.kernel.hash, ins), outs)
        if there == outs:
            return ()
        for n in outs:
            self.types.pop(n)
        return there

    def _in_bucket(self, s: Kernel) -> bool:
        """Whether a kernel is as it was before sizes were put in, and may serve others."""
        twin = self._twins.get(s.name)
        if twin is None or specialize_kernel(twin, self.sizes) != s:
            return False
        return self._bucket_of(s)[0].made is not None

    def _bucket_of(self, s: Kernel) -> tuple[Unit, dict[str, str]]:
        """A kernel for all sizes of its bucket, up to powers of two."""
        plain, old = renamed(self._twins[s.name])
        own = {new: self._symbolic[n] for new, n in old.items() if n in self._symbolic}
        top = {n: power(size) for n, size in self.sizes.items()}
        key = ("bucket", str(plain), *own.items(), *top.items())
        return self._unit(key, s.name, plain, own, top), old

    def _add_joint(self, j: Joint) -> None:
        """Products in one launch, or one with what makes its vector."""
        e = self._unit(j.key, j.name, j.step, j.types).made
        for launch in e.launches if e is not None else ():
            ins, outs = (
                tuple(j.buffers[n] for n in names) for names in (launch.inputs, launch.outputs)
            )
            self._launch(j.name, launch, ins, outs)

    def _add_attention(self, s: HostCall) -> None:
        """An attention, or its derivative, which reads what the attention says of its rows."""
        p = problem(s, self.types, {n: x.columns for n, x in self.laid.items()})
        ins, outs = (
            tuple(self.laid[n].base if n in self.laid else n for n in names)
            for names in (s.operands, s.results)
        )
        name = s.results[0]
        if s.node.op.kernel == "attention":
            logs = f"{name}.logs"
            self.types[logs] = p.row_type
            self._add_launches(name, Attention(p, ins, outs, logs))
            return
        logs, delta, again = f"{s.operands[3]}.logs", f"{name}.delta", ""
        self.types[delta] = p.row_type
        if logs not in self.types:  # that attention is part of another program
            again, logs = f"{name}.o", f"{name}.logs"
            self.types |= {again: self.types[s.operands[3]], logs: p.row_type}
        self._add_launches(name, Attention(p, ins, outs, logs, delta, again))

    def _add_launches(self, name: str, step: Attention) -> None:
        """A step whose launches have the names of their kernels."""
        e = self.driver.run(Unit(f"attention_{name}", step, self.types), TILE).made
        if e is None:
            return
        self.types |= e.between
        for launch in e.launches:
            own = f"{launch.kernel.name}_{name}"
            self._launch(own, launch, launch.inputs, launch.outputs)

    def _add_named(
        self, names: Sequence[str], step: Placed | Written, written: bool = False
    ) -> None:
        """A step whose launches name buffers of the program, each launch under its own name."""
        e = self.driver.run(Unit(names[0], step, self.types), TILE).made
        for name, launch in zip(names, e.launches if e is not None else (), strict=e is not None):
            self._launch(name, launch, launch.inputs, launch.outputs, written=written)

    def _add_written(self, s: HostCall) -> None:
        """A kernel that the user wrote; what it updates is a copy of its operand."""
        inputs = parse_kernel(s.node.params["program"]).parameters[: len(s.operands)]
        shapes = [
            (m.name, m.type.shape, tuple(int(n) for n in self.types[x].shape))
            for m, x in zip(inputs, s.operands, strict=True)
        ]
        name, given, made = f"kernel_{s.results[0]}", list(s.operands), list(s.results)
        for i, (m, x) in enumerate(zip(inputs, s.operands, strict=True)):
            if m.writable:
                given[i] = made.pop(0)
                self._add_whole_copy(given[i], x, s)
        self.made.known[name] = solve(shapes, ())
        self._add_named([name], Written(s, tuple(given), tuple(made)), written=True)

    def _add_updates(self, s: Placed) -> None:
        """Tensors of which parts are replaced where they lie; copies of them, where something else reads
        them.
        """
        for c in s.calls:
            self._add_whole_copy(c.results[0], c.operands[0], c)
        self._add_named([f"update_{s.outputs[-1]}"], s)

    def _add_whole_copy(self, y: str, x: str, s: HostCall) -> None:
        """A copy, which is none where the memory plan gives both one place."""
        self._add_copy(y, x, lambda place: place, s)
        if self.steps:
            access, call = self.steps[-1]
            self.steps[-1] = replace(access, copies=True), call

    def _launch(
        self, name: str, launch: Launch, ins: tuple[str, ...], outs: tuple[str, ...],
        shares: frozenset[tuple[str, str]] = frozenset(), written: bool = False,
    ) -> None:  # fmt: skip
        """Take a launch through the Target level."""
        if not self.driver.wants(TARGET):
            return
        buffers = (*ins, *outs)
        constant = frozenset(n for n in buffers if self._is_constant(n))
        sizes = self.made.known.get(name, {})
        code = Code(name, launch, buffers=buffers, constant=constant, written=written, sizes=sizes)
        c = self.driver.run(code, TARGET)
        self.made.launches[name] = c.launch
        if c.entry is not None:
            call = call_of(c, ins, outs)
            self.steps.append((StepAccess(name, ins, outs, shares), call))

    def _is_constant(self, name: str) -> bool:
        """Whether a buffer is an input, or a part of one, that the program does not write."""
        base = self.root(name)
        return base in self.p.inputs and base not in self.image.donated

    def _add_view(self, s: HostCall) -> None:
        """A view whose elements lie in order is an offset; any other is a copy."""
        (x,), (y,) = s.operands, s.results
        params = substitute_params(s.node.params, self.sizes)
        if 0 in self.types[y].shape:
            self.alias(y, x, (0, row_major(self.types[y])))
            return
        for _, _, layout in self.shown(s) or ():
            if is_row_major(self.types[y], layout[1]) and layout[0] % ALIGNED == 0:
                self.alias(y, x, layout)
                return
        view = s.node.op.view
        assert view is not None
        self._add_copy(y, x, lambda place: view(place, (self.types[x],), params), s)

    def _add_copy(
        self, y: str, x: str, place: Callable[[tuple[Size, ...]], Sequence[Size]], s: HostCall
    ) -> None:  # fmt: skip
        """A copy of a tensor, or of what a view has of it: `place` says where an element comes from."""
        t = self.types[y]
        axes = tuple(Axis(f"_{y}_{i}", n) for i, n in enumerate(t.shape))
        sizes = {a.name: a.size for a in axes}
        index = [narrow(i, sizes) for i in place(tuple(a.variable for a in axes))]
        if t.dtype.kind == "c":  # pairs of real numbers
            part = Axis(f"_{y}_part", 2)
            axes, index = (*axes, part), [*index, part.variable]
        read = Read(t.dtype.real, x, tuple(index))
        stage = Stage(y, axes, (), None, read, s.node.location)
        copy = Kernel(f"copy_{y}", max(len(axes) - 1, 0), (stage,), (y,))
        types = {n: _as_pairs(self.types[n]) for n in (x, y)}
        self._add_kernels(copy, types)


def _as_pairs(t: TensorType) -> TensorType:
    """A tensor of complex numbers as one of real numbers."""
    return TensorType(t.dtype.real, (*t.shape, 2)) if t.dtype.kind == "c" else t
