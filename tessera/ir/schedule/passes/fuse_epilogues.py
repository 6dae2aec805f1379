"""fuse_epilogues: kernels that follow a primitive point by point join its step.

    t = conv(x, w); y = silu(t + b)   ->   primitive conv(x, w) -> t, epilogue y = silu(t + b)

What the primitive makes is finished while it is in the cache, and never written.  The arithmetic of a point
stays as it is, so the step has the bits of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tessera.core.dims import Dim
from tessera.core.primitives import PRIMITIVES
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Kernel, Position, Primitive, Program, Read, Stage, Step, walk
from tessera.ir.schedule.ir import reads as reads_of
from tessera.ir.schedule.passes.fuse_contractions import outputs_of, readings

_LEAD = 2  # axes of a batch and of channels, along which an operand of an epilogue may be a line


def fuse_epilogues(p: Program) -> Program:
    """A program whose primitives are finished by the kernels that alone read what they make."""
    count = readings(p.steps)
    types = {n: b.type for n, b in p.buffers.items()}
    waiting: dict[str, int] = {}  # primitives that may be followed, by what they make
    steps: list[Step | None] = []
    gone: set[str] = set()
    for s in p.steps:
        found = None
        if isinstance(s, Kernel):
            mine = readings((s,))
            alone = (n for n in s.inputs() if n in waiting and count[n] == mine[n])
            found = next((n for n in alone if _follows(s, n, types)), None)
        if found is not None and isinstance(s, Kernel):
            head = steps[waiting[found]]
            assert isinstance(head, Primitive)
            steps[waiting[found]] = None
            gone.add(found)
            s = _joined(head, s)
        for name in outputs_of(s):
            one = isinstance(s, Primitive) and s.epilogue is None and len(s.results) == 1
            if one and PRIMITIVES[s.primitive].arity and name not in p.outputs:  # type: ignore[union-attr]
                waiting[name] = len(steps)
        steps.append(s)
    if not gone:
        return p
    buffers = {n: b for n, b in p.buffers.items() if n not in gone}
    return replace(p, steps=tuple(s for s in steps if s is not None), buffers=buffers)


def _follows(k: Kernel, made: str, types: Mapping[str, TensorType]) -> bool:
    """Whether all stages of a kernel follow a tensor point by point, and the compiler chooses its loops."""
    own = {s.name: s.type for s in k.stages}
    plain = k.nest is None and k.tile is None and not k.asked
    floats = all(own[n].dtype.kind == "f" for n in k.outputs)
    return (
        plain and floats and all(follows_points(s, types[made], {**types, **own}) for s in k.stages)
    )


def follows_points(s: Stage, made: TensorType, types: Mapping[str, TensorType]) -> bool:
    """Whether a stage computes each point of a tensor of this type from the same point of such tensors, or
    from one of a line along its batch and channels.
    """
    if s.combine is not None or tuple(a.size for a in s.axes) != made.shape:
        return False
    if any(isinstance(t, Position) for t in walk(s.term)):
        return False
    return all(
        is_point(r, s, types[r.source]) or line_of(r, s, types[r.source]) is not None
        for r in reads_of(s.term)
    )


def is_point(r: Read, s: Stage, t: TensorType) -> bool:
    """Whether a stage reads a tensor of its shape at its own place."""
    return t.shape == s.type.shape and all(
        i == a.variable or (a.size == 1 and i == 0) for i, a in zip(r.index, s.axes, strict=True)
    )


def line_of(r: Read, s: Stage, t: TensorType) -> tuple[bool, ...] | None:
    """Along which of batch and channels a stage reads a tensor that has no other axes; None: it has."""
    found = [False] * _LEAD
    lead = {a.variable: i for i, a in enumerate(s.axes[:_LEAD])}
    last = -1
    for i, n in zip(r.index, t.shape, strict=True):
        if n == 1 and i == 0:
            continue
        at = lead.get(i, -1) if isinstance(i, Dim) else -1
        if at <= last or s.axes[at].size != n:
            return None
        found[at], last = True, at
    return tuple(found)


def _joined(head: Primitive, k: Kernel) -> Primitive:
    """A primitive with a kernel as its epilogue."""
    (made,) = head.results
    others = tuple(n for n in k.inputs() if n != made)
    return replace(
        head,
        name=k.name,
        operands=(*head.operands, *others),
        results=k.outputs,
        epilogue=k,
        made=made,
    )
