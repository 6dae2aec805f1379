"""expand: tiles of any size as tiles that fit the registers.

    x = load(128x1024); e = exp(x - max(x)); store(e / sum(e))
->  for row: for chunk: m = max(m, load(1x64)); for row: for chunk: store(s, exp(load(1x64) - m)); ...

Kernels that people write have tiles as large as is handy.  Loops in whole parts lose their masks
(tidy.py); what a loop carries becomes scratch that is
updated in place (carry.py); elementwise chains are computed where they are used, a few vectors at a
time, and loads are read there (boxes.py); stores, folds and values that are used several times become
loops over their elements, together where they can (nests.py, folds.py); products become loops over
blocks of sums in registers (products.py).  The interpreter gives the same bits before and after.
"""

from __future__ import annotations

from tessera.core.processor import Registers, registers
from tessera.ir.tile.cpu.legalize.blocks import BlockExpansion
from tessera.ir.tile.cpu.legalize.carry import carry_in_memory
from tessera.ir.tile.cpu.legalize.contiguous import tidy
from tessera.ir.tile.cpu.legalize.large import large_tiles
from tessera.ir.tile.ir import Kernel


def expand(kernel: Kernel, processor: Registers | None = None) -> Kernel:
    """A kernel with the same results whose tiles fit the registers; itself when they already do."""
    of = processor or registers()
    if not large_tiles(kernel, of):
        return kernel
    tidied = tidy(kernel, large_tiles(kernel, of))
    carried = carry_in_memory(tidied, large_tiles(tidied, of))
    return BlockExpansion(carried, large_tiles(carried, of), of).kernel()
