"""A program at known sizes on a device: memory planned, kernels built, launches packed.  The compile half
is lowering.py.

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

from tessera.compile.gpu import offload
from tessera.compile.gpu.launch_order import Place, Touched, order
from tessera.compile.gpu.lowering import GpuCall, GpuImage, tiles_of
from tessera.compile.gpu.passes.dependent_launch import function_of
from tessera.compile.gpu.tma_tile import parameters
from tessera.compile.gpu.triton_sources import blocks_of
from tessera.compile.passes import TARGET
from tessera.compile.slots import Slots
from tessera.core.observe import Observed
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import HostCall
from tessera.ir.schedule.memory import StepAccess, numbered, plan_memory, size_of
from tessera.ir.target.gluon.flash_forward_emit import boxes_of
from tessera.ir.tile import ir as tile
from tessera.runtime.cuda.device import Gpu
from tessera.runtime.cuda.launch import DeviceLaunch, FixedValue, Launcher, Parameter, Pointer, i32
from tessera.runtime.cuda.memory import DeviceArray, to_device
from tessera.runtime.cuda.module import DriverFunction, DriverModule
from tessera.runtime.cuda.replay import Replayed
from tessera.runtime.triton_builder import BuiltCode, TritonSource, build

# What runs an op that is no kernel, from arrays of the device to such arrays, and the bytes that it
# needs meanwhile.
Host = Callable[[HostCall, Mapping[str, TensorType], Mapping[str, int]], tuple[Any, int]]
NOWHERE: Mapping[int, DeviceArray] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _Spot:
    """What a buffer is, its bytes, and where it lies."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    size: int
    cell: int
    offset: int


def build_code(sources: Sequence[TritonSource]) -> list[BuiltCode]:
    """Build Triton sources, side by side; what the store has is read from there."""
    return build(sources)


# Each takes what does the work, the program, and what the work takes.
RUNS: Observed[Callable[..., Any]] = Observed("GPU runs", "runs of programs on a GPU")
SERIES: Observed[Callable[..., None]] = Observed(
    "GPU launches", "kernels of a program that follow each other on a GPU"
)
MOVES: Observed[Callable[..., None]] = Observed(
    "GPU moves", "copies of a program between a GPU and the host"
)


def _launch(p: GpuProgram, s: Launcher, cells: Sequence[int]) -> None:
    s.run(cells)


class GpuProgram(Slots):
    """A program that runs on arrays of known shapes."""

    def __init__(self, image: GpuImage, gpu: Gpu, host: Host):
        self.image, self.p, self.sizes = image, image.p, image.sizes
        self.gpu, self.host = gpu, host
        self.types, self.views, self.tables = image.types, image.views, image.tables
        self.origin: dict[str, Any] = dict(image.origin)
        self.moves: dict[
            tuple[str, str], int
        ] = {}  # steps, by the engine and the value that it copies
        steps = [self._hosted(a, s) if isinstance(s, HostCall) else (a, s) for a, s in image.steps]
        steps = offload.beside(steps, self.types, self._root)
        for i, (_, c) in enumerate(steps):
            if isinstance(c, offload.Put | offload.Get):
                self.moves[c.engine, c.value] = i
        inputs = (*self.p.inputs, *self.tables)
        self.plan = plan_memory(
            self.p.name, self.types, [a for a, _ in steps], inputs, self.p.outputs, self.views,
            image.donated,
        )  # fmt: skip
        self._number_cells(inputs)
        self._held = self._hold()
        self.segments = self._segments(self._needed(steps))

    @property
    def tiles(self) -> dict[str, tile.Kernel]:
        """The Tile kernel of every launch, by name."""
        return tiles_of(self.image)

    @property
    def sources(self) -> dict[str, str]:
        """The Triton source of every launch, by name."""
        return self.image.sources

    def _hosted(self, access: StepAccess, s: HostCall) -> tuple[StepAccess, Any]:
        """What runs an op that is no kernel, with the bytes that it takes meanwhile."""
        if offload.is_move(s):
            made = offload.move_of(access, s)
            self.origin[made[0].name] = s
            return made
        run, extra = self.host(s, self.types, self.sizes)
        return replace(access, temporary=extra), run

    def _hold(self) -> list[DeviceArray]:
        """The tables, on the device."""
        return [to_device(x, self.gpu) for x in self.tables.values()]

    def _needed(self, steps: Sequence[tuple[StepAccess, Any]]) -> list[tuple[StepAccess, Any]]:
        """The steps, without copies of a tensor to where it lies."""

        def stays(a: StepAccess) -> bool:
            return a.name in self.image.copies and self._place(a.reads[0]) == self._place(
                a.writes[0]
            )

        return [(a, c) for a, c in steps if not stays(a)]

    # Cells

    def _number_cells(self, inputs: Sequence[str]) -> None:
        self._results = [s for s in self.plan.storages if s.kind == "result"]
        names, self._places = numbered(self.plan, inputs)
        self._count = self._arena = len(names)
        self._scratch = len(names) + 1
        self._made = [self._spot(s.space) for s in self._results]
        self._outputs = [self._spot(n) for n in self.p.outputs]

    def _spot(self, name: str) -> _Spot:
        t = self.types[name]
        shape = tuple(int(n) for n in t.shape)
        return _Spot(shape, np.dtype(t.dtype.np), size_of(t), *self._place(name))

    # Segments

    def _segments(self, steps: Sequence[tuple[StepAccess, Any]]) -> list[Any]:
        calls = [c for _, c in steps if isinstance(c, GpuCall)]
        codes = self._codes(calls)
        modules: dict[int, DriverModule] = {}
        need = 0
        out: list[Any] = []
        waiting: list[tuple[DeviceLaunch, Touched]] = []

        def flush() -> None:
            if waiting:
                launches, touched = zip(*waiting, strict=True)
                out.append(Replayed(launches, self.gpu, partial(order, touched)))
                waiting.clear()

        for access, c in steps:
            if not isinstance(c, GpuCall):
                flush()
                out.append((access, c))
                continue
            code = codes[c]
            if id(code) not in modules:
                modules[id(code)] = DriverModule(code.image, self.gpu)
            known = self.image.known.get(c.name, {})
            blocks = blocks_of(c.launch, known)
            need = max(need, blocks * max(c.scratch, code.scratch))
            if blocks:
                launch = self._launch(c, code, modules[id(code)], blocks, known)
                waiting.append((launch, self._touched(c, code)))
        flush()
        self.scratch = need
        return out

    def _codes(self, calls: Sequence[GpuCall]) -> dict[GpuCall, BuiltCode]:
        """The code of each call, built side by side."""
        if not calls:
            return {}
        made = self.image.driver.batch([c.source for c in calls], TARGET)
        return dict(zip(calls, made, strict=True))

    def _touched(self, c: GpuCall, code: BuiltCode) -> Touched:
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
        self,
        c: GpuCall,
        code: BuiltCode,
        module: DriverModule,
        blocks: int,
        known: Mapping[str, int],
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

    def _rest(self, function: DriverFunction, code: BuiltCode, given: int) -> list[Parameter]:
        """What Triton adds: its scratch in global memory, and an unused pointer to profile scratch."""
        known = function.parameters
        count = given + 2 if known is None else len(known)
        extra: list[Parameter] = [FixedValue(bytes(8)) for _ in range(count - given)]
        if extra and code.scratch:
            extra[0] = Pointer(self._scratch)
        return extra

    # Running

    def run(
        self, inputs: Sequence[DeviceArray], into: Mapping[int, DeviceArray] = NOWHERE
    ) -> list[DeviceArray]:
        """The outputs for these inputs; those of `into`, which have memory of their own, are written
        there.
        """
        if RUNS.observers:
            outs: list[DeviceArray] = RUNS.around(GpuProgram._run)(self, inputs, into)
            return outs
        return self._run(inputs, into)

    def _run(
        self, inputs: Sequence[DeviceArray], into: Mapping[int, DeviceArray]
    ) -> list[DeviceArray]:
        if self._plain is not None and not into:
            launcher, cells = self._plain
            all_held = [*inputs, *self._held, *[self._empty(x) for x in self._made]]
            self.launch(launcher, [x.ptr for x in all_held][: launcher.cells])
            return [all_held[i] for i in cells]
        given = {self.own_memory[i]: x for i, x in into.items()} if into else NOWHERE
        made = [given.get(i) or self._empty(x) for i, x in enumerate(self._made)]
        held, arena, scratch = self._memory(inputs, made)
        moving = offload.PendingCopies(self.gpu)
        for s in self.segments:
            if isinstance(s, Launcher):
                cells = [0 if x is None else x.ptr for x in (*held, arena, scratch)]
                self.launch(s, cells[: s.cells])
            else:
                access, run = s
                if isinstance(run, offload.Put | offload.Get):
                    self.move(access, run, moving, held, arena)
                else:
                    self._do_host(access, run, held, arena)
        return [self._array(x, held, arena) for x in self._outputs]

    @cached_property
    def _plain(self) -> tuple[Launcher, list[int]] | None:
        """The launches and the cells of results, where nothing else runs and results fill what a run
        allocates.
        """
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
        """Launch kernels that follow each other."""
        if SERIES.observers:
            SERIES.around(_launch)(self, s, cells)
        else:
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

    def move(
        self, access: StepAccess, step: offload.Put | offload.Get, moving: offload.PendingCopies,
        held: list[Any], arena: Any,
    ) -> None:  # fmt: skip
        """Begin copies between the device and the host."""
        if MOVES.observers:
            MOVES.around(GpuProgram._move)(self, access, step, moving, held, arena)
        else:
            self._move(access, step, moving, held, arena)

    def _move(
        self, access: StepAccess, step: offload.Put | offload.Get, moving: offload.PendingCopies,
        held: list[Any], arena: Any,
    ) -> None:  # fmt: skip
        made = step.run(lambda n: self._array(self._spot(n), held, arena), moving)
        for n, x in zip(access.writes, made, strict=False):
            held[self._places[n][0]] = x

    def _do_host(self, access: StepAccess, run: Any, held: list[Any], arena: Any) -> None:
        arrays = [self._array(self._spot(n), held, arena) for n in access.reads]
        for n, x in zip(access.writes, run(arrays), strict=True):
            held[self._places[n][0]] = x
