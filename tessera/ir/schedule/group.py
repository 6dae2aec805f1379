"""group: kernels that pass blocks of rows to each other become one step.

    s = q k^T; p = softmax(s); o = p v   ->   group: s, p, o for a block of queries at a time

A contraction, a kernel of rows on its result, and a contraction with what that makes: attention has
this form, forward and backward, and so has anything else that is written so; no name is asked for.
The arithmetic stays as it is, so a group has the bits of its kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tessera.ir.schedule.factors import factors, read_of
from tessera.ir.schedule.ir import (
    Axis,
    Group,
    HostCall,
    Kernel,
    Primitive,
    Program,
    Read,
    Stage,
    Step,
    reads,
    with_reads,
)


def grouped(p: Program) -> Program:
    """A program whose chains of contraction, rows and contraction are groups."""
    steps: list[Step | None] = list(p.steps)
    for i, s in enumerate(p.steps):
        found = _Search(p, steps, i).group() if isinstance(s, Kernel) and s.contracts else None
        if found is not None:
            steps[found.first] = steps[found.second] = None
            steps[i] = found.group
    left = tuple(s for s in steps if s is not None)
    written = {n for s in left for n in outputs_of(s)} | set(p.inputs)
    buffers = {n: b for n, b in p.buffers.items() if n in written}
    return replace(p, steps=left, buffers=buffers)


def inputs_of(s: Step) -> Sequence[str]:
    """The buffers that a step reads."""
    return s.operands if isinstance(s, HostCall | Primitive) else s.inputs()


def outputs_of(s: Step) -> Sequence[str]:
    """The buffers that a step writes."""
    return s.results if isinstance(s, HostCall | Primitive) else s.outputs


@dataclass(frozen=True)
class _Found:
    first: int
    second: int
    group: Group


class _Search:
    """Looks for the two kernels before a contraction."""

    def __init__(self, p: Program, steps: Sequence[Step | None], last: int):
        self.p, self.steps, self.last = p, steps, last
        self.made: dict[str, int] = {}
        for i, s in enumerate(steps[:last]):
            if s is not None:
                self.made |= dict.fromkeys(outputs_of(s), i)

    def group(self) -> _Found | None:
        third = self.kernel(self.last)
        assert third is not None
        left = read_of(factors(third.stages[0])[0])
        j = self.made.get(left.source, -1)
        second = self.kernel(j)
        if second is None or second.contracts or second.rows != third.rows + 1:
            return None
        head = third.stages[0]
        if not _at(left, (*head.axes[:-1], *head.reduced)):
            return None
        i, first = self.scores(second)
        if first is None or not _same_rows(first, second, third):
            return None
        if self.is_read_between(first, i, j) or self.is_read_between(second, j, self.last):
            return None
        return _Found(i, j, self.joined(first, second, third))

    def kernel(self, i: int) -> Kernel | None:
        s = self.steps[i] if i >= 0 else None
        return s if isinstance(s, Kernel) else None

    def scores(self, second: Kernel) -> tuple[int, Kernel | None]:
        """The one contraction whose result a kernel of rows reads, at its own row and column."""
        found = {self.made.get(name, -1) for name in second.inputs()}
        products = [(i, k) for i in found if (k := self.kernel(i)) is not None and k.contracts]
        if len(products) != 1:
            return -1, None
        i, first = products[0]
        own = set(first.outputs)
        in_place = all(
            _at(r, (*s.axes, *s.reduced))
            for s in second.stages
            for r in reads(s.term)
            if r.source in own
        )
        return (i, first) if in_place and first.rows == second.rows - 1 else (-1, None)

    def is_read_between(self, k: Kernel, i: int, j: int) -> bool:
        """Whether a step between two others reads what the first one makes."""
        made = set(k.outputs)
        between = [s for s in self.steps[i + 1 : j] if s is not None]
        return any(made.intersection(inputs_of(s)) for s in between)

    def joined(self, first: Kernel, second: Kernel, third: Kernel) -> Group:
        own = {n for k in (first, second, third) for n in k.outputs}
        later = {n for s in self.steps[self.last + 1 :] if s is not None for n in inputs_of(s)}
        used = later | set(self.p.outputs)
        kernels = _in_place((first, second, third), third.rows + 1, own)
        outputs = tuple(n for k in kernels for n in k.outputs if n in used)
        return Group(third.name, third.rows + 1, kernels, outputs)


def _at(r: Read, axes: Sequence[Axis]) -> bool:
    """Whether a read is at these axes, of which one of one element is at 0."""
    return len(r.index) == len(axes) and all(
        i == a.variable or (a.size == 1 and i == 0) for i, a in zip(r.index, axes, strict=True)
    )


def _same_rows(first: Kernel, second: Kernel, third: Kernel) -> bool:
    rows = third.rows + 1
    sizes = [tuple(a.size for a in k.stages[0].axes[:rows]) for k in (first, second, third)]
    columns = first.stages[0].axes[-1].size, third.stages[0].reduced[0].size
    return sizes[0] == sizes[1] == sizes[2] and columns[0] == columns[1] and 0 not in sizes[0]


def _in_place(kernels: Sequence[Kernel], rows: int, own: set[str]) -> tuple[Kernel, ...]:
    """The kernels, which read each other's results at the variables of their rows."""

    def moved(s: Stage) -> Stage:
        here = tuple(a.variable for a in s.axes[:rows])
        return replace(
            s,
            term=with_reads(
                s.term,
                lambda r: replace(r, index=(*here, *r.index[rows:])) if r.source in own else r,
            ),
        )

    return tuple(replace(k, stages=tuple(map(moved, k.stages))) for k in kernels)
