"""assign: give kernels the schedules that the user named them for.

    CPU:  kernel f_0, asked {"block": [64, 32]}   ->   kernel f_0, nest parallel m:66, parallel n:64, ...
    GPU:  kernel f_0, asked {"block": [64, 32], "warps": 8}   ->   kernel f_0, tile 64 by 32, and 8 warps

A setting changes the loops of a kernel and no bit of its results, or is an error that names it, the kernel
and the target.  Settings are JSON, as Schedule.to_dict gives them, or {"nest": "parallel m:64, ..."}.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tessera.core.errors import ScheduleError
from tessera.ir.schedule.ir import Group, HostCall, Kernel, Primitive, Program, Step
from tessera.ir.schedule.nests.choose import default_nest, tiled
from tessera.ir.schedule.nests.legality import check_nest
from tessera.ir.schedule.nests.nest import Nest, parse_nest, widen

Settings = dict[str, Any]

# What no compiled op takes on a target, and why.
_CPU = {
    "warps": "a CPU runs a block in one thread",
    "stages": "the loops of a nest prefetch by themselves",
    "vector": "vectors of nests have 16 elements",
    "swizzle": "a CPU has no shared memory",
    "k": "the depth of a block is that of a leaf of its sums",
    "d": "it is a size of kernels that are written by hand",
}
_GPU = {
    "vector": "Triton chooses the width of accesses of compiled ops",
    "swizzle": "Triton lays out shared memory, and swizzles it by itself",
    "d": "it is a size of kernels that are written by hand",
    "nest": "nests are of CPUs; say block, k, warps and stages",
}


def assign(p: Program, schedules: Sequence[tuple[str, str]], target: str) -> Program:
    """The program whose kernels have the schedules of these names, and those that their ops ask for."""
    given = dict(schedules)
    if not given and not any(_asks(s) for s in p.steps):
        return p
    names = [s.name for s in p.steps if isinstance(s, Kernel | Group | Primitive)]
    unknown = next((n for n in given if n not in names), None)
    if unknown is not None:
        known = ", ".join(names) or "none"
        inner = any(isinstance(s, HostCall) and s.node.regions for s in p.steps)
        way = "; products in loops and branches take op.matmul(a, b, schedule=...)" if inner else ""
        raise ScheduleError(
            f"schedules: there is no kernel {unknown!r} in {p.name}; there are {known}{way}"
        )
    kind = target.partition(":")[0]
    return replace(p, steps=tuple(_step(s, given, kind) for s in p.steps))


def _asks(s: Step) -> bool:
    kernels = s.kernels if isinstance(s, Group) else (s,) if isinstance(s, Kernel) else ()
    return any(k.asked for k in kernels)


def _step(s: Step, given: Mapping[str, str], kind: str) -> Step:
    if isinstance(s, HostCall) or not (s.name in given or _asks(s)):
        return s
    if not isinstance(s, Kernel):
        what = "a group of fused kernels" if isinstance(s, Group) else "a primitive"
        raise ScheduleError(
            f"schedules: {s.name} is {what}, whose blocks on {kind} are its own; leave it out"
        )
    said = {**_read(s.asked), **_read(given.get(s.name, ""))}
    for n, why in (_CPU if kind == "cpu" else _GPU).items():
        if said.get(n) is not None:
            raise ScheduleError(
                f"schedules: {n} does nothing on {kind} for {s.name}: {why}; leave it out"
            )
    bare = replace(s, asked="")
    try:
        return _on_cpu(bare, said) if kind == "cpu" else _on_gpu(bare, said)
    except ScheduleError as e:
        raise ScheduleError(f"schedules: {s.name} on {kind}: {e.message}") from None


def _read(text: str) -> Settings:
    return {**json.loads(text)} if text else {}


def _on_cpu(k: Kernel, said: Settings) -> Kernel:
    if "nest" in said:
        if "block" in said:
            raise ScheduleError("it has a nest and a block; say one of them")
        nest = parse_nest(said["nest"])
    else:
        nest = _blocked(replace(k, tile=None, nest=None), said.get("block", ()))
    check_nest(k, nest)
    return replace(k, nest=nest, tile=None)


def _blocked(k: Kernel, block: Sequence[int]) -> Nest:
    """The nest of a kernel with blocks of these rows and columns."""
    nest = default_nest(k)
    if not block:
        return nest
    m, n = (*block, 0)[:2]
    if k.contracts:
        if not any(x.kind == "parallel" and x.axis in "mn" for x in nest.loops):
            raise ScheduleError("block does nothing: one instance computes the whole product")
        return tiled(nest, (m, n, 0))
    if n:
        nest = _of_columns(nest, n)
    return _of_rows(k, nest, m) if k.rows else (nest if n else _of_columns(nest, m))


def _of_rows(k: Kernel, nest: Nest, rows: int) -> Nest:
    """Instances of so many rows."""
    axis = f"r{k.rows - 1}"
    at = next((i for i, x in enumerate(nest.loops) if x.axis == axis), None)
    if at is None or nest.loops[at].kind != "parallel":
        raise ScheduleError(
            f"block has {rows} rows, but the rows of this kernel are not shared out"
        )
    if nest.loops[at].step == rows:
        return nest
    return widen(nest, at, rows)


def _of_columns(nest: Nest, columns: int) -> Nest:
    """Instances, or chunks of a row, of so many columns."""
    at = next((i for i, x in enumerate(nest.loops) if x.axis == "c" and x.kind != "vector"), None)
    if at is None:
        raise ScheduleError(
            f"block has {columns} columns, but this kernel has no loop over columns"
        )
    loops = list(nest.loops)
    loops[at] = replace(loops[at], step=columns)
    return replace(nest, loops=tuple(loops))


def _on_gpu(k: Kernel, said: Settings) -> Kernel:
    sizes = [*[*said.get("block", ()), 0, 0][:2], said.get("k") or 0]
    if any(sizes):
        if not k.contracts:
            raise ScheduleError(
                "block does nothing: blocks of rows follow from their sizes; say warps"
            )
        k = replace(k, tile=(sizes[0], sizes[1], sizes[2]), nest=None)
    left = {n: said[n] for n in ("warps", "stages") if said.get(n) is not None}
    return replace(k, asked=json.dumps(left) if left else "")
