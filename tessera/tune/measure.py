"""Measurement: how long something takes that runs again and again, and candidates in turn, so that what
disturbs one disturbs all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median, quantiles
from typing import Any

import numpy as np

from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Kernel
from tessera.ir.schedule.nests.nest import Nest
from tessera.ir.target.cpu.program import program
from tessera.ir.tile.cpu.lower import expand
from tessera.ir.tile.launch import Expansion
from tessera.runtime.kernel import CompiledKernel, compile_kernels

_SAMPLE = 2e-4  # seconds that a sample of a kernel takes at least
_AT_LEAST = 3  # samples of what runs for longer than there is time
# Samples of all that are left, in turn, and how much slower than the fastest one may be to go on.
_HEATS = ((3, 1.4), (4, 1.12), (14, 1.02))


def _no_wait(made: Any) -> None:
    """Results on the host are there when a call returns."""


@dataclass
class Timed:
    """Something that runs again and again, and the times that it took.

    A result is dropped before the next run begins, so that its memory is used again: what is measured is a
    run whose results are consumed, in every tool that measures.
    """

    run: Callable[[], Any]
    least: float = _SAMPLE  # seconds that a sample takes at least
    wait: Callable[[Any], None] = _no_wait  # until a result is there
    repeats: int = 1
    times: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The time of a run: the median of the samples."""
        return median(self.times)

    @property
    def quick(self) -> float:
        """The time of a run that little disturbs: the lower quartile of the samples."""
        return (
            quantiles(self.times, n=4, method="inclusive")[0] if self.times[1:] else self.times[0]
        )

    def sample(self) -> None:
        """Run once more, long enough to be timed."""
        took = self._sample()
        while took * self.repeats < self.least / 2:  # too short to count
            self.repeats = max(2, int(self.least / max(took, 1e-9)))
            took = self._sample()
        self.times.append(took)

    def _sample(self) -> float:
        """Seconds of a run."""
        start = time.perf_counter()
        for _ in range(self.repeats):
            made = None
            made = self.run()
        self.wait(made)
        return (time.perf_counter() - start) / self.repeats

    def sampled(self, budget: float, beside: Callable[[], None] | None = None) -> None:
        """Sample for so many seconds, three times at least; `beside` is called after each."""
        self.sample()  # the first one finds cold memory
        self.times.clear()
        end = time.perf_counter() + budget
        while len(self.times) < _AT_LEAST or time.perf_counter() < end:
            self.sample()
            if beside is not None:
                beside()


@dataclass(kw_only=True)
class Candidate(Timed):
    """A nest as machine code, and the times that it took."""

    nest: Nest


class Bench:
    """The arrays of a kernel at known sizes, on which its candidates run."""

    def __init__(self, kernel: Kernel, types: Mapping[str, TensorType], sizes: Mapping[str, int]):
        self.kernel, self.types, self.sizes = kernel, types, dict(sizes)
        rng = np.random.default_rng(0)
        names = (*kernel.inputs(), *kernel.outputs)
        self.arrays = {n: _drawn(types[n].substitute(sizes), rng) for n in names}

    def candidates(self, nests: Sequence[Nest]) -> list[Candidate]:
        """Nests as machine code, built side by side."""
        made = [expand(replace(self.kernel, nest=n), self.types) for n in nests]
        built = compile_kernels([program(x.kernel) for e in made for x in e.launches])
        out = []
        for nest, e in zip(nests, made, strict=True):
            own, built = built[: len(e.launches)], built[len(e.launches) :]
            out.append(Candidate(self._runner(e, own), nest=nest))
        return out

    def _runner(self, e: Expansion, kernels: Sequence[CompiledKernel]) -> Callable[[], None]:
        between = {
            n: np.empty(t.substitute(self.sizes).shape, t.dtype.np) for n, t in e.between.items()
        }
        arrays = self.arrays | between
        calls = [
            (k, [arrays[n] for n in (*x.inputs, *x.outputs)])
            for x, k in zip(e.launches, kernels, strict=True)
        ]

        def run() -> None:
            for k, given in calls:
                k.run(given, self.sizes)

        return run


def _drawn(t: TensorType, rng: np.random.Generator) -> Any:
    """Numbers that any kernel can work with: where they are places, the first one."""
    if t.dtype.kind == "f":
        return rng.uniform(-1, 1, size=t.shape).astype(t.dtype.np)
    return np.zeros(t.shape, t.dtype.np)


def interleave(
    candidates: Sequence[Candidate], rounds: int, until: float, at_least: int = 1
) -> None:
    """Sample candidates in turn, so many times, or until the clock stands there."""
    for i in range(1, rounds + 1):
        for c in candidates:
            c.sample()
        if i >= at_least and time.perf_counter() > until:
            return


def best_of(first: Candidate, others: Sequence[Candidate], until: float) -> Candidate:
    """The fastest of some candidates, or the first where none is faster beyond the spread.

    All are measured anew and in turn, since what was measured at another time met other disturbances.
    After each heat those that lag behind leave; of those that are as good as equal at last the one named
    first is taken.
    """
    left = [first, *others]
    for c in left:
        c.times.clear()
    for samples, behind in _HEATS:
        interleave(left, samples, until, at_least=(samples + 1) // 2)
        best = min(c.quick for c in left)
        left = [c for c in left if c.quick <= best * behind]
    return next((c for c in left if c is not first and is_faster(c, first)), first)


def is_faster(a: Candidate, b: Candidate, least: float = 0.02) -> bool:
    """Whether one is faster than the other beyond the spread: in three of four samples, by so much.

    Samples are compared in pairs, as they were taken in turn: what slows one slows the other too.  Of one
    that left early there are fewer.
    """
    ratios = [y / x for x, y in zip(a.times, b.times, strict=False)]
    low, _, _ = quantiles(ratios, n=4, method="inclusive")
    return low > 1 + least
