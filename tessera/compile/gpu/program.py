"""A program at known sizes on a device: memory planned, kernels built, launches packed.

Addresses stand in numbered cells: inputs, tables, results, what the host makes, the arena and scratch.
Kernels that follow each other are one call into machine code (runtime/cuda/launch.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np

from tessera.accelerator import kept
from tessera.accelerator.boxes import parameters
from tessera.accelerator.early import early, function_of
from tessera.accelerator.joined import Joint, joined, of_products, of_thin
from tessera.accelerator.order import Place, Touched, order
from tessera.accelerator.place import Placed
from tessera.accelerator.sources import (
    WRITTEN_STAGES,
    as_pairs,
    blocks_of,
    source_of,
    usual_warps,
)
from tessera.accelerator.strided import strided
from tessera.core.constraints import solve
from tessera.core.dims import substitute
from tessera.core.flags import flags
from tessera.core.types import TensorType
from tessera.ir.graph.ir import substitute_params
from tessera.ir.schedule.apart import apart
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
from tessera.ir.schedule.layout import is_row_major, layout_of, row_major
from tessera.ir.schedule.memory import Access, View, numbered, plan_memory, size_of
from tessera.ir.schedule.rename import renamed
from tessera.ir.target.gluon import emit as gluon
from tessera.ir.target.gluon.emit import boxes_of
from tessera.ir.target.triton.emit import emit, scratch_bytes
from tessera.ir.tile import ir as tile
from tessera.ir.tile.clashes import verify_shares
from tessera.ir.tile.gpu.lower import expand
from tessera.ir.tile.gpu.primitives import kernels_of
from tessera.ir.tile.gpu.thin import Thin
from tessera.ir.tile.gpu.update import update
from tessera.ir.tile.gpu.written import written
from tessera.ir.tile.inside import verify_inside
from tessera.ir.tile.launch import Expansion, Launch, Threads
from tessera.ir.tile.sharing import shareable
from tessera.ir.tile.text import parse_kernel
from tessera.ir.tile.verify import verify as verify_tile
from tessera.runtime.cuda.device import Gpu
from tessera.runtime.cuda.launch import Launch as DeviceLaunch
from tessera.runtime.cuda.launch import Launcher, Parameter, Pointer, Value, i32
from tessera.runtime.cuda.memory import ALIGNED, DeviceArray, to_device
from tessera.runtime.cuda.module import Function, Module
from tessera.runtime.cuda.replay import Replayed
from tessera.runtime.triton_builder import Code, Source, build, has_roles

# What runs an op that is no kernel, from arrays of the device to such arrays, and the bytes that it needs meanwhile.
Host = Callable[[HostCall, Mapping[str, TensorType], Mapping[str, int]], tuple[Any, int]]
NOWHERE: Mapping[int, DeviceArray] = MappingProxyType({})


@dataclass(frozen=True)
class _Call:
    """A launch, the name it goes by, and the code that it runs."""

    name: str
    launch: Launch
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    source: Source
    scratch: int  # bytes of a block


@dataclass(frozen=True, slots=True)
class _Spot:
    """What a buffer is, its bytes, and where it lies."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    size: int
    cell: int
    offset: int


class GpuProgram:
    """A program that runs on arrays of known shapes."""

    def __init__(
        self,
        p: Program,
        gpu: Gpu,
        host: Host,
        donated: frozenset[str] = frozenset(),
        sizes: Mapping[str, int] = MappingProxyType({}),
    ):
        p, self.laid = strided(p)
        self.p, self.gpu, self.host, self.sizes = p, gpu, host, sizes
        self.types: dict[str, TensorType] = {n: b.type for n, b in p.buffers.items()}
        self.views: dict[str, View] = {}
        self.tables: dict[str, Any] = {}  # arrays that are there before a run
        self.tiles: dict[str, tile.Kernel] = {}
        self.sources: dict[str, str] = {}
        self._expansions: dict[Any, Expansion] = {}
        self._sizes: dict[str, Mapping[str, int]] = {}  # of kernels that serve all sizes
        self._emitted: dict[tuple[int, Threads], tuple[str, int]] = {}  # of kernels made once
        self._donated = donated
        self._copies: set[str] = set()  # of whole tensors, before something changes them
        steps: list[tuple[Access, _Call | Any]] = []
        self.origin: dict[str, Any] = {}  # the step that each launch and host call belongs to
        for s in joined(p, self.types, sizes, donated, self.roles):
            known = len(steps)
            origin = self._add(s, steps)
            self.origin.update({access.name: origin for access, _ in steps[known:]})
        inputs = (*p.inputs, *self.tables)
        self.plan = plan_memory(
            p.name, self.types, [a for a, _ in steps], inputs, p.outputs, self.views, donated
        )
        self._number_cells(inputs)
        self._held = self._hold()
        self.segments = self._segments(self._needed(steps))

    def _hold(self) -> list[DeviceArray]:
        """The tables, on the device."""
        return [to_device(x, self.gpu) for x in self.tables.values()]

    # Steps

    def _add(self, s: Any, steps: list[tuple[Access, Any]]) -> Any:
        """The launches of a step or of several, and the last of these."""
        if isinstance(s, tuple):
            self._add_joint(of_products(s, self.types), steps)
            return s[-1]
        if isinstance(s, Thin):
            self._add_joint(of_thin(s, self.types), steps)
            return s.kernel
        if isinstance(s, Placed):
            self._add_updates(s, steps)
            return s.calls[-1]
        self._add_step(s, steps)
        return s

    def _add_step(self, s: Step, steps: list[tuple[Access, Any]]) -> None:
        if isinstance(s, Group):
            self.types |= s.local
            for k in s.kernels:
                self._add_kernels(k, steps)
        elif isinstance(s, Kernel) and len(parts := apart(s)) > 1:
            for k in parts:
                own = {t.name: t.type for t in k.stages if t.name in k.outputs}
                self.types |= {n: t for n, t in own.items() if n not in self.types}
                self._add_kernels(k, steps)
        elif not isinstance(s, HostCall):
            self._add_kernels(s, steps)
        else:
            self._add_call(s, steps)

    def _add_call(self, s: HostCall, steps: list[tuple[Access, Any]]) -> None:
        """An op that is no loop nest: nothing at all, a kernel of its own, or what others run."""
        if s.node.op.call == "barrier":
            for x, y in zip(s.operands, s.results, strict=True):
                self._alias(y, x, self._layout(x))
        elif s.node.op.name == "constant":
            self.tables[s.results[0]] = s.node.params["value"].array
        elif s.node.op.name in kept.NAMES:
            self._add_attention(s, steps)
        elif s.node.op.name == "kernel":
            self._add_written(s, steps)
        elif s.node.op.view is not None:
            self._add_view(s, steps)
        elif kernels_of(step := self._primitive(s), self.types) is not None:
            self._add_kernels(step, steps)
        else:
            run, extra = self.host(s, self.types, self.sizes)
            access = Access(s.node.op.name, s.operands, s.results, host=True, temporary=extra)
            steps.append((access, run))

    def _primitive(self, s: HostCall) -> Primitive:
        """A call as a primitive, which a GPU may have kernels for."""
        name, params = s.node.op.name, substitute_params(s.node.params, self.sizes)
        own = "_".join((name, *s.results[:1]))
        return Primitive(own, name, params, s.operands, s.results)

    def _add_kernels(
        self, s: Any, steps: list[tuple[Access, Any]], types: Mapping[str, TensorType] | None = None
    ) -> None:
        known = types or self.types
        old: dict[str, str] = {}
        if isinstance(s, Kernel):
            plain, old = renamed(s)
            e = self._expansion(plain, {new: known[n] for new, n in old.items() if n in known})
        else:
            e = expand(s, known)
        inner = {n: old[n] if n in old and old[n] in known else f"{s.name}.{n}" for n in e.between}
        self.types.update({inner[n]: t for n, t in e.between.items() if inner[n] not in known})
        inner = old | inner
        for n, table in e.tables.items():
            inner[n] = f"table.{len(self.tables)}"
            self.types[inner[n]] = table.type
            self.tables[inner[n]] = table.array()
        for launch, (name, kernel) in zip(e.launches, e.named(s.name), strict=True):
            ins, outs = (
                tuple(inner.get(n, n) for n in names) for names in (launch.inputs, launch.outputs)
            )
            call = self._call(name, launch, ins, outs)
            names = (*ins, *outs)
            shares = frozenset((names[i], names[j]) for i, j in shareable(kernel))
            steps.append((Access(name, ins, outs, shares), call))

    def _add_joint(self, j: Joint, steps: list[tuple[Access, Any]]) -> None:
        """Products in one launch, or one with what makes its vector."""
        if j.key not in self._expansions:
            self._expansions[j.key] = Expansion((j.make(),))
        (launch,) = self._expansions[j.key].launches
        ins, outs = (
            tuple(j.buffers[n] for n in names) for names in (launch.inputs, launch.outputs)
        )
        steps.append((Access(j.name, ins, outs), self._call(j.name, launch, ins, outs)))

    def _add_attention(self, s: HostCall, steps: list[tuple[Access, Any]]) -> None:
        """An attention, or its derivative, which reads what the attention says of its rows."""
        p = kept.problem(s, self.types, {n: x.columns for n, x in self.laid.items()})
        ins, outs = ([self.laid[n].base if n in self.laid else n for n in names]
                     for names in (s.operands, s.results))  # fmt: skip
        if s.node.op.name == "attention":
            logs = f"{s.results[0]}.logs"
            self.types[logs] = p.row_type
            self._add_launch(
                f"attention_{s.results[0]}", kept.forward(p, ins, outs[0], logs, self.roles), steps
            )
            return
        name = s.results[0]
        logs, delta = f"{s.operands[3]}.logs", f"{name}.delta"
        self.types[delta] = p.row_type
        if logs not in self.types:  # that attention is part of another program
            again = f"{name}.o"
            logs = f"{name}.logs"
            self.types |= {again: self.types[s.operands[3]], logs: p.row_type}
            plain = replace(p, columns=tuple(c for c in p.columns if c[0] != "o"))
            self._add_launch(
                f"attention_{name}", kept.forward(plain, ins[:3], again, logs, self.roles), steps
            )
        launches = kept.backward(p, ins, outs, logs, delta, self.roles)
        for what, launch in zip(("delta", "keys", "queries"), launches, strict=True):
            self._add_launch(f"attention_{what}_{name}", launch, steps)

    def _add_written(self, s: HostCall, steps: list[tuple[Access, Any]]) -> None:
        """A kernel that somebody wrote; what it updates is a copy of its operand."""
        k = written(parse_kernel(s.node.params["program"]))
        inputs = k.parameters[: len(s.operands)]
        shapes = [
            (m.name, m.type.shape, tuple(int(n) for n in self.types[x].shape))
            for m, x in zip(inputs, s.operands, strict=True)
        ]
        name, given, made = f"kernel_{s.results[0]}", list(s.operands), list(s.results)
        for i, (m, x) in enumerate(zip(inputs, s.operands, strict=True)):
            if m.writable:
                given[i] = made.pop(0)
                self._add_whole_copy(given[i], x, s, steps)
        self._sizes[name] = solve(shapes, ())
        warps, stages = s.node.params.get("threads") or (usual_warps(k), WRITTEN_STAGES)
        launch = Launch(k, tuple(given), tuple(made), Threads(warps, stages))
        self._add_launch(name, launch, steps)

    def _add_updates(self, s: Placed, steps: list[tuple[Access, Any]]) -> None:
        """Tensors of which parts are replaced where they lie; copies of them, where somebody else wants them."""
        for c in s.calls:
            self._add_whole_copy(c.results[0], c.operands[0], c, steps)
        kernel, given = update(s.updates, self.types)
        launch = Launch(kernel, tuple(given), (), Threads(4))
        self._add_launch(f"update_{s.outputs[-1]}", launch, steps)

    def _add_whole_copy(self, y: str, x: str, s: HostCall, steps: list[tuple[Access, Any]]) -> None:
        """A copy, which is none where the memory plan gives both one place."""
        self._add_copy(y, x, lambda place: place, s, steps)
        self._copies.add(steps[-1][0].name)

    def _needed(self, steps: Sequence[tuple[Access, Any]]) -> list[tuple[Access, Any]]:
        """The steps, without copies of a tensor to where it lies."""

        def stays(a: Access) -> bool:
            return a.name in self._copies and self._place(a.reads[0]) == self._place(a.writes[0])

        return [(a, c) for a, c in steps if not stays(a)]

    def _add_launch(self, name: str, launch: Launch, steps: list[tuple[Access, Any]]) -> None:
        access = Access(name, launch.inputs, launch.outputs)
        steps.append((access, self._call(name, launch, launch.inputs, launch.outputs)))

    def _expansion(self, k: Kernel, types: Mapping[str, TensorType]) -> Expansion:
        """The launches of a kernel, those of equal kernels made once."""
        key = (str(k), k.seen, *types.items())
        if key not in self._expansions:
            self._expansions[key] = expand(k, types)
        return self._expansions[key]

    def _call(
        self, name: str, launch: Launch, ins: tuple[str, ...], outs: tuple[str, ...]
    ) -> _Call:
        if self.roles:
            launch = early(launch, (*ins, *outs), self._is_constant)
        kernel, threads = launch.kernel, launch.threads
        key = id(kernel), threads
        if key not in self._emitted:
            if flags().verify and name not in self._sizes:  # not of hand-written kernels
                verify_tile(kernel)
                verify_inside(kernel)
                verify_shares(kernel, shareable(kernel))
            known = self._sizes.get(name, {})
            # Where threads have roles, shared memory is the scratch.
            scratch = 0 if threads.roles else int(substitute(scratch_bytes(kernel), known))
            text = gluon.emit(kernel, threads) if threads.roles else emit(kernel, threads)
            self._emitted[key] = text, scratch
        text, scratch = self._emitted[key]
        self.tiles[name], self.sources[name] = kernel, text
        return _Call(
            name, launch, ins, outs, source_of(kernel, text, threads, self.arch, scratch), scratch
        )

    def _is_constant(self, name: str) -> bool:
        """Whether a buffer is an input, or a part of one, that the program does not write."""
        base = self.views[name].base if name in self.views else name
        return base in self.p.inputs and base not in self._donated

    @property
    def arch(self) -> tuple[str, Any, int]:
        """What Triton builds for."""
        return self.gpu.target

    @property
    def roles(self) -> bool:
        """Whether groups of threads can have roles."""
        return self.arch[:2] == ("cuda", 90) and has_roles()

    def _add_view(self, s: HostCall, steps: list[tuple[Access, Any]]) -> None:
        """A view whose elements lie in order is an offset; any other is a copy."""
        (x,), (y,) = s.operands, s.results
        params = substitute_params(s.node.params, self.sizes)
        if 0 in self.types[y].shape:
            self._alias(y, x, (0, row_major(self.types[y])))
            return
        layout = layout_of(s.node.op, self.types[x], self.types[y], params, self._layout(x))
        in_order = layout is not None and is_row_major(self.types[y], layout[1])
        if layout is not None and in_order and layout[0] % ALIGNED == 0:
            self._alias(y, x, layout)
            return
        view = s.node.op.view
        assert view is not None
        self._add_copy(y, x, lambda place: view(place, (self.types[x],), params), s, steps)

    def _add_copy(
        self, y: str, x: str, place: Callable[[Any], Any], s: HostCall, steps: list[tuple[Access, Any]]
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
        types = {n: as_pairs(self.types[n]) for n in (x, y)}
        self._add_kernels(copy, steps, types)

    def _layout(self, name: str) -> tuple[int, tuple[int, ...]]:
        v = self.views.get(name)
        return (0, row_major(self.types[name])) if v is None else (v.offset, v.strides)

    def _alias(self, y: str, x: str, layout: tuple[int, tuple[int, ...]]) -> None:
        base = self.views[x].base if x in self.views else x
        self.views[y] = View(base, *layout)

    # Cells

    def _number_cells(self, inputs: Sequence[str]) -> None:
        self._results = [s for s in self.plan.storages if s.kind == "result"]
        names, self._places = numbered(self.plan, inputs)
        self._count = self._arena = len(names)
        self._scratch = len(names) + 1
        self._made = [self._spot(s.space) for s in self._results]
        self._outputs = [self._spot(n) for n in self.p.outputs]

    def _place(self, name: str) -> tuple[int, int]:
        v = self.views.get(name)
        if v is None:
            return self._places[name]
        cell, offset = self._places[v.base]
        return cell, offset + v.offset

    def _spot(self, name: str) -> _Spot:
        t = self.types[name]
        shape = tuple(int(n) for n in t.shape)
        return _Spot(shape, np.dtype(t.dtype.np), size_of(t), *self._place(name))

    # Segments

    def _segments(self, steps: Sequence[tuple[Access, Any]]) -> list[Any]:
        calls = [c for _, c in steps if isinstance(c, _Call)]
        codes = dict(zip(calls, build([c.source for c in calls]), strict=True)) if calls else {}
        modules: dict[int, Module] = {}
        need = 0
        out: list[Any] = []
        waiting: list[tuple[DeviceLaunch, Touched]] = []

        def flush() -> None:
            if waiting:
                launches, touched = zip(*waiting, strict=True)
                out.append(Replayed(launches, self.gpu, partial(order, touched)))
                waiting.clear()

        for access, c in steps:
            if not isinstance(c, _Call):
                flush()
                out.append((access, c))
                continue
            code = codes[c]
            if id(code) not in modules:
                modules[id(code)] = Module(code.image, self.gpu)
            known = self._sizes.get(c.name, {})
            blocks = blocks_of(c.launch, known)
            need = max(need, blocks * max(c.scratch, code.scratch))
            if blocks:
                launch = self._launch(c, code, modules[id(code)], blocks, known)
                waiting.append((launch, self._touched(c, code)))
        flush()
        self.scratch = need
        return out

    def _touched(self, c: _Call, code: Code) -> Touched:
        """The memory of a launch; scratch is one piece, which launches have one after another."""
        parts: dict[bool, list[Place]] = {False: [], True: []}
        for m, n in zip(c.launch.kernel.parameters, (*c.inputs, *c.outputs), strict=True):
            cell, offset = self._place(n)
            if size := size_of(self.types[n]):
                parts[m.writable].append((cell, offset, offset + size - 1))
        if c.scratch or code.scratch:
            parts[True].append((self._scratch, 0, 0))
        return Touched(tuple(parts[False]), tuple(parts[True]), c.launch.threads.early)

    def _launch(
        self, c: _Call, code: Code, module: Module, blocks: int, known: Mapping[str, int]
    ) -> DeviceLaunch:
        function = function_of(c.launch, code, module, blocks)
        given: list[Parameter] = []
        found = boxes_of(c.launch.kernel) if c.launch.threads.roles else {}
        for m, n in zip(c.launch.kernel.parameters, (*c.inputs, *c.outputs), strict=True):
            place = self._place(n)
            given += parameters(found[m], *place) if m in found else [Pointer(*place)]
        given += [i32(known[n]) for n in c.launch.kernel.sizes]
        if c.scratch:
            given.append(Pointer(self._scratch))
        given += self._rest(function, code, len(given))
        threads = self.gpu.warp * code.warps
        grid, begins = (blocks, 1, 1), c.launch.threads.early
        return DeviceLaunch(function, grid, threads, tuple(given), name=c.name, early=begins)

    def _rest(self, function: Function, code: Code, given: int) -> list[Parameter]:
        """What Triton adds: its scratch in global memory, and a place for a profile that nobody takes."""
        known = function.parameters
        count = given + 2 if known is None else len(known)
        extra: list[Parameter] = [Value(bytes(8)) for _ in range(count - given)]
        if extra and code.scratch:
            extra[0] = Pointer(self._scratch)
        return extra

    # Running

    def run(
        self, inputs: Sequence[DeviceArray], into: Mapping[int, DeviceArray] = NOWHERE
    ) -> list[DeviceArray]:
        """The outputs for these inputs; those of `into`, which have memory of their own, are written there."""
        if self._plain is not None and not into:
            launcher, cells = self._plain
            all_held = [*inputs, *self._held, *[self._empty(x) for x in self._made]]
            self.launch(launcher, [x.ptr for x in all_held][: launcher.cells])
            return [all_held[i] for i in cells]
        given = {self.own_memory[i]: x for i, x in into.items()} if into else NOWHERE
        made = [given.get(i) or self._empty(x) for i, x in enumerate(self._made)]
        held, arena, scratch = self._memory(inputs, made)
        for s in self.segments:
            if isinstance(s, Launcher):
                cells = [0 if x is None else x.ptr for x in (*held, arena, scratch)]
                self.launch(s, cells[: s.cells])
            else:
                access, run = s
                self._do_host(access, run, held, arena)
        return [self._array(x, held, arena) for x in self._outputs]

    @cached_property
    def _plain(self) -> tuple[Launcher, list[int]] | None:
        """The launches and the cells of results, where nothing else runs and results fill what a run allocates."""
        begin, made = len(self.p.inputs) + len(self._held), self._made
        (only,) = self.segments if len(self.segments) == 1 else (None,)
        if not isinstance(only, Launcher) or only.cells > begin + len(made):
            return None
        for x in self._outputs:
            own = made[x.cell - begin] if begin <= x.cell < begin + len(made) else None
            if own is None or not x.size or x.offset:
                return None
            if (x.shape, x.dtype) != (own.shape, own.dtype):
                return None
        return only, [x.cell for x in self._outputs]

    def _memory(self, inputs: Sequence[DeviceArray], made: Sequence[DeviceArray]) -> Any:
        """What the cells of a run hold, its arena and its scratch."""
        pool = self.gpu.pool
        held: list[Any] = [*inputs, *self._held, *made]
        held += [None] * (self._count - len(held))
        arena = pool.alloc(self.plan.arena) if self.plan.arena else None
        return held, arena, pool.alloc(self.scratch) if self.scratch else None

    def repeated(self, inputs: Sequence[DeviceArray]) -> Callable[[], None]:
        """What runs this program on these inputs again and again in the same memory; for measurements."""
        memory = self._memory(inputs, [self._empty(x) for x in self._made])
        launches = all(isinstance(s, Launcher) for s in self.segments)

        def run() -> None:
            if not launches:
                self.run(inputs)
                return
            held, arena, scratch = memory
            cells = [0 if x is None else x.ptr for x in (*held, arena, scratch)]
            for s in self.segments:
                s.run(cells[: s.cells])

        return run

    @property
    def launches(self) -> int:
        """The most kernels that follow each other without a call between them."""
        return max((len(s.launches) for s in self.segments if hasattr(s, "launches")), default=0)

    @cached_property
    def cells_of_outputs(self) -> list[int]:
        """The cell that each output lies in; those of the inputs come first."""
        return [self._place(n)[0] for n in self.p.outputs]

    @cached_property
    def own_memory(self) -> dict[int, int]:
        """The outputs that fill a memory which a run allocates, and its number."""
        first = len(self.p.inputs) + len(self.tables)
        found = enumerate(zip(self.p.outputs, self.cells_of_outputs, strict=True))
        return {
            i: cell - first
            for i, (n, cell) in found
            if n not in self.views and 0 <= cell - first < len(self._results)
            if self._place(n)[1] == 0 and self._results[cell - first].size == size_of(self.types[n])
        }

    @cached_property
    def overwritten(self) -> frozenset[int]:
        """The donated inputs whose memory something else takes."""
        return frozenset(
            i for i, n in enumerate(self.p.inputs) if len(self.plan.place[n].lives) > 1
        )

    def launch(self, s: Launcher, cells: Sequence[int]) -> None:
        """Launch kernels that follow each other; a profile launches them one by one."""
        s.run(cells)

    def _empty(self, x: _Spot) -> DeviceArray:
        block = self.gpu.pool.alloc(x.size)
        return DeviceArray(x.shape, x.dtype, self.gpu, block.ptr, block)

    def _array(self, x: _Spot, held: Sequence[Any], arena: Any) -> DeviceArray:
        """A buffer as an array that keeps its memory."""
        if not x.size:
            return self._empty(x)
        base = arena if x.cell == self._arena else held[x.cell]
        owner = base
        if isinstance(base, DeviceArray):
            if x.offset == 0 and base.shape == x.shape and base.dtype == x.dtype:
                return base
            owner = base.owner
        return DeviceArray(x.shape, x.dtype, self.gpu, base.ptr + x.offset, owner)

    def _do_host(self, access: Access, run: Any, held: list[Any], arena: Any) -> None:
        arrays = [self._array(self._spot(n), held, arena) for n in access.reads]
        for n, x in zip(access.writes, run(arrays), strict=True):
            held[self._places[n][0]] = x
