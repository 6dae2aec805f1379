"""Code of a bundle for GPUs, which Triton builds without one, and the launches of a program."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.compile import compile_graph
from tessera.compile.gpu.image import GpuCall
from tessera.compile.gpu.offline import OfflineExecutable, OfflineProgram
from tessera.compile.gpu.planned import Boxed
from tessera.core.dtype import DType
from tessera.core.errors import DeviceError
from tessera.deploy.device_plan import (
    BoxParameter,
    CellPointer,
    DevicePlan,
    Named,
    Parameter,
    PlannedLaunch,
)
from tessera.deploy.entries import TracedEntry
from tessera.runtime.cuda import launch as driver
from tessera.runtime.cuda.tma import SWIZZLES, TYPES
from tessera.runtime.triton_builder import BuiltCode

Keep = Callable[[Any, DType], int]


def device_sections(e: TracedEntry, target: str, keep: Keep) -> list[tuple[str, str, bytes]]:
    """The sources, the binaries and the launches; steps without a kernel are an error."""
    made = compile_graph(e.graph, target, e.numerics)
    if not isinstance(made, OfflineExecutable):
        raise DeviceError(f"bundle: {e.name} could not be compiled for {target}")
    if not e.graph.static:
        raise DeviceError(
            f"bundle: {e.name} has symbolic sizes, which code for {target} cannot have yet; give them as "
            "numbers"
        )
    program = made.program_at([v.shape for v in e.graph.inputs])
    if program.hosted:
        steps = "; ".join(f"{n}: {why}" for n, why in program.hosted.items())
        raise DeviceError(f"bundle: {e.name} has steps without code for {target}: {steps}")
    if program.inside:
        raise DeviceError(
            f"bundle: {e.name} has {', '.join(program.inside)}, whose bodies the host of {target} repeats, "
            "which a "
            "bundle cannot do yet; unroll them, or leave this target out"
        )
    built = program.built()
    rows = [{"name": c.name, "source": c.source.text, "bytes": len(x.image)} for c, x in built]
    images: dict[BuiltCode, int] = {}
    for _, code in built:
        images.setdefault(code, sum(-(-len(x.image) // 64) * 64 for x in images))
    text = json.dumps(rows, sort_keys=True, separators=(",", ":")).encode()
    where = f"{e.name}/{target}"
    binary = b"".join(x.image + bytes(-len(x.image) % 64) for x in images)
    plan = _plan(e, target, program, built, images, keep)
    return [
        ("device", f"device/{where}", text), ("device", f"binary/{where}", binary),
        ("device", f"launches/{where}", plan.encode()),
    ]  # fmt: skip


def _plan(
    e: TracedEntry, target: str, program: OfflineProgram, built: Sequence[tuple[GpuCall, BuiltCode]],
    images: dict[BuiltCode, int], keep: Keep,
) -> DevicePlan:  # fmt: skip
    own = len(e.inputs)
    inputs = [
        Named(n, v.type, i) for i, (n, v) in enumerate(zip(e.inputs, e.graph.inputs, strict=False))
    ]
    arrays = [(np.ascontiguousarray(x), t.dtype) for _, x, t in e.weights]
    tables = [(np.ascontiguousarray(x), program.types[n].dtype) for n, x in program.tables.items()]
    data = [(keep(x, dtype), x.nbytes) for x, dtype in [*arrays, *tables]]
    outputs = [
        Named(n, v.type, *program.place(b))
        for n, v, b in zip(e.outputs, e.graph.outputs, program.outputs, strict=True)
    ]
    scratch = own + len(data) + len(program.result_sizes) + 1
    numbers = {code: i for i, code in enumerate(images)}
    launches, need = [], 0
    for c, code in built:
        need = max(need, c.blocks * max(c.scratch, code.scratch))
        if c.blocks:
            threads = program.device[2] * code.warps
            given = tuple(map(_parameter, program.parameters(c, scratch)))
            launches.append(
                PlannedLaunch(
                    c.name, numbers[code], c.blocks, threads, code.shared, bool(code.scratch), given
                )
            )
    codes = [(x.name, at, len(x.image)) for x, at in images.items()]
    return DevicePlan(
        target, tuple(inputs), tuple(data), tuple(program.result_sizes), program.plan.arena, need,
        tuple(outputs), tuple(codes), tuple(launches), e.numerics,
    )  # fmt: skip


def _parameter(p: driver.Pointer | driver.FixedValue | Boxed) -> Parameter:
    if isinstance(p, driver.Pointer):
        return CellPointer(p.cell, p.offset)
    if isinstance(p, driver.FixedValue):
        return p.data
    m = p.map
    shape, strides, box = m.shape[::-1], m.strides[-2::-1], m.box[::-1]
    return BoxParameter(
        p.cell, p.offset, TYPES[np.dtype(m.dtype)], SWIZZLES[m.swizzle], shape, strides, box
    )  # fmt: skip
