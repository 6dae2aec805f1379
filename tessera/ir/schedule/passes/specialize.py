"""at: a program at known sizes.

t1[_r0<B] = max over _t1_1<N of x0[_r0, _t1_1]   at B = 2, N = 64   ->   t1[_r0<2] = max over _t1_1<64 ...
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tessera.core.dims import substitute
from tessera.ir.graph.ir import substitute_params
from tessera.ir.schedule.ir import Axis, Buffer, Group, HostCall, Kernel, Program, Stage, Step


def specialize(p: Program, sizes: Mapping[str, int]) -> Program:
    """The program whose symbolic sizes are these numbers."""
    if not sizes:
        return p
    buffers = {n: Buffer(n, b.type.substitute(sizes)) for n, b in p.buffers.items()}
    return replace(p, buffers=buffers, steps=tuple(_step(s, sizes) for s in p.steps))


def _step(s: Step, sizes: Mapping[str, int]) -> Step:
    if isinstance(s, HostCall):
        return s
    if isinstance(s, Kernel):
        return specialize_kernel(s, sizes)
    if isinstance(s, Group):
        return replace(s, kernels=tuple(specialize_kernel(k, sizes) for k in s.kernels))
    return replace(s, params=substitute_params(s.params, sizes))


def specialize_kernel(k: Kernel, sizes: Mapping[str, int]) -> Kernel:
    """The kernel whose symbolic sizes are these numbers."""
    seen = tuple(replace(x, offset=substitute(x.offset, sizes)) for x in k.seen)
    return replace(k, stages=tuple(_stage(s, sizes) for s in k.stages), seen=seen)


def _stage(s: Stage, sizes: Mapping[str, int]) -> Stage:
    axes, reduced = (
        tuple(Axis(a.name, substitute(a.size, sizes)) for a in x) for x in (s.axes, s.reduced)
    )
    return replace(s, axes=axes, reduced=reduced, term=s.term.at(sizes))
