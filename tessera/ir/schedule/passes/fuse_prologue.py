"""Fuse a prologue: compute the vector of a matrix-vector product in the launch of the product.

    s = sum x x; y = x rsqrt(s); z = w y; a = ...   ->   z, with y made by every block of threads; a = ...

A product with a vector waits for memory; the kernels that make the vector wait for nothing but each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tessera.ir.schedule.device_program import DeviceProgram
from tessera.ir.schedule.device_steps import DeviceStep, inputs_read
from tessera.ir.schedule.factors import factors
from tessera.ir.schedule.ir import Kernel, reads
from tessera.ir.schedule.thin_products import Thin, is_thin, makes_vectors

_MOST_KERNELS = 3  # that a product absorbs
_MOST_TENSORS = 10  # that it then reads
_NEAR = 24  # steps between a product and what it absorbs


def fuse_prologue(p: DeviceProgram) -> DeviceProgram:
    """The program in which a product with a vector computes the vector, too."""
    return p.with_steps(absorbed(p.device_steps, p.outputs))


def absorbed(steps: Sequence[DeviceStep], outputs: Sequence[str]) -> list[DeviceStep]:
    """The steps, in which products with a vector are Thin."""
    found = list(steps)
    i = 0
    while i < len(found):
        s = found[i]
        if isinstance(s, Kernel) and not s.asked and s.tile is None and is_thin(s):
            taken = _taken(found, s, i)
            found[i] = _joined(found, s, taken, i, outputs)
            for j in taken:  # from the last to the first
                del found[j]
            i -= len(taken)
        i += 1
    return found


def _taken(steps: Sequence[DeviceStep], k: Kernel, i: int) -> dict[int, Kernel]:
    """The kernels before the product k, the step i, that it absorbs, the nearest first."""
    vector, depth = factors(k.stages[0])[1], int(k.stages[0].reduced[0].size)
    wanted, read = {r.source for r in reads(vector)}, set(k.inputs())
    taken: dict[int, Kernel] = {}
    for j in range(i - 1, max(i - 1 - _NEAR, -1), -1):
        s = steps[j]
        if not isinstance(s, Kernel) or wanted.isdisjoint(s.outputs) or len(taken) == _MOST_KERNELS:
            continue
        others = (steps[n] for n in range(j + 1, i) if n not in taken)
        waits = all(inputs_read(x).isdisjoint(s.outputs) for x in others)
        if waits and makes_vectors(s, depth) and len(read | set(s.inputs())) <= _MOST_TENSORS:
            taken[j] = s
            wanted |= set(s.inputs())
            read |= set(s.inputs())
    return taken


def _joined(
    steps: Sequence[DeviceStep], k: Kernel, taken: Mapping[int, Kernel], i: int,
    outputs: Sequence[str],
) -> Thin:  # fmt: skip
    """A product with what it absorbs; it makes what others still want of that."""
    rest = (s for n, s in enumerate(steps) if n != i and n not in taken)
    used = frozenset(outputs).union(*(inputs_read(s) for s in rest))
    parts = list(taken.values())[::-1]
    before = tuple(s for part in parts for s in part.stages)
    kept = tuple(n for part in (*parts, k) for n in part.outputs if n in used)
    return Thin(replace(k, stages=(*before, *k.stages), outputs=kept), len(before))
