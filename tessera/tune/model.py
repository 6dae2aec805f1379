"""The cost model: a roofline with what a nest adds to it, corrected by what was measured before.

The analytic part knows arithmetic, memory, how well blocks fill registers and how evenly instances fill
threads.  The correction is a ridge regression of log(measured / estimate) on features of the nest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp, log2, prod
from typing import Any

import numpy as np

from tessera.core.folds import LANES, LEAF
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Kernel
from tessera.ir.schedule.nests.nest import Nest
from tessera.ir.schedule.sweeps import passes, shares_folds
from tessera.runtime.tuned import MeasuredNest
from tessera.tune.roofline import KernelWork, Peaks, number, work_of

_INSTANCE, _LAUNCH = 20e-9, 4e-6  # seconds to begin an instance, and to wake threads
_LOAD = 0.3  # of a multiply-add, for a load that feeds it
_LEAST = 24  # measurements before they say anything
_RIDGE = 4.0  # the weight of no correction, in measurements: few of them move it little
_KINDS = 2  # contractions and kernels of rows are corrected apart


@dataclass(frozen=True)
class Setting:
    """A kernel at known sizes on this machine."""

    kernel: Kernel
    types: Mapping[str, TensorType]
    sizes: Mapping[str, int]
    peaks: Peaks

    @property
    def work(self) -> KernelWork:
        """What the kernel must do at least."""
        return work_of(self.kernel, self.types, self.sizes)

    def size(self, axis: str) -> int:
        """The size of an axis of a nest."""
        k, head = self.kernel, self.kernel.stages[0]
        if axis[0] in "br" and axis[1:].isdecimal():
            return number(head.axes[int(axis[1:])].size, self.sizes)
        if k.contracts:
            found = dict(zip("mnk", (*head.axes[-2:], *head.reduced), strict=True))[axis]
            return number(found.size, self.sizes)
        if axis == "c":
            own = [(*s.axes[k.rows :], *(() if s.axes[k.rows :] else s.reduced)) for s in k.stages]
            return max((number(a.size, self.sizes) for axes in own for a in axes), default=1)
        folded = [a.size for s in k.stages for a in s.reduced]
        return max((number(n, self.sizes) for n in folded), default=1)


def instances(s: Setting, nest: Nest) -> int:
    """How many instances a kernel has."""
    rows = [f"{'b' if s.kernel.contracts else 'r'}{i}" for i in range(s.kernel.rows)]
    unnamed = prod(s.size(a) for a in rows if not nest.steps(a))
    shared = [(s.size(x.axis), x.step) for x in nest.loops if x.kind == "parallel"]
    return unnamed * prod(-(-size // step) for size, step in shared)


def estimate(s: Setting, nest: Nest) -> float:
    """Seconds that a kernel takes by a nest, by reasoning alone."""
    count, threads = instances(s, nest), s.peaks.threads
    used = count / (-(-count // threads) * threads) if count else 1.0
    launches = 1 + 2 * shares_folds(s.kernel, nest)
    fixed = launches * _LAUNCH + count * _INSTANCE / threads
    busy = _contraction(s, nest) if s.kernel.contracts else _rows(s)
    return busy / used + fixed


def _rows(s: Setting) -> float:
    """Passes after the first read what is close by."""
    w, again = s.work, max(passes(s.kernel).values())
    close = s.peaks.bandwidth * 4
    return w.seconds(s.peaks) + again * w.bytes / close


def _contraction(s: Setting, nest: Nest) -> float:
    batch = prod(number(a.size, s.sizes) for a in s.kernel.stages[0].axes[:-2])
    m, n, k = (s.size(a) for a in "mnk")
    mr, nr = (nest.steps(a, "parallel", "serial")[-1] for a in "mn")
    tall, wide = (nest.steps(a, "parallel", "serial")[0] for a in "mn")
    fused = mr * nr / LANES
    computing = s.work.flops / s.peaks.flops * (1 + _LOAD * (mr + nr / LANES) / fused)
    waste = (-(-m // mr) * mr / m) * (-(-n // nr) * nr / n) if m and n else 1.0
    times_right, times_left = -(-m // tall), -(-n // wide)
    staged = dict(nest.staged)
    right = k * n * times_right * (3 if "right" in staged else max(tall // mr, 1) / 4)
    left = m * k * times_left * (3 if "left" in staged else max(wide // nr, 1) / 4)
    sums = 2.0 * m * n * -(-k // LEAF) if k > LEAF else 0.0
    strips = [x for x in nest.steps("k") if 1 < x < LEAF]
    sums += sum(2 * m * n * -(-k // x) for x in strips) / 4
    memory = 4 * batch * (right + left + sums) / s.peaks.bandwidth
    return max(computing * waste, s.work.bytes / s.peaks.bandwidth) + memory / 4


# Correction -------------------------------------------------------------------------------------


def features(s: Setting, nest: Nest) -> tuple[float, ...]:
    """Numbers about a nest that a correction may depend on."""
    contracts = s.kernel.contracts
    count = instances(s, nest)
    common = [log2(max(count, 1)), log2(1 + s.work.flops), log2(1 + s.work.bytes)]
    if contracts:
        steps = [nest.steps(a, "parallel", "serial") for a in "mn"]
        numbers = [x for found in steps for x in (found[0], found[-1])]
        strips = sum(1 < x < LEAF for x in nest.steps("k"))
        staged = dict(nest.staged)
        first = next((x.axis for x in nest.loops if x.kind == "parallel"), "")
        own = [*(log2(x) for x in numbers), float(strips), float("left" in staged),
               float("right" in staged), float(first == "n")]  # fmt: skip
    else:
        widths = nest.steps("c", "serial") or [LANES]
        rows = max((x.step for x in nest.loops if x.axis[0] == "r"), default=1)
        own = [log2(widths[0]), log2(widths[-1]), log2(rows), float(sum(nest.steps("l")) or 1),
               log2(max(nest.steps("c", "parallel"), default=1)),
               log2(max(nest.steps("k", "parallel"), default=1)), log2(max(s.size("c"), 1)),
               float(len(s.kernel.stages))]  # fmt: skip
    return (float(contracts), *common, *own)


class Correction:
    """What measurements say about estimates: seconds = estimate * factor(features)."""

    def __init__(self, measured: Iterable[MeasuredNest]):
        self._weights: dict[float, Any] = {}
        rows = [m for m in measured if m.seconds > 0 and m.estimate > 0]
        for kind in range(_KINDS):
            own = [m for m in rows if m.features and m.features[0] == kind]
            if len(own) >= _LEAST:
                self._weights[float(kind)] = _fitted(own)

    def factor(self, found: tuple[float, ...]) -> float:
        """By how much an estimate of these features is to be multiplied."""
        fitted = self._weights.get(found[0])
        if fitted is None:
            return 1.0
        mean, scale, weights, offset = fitted
        x = (np.asarray(found) - mean) / scale
        return exp(float(np.clip(x @ weights + offset, -3.0, 3.0)))


def _fitted(rows: list[MeasuredNest]) -> Any:
    x = np.asarray([m.features for m in rows])
    y = np.log([m.seconds / m.estimate for m in rows])
    mean, scale = x.mean(0), x.std(0)
    scale[scale == 0] = 1.0
    z, offset = (x - mean) / scale, y.mean()
    weights = np.linalg.solve(z.T @ z + _RIDGE * np.eye(z.shape[1]), z.T @ (y - offset))
    return mean, scale, weights, offset
