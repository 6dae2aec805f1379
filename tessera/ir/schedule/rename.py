"""rename: a kernel under names that say nothing of the program it stands in, so that equal ones are equal.

t7[_r0<8, _t7_1<64] = exp(x3[_r0, _t7_1])   ->   t0[_a0<8, _a1<64] = exp(x0[_a0, _a1])
"""

from __future__ import annotations

from dataclasses import replace

from tessera.core.dims import Size, symbol
from tessera.ir.schedule.ir import Axis, Kernel, Read, Stage, with_reads


def renamed(k: Kernel, prefix: str = "") -> tuple[Kernel, dict[str, str]]:
    """The kernel with buffers, stages and axes numbered; and the old name of each new one."""
    names = {n: f"{prefix}x{i}" for i, n in enumerate(k.inputs())}
    names |= {s.name: f"{prefix}t{i}" for i, s in enumerate(k.stages)}
    axes: dict[str, str] = {}
    for s in k.stages:
        for a in (*s.axes, *s.reduced):
            axes.setdefault(a.name, f"_a{len(axes)}")
    env: dict[str, Size] = {old: symbol(new) for old, new in axes.items()}

    def axis(a: Axis) -> Axis:
        return Axis(axes[a.name], a.size)

    def stage(s: Stage) -> Stage:
        moved = s.term.at(env)
        term = with_reads(moved, lambda r: Read(r.dtype, names[r.source], r.index))
        own, over = tuple(map(axis, s.axes)), tuple(map(axis, s.reduced))
        return replace(s, name=names[s.name], axes=own, reduced=over, term=term)

    kind = "product" if k.contracts else "rows"
    made = replace(
        k, name=kind, stages=tuple(map(stage, k.stages)), outputs=tuple(names[n] for n in k.outputs)
    )
    return made, {new: old for old, new in names.items()}
