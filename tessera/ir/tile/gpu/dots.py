"""dots: a product of two vectors for each row is a fold of a row, not a product of matrices.

    t[r, m<1, n<1] = add over k of x[r, k] y[r, k]   ->   t[r] = add over k of x[r, k] y[r, k]

A matrix unit would compute 256 numbers for the one that is wanted.  Only where no factor has an axis m or
n: a matrix of one row keeps the chain of sums that it has among others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tessera.core.dims import Size, symbols
from tessera.core.dtype import f32, f64
from tessera.core.types import TensorType
from tessera.ir.schedule import ir as schedule
from tessera.ir.schedule.ir import Read, Term, reads, with_reads


def as_folds(
    k: schedule.Kernel, types: Mapping[str, TensorType]
) -> tuple[schedule.Kernel, dict[str, TensorType]] | None:
    """The kernel without its two axes of one place, and its tensors so; None for any other kernel."""
    s = k.stages[0]
    lost = s.axes[k.rows :]
    names = {a.name for a in lost}
    plain = s.dtype in (f32, f64) and all(r.dtype is s.dtype for r in reads(s.term))
    if k.tile is not None or k.seen or k.nest is not None or not plain:
        return None
    if [a.size for a in lost] != [1, 1] or any(_has(r, names) for r in reads(s.term)):
        return None
    if any(t.combine is not None or t.axes != s.axes for t in k.stages[1:]):
        return None
    own = {t.name for t in k.stages}
    env: dict[str, Size] = dict.fromkeys(names, 0)

    def moved(r: Read) -> Term:
        return replace(r, index=r.index[: k.rows]) if r.source in own else r

    stages = tuple(
        replace(t, axes=t.axes[: k.rows], term=with_reads(t.term, moved).at(env)) for t in k.stages
    )
    seen = {n: types[n].with_shape(types[n].shape[: k.rows]) for n in k.outputs}
    return replace(k, stages=stages), seen


def _has(r: Read, names: set[str]) -> bool:
    """Whether one of these axes says where something is read."""
    return any(isinstance(i, Term) or names & set(symbols(i)) for i in r.index)
