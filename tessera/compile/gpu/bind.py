"""Bind a planned program to a device: build and load its code, and pack its launches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tessera.compile.gpu.image import GpuCall
from tessera.compile.gpu.planned import Boxed, PlannedProgram
from tessera.compile.slots import segments
from tessera.ir.schedule.memory import StepAccess
from tessera.ir.target.triton.triton_source import TritonSource
from tessera.runtime.cuda.device import Gpu
from tessera.runtime.cuda.launch import DeviceLaunch, FixedValue, Parameter, Pointer, TensorMap
from tessera.runtime.cuda.memory import to_device
from tessera.runtime.cuda.module import DriverFunction, DriverModule
from tessera.runtime.cuda.replay import Replayed
from tessera.runtime.gpu.bound_program import BoundProgram, HostStep, MoveStep, Segment
from tessera.runtime.gpu.control import Run
from tessera.runtime.gpu.host_copies import Get, Put
from tessera.runtime.gpu.launch_order import Touched, order
from tessera.runtime.triton_builder import BuiltCode, build

_KEPT = 1 << 10  # bytes of shared memory that CUDA reserves for itself in each block, from sm_80 on
Bound = BoundProgram[PlannedProgram]


def build_code(sources: Sequence[TritonSource]) -> list[BuiltCode]:
    """Build Triton sources, side by side; what the store has is read from there."""
    return build(sources)


def bind(p: PlannedProgram, gpu: Gpu) -> Bound:
    """The program on a device, which has its code and its tables."""
    tables = [to_device(x, gpu) for x in p.tables.values()]
    segments, scratch = segments_of(p, gpu)
    return BoundProgram(p, gpu, p.cells(scratch), tables, segments)


def segments_of(p: PlannedProgram, gpu: Gpu) -> tuple[list[Segment], int]:
    """Launches that follow each other, what runs between them, and the bytes of scratch that all need."""
    codes = dict(p.built())
    modules: dict[int, DriverModule] = {}
    need = 0
    out: list[Segment] = []
    for _, group in segments(p.steps, lambda c: isinstance(c, GpuCall)):
        access, first = group[0]
        if not isinstance(first, GpuCall):
            out.append(between(p, access, first))
            continue
        launches: list[tuple[DeviceLaunch, Touched]] = []
        for c in (c for _, c in group if isinstance(c, GpuCall)):
            code = codes[c]
            if id(code) not in modules:
                modules[id(code)] = DriverModule(code.image, gpu)
            need = max(need, c.blocks * max(c.scratch, code.scratch))
            if c.blocks:
                launches.append((_launch(p, c, code, modules[id(code)]), p.touched(c, code)))
        if launches:
            series, touched = zip(*launches, strict=True)
            out.append(Replayed(series, gpu, partial(order, touched)))
    return out, need


def between(
    p: PlannedProgram, access: StepAccess, c: Put | Get | Run | None
) -> HostStep | MoveStep:
    """A step that is no launch."""
    cells = tuple(p.slot(n) for n in access.writes)
    if isinstance(c, Put | Get):
        spots = {n: p.spot(n) for n in (*access.reads, *access.writes)}
        return MoveStep(access.name, c, spots, cells)
    assert c is not None, f"{access.name}: nothing runs it"
    return HostStep(access.name, c, tuple(map(p.spot, access.reads)), cells)


def _launch(p: PlannedProgram, c: GpuCall, code: BuiltCode, module: DriverModule) -> DeviceLaunch:
    function = function_of(c, code, module)
    given: list[Parameter] = [
        TensorMap(x.map.map(), x.cell, x.offset) if isinstance(x, Boxed) else x
        for x in p.parameters(c, p.scratch_cell)
    ]
    given += _added(p, function, code, len(given))
    threads, grid = module.gpu.warp * code.warps, (c.blocks, 1, 1)
    return DeviceLaunch(function, grid, threads, tuple(given), name=c.name, early=c.early)


def _added(
    p: PlannedProgram, function: DriverFunction, code: BuiltCode, given: int
) -> list[Parameter]:
    """What Triton adds: its scratch in global memory, and an unused pointer to profile scratch."""
    known = function.parameters
    count = given + 2 if known is None else len(known)
    extra: list[Parameter] = [FixedValue(bytes(8)) for _ in range(count - given)]
    if extra and code.scratch:
        extra[0] = Pointer(p.scratch_cell)
    return extra


def function_of(c: GpuCall, code: BuiltCode, module: DriverModule) -> DriverFunction:
    """The kernel of a launch; blocks of an early product spread over the device by the shared memory that
    they ask for (passes/dependent_launch.py).
    """
    if not c.early:
        return module.function(code.name, code.shared)
    least = _shared(c.blocks, module.gpu) if c.spreads else 0
    function = module.function(code.name, max(code.shared, least))
    function.prefer_shared()
    return function


def _shared(blocks: int, gpu: Gpu) -> int:
    """Bytes of shared memory with which a multiprocessor takes no more blocks than its share."""
    share = -(-blocks // gpu.multiprocessors)
    return (gpu.shared_per_block + _KEPT) // (share + 1) - _KEPT + 1
