"""reverse: the kernel that computes the gradients of a kernel, tile by tile in the same grid.

    y = f(load(x)) stored to y   ->   ct = load(ct_y); store ct times f'(load(x)) to d_x

Each instance computes again what the kernel did for its block and pulls the cotangents of what it stored back
to what it loaded (write.py, rules.py).  Where several instances load one element, each writes a part of the
gradient, and the parts are added up afterwards in the order of the grid (plan.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.core.types import TensorType
from tessera.ir.tile.autodiff.prune import prune
from tessera.ir.tile.autodiff.rules import Slopes
from tessera.ir.tile.autodiff.synchronous import synchronous
from tessera.ir.tile.autodiff.through_scratch import through_scratch
from tessera.ir.tile.autodiff.write import ReverseWriter
from tessera.ir.tile.ir import Kernel, Memory, walk
from tessera.ir.tile.serial import serialised


@dataclass(frozen=True)
class Gradient:
    """The gradient of an operand: which result of the reversed kernel, and how many axes to add up."""

    operand: int
    result: int
    parts: int


@dataclass(frozen=True)
class Reversed:
    """A kernel on the operands of another one, cotangents of its results, and zeros."""

    kernel: Kernel
    zeros: tuple[TensorType, ...]  # gradients that are not written everywhere
    gradients: tuple[Gradient, ...]  # of the wanted operands that matter


def reverse(
    kernel: Kernel, count: int, wanted: Sequence[bool], given: Sequence[bool], slopes: Slopes
) -> Reversed:
    """The gradients of the wanted ones of `count` operands, from the cotangents that are given of the
    results.

    The results of a kernel are the operands that it stores to, and then what it makes.
    """
    kernel = synchronous(kernel)
    w = ReverseWriter(kernel, count, wanted, given, slopes)
    made = prune(w.kernel_back())
    if needed := _unknown(made, w):
        kernel = through_scratch(kernel, needed, count)
        w = ReverseWriter(kernel, count, wanted, given, slopes)
        made = prune(w.kernel_back())
        assert not _unknown(made, w), needed
    zeros = [m for m, p in w.places.items() if p.partial]
    first = len(kernel.parameters[:count]) + sum(given) + len(zeros)
    results = [m for i, m in enumerate(made.parameters) if m.writable or i >= first]
    found = []
    for k, m in enumerate(kernel.parameters[:count]):
        if wanted[k] and (d := w.gradients.get(m) or w.cotangents.get(m)) is not None:
            parts = len(w.places[m].own) if m in w.places else 0
            found.append(Gradient(k, results.index(d), parts))
    if any(p.serial for p in w.places.values()):
        made = serialised(made)
    return Reversed(made, tuple(w.gradients[m].type for m in zeros), tuple(found))


def _unknown(made: Kernel, w: ReverseWriter) -> list[Memory]:
    """Tensors of which a derivative needs what was loaded after a store, which cannot be loaded again."""
    loads = (w.unknown.get(t) for op in walk(made.body) for t in op.results)
    found = dict.fromkeys(op.memory for op in loads if op is not None and op.memory is not None)
    return list(found)
