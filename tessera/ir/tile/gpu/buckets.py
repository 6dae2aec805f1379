"""Kernels for a bucket of sizes: rows are counted at the call, blocks are those of the largest size.

    y[r<N, c<64] = exp(x[r, c])   at N = 3, 5, 7   ->   one kernel, which is given N

A program that is called with many sizes would have code for each of them.  Where symbols count rows alone,
their number changes nothing in a block but a mask; so one kernel serves all sizes up to a power of two,
with the bits of a kernel for one size.  Kernels that fold or order a symbolic axis have code for each size
as before.
"""

from __future__ import annotations

from tessera.core.dims import Size
from tessera.ir.schedule import ir as schedule
from tessera.ir.schedule.gpu_blocks import LONG
from tessera.ir.schedule.passes.specialize import specialize_kernel
from tessera.ir.tile.gpu.contraction import Contraction
from tessera.ir.tile.gpu.contraction import default_block as block_of_product
from tessera.ir.tile.gpu.rows import Rows
from tessera.ir.tile.gpu.rows import default_block as block_of_rows
from tessera.ir.tile.gpu.split_reduction import spread_rows
from tessera.ir.tile.launch import Expansion, Launch
from tessera.ir.tile.unit import Unit


def counts_rows_alone(k: schedule.Kernel) -> bool:
    """Whether symbols count rows of a kernel and nothing else."""
    rows = len(k.stages[0].axes) - 1 if k.contracts else k.rows
    if k.seen or k.tile is not None:
        return False
    inner = [a.size for s in k.stages for a in (*s.axes[rows:], *s.reduced)]
    counted = [a.size for a in k.stages[0].axes[:rows]]
    if not all(isinstance(n, int) and n for n in inner) or all(map(_is_known, counted)):
        return False
    return not k.contracts or int(k.stages[0].reduced[0].size) < LONG


def _is_known(n: Size) -> bool:
    return isinstance(n, int)


def lower_bucket(u: Unit) -> Unit:
    """A kernel whose rows are counted at the call becomes one launch for all counts of its bucket."""
    k = u.step
    if u.made is not None or not u.bucket or not isinstance(k, schedule.Kernel):
        return u
    sample = specialize_kernel(k, u.bucket)
    types = {n: t.substitute(u.bucket) for n, t in u.types.items()}
    made: Contraction | Rows
    if k.contracts:
        made = Contraction(k, u.types, block_of_product(sample))
    elif spread_rows(sample, types) is not None:
        return u  # few long rows, which several blocks share
    else:
        made = Rows(k, u.types, block_of_rows(sample))
    launch = Launch(made.kernel(), tuple(k.inputs()), k.outputs, made.threads)
    return u.lowered(Expansion((launch,)), "bucket")
