"""flat: a kernel without folds whose tensors all lie in the order of its axes runs along one axis.

    t[i<4099, j<2053] = exp(x[i, j])   ->   t[e<8415247] = exp(x[e])

Rows of an odd size would leave threads without an element, up to half of them, and begin where no vector of memory
does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from tessera.core.types import TensorType
from tessera.ir.schedule import ir as schedule
from tessera.ir.schedule.ir import Axis, Position, Read, Stage, Term, reads, walk, with_reads

_EVEN = 16  # elements of a row that divide its size where it is as good as flat


def flattened(
    k: schedule.Kernel, types: Mapping[str, TensorType]
) -> tuple[schedule.Kernel, dict[str, TensorType]] | None:
    """The kernel along one axis, and the tensors as it sees them; None where that is none of its forms."""
    axes = k.stages[0].axes
    sizes = tuple(a.size for a in axes)
    if len(axes) < 2 or not all(isinstance(n, int) and n > 0 for n in sizes):
        return None
    if int(sizes[-1]) % _EVEN == 0 or k.tile is not None or k.nest is not None:
        return None
    own = {s.name for s in k.stages}
    if not all(_is_pointwise(s, axes, own, types) for s in k.stages):
        return None
    flat = Axis("e", prod(int(n) for n in sizes))

    def moved(r: Read) -> Read:
        return replace(r, index=(flat.variable,)) if r.index else r

    stages = tuple(replace(s, axes=(flat,), term=with_reads(s.term, moved)) for s in k.stages)
    seen = {
        n: t.with_shape((flat.size,)) if t.shape == sizes else t
        for n, t in types.items()
        if n in k.outputs or n in k.inputs()
    }
    return replace(k, rows=0, stages=stages), seen


def _is_pointwise(
    s: Stage, axes: tuple[Axis, ...], own: set[str], types: Mapping[str, TensorType]
) -> bool:
    """Whether a stage has no fold and reads whole tensors at its own place, or single numbers."""
    if s.combine is not None or s.axes != axes or any(map(_is_place, walk(s.term))):
        return False
    here, sizes = tuple(a.variable for a in axes), tuple(a.size for a in axes)
    return all(
        not r.index or (r.index == here and (r.source in own or types[r.source].shape == sizes))
        for r in reads(s.term)
    )


def _is_place(t: Term) -> bool:
    return isinstance(t, Position)
