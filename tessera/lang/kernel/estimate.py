"""estimate: about how long a kernel takes under a schedule, for an order in which schedules are tried.

To the work of its instances come the runs of memory that they read and write, since a short run costs more
than its elements, the beginning of each instance, and the end, where threads wait for the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tessera.core.dims import Size, larger, product, substitute
from tessera.core.folds import LANES
from tessera.ir.tile.ir import Block, Kernel, Operation
from tessera.ir.tile.work import instance_work

# Picoseconds to begin an instance, for an element of memory, and elements that the begin of a run is worth.
_INSTANCE, _ELEMENT, _RUN = 30_000, 100, 32


def estimate(kernel: Kernel, sizes: Mapping[str, int], threads: int) -> float:
    """Picoseconds of all instances on so many threads, times the number of threads."""
    count = _number(product(tuple(n for _, n in kernel.grid)), sizes)
    first = {name: 0 for name, _ in kernel.grid}
    work = _number(instance_work(kernel), sizes)
    runs = _number(_runs(kernel.body, first, sizes), sizes)
    # What is left when the first thread finds nothing more to do is half an instance for each of the others.
    waiting = (threads - 1) / (2 * max(count, 1))
    return count * (work + runs + _INSTANCE) * (1 + waiting)


def _number(x: Size, sizes: Mapping[str, int]) -> int:
    found = substitute(x, sizes)
    assert isinstance(found, int), f"{x} has no value in {sizes}"
    return found


def _runs(block: Block, env: Mapping[str, Size], sizes: Mapping[str, int]) -> Size:
    """What the runs of a block cost beside their elements; a loop is taken for its first turn."""
    total: Size = 0
    for op in block.operations:
        if op.block is not None:
            a = op.attributes
            start, stop = substitute(a["start"], env), substitute(a["stop"], env)
            trips = larger((stop - start + a["step"] - 1) // a["step"], 0)
            total = total + trips * _runs(op.block, {**env, a["variable"]: start}, sizes)
        elif op.name in ("load", "store"):
            total = total + _moved(op, sizes)
    return total


def _moved(op: Operation, sizes: Mapping[str, int]) -> int:
    """The runs of a box of memory: elements that lie side by side."""
    assert op.memory is not None
    shape = [_number(n, sizes) for n in op.memory.type.shape]
    extent: Sequence[int] = op.attributes["extent"]
    run, axis = 1, len(shape)
    while axis and run == prod(shape[axis:]):  # so far all of the memory
        axis -= 1
        run *= min(extent[axis], shape[axis])
    count = prod(extent[:axis])
    return _ELEMENT * count * (_RUN + -run % LANES)
