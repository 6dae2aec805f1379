"""How many scalar operations a program of Schedule IR computes, and a pass of the toy target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tessera.core.dims import product, substitute
from tessera.ir.schedule.ir import Apply, Group, Kernel, Program, Stage, Step, Term


def operations(p: Program, sizes: Mapping[str, int]) -> int:
    """The operations of all kernels at these sizes; of a fold one for each element."""
    return sum(
        _of_stage(s, sizes) for k in p.steps if isinstance(k, Kernel | Group) for s in k.stages
    )


def _of_stage(s: Stage, sizes: Mapping[str, int]) -> int:
    points = product(tuple(a.size for a in (*s.axes, *s.reduced)))
    return int(substitute(points, sizes)) * (_of_term(s.term) + (s.combine is not None))


def _of_term(t: Term) -> int:
    return isinstance(t, Apply) + sum(map(_of_term, t.children()))


def drop_idle(p: Program) -> Program:
    """The program without kernels that write no buffer."""
    kept = tuple(s for s in p.steps if not _is_idle(s))
    return p if len(kept) == len(p.steps) else replace(p, steps=kept)


def _is_idle(s: Step) -> bool:
    return isinstance(s, Kernel | Group) and not s.outputs
