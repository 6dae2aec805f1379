"""Fuse a gated epilogue: compute what reads the rows of a matrix-vector product in pairs with the product.

    z = w y; h[i] = f(z[i], z[i + n])   ->   z0[i] = w[i] y; z1[i] = w[i + n] y; h[i] = f(z0[i], z1[i])

A block of threads has rows of both parts of the matrix, and z is never stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tessera.ir.schedule.device_program import DeviceProgram
from tessera.ir.schedule.device_steps import DeviceStep, inputs_read, outputs_made
from tessera.ir.schedule.ir import Axis, Kernel, Read, Stage, reads, with_reads
from tessera.ir.schedule.thin_products import WIDE, Thin, are_many, is_box

_PARTS = 2  # a gate and what it multiplies


def fuse_gated_epilogue(p: DeviceProgram) -> DeviceProgram:
    """The program in which such a product computes what reads its rows in pairs."""
    return p.with_steps(paired(p.device_steps, p.outputs))


def paired(steps: Sequence[DeviceStep], outputs: Sequence[str]) -> list[DeviceStep]:
    """The steps, in which thin products compute what reads their rows in pairs."""
    found: list[DeviceStep | None] = list(steps)
    for i, s in enumerate(found):
        reader = _reader(found, s, i, outputs) if isinstance(s, Thin) else None
        if isinstance(s, Thin) and reader is not None:
            j, k = reader
            joined = _joined(s, k)
            if joined is not None:
                found[i], found[j] = joined, None
    return [s for s in found if s is not None]


def _reader(
    steps: Sequence[DeviceStep | None], t: Thin, i: int, outputs: Sequence[str]
) -> tuple[int, Kernel] | None:
    """The one step that reads the product at i, and its number, if it could as well run there."""
    z = t.kernel.outputs[-1]
    others = ((j, s) for j, s in enumerate(steps) if s is not None)
    found = [(j, s) for j, s in others if z in inputs_read(s)]
    if len(found) != 1 or z in outputs:
        return None
    ((j, s),) = found
    if j < i or not isinstance(s, Kernel):
        return None
    between = (x for x in steps[i + 1 : j] if x is not None)
    made = {n for x in between for n in outputs_made(x)}
    return (j, s) if made.isdisjoint(s.inputs()) else None


def _joined(t: Thin, k: Kernel) -> Thin | None:
    """A product with what reads it at two places; None where that is not so."""
    z, (last, *more) = t.kernel.outputs[-1], k.stages
    long = [a for a in last.axes if a.size != 1]
    if t.parts > 1 or more or last.combine or len(long) != 1:
        return None
    (a,), own = long, t.kernel.stages[t.before :]
    places = _places(last, z, a)
    if len(places) != _PARTS or not all(isinstance(n, int) and n % WIDE == 0 for n in places):
        return None
    size, others = int(a.size), [r for r in reads(last.term) if r.source != z]
    whole = (
        size % WIDE == 0 and are_many(_PARTS * size) and all(is_box(r, [a], None) for r in others)
    )
    if not whole or not _stand_still(own):
        return None
    m, n = own[0].axes
    short = Axis(m.name, size)
    moved = [[_moved(s, own, p, short, by) for p, by in enumerate(places)] for s in own]

    def of_parts(r: Read) -> Read:
        if r.source != z:
            return r
        part = places.index(r.index[0] - m.variable)
        return Read(r.dtype, f"{z}.{part}", (m.variable, n.variable))

    term = with_reads(last.term.at({a.name: m.variable}), of_parts)
    end = replace(last, axes=tuple(short if x is a else x for x in last.axes), term=term)
    stages = (*t.kernel.stages[: t.before], *(s for parts in moved for s in parts), end)
    outputs = (*t.kernel.outputs[:-1], last.name)
    return Thin(replace(t.kernel, stages=stages, outputs=outputs), t.before, _PARTS)


def _places(s: Stage, z: str, a: Axis) -> list[Any]:
    """How far behind an axis a stage reads a tensor."""
    found = {r.index[0] - a.variable for r in reads(s.term) if r.source == z}
    return sorted(found, key=lambda n: n if isinstance(n, int) else -1)


def _stand_still(stages: Sequence[Stage]) -> bool:
    """Whether stages read each other at their own element only."""
    names = {s.name for s in stages}
    own = tuple(a.variable for a in stages[0].axes)
    return all(r.index == own for s in stages for r in reads(s.term) if r.source in names)


def _moved(s: Stage, own: Sequence[Stage], part: int, m: Axis, by: int) -> Stage:
    """A stage of the product for rows that begin elsewhere."""
    names = {x.name for x in own}

    def named(r: Read) -> Read:
        if r.source not in names:
            return r
        return Read(r.dtype, f"{r.source}.{part}", (m.variable, *r.index[1:]))

    term = with_reads(s.term.at({m.name: m.variable + by}), named)
    return replace(s, name=f"{s.name}.{part}", axes=(m, *s.axes[1:]), term=term)
