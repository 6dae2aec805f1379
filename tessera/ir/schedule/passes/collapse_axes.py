"""collapse: two folds, one after the other, along axes that are adjacent in memory, become one.

    s[r, c] = sum over k<1024 of x[1024 r + k, c]; t[c] = sum over r<16 of s[r, c]
->  t[c] = sum over k<16384 of x[k, c]

Where a fold is a tree over neighbours and the inner one has 2^n of them, it is a subtree of the larger
fold, so the bits stay: that is the order of folds on a GPU (ir/tile/gpu/folds.py).
"""

from __future__ import annotations

import re
from dataclasses import replace

from tessera.core.dims import Size
from tessera.ir.schedule.ir import Axis, Kernel, Program, Read, Stage, reads
from tessera.ir.schedule.passes.fuse_contractions import readings


def collapse_axes(p: Program) -> Program:
    """A program with fewer folds."""
    readers = readings(p.steps)
    inner = {
        k.outputs[0]: k
        for k in p.steps
        if isinstance(k, Kernel) and _is_inner(k) and readers[k.outputs[0]] == 1
        if k.outputs[0] not in p.outputs
    }
    gone: set[str] = set()
    steps = []
    for s in p.steps:
        if isinstance(s, Kernel) and not s.contracts:
            made = [_joined(t, inner) for t in s.stages]
            gone.update(
                r.source
                for t, m in zip(s.stages, made, strict=True)
                if m is not t
                for r in reads(t.term)
            )
            s = replace(s, stages=tuple(made))
        steps.append(s)
    kept = [s for s in steps if not (isinstance(s, Kernel) and gone.intersection(s.outputs))]
    buffers = {n: b for n, b in p.buffers.items() if n not in gone}
    return replace(p, steps=tuple(kept), buffers=buffers)


def _is_inner(k: Kernel) -> bool:
    """Whether a kernel is one fold of 2^n numbers for each of its rows and columns."""
    s = k.stages[0]
    if len(k.stages) != 1 or k.contracts or s.combine is None or k.rows != 1 or len(s.axes) < 2:
        return False
    n = s.reduced[0].size
    return isinstance(n, int) and n > 0 and n & (n - 1) == 0 and isinstance(s.axes[0].size, int)


def _joined(t: Stage, inner: dict[str, Kernel]) -> Stage:
    """A fold of folds as one; any other stage as it is."""
    r = t.term
    if t.combine is None or not isinstance(r, Read) or r.source not in inner:
        return t
    s = inner[r.source].stages[0]
    in_order = r.index == (t.reduced[0].variable, *(a.variable for a in t.axes))
    if not in_order or s.combine != t.combine or s.dtype is not t.dtype:
        return t
    row, over = s.axes[0], s.reduced[0]
    length = int(over.size)
    whole = Axis(f"{over.name}_all", length * int(row.size))
    env: dict[str, Size] = {over.name: whole.variable - length * row.variable}
    env |= {a.name: b.variable for a, b in zip(s.axes[1:], t.axes, strict=True)}
    term = s.term.at(env)
    if re.search(rf"\b{row.name}\b", str(term)):  # they do not lie behind each other
        return t
    return replace(t, reduced=(whole,), term=term)
