"""lower: the steps of the Schedule IR as Tile programs.

Each kind of step has a lowering; a step becomes one launch, or several where it is worth it.  The lowerings
are passes over units in the order of LOWERINGS, the first that serves a step makes its launches, and what
follows improves them (compile/pipeline.py lists all of them for a reader).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tessera.core.types import TensorType
from tessera.ir.schedule import ir as schedule
from tessera.ir.schedule.nests.choose import default_nest
from tessera.ir.schedule.nests.legality import check_nest, row_axes
from tessera.ir.schedule.nests.matrix import is_matrix
from tessera.ir.schedule.nests.nest import Nest
from tessera.ir.tile.cpu.gemm.contraction import Contraction
from tessera.ir.tile.cpu.gemm.contraction import lower_contraction as contracted
from tessera.ir.tile.cpu.gemm.matrix import MatrixContraction
from tessera.ir.tile.cpu.group import lower_group as grouped
from tessera.ir.tile.cpu.loops import loop_kernel
from tessera.ir.tile.cpu.multi_row import MultiRow
from tessera.ir.tile.cpu.passes.nontemporal_stores import bypass, bypass_several
from tessera.ir.tile.cpu.passes.prefetch_rows import ahead
from tessera.ir.tile.cpu.primitives import lower_primitive as primitive
from tessera.ir.tile.cpu.rows import Rows
from tessera.ir.tile.cpu.split_reduction import spread_rows
from tessera.ir.tile.cpu.transpose_blocks import turned_rows
from tessera.ir.tile.ir import Kernel
from tessera.ir.tile.launch import Expansion, Launch
from tessera.ir.tile.unit import Unit


def lower_loop(u: Unit) -> Unit:
    """A scan or while loop whose body is small becomes one kernel."""
    if u.made is not None or not isinstance(u.step, schedule.HostCall):
        return u
    kernel = loop_kernel(u.step)
    if kernel is None:
        return u
    return u.lowered(Expansion((Launch(kernel, u.step.operands, u.step.results),)), "loop")


def lower_primitive(u: Unit) -> Unit:
    """A primitive becomes the kernels that the CPU has for it."""
    if u.made is not None or not isinstance(u.step, schedule.Primitive):
        return u
    return u.lowered(primitive(u.step, u.types), "primitive")


def lower_group(u: Unit) -> Unit:
    """Kernels that run together, block by block of their rows, become one kernel."""
    if u.made is not None or not isinstance(u.step, schedule.Group):
        return u
    return u.alone(grouped(u.step, u.types), "group")


def _rows_of(u: Unit) -> schedule.Kernel | None:
    """The kernel of rows of a unit that is not lowered yet."""
    k = u.step if u.made is None else None
    return k if isinstance(k, schedule.Kernel) and not k.contracts else None


def lower_contraction(u: Unit) -> Unit:
    """A contraction becomes a blocked product of packed panels, or one of matrix registers."""
    k = u.step
    if u.made is not None or not isinstance(k, schedule.Kernel) or not k.contracts:
        return u
    own = _nest_of(k)
    write = MatrixContraction if is_matrix(own) else Contraction
    return u.alone(contracted(k, u.types, own, write), "contraction")


def split_reduction(u: Unit) -> Unit:
    """Long folds of few rows become two launches, whose instances share a row."""
    k = _rows_of(u)
    made = None if k is None else spread_rows(k, u.types)
    return u if made is None else u.lowered(made, "spread")


def transpose_blocks(u: Unit) -> Unit:
    """Rows that read a transposed operand become blocks that are transposed in registers."""
    k = _rows_of(u)
    made = turned_rows(k, u.types) if k is not None and k.nest is None else None
    return u if made is None else u.alone(made, "turned")


def lower_rows(u: Unit) -> Unit:
    """A kernel of rows becomes loops over columns, of several rows at a time where its nest says so."""
    k = _rows_of(u)
    if k is None:
        return u
    own = _nest_of(k)
    together = any(x.kind == "unroll" and x.axis in row_axes(k) for x in own.loops)
    rows = MultiRow if together else Rows
    return u.alone(rows(replace(k, nest=own), u.types).kernel(), "rows")


def nontemporal_stores(u: Unit) -> Unit:
    """Large results are stored past the caches."""
    if u.form in ("group", "contraction"):
        s = u.step.kernels[-1] if isinstance(u.step, schedule.Group) else u.step
        assert isinstance(s, schedule.Kernel), s
        outputs = s.outputs
        return u.each(lambda k: bypass_several(k, outputs))
    return u.each(bypass) if u.form in ("spread", "turned", "rows") else u


def prefetch_rows(u: Unit) -> Unit:
    """Rows that a later iteration reads are prefetched."""
    return u.each(ahead) if u.form == "rows" else u


LOWERINGS = (
    lower_loop,
    lower_primitive,
    lower_group,
    lower_contraction,
    split_reduction,
    transpose_blocks,
    lower_rows,
    nontemporal_stores,
    prefetch_rows,
)


def _nest_of(k: schedule.Kernel) -> Nest:
    """The nest of a kernel, which is legal."""
    if k.nest is not None:
        check_nest(k, k.nest)
    return k.nest or default_nest(k)


def expand(
    step: schedule.Kernel | schedule.Group | schedule.Primitive, types: Mapping[str, TensorType]
) -> Expansion:
    """The launches of a step."""
    u = Unit(step.name, step, types)
    for f in LOWERINGS:
        u = f(u)
    assert u.made is not None, step
    return u.made


def lower(
    kernel: schedule.Kernel | schedule.Group,
    types: Mapping[str, TensorType],
    nest: Nest | None = None,
) -> Kernel:
    """The Tile program of a kernel or a group; parameters are its inputs, then its outputs."""
    if nest is not None and isinstance(kernel, schedule.Kernel):
        kernel = replace(kernel, nest=nest)
    u = Unit(kernel.name, kernel, types)
    for f in LOWERINGS:
        u = u if f is split_reduction else f(u)
    assert u.made is not None, kernel
    return u.made.launches[0].kernel
