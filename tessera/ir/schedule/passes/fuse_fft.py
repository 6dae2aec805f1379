"""filters: a transform becomes one step with the transforms along its axis that lead to it.

    a = fft(x, axis 0); b = fft(k, axis 0); c = a * b; y = ifft(c, axis 0)
->  y = filter(x, k): the same for some columns at a time, which stay close

What is between must be of one type, complex ops point by point, and read by nobody else.  The arithmetic
stays as it is, so a filter has the bits of its parts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tessera.core.filters import POINTWISE, TRANSFORMS, FilterPart, fits
from tessera.ir.schedule.ir import Primitive, Program, Step
from tessera.ir.schedule.passes.fuse_contractions import inputs_of, outputs_of


def fuse_fft(p: Program) -> Program:
    """A program whose transforms along one axis, with what is between them, are filters."""
    steps: list[Step] = list(p.steps)
    for last in p.steps:
        if isinstance(last, Primitive) and _axis(last) is not None:
            found = _FilterSearch(p, steps).filter(last)
            if found is not None:
                made, gone = found
                steps = [made if s is last else s for s in steps if id(s) not in gone]
    written = {n for s in steps for n in outputs_of(s)} | set(p.inputs)
    buffers = {n: b for n, b in p.buffers.items() if n in written}
    return replace(p, steps=tuple(steps), buffers=buffers)


def _axis(s: Primitive) -> int | None:
    """The axis of a transform along one."""
    if s.primitive not in TRANSFORMS or len(s.params["axes"]) != 1:
        return None
    axis: int = s.params["axes"][0]
    return axis


class _FilterSearch:
    """Looks for what leads to the last transform of a filter."""

    def __init__(self, p: Program, steps: list[Step]):
        self.p = p
        self.makers = {s.results[0]: s for s in steps if isinstance(s, Primitive)}
        self.uses = Counter(n for s in steps for n in inputs_of(s)) + Counter(p.outputs)
        self.inside: list[Primitive] = []  # in the order in which they run
        self.outside: dict[str, None] = {}

    def filter(self, last: Primitive) -> tuple[Primitive, set[int]] | None:
        """The filter that ends with a transform, and the steps that it takes the place of."""
        axis, t = _axis(last), self.p.buffers[last.operands[0]].type
        assert axis is not None
        if not fits(t.dtype, t.shape, axis):
            return None
        self.follow(last.operands[0], axis, t)
        if not self.inside:
            return None
        order = {n: i for i, n in enumerate(self.outside)}
        order |= {s.results[0]: len(order) + i for i, s in enumerate(self.inside)}
        parts = tuple(
            str(
                FilterPart(
                    s.primitive, tuple(order[n] for n in s.operands), s.params.get("norm", "")
                )
            )
            for s in (*self.inside, last)
        )
        params = {"axis": axis, "parts": parts}
        made = replace(last, primitive="filter", params=params, operands=tuple(self.outside))
        return made, {id(s) for s in self.inside}

    def follow(self, name: str, axis: int, t: object) -> None:
        """What makes a buffer, or the buffer itself where the filter ends."""
        s = self.makers.get(name)
        if s is None or self.uses[name] > 1 or self.p.buffers[name].type != t:
            self.outside.setdefault(name)
            return
        if s.primitive in POINTWISE:
            for n in s.operands:
                self.follow(n, axis, t)
        elif _axis(s) == axis:
            self.outside.setdefault(s.operands[0])
        else:
            self.outside.setdefault(name)
            return
        self.inside.append(s)
