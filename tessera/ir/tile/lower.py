"""lower: the steps of the Schedule IR as Tile programs.

A contraction, a kernel of rows and a primitive have a lowering each; a step becomes one launch, or
several where it is worth it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tessera.core.types import TensorType
from tessera.ir.schedule import ir as schedule
from tessera.ir.schedule.choose import default_nest
from tessera.ir.schedule.legality import check_nest, row_axes
from tessera.ir.schedule.matrix import is_matrix
from tessera.ir.schedule.nest import Nest
from tessera.ir.tile.abreast import Abreast
from tessera.ir.tile.ahead import ahead
from tessera.ir.tile.bypass import bypass, bypass_several
from tessera.ir.tile.contraction import Contraction, lower_contraction
from tessera.ir.tile.group import lower_group
from tessera.ir.tile.ir import Kernel
from tessera.ir.tile.launch import Expansion, Launch
from tessera.ir.tile.matrix import MatrixContraction
from tessera.ir.tile.primitives import lower_primitive
from tessera.ir.tile.rows import Rows
from tessera.ir.tile.spread import spread_rows
from tessera.ir.tile.turned import turned_rows


def expand(
    step: schedule.Kernel | schedule.Group | schedule.Primitive, types: Mapping[str, TensorType]
) -> Expansion:
    """The launches of a step."""
    if isinstance(step, schedule.Primitive):
        return lower_primitive(step, types)
    if isinstance(step, schedule.Kernel) and not step.contracts:
        spread = spread_rows(step, types)
        if spread is not None:
            launches = (replace(x, kernel=bypass(x.kernel)) for x in spread.launches)
            return replace(spread, launches=tuple(launches))
    return Expansion((Launch(lower(step, types), tuple(step.inputs()), step.outputs),))


def lower(
    kernel: schedule.Kernel | schedule.Group,
    types: Mapping[str, TensorType],
    nest: Nest | None = None,
) -> Kernel:
    """The Tile program of a kernel or a group; parameters are its inputs, then its outputs."""
    if isinstance(kernel, schedule.Group):
        return bypass_several(lower_group(kernel, types), kernel.kernels[-1].outputs)
    nest = nest or kernel.nest
    if nest is not None:
        check_nest(kernel, nest)
    if kernel.contracts:
        own = nest or default_nest(kernel)
        write = MatrixContraction if is_matrix(own) else Contraction
        made = lower_contraction(kernel, types, own, write)
        return bypass_several(made, kernel.outputs)
    turned = turned_rows(kernel, types) if nest is None else None
    if turned is not None:
        return bypass(turned)
    own = nest or default_nest(kernel)
    together = any(x.kind == "unroll" and x.axis in row_axes(kernel) for x in own.loops)
    rows = Abreast if together else Rows
    return ahead(bypass(rows(replace(kernel, nest=own), types).kernel()))
