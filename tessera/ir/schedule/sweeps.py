"""Passes over the columns: how the stages of a kernel of rows follow from each other.

A pass is one walk through the columns of a row, which computes every stage whose folds are ready.
"""

from __future__ import annotations

from dataclasses import replace

from tessera.core.dims import product
from tessera.ir.schedule.ir import Kernel, Stage, reads
from tessera.ir.schedule.nests.nest import Nest

_FEW = 16  # rows that are too few to share among threads


def passes(kernel: Kernel) -> dict[str, int]:
    """The pass of each stage: after the passes of the folds that it reads."""
    stages = {s.name: s for s in kernel.stages}
    levels: dict[str, int] = {}
    for s in kernel.stages:
        own = [stages[r.source] for r in reads(s.term) if r.source in stages]
        levels[s.name] = max((levels[t.name] + (t.combine is not None) for t in own), default=0)
    return levels


def by_pass(kernel: Kernel) -> list[Kernel]:
    """A kernel for each pass over the columns, with the numbers of a row that follow from it."""
    levels, rows = passes(kernel), kernel.rows
    groups: dict[int, list[Stage]] = {}
    for s in kernel.stages:
        plain = not s.axes[rows:] and not s.reduced
        groups.setdefault(levels[s.name] - plain, []).append(s)
    parts = []
    for level in sorted(groups):
        later = {r.source for n in groups if n > level for s in groups[n] for r in reads(s.term)}
        wanted = {*later, *kernel.outputs}
        outputs = tuple(s.name for s in groups[level] if s.name in wanted)
        parts.append(replace(kernel, stages=tuple(groups[level]), outputs=outputs))
    return parts


def has_few_rows(kernel: Kernel) -> bool:
    """Whether rows alone would leave threads without work."""
    count = product(tuple(a.size for a in kernel.stages[0].axes[: kernel.rows]))
    return isinstance(count, int) and count <= _FEW


def folds_lanes(s: Stage, rows: int) -> bool:
    """Whether a stage folds the columns of a row, 16 lanes at a time."""
    return s.combine is not None and len(s.axes) == rows


def folds_chains(s: Stage, rows: int) -> bool:
    """Whether a stage folds another axis for each column."""
    return s.combine is not None and len(s.axes) > rows


def has_columns_alone(kernel: Kernel) -> bool:
    """Whether all stages have a column, of one size, that no fold runs over."""
    sizes = {a.size for s in kernel.stages for a in s.axes[kernel.rows :]}
    return len(sizes) == 1 and all(len(s.axes) == kernel.rows + 1 for s in kernel.stages)


def is_uniform(part: Kernel) -> bool:
    """Whether what a pass folds is of one length and in one order, so that instances can share it."""
    folds = [s for s in part.stages if s.combine]
    orders = {folds_lanes(s, part.rows) for s in folds}
    if not orders:
        return True
    if orders == {False}:
        plain = len(folds) == len(part.stages)
        return plain and len({(s.axes[-1].size, s.reduced[0].size) for s in folds}) == 1
    columns = {(*s.axes[part.rows :], *s.reduced)[0].size for s in part.stages
               if s.axes[part.rows :] or s.reduced}  # fmt: skip
    return len(orders) == 1 and len(columns) == 1


def goes_together(kernel: Kernel) -> bool:
    """Whether rows can share loops: no pass folds columns, or reads those of an earlier one."""
    levels = passes(kernel)
    columns = {s.name for s in kernel.stages if kernel.rows < len(s.axes)}
    return not any(
        (s.combine and s.name in columns)
        or any(r.source in columns and levels[r.source] < levels[s.name] for r in reads(s.term))
        for s in kernel.stages
    )


def shares_folds(kernel: Kernel, nest: Nest) -> bool:
    """Whether instances share what is folded, so that the kernel takes several launches."""
    if nest.steps("k", "parallel"):
        return True
    lanes = any(folds_lanes(s, kernel.rows) for s in kernel.stages)
    return lanes and bool(nest.steps("c", "parallel"))
