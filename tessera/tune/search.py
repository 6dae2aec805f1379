"""The search: for each kernel of a program, the nest that is fastest on this machine.

space -> ranked by the model -> the best few measured in turn, beside the default -> accepted only
beyond the spread -> kept in the store
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tessera.compile.cpu.build import identity, sizes_of
from tessera.core.errors import CompileError
from tessera.ir.schedule.ir import Kernel, Program
from tessera.ir.schedule.nests.nest import Nest
from tessera.ir.schedule.nests.space import nests
from tessera.runtime import tuned
from tessera.tune.measure import Bench, Candidate, best_of, interleave
from tessera.tune.model import Correction, Setting, estimate, features
from tessera.tune.roofline import peaks_here

_BATCH = 4  # candidates that are built and measured at a time
_MOST = 96  # candidates of a kernel, if the budget lasts
_ROUNDS, _FINALISTS = (
    5,
    4,
)  # samples of a candidate, and how many are measured again beside the default
_BEHIND = 1.25  # how much slower than the best a candidate may be to be measured again


@dataclass(frozen=True)
class TuningOutcome:
    """What tuning a kernel found."""

    kernel: str  # its name in the program
    default: Nest
    best: Nest
    before: float  # seconds by the default
    seconds: float
    tried: int
    known: bool = False  # whether the store had it

    @property
    def gain(self) -> float:
        """How many times faster the best nest is."""
        return self.before / self.seconds if self.seconds else 1.0


@dataclass(frozen=True)
class TuningProgress:
    """Where the search for a kernel stands: its candidates, the fastest first."""

    kernel: str
    candidates: Sequence[Candidate]
    space: int
    spent: float  # of the budget of this kernel, from 0 to 1


Report = Callable[[TuningProgress], None]


def tune_programs(
    programs: Iterable[Program], sizes: Mapping[str, int], budget_ms: float, again: bool = False,
    report: Report | None = None,
) -> list[TuningOutcome]:  # fmt: skip
    """Tune the kernels of programs at known sizes, within a budget that they share."""
    end = time.perf_counter() + budget_ms / 1e3
    peaks = peaks_here()
    settings: dict[str, Setting] = {}
    for p in programs:
        types = {n: b.type for n, b in p.buffers.items()}
        for k in (s for s in p.steps if isinstance(s, Kernel)):
            own = {n: sizes[n] for n in sizes_of(k, types)}
            settings.setdefault(
                identity(k, types), Setting(replace(k, nest=None), types, own, peaks)
            )
    # Kernels get shares of the budget by the time that they are thought to take.
    shares = {key: s.work.seconds(peaks) + 1e-5 for key, s in settings.items()}
    out: dict[str, TuningOutcome] = {}
    for key in sorted(shares, key=lambda k: -shares[k]):
        left = sum(shares[k] for k in shares if k not in out)
        seconds = max(end - time.perf_counter(), 0.0) * shares[key] / left
        out[key] = tune_kernel(key, settings[key], seconds, again, report)
    return [out[key] for key in settings]


def tune_kernel(
    key: str, s: Setting, seconds: float, again: bool = False, report: Report | None = None
) -> TuningOutcome:
    """Find the fastest nest of a kernel in about so many seconds."""
    space = list(nests(s.kernel))
    label = tuned.size_class(s.sizes)
    known = None
    with tuned.tolerant():
        known = None if again else tuned.find(key, label)
    if known is not None:
        nest = next((n for n in space if str(n) == known.nest), space[0])
        return TuningOutcome(
            s.kernel.name, space[0], nest, known.before, known.seconds, 0, known=True
        )
    search = _NestSearch(s, space, seconds, report)
    best = search.run()
    default = search.tried[0]
    found = tuned.Tuned(
        key, label, "" if best is default else str(best.nest), best.seconds, default.seconds
    )
    with tuned.tolerant():
        tuned.keep(found, _measured(key, label, s, search.tried))
    return TuningOutcome(
        s.kernel.name, default.nest, best.nest, default.seconds, best.seconds, len(search.tried)
    )


def _measured(
    key: str, label: str, s: Setting, tried: Iterable[Candidate]
) -> list[tuned.MeasuredNest]:
    return [
        tuned.MeasuredNest(
            key, label, str(c.nest), c.seconds, estimate(s, c.nest), features(s, c.nest)
        )
        for c in tried
    ]


class _NestSearch:
    """The search for one kernel."""

    def __init__(self, s: Setting, space: Sequence[Nest], seconds: float, report: Report | None):
        self.s, self.space, self.report = s, space, report
        self.begun, self.seconds = time.perf_counter(), max(seconds, 1e-3)
        self.bench = Bench(s.kernel, s.types, s.sizes)
        self.tried: list[Candidate] = []

    def run(self) -> Candidate:
        """The fastest candidate, or the default when none is faster beyond the spread."""
        ranked, end, longest = self.ranked(), self.begun + self.seconds, 0.0
        for i in range(0, min(len(ranked), _MOST), _BATCH):
            start = time.perf_counter()
            if i and start + longest > end:
                break
            self.measure(ranked[i : i + _BATCH], end)
            longest = max(longest, time.perf_counter() - start)
        default = self.tried[0]
        rivals = sorted(self.tried, key=lambda c: c.quick)[:_FINALISTS]
        if rivals[0] is default:
            return default
        found = best_of(default, [c for c in rivals if c is not default], end)
        self.tell()
        return found

    def ranked(self) -> list[Nest]:
        """The default first, then the others as the model has them."""
        correction = Correction(())
        with tuned.tolerant():
            correction = Correction(tuned.measurements())
        cost = {
            n: estimate(self.s, n) * correction.factor(features(self.s, n)) for n in self.space[1:]
        }
        return [self.space[0], *sorted(cost, key=lambda n: cost[n])]

    def measure(self, nests: Sequence[Nest], end: float) -> None:
        try:
            made = self.bench.candidates(nests)
        except CompileError:
            if not self.tried:  # the default must work
                raise
            return
        self.tried += made
        interleave(made, 2, end)
        best = min(c.quick for c in self.tried)
        close = [c for c in made if c.quick < best * _BEHIND]
        interleave(close, _ROUNDS - 2, end)
        self.tell()

    def tell(self) -> None:
        if self.report is not None:
            spent = min((time.perf_counter() - self.begun) / self.seconds, 1.0)
            ordered = sorted(self.tried, key=lambda c: c.seconds)
            self.report(TuningProgress(self.s.kernel.name, ordered, len(self.space), spent))
