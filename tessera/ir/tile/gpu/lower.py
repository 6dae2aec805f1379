"""lower: the steps of the Schedule IR as Tile programs for a GPU, at known sizes."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.core.types import TensorType
from tessera.ir.schedule import ir as schedule
from tessera.ir.tile.gpu.contraction import Contraction
from tessera.ir.tile.gpu.primitives import expand_primitive
from tessera.ir.tile.gpu.rows import Rows
from tessera.ir.tile.gpu.spread import spread_rows
from tessera.ir.tile.launch import Expansion, Launch


def expand(
    step: schedule.Kernel | schedule.Group | schedule.Primitive, types: Mapping[str, TensorType]
) -> Expansion:
    """The launches of a step."""
    if isinstance(step, schedule.Primitive):
        return expand_primitive(step, types)
    if isinstance(step, schedule.Group):
        return _separately(step, types)
    if step.contracts:
        return _alone(step, Contraction(step, types))
    return spread_rows(step, types) or _alone(step, Rows(step, types))


def _alone(step: schedule.Kernel, made: Rows | Contraction) -> Expansion:
    return Expansion((Launch(made.kernel(), tuple(step.inputs()), step.outputs, made.threads),))


def _separately(group: schedule.Group, types: Mapping[str, TensorType]) -> Expansion:
    """The kernels of a group one after the other; what passes between them lies in memory."""
    local = group.local
    parts = [expand(k, {**types, **local}) for k in group.kernels]
    between = {n: t for p in parts for n, t in p.between.items()}
    return Expansion(tuple(x for p in parts for x in p.launches), {**local, **between})
