"""merge: kernels of the same rows that read each other, or the same tensors, become one.

    s[r] = sum x[r, c]; t[r] = sum x[r, c] y[r, c]; z[r, c] = x[r, c] - s[r] - y[r, c] t[r]
->  one kernel that reads x and y once

Lowering puts a stage into the kernel that made its operands; two kernels that a third stage brings together
stay apart there.  Every stage keeps its term and its folds, so a merge does not change a bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tessera.core.dims import Size
from tessera.ir.schedule.ir import Kernel, Program, Stage, Step, reads
from tessera.ir.schedule.passes.fuse_contractions import inputs_of, outputs_of
from tessera.ir.schedule.sweeps import folds_chains

_MOST_STAGES = 12  # of one kernel: bounds its registers and the time of its compilation
_MOST_TENSORS = 14  # that a kernel reads
_SMALL = 1 << 20  # numbers that a GPU computes in the time of a launch
_NEAR = 40  # steps between kernels that meet: what they make must not wait for long


def fuse_horizontal(p: Program) -> Program:
    """A program with fewer kernels, which reads less."""
    found = _Merging(p)
    i = 0
    while i < len(found.steps):
        j = found.partner(i)
        i = i + 1 if j is None else found.join(j, i)
    steps = tuple(s.step for s in found.steps)
    written = {n for s in found.steps for n in s.outputs} | set(p.inputs)
    return replace(p, steps=steps, buffers={n: b for n, b in p.buffers.items() if n in written})


class _Known:
    """A step, with what it reads and writes."""

    def __init__(self, step: Step):
        self.step = step
        self.inputs, self.outputs = frozenset(inputs_of(step)), frozenset(outputs_of(step))
        self.rows = _rows_of(step)


class _Merging:
    """The steps of a program while kernels are joined."""

    def __init__(self, p: Program):
        self.p = p
        self.steps = [_Known(s) for s in p.steps]

    def partner(self, i: int) -> int | None:
        """An earlier kernel that the one at i can join, the nearest first."""
        second = self.steps[i]
        if second.rows is None:
            return None
        for j in range(i - 1, max(i - 1 - _NEAR, -1), -1):
            first = self.steps[j]
            if first.rows != second.rows:
                continue
            feeds = not second.inputs.isdisjoint(first.outputs)
            shares = any(self.p.buffers[n].type.rank > 1 for n in second.inputs & first.inputs)
            small = i == j + 1 and _is_small(first.step) and _is_small(second.step)
            if (feeds or shares or small) and _fits(first.step, second.step, feeds):
                if self.can_rise(j, i) or self.can_sink(j, i):
                    return j
        return None

    def can_rise(self, j: int, i: int) -> bool:
        """Whether all that the kernel at i reads is there when the one at j runs."""
        return all(s.outputs.isdisjoint(self.steps[i].inputs) for s in self.steps[j + 1 : i])

    def can_sink(self, j: int, i: int) -> bool:
        """Whether nobody between them reads what the kernel at j makes."""
        return all(s.inputs.isdisjoint(self.steps[j].outputs) for s in self.steps[j + 1 : i])

    def join(self, j: int, i: int) -> int:
        """Join the kernels at j and i; where the joined one stands."""
        first, second = self.steps[j].step, self.steps[i].step
        assert isinstance(first, Kernel), first
        assert isinstance(second, Kernel), second
        others = [s for n, s in enumerate(self.steps) if n not in (i, j)]
        used = frozenset(self.p.outputs).union(*(s.inputs for s in others))
        outputs = tuple(n for n in (*first.outputs, *second.outputs) if n in used)
        stages = (*first.stages, *second.stages)
        at, gone = (j, i) if self.can_rise(j, i) else (i, j)
        self.steps[at] = _Known(replace(first, stages=stages, outputs=outputs))
        del self.steps[gone]
        return at if at < gone else at - 1


def _rows_of(s: Step) -> tuple[Size, ...] | None:
    """The sizes of the rows of a kernel that merges; None for any other step."""
    if not isinstance(s, Kernel) or s.contracts:
        return None
    return tuple(a.size for a in s.stages[0].axes[: s.rows])


def _is_small(s: Step) -> bool:
    """Whether a kernel takes no longer than its launch: it computes few numbers, each by itself."""
    assert isinstance(s, Kernel), s
    sizes = [n for t in s.stages for n in t.type.shape if not isinstance(n, int)]
    if sizes or any(t.combine for t in s.stages) or any(t.type.rank == 0 for t in s.stages):
        return False
    return sum(int(t.type.size) for t in s.stages) <= _SMALL


def _fits(first: Step, second: Step, feeds: bool) -> bool:
    """Whether one kernel can hold the stages of both."""
    assert isinstance(first, Kernel), first
    assert isinstance(second, Kernel), second
    if first.order != second.order:
        return False
    stages = (*first.stages, *second.stages)
    tensors = {*first.inputs(), *second.inputs()} - set(first.outputs)
    if len(stages) > _MOST_STAGES or len(tensors) > _MOST_TENSORS:
        return False
    if any(folds_chains(s, first.rows) for s in stages):
        return not feeds and _are_alike(stages, first.rows)
    made = {s.name: s for s in first.stages}
    return (
        all(
            _in_place(r.index, s, made[r.source], first.rows)
            for s in second.stages
            for r in reads(s.term)
            if r.source in made
        )
        and len({a.size for s in stages for a in (*s.axes[first.rows :], *s.reduced)}) <= 1
    )


def _are_alike(stages: Sequence[Stage], rows: int) -> bool:
    """Whether all folds are of as many numbers for as many columns, and the rest has these columns."""
    folds = [s for s in stages if folds_chains(s, rows)]
    lengths = {a.size for s in folds for a in s.reduced}
    alone = all(len(s.axes) == rows + 1 and (s.combine is None) == (s not in folds) for s in stages)
    return alone and len(lengths) == 1 and len({s.axes[-1].size for s in stages}) == 1


def _in_place(index: Sequence[object], s: Stage, source: Stage, rows: int) -> bool:
    """Whether a stage reads another where it stands itself."""
    own = (*s.axes, *s.reduced)
    return len(index) <= len(own) and all(
        x == a.variable and a.size == b.size
        for x, a, b in zip(index, own, source.axes, strict=False)
    )
