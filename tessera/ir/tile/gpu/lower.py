"""lower: the steps of the Schedule IR as Tile programs for a GPU, at known sizes.

The first lowering that serves a unit makes its launches (compile/pipeline.py lists all of them).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from tessera.core.types import TensorType
from tessera.ir.schedule import ir as schedule
from tessera.ir.tile.gpu.align_factors import align_factors
from tessera.ir.tile.gpu.contraction import Contraction
from tessera.ir.tile.gpu.dots import as_folds
from tessera.ir.tile.gpu.flat import flat_rows
from tessera.ir.tile.gpu.primitives import expand_primitive
from tessera.ir.tile.gpu.rows import Rows
from tessera.ir.tile.gpu.split_k import is_long, split_k
from tessera.ir.tile.gpu.split_reduction import spread_rows
from tessera.ir.tile.launch import Expansion, Launch
from tessera.ir.tile.unit import Unit


def lower_primitive(u: Unit) -> Unit:
    """A primitive becomes the kernels that a GPU has for it."""
    if u.made is not None or not isinstance(u.step, schedule.Primitive):
        return u
    return u.lowered(expand_primitive(u.step, u.types), "primitive")


def lower_contraction(u: Unit) -> Unit:
    """A contraction becomes a product of tiles, one for each block of threads."""
    k = u.step
    if u.made is not None or not isinstance(k, schedule.Kernel) or not k.contracts:
        return u
    folds = as_folds(k, u.types)
    if folds is not None:
        return replace(u, step=folds[0], types={**u.types, **folds[1]})
    a = align_factors(k, u.types)
    types = {**u.types, **a.types}
    if is_long(a.kernel):
        made = split_k(a.kernel, types, a.ends_at)
    else:
        c = Contraction(a.kernel, types)
        c.ends_at = a.ends_at
        made = _alone(a.kernel, c)
    launches = (*a.launches, *made.launches)
    return u.lowered(Expansion(launches, {**a.types, **made.between}), "contraction")


def split_reduction(u: Unit) -> Unit:
    """Long folds of few rows become two launches, whose blocks share a row."""
    if u.made is not None or not isinstance(u.step, schedule.Kernel) or u.step.contracts:
        return u
    made = spread_rows(u.step, u.types)
    return u if made is None else u.lowered(made, "spread")


def lower_rows(u: Unit) -> Unit:
    """A kernel of rows becomes tiles of rows and columns."""
    if u.made is not None or not isinstance(u.step, schedule.Kernel) or u.step.contracts:
        return u
    flat = flat_rows(u.step, u.types)
    return u.lowered(_alone(u.step, flat or Rows(u.step, u.types)), "flat" if flat else "rows")


def assign_threads(u: Unit) -> Unit:
    """Launches have the warps and stages that the user's schedule says."""
    asked = getattr(u.step, "asked", "")
    if u.made is None or not asked:
        return u
    launches = (
        replace(x, threads=replace(x.threads, **json.loads(asked))) for x in u.made.launches
    )
    return replace(u, made=replace(u.made, launches=tuple(launches)))


LOWERINGS = (lower_primitive, lower_contraction, split_reduction, lower_rows)


def expand(
    step: schedule.Kernel | schedule.Group | schedule.Primitive, types: Mapping[str, TensorType]
) -> Expansion:
    """The launches of a step."""
    if isinstance(step, schedule.Group):
        return _separately(step, types)
    u = Unit(step.name, step, types)
    for f in LOWERINGS:
        u = f(u)
    assert u.made is not None, step
    return u.made


def _alone(step: schedule.Kernel, made: Rows | Contraction) -> Expansion:
    return Expansion((Launch(made.kernel(), tuple(step.inputs()), step.outputs, made.threads),))


def _separately(group: schedule.Group, types: Mapping[str, TensorType]) -> Expansion:
    """The kernels of a group one after the other; what passes between them lies in memory."""
    local = group.local
    parts = [expand(k, {**types, **local}) for k in group.kernels]
    between = {n: t for p in parts for n, t in p.between.items()}
    return Expansion(tuple(x for p in parts for x in p.launches), {**local, **between})
