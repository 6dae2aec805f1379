"""numerics: no overflow, no NaN and no division by what underflowed, for inputs within bounds.

Bounds are followed through every instance at given sizes.  Where they leave a doubt, inputs at the
edges of the ranges are run in the interpreter, and one that shows the fault is the witness.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.checks.abstract import UNWRITTEN, Abstract, Doubt, hull, limits
from tessera.checks.concrete import Array, Env, instances, shape_at
from tessera.checks.faults import TOOL, edges, faults_of
from tessera.checks.findings import Finding, Verdict
from tessera.checks.intervals import Hull
from tessera.checks.relations import Relations
from tessera.ir.tile.ir import Kernel, Memory, Operation

_STEPS = 20_000  # operations that are followed; a proof needs all


@dataclass(frozen=True)
class ErrorBound:
    """What is known of a tensor: bounds of its values and of their error."""

    lo: float
    hi: float
    err: float = 0.0
    nan: bool = False

    @property
    def is_finite(self) -> bool:
        """Whether no element can be infinite or NaN."""
        return math.isfinite(self.lo) and math.isfinite(self.hi) and not self.nan

    def join(self, other: ErrorBound) -> ErrorBound:
        """What holds of the elements of both."""
        return ErrorBound(
            min(self.lo, other.lo), max(self.hi, other.hi), max(self.err, other.err),
            self.nan or other.nan,
        )  # fmt: skip


Bounds = Mapping[str, ErrorBound]


@dataclass(frozen=True)
class Analysis:
    """What bounds tell of a kernel at some sizes."""

    kernel: Kernel
    sizes: Env
    followed: int  # instances, of so many
    count: int
    doubts: tuple[Doubt, ...]
    outs: Mapping[str, ErrorBound]  # of the parameters that are written

    def verdict(self, found: Sequence[Finding] = ()) -> Verdict:
        """A proof, what is left of one, or what was found."""
        left = [] if found else [_text(d) for d in self.doubts]
        if not found and not left:
            left += [f"{name} has no bound" for name, b in self.outs.items() if not b.is_finite]
        if self.followed < self.count:
            left.append(f"{self.count - self.followed} of {self.count} instances")
        note = "" if found or left else _note(self.outs, self.sizes)
        return Verdict(
            TOOL, self.kernel.name, self.followed, tuple(left), tuple(found), note
        )  # fmt: skip

    def faults(self, data: Sequence[Array], label: str) -> list[Finding]:
        """What goes wrong on these numbers."""
        return faults_of(
            self.kernel, self.sizes, data,
            lambda instance: _at_fault(self.kernel, self.sizes, instance, data), label,
        )  # fmt: skip


def analyse(kernel: Kernel, sizes: Mapping[str, int], inputs: Bounds) -> Analysis:
    """Follow the bounds of the inputs through a kernel; other parameters may hold anything."""
    env = dict(sizes)
    every, memories = instances(kernel, env, 1 << 30), _memories(kernel, env, inputs)
    followed, doubts = _follow(kernel, env, every, memories)
    whole = followed == len(every)
    outs = {m.name: _hull_of(memories[m], whole) for m in kernel.parameters if m.writable}
    return Analysis(kernel, env, followed, len(every), tuple(doubts), outs)


def check_numerics(kernel: Kernel, sizes: Mapping[str, int], inputs: Bounds) -> Verdict:
    """Prove that nothing goes wrong for inputs within bounds, or show an input where it does."""
    a = analyse(kernel, sizes, inputs)
    if not a.doubts:
        return a.verdict()
    free = ErrorBound(0.0, 1.0)
    bounds = [inputs.get(m.name, free) for m in kernel.parameters]
    tensors = [
        (shape_at(m, a.sizes), m.type.dtype, b.lo, b.hi)
        for m, b in zip(kernel.parameters, bounds, strict=True)
    ]
    found = next((f for label, data in edges(tensors) if (f := a.faults(data, label))), [])
    return a.verdict(found)


def _text(d: Doubt) -> str:
    what = d.op.attributes.get("scalar", d.op.name)
    return f"{what} in [{d.lo:.3g}, {d.hi:.3g}]: {d.kind}"


def _note(outs: Mapping[str, ErrorBound], sizes: Env) -> str:
    at = ", ".join(f"{k} = {v}" for k, v in sizes.items())
    parts = [
        f"{name} in [{b.lo:.3g}, {b.hi:.3g}] with "
        + ("no bound of the error" if math.isinf(b.err) else f"an error of at most {b.err:.2g}")
        for name, b in outs.items()
    ]
    return f"proved{f' for {at}' if at else ''}: {'; '.join(parts)}"


def _follow(
    kernel: Kernel, sizes: Env, some: Sequence[Env], memories: dict[Memory, Hull]
) -> tuple[int, list[Doubt]]:
    """Run instances on bounds, as many as there is time for; the doubts that reach a result."""
    found, fresh, facts = dict[Any, Doubt](), _Fresh(), Relations()
    steps = 0
    with np.errstate(all="ignore"):
        for count, instance in enumerate(some):
            if steps > _STEPS:
                return count, list(found.values())
            run = Abstract({**sizes, **instance}, dict(memories), fresh, facts)
            run.block(kernel.body, ())
            live = [d for i, d in enumerate(run.doubts) if i + 1 in run.live]
            found |= {(d.kind, d.op): d for d in live}
            steps += run.steps
    return len(some), list(found.values())


class _Fresh:
    """Keys that no other element has."""

    def __init__(self) -> None:
        self.count = 1

    def __call__(self, shape: Sequence[int]) -> Array:
        n = math.prod(shape)
        self.count += n
        return np.arange(self.count - n, self.count, dtype=np.uint64).reshape(tuple(shape))


def _memories(kernel: Kernel, sizes: Env, inputs: Bounds) -> dict[Memory, Hull]:
    made: dict[Memory, Hull] = {}
    fresh = _Fresh()
    fresh.count = 1 << 40
    for m in kernel.parameters:
        shape, b = shape_at(m, sizes), inputs.get(m.name)
        if b is None:
            b = ErrorBound(*limits(m.type.dtype), nan=m.type.dtype.kind == "f")
        h = hull(b.lo, b.hi, shape, fresh(shape), b.nan)
        h.err = np.full(shape, b.err)
        if m.writable and m.name not in inputs:
            h.bad = np.full(shape, UNWRITTEN, np.int64)
        made[m] = h
    return made


def _hull_of(h: Hull, whole: bool) -> ErrorBound:
    written = h.bad != UNWRITTEN
    if not written.any() or not whole:
        return ErrorBound(-math.inf, math.inf, math.inf, True)
    lo, hi, err, nan = (x[written] for x in (h.lo, h.hi, h.err, h.nan))
    return ErrorBound(float(lo.min()), float(hi.max()), float(err.max()), bool(nan.any()))


def _at_fault(kernel: Kernel, sizes: Env, instance: Env, data: Sequence[Array]) -> set[Operation]:
    """The operations that go wrong on these numbers and reach a result; masked elements do not."""
    memories = {}
    for m, a in zip(kernel.parameters, data, strict=True):
        x = a.astype(np.float64)
        bad = np.zeros(x.shape, np.int64)
        memories[m] = Hull(x.copy(), x.copy(), 0 * x, np.isnan(x), _Fresh()(x.shape), bad)
    return {d.op for d in _follow(kernel, sizes, [instance], memories)[1]}
