"""Dependent launches: which launches begin while the one before them ends, and how their blocks share a
device.

    a; b    ->    b's blocks are there when a's end, wait for the whole of a, and go on

Between two launches of a graph that follow each other a device is idle for about 1 us, which is what a
small kernel takes.  A launch that begins early lets the next one begin before all else, and waits for the
one before it before it touches memory that the program writes.  So every launch sees whatever came before
it, since the one that it waits for has waited as well.

Blocks that come early take the places that are free then, and one multiprocessor could get the work of two.
A block of a product therefore asks for so much shared memory that no more than its share of the blocks fit
(compile/gpu/bind.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tessera.ir.target.code import Code
from tessera.ir.target.triton.triton_source import blocks_of
from tessera.ir.tile.gpu.gemv_match import stream
from tessera.ir.tile.ir import Kernel, walk
from tessera.ir.tile.launch import Launch

_MOST = 4 * 132  # blocks of a short launch: four for each multiprocessor of a Hopper device


def dependent_launch(c: Code) -> Code:
    """Let a short launch begin while the one before it ends."""
    launch = early(c.launch, c.buffers, c.constant.__contains__)
    return c if launch is c.launch else replace(c, launch=launch)


def early(launch: Launch, buffers: Sequence[str], is_constant: Callable[[str], bool]) -> Launch:
    """A launch, which begins early if it is short; `is_constant` says of a buffer that no launch writes
    it.
    """
    kernel, threads = launch.kernel, launch.threads
    if kernel.sizes or threads.descriptors or blocks_of(launch, {}) > _MOST:
        return launch
    if not threads.roles:
        return replace(launch, threads=replace(threads, early=True))
    found = stream(kernel)
    if found is None:
        return launch
    ahead = is_constant(buffers[kernel.parameters.index(found.matrix.memory)])
    return replace(launch, threads=replace(threads, early=True, ahead=ahead))


def is_product(kernel: Kernel) -> bool:
    """Whether a kernel multiplies tiles, so that its blocks keep others from their multiprocessor."""
    return any(op.name == "dot" for op in walk(kernel.body))
