"""apart: a kernel of many columns that have little to do with each other, as several kernels.

One program instance computes all stages of a kernel for a row.  Where there is one row, a CPU likes
that; a GPU has many blocks of threads, and a compiler that takes long over long kernels.
"""

from __future__ import annotations

from dataclasses import replace

from tessera.ir.schedule.device_program import DeviceProgram
from tessera.ir.schedule.device_steps import DeviceStep, SplitStep
from tessera.ir.schedule.ir import Group, Kernel, Stage, reads

_MANY = 8  # stages


def split_kernels(p: DeviceProgram) -> DeviceProgram:
    """The program in which groups, and kernels whose parts need nothing of each other, are several
    launches.
    """
    return p.with_steps([_split(s) for s in p.device_steps])


def split_kernel(k: Kernel) -> list[Kernel]:
    """The numbers of the only row first, then columns that need nothing of each other by themselves."""
    folds = any(s.combine for s in k.stages)
    if k.rows or k.contracts or folds or len(k.stages) <= _MANY:
        return [k]
    scalars = [s for s in k.stages if not s.axes]
    columns = [s for s in k.stages if s.axes]
    if any(r.source in {s.name for s in columns} for s in scalars for r in reads(s.term)):
        return [k]
    wanted = {r.source for s in columns for r in reads(s.term)} | set(k.outputs)
    first = [s.name for s in scalars if s.name in wanted]
    parts = [_part(k, scalars, first, 0)] if scalars else []
    for i, group in enumerate(_groups(columns)):
        parts.append(_part(k, group, [s.name for s in group if s.name in k.outputs], i + 1))
    return parts


def _split(s: DeviceStep) -> DeviceStep:
    if isinstance(s, Group):
        return SplitStep(s, s.kernels)
    if not isinstance(s, Kernel):
        return s
    parts = split_kernel(s)
    return SplitStep(s, tuple(parts)) if len(parts) > 1 else s


def _part(k: Kernel, stages: list[Stage], outputs: list[str], number: int) -> Kernel:
    return replace(k, name=f"{k.name}.{number}", stages=tuple(stages), outputs=tuple(outputs))


def _groups(columns: list[Stage]) -> list[list[Stage]]:
    """Stages that read each other, together."""
    group: dict[str, int] = {}
    out: dict[int, list[Stage]] = {}
    for i, s in enumerate(columns):
        mine = {group[r.source] for r in reads(s.term) if r.source in group}
        target = min(mine, default=i)
        for g in mine - {target}:
            for t in out.pop(g):
                group[t.name] = target
                out.setdefault(target, []).append(t)
        group[s.name] = target
        out.setdefault(target, []).append(s)
    order = {s.name: i for i, s in enumerate(columns)}
    return [sorted(g, key=lambda s: order[s.name]) for g in out.values()]
