"""Group GEMMs: run small products that do not fill a GPU in one launch.

    dw1 = x^T dh; dx = ...; dw2 = h^T dy   ->   dx = ...; blocks 0 to 143: dw1, blocks 144 to 287: dw2

Each block of threads computes what it would compute alone, so nothing of the bits changes.  A product
waits until its result is read, or until enough of them are grouped.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.ir.schedule.device_program import DeviceProgram
from tessera.ir.schedule.device_steps import DeviceStep
from tessera.ir.schedule.factors import bare, factors
from tessera.ir.schedule.gpu_blocks import LONG, MULTIPROCESSORS, SHARED
from tessera.ir.schedule.ir import Kernel, Step
from tessera.ir.schedule.passes.fuse_contractions import inputs_of

_FEW = 2 * MULTIPROCESSORS  # blocks of a product that does not fill a GPU well
_ENOUGH = 3 * MULTIPROCESSORS // 2  # blocks that do


def group_gemms(p: DeviceProgram) -> DeviceProgram:
    """The program in which products that fill a GPU badly run in one launch."""
    return p.with_steps(together(p.steps))


def together(steps: Sequence[Step]) -> list[DeviceStep]:
    """The steps, in which products that run in one launch stand together."""
    out: list[DeviceStep] = []
    waiting: list[Kernel] = []

    def flush() -> None:
        out.extend([tuple(waiting)] if len(waiting) > 1 else waiting)
        waiting.clear()

    for s in steps:
        if not {n for k in waiting for n in k.outputs}.isdisjoint(inputs_of(s)):
            flush()
        if isinstance(s, Kernel) and _can_wait(s):
            waiting.append(s)
            if sum(map(_blocks, waiting)) >= _ENOUGH:
                flush()
        else:
            out.append(s)
    flush()
    return out


def _can_wait(k: Kernel) -> bool:
    """Whether a kernel is a product of narrow matrices in whole blocks, but in few of them."""
    if k.tile is not None or k.asked:  # the block, or the threads, are the user's
        return False
    if not k.contracts or k.seen or len(k.stages[0].axes) != 2:
        return False
    narrow = all(bare(t).dtype.bits <= 16 for t in factors(k.stages[0]))
    m, n, depth = (a.size for a in (*k.stages[0].axes, *k.stages[0].reduced))
    if not all(isinstance(x, int) for x in (m, n, depth)):
        return False
    whole = m % SHARED.m == 0 and n % SHARED.n == 0 and depth % SHARED.k == 0
    return narrow and whole and depth < LONG and _blocks(k) <= _FEW


def _blocks(k: Kernel) -> int:
    m, n = (int(a.size) for a in k.stages[0].axes)
    return -(-m // SHARED.m) * -(-n // SHARED.n)
