"""What a run has logged so far: curves of bounded length, throughput, memory and samples."""

from __future__ import annotations

import math
import mmap
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tessera.runtime.cuda.device import memory_in_use

POINTS = 1024  # of a curve: more than a wide screen has pixels for a card
EVERY = 0.5  # seconds between two measurements of throughput and memory
SAMPLES = 12  # kept for each name, newest last


@dataclass
class HistoryPoint:
    """Some logged values in a row: the last step, its time, and their mean, least and largest."""

    step: int
    seconds: float
    total: float
    low: float
    high: float
    count: int

    @property
    def mean(self) -> float:
        """The mean of the values."""
        return self.total / self.count

    def joined(self, other: HistoryPoint) -> HistoryPoint:
        """This point and the next one as one."""
        return HistoryPoint(
            other.step, other.seconds, self.total + other.total, min(self.low, other.low),
            max(self.high, other.high), self.count + other.count,
        )  # fmt: skip


@dataclass
class Curve:
    """Values by step.  A full curve joins its points in pairs, so that its length is bounded and no value
    between the least and the largest is lost.
    """

    unit: str = ""
    points: list[HistoryPoint] = field(default_factory=list)
    stride: int = 1
    last: float = math.nan
    best: tuple[float, int] = (math.inf, 0)
    broken: int | None = None  # the first step whose value is not finite

    def add(self, step: int, seconds: float, value: float) -> None:
        """Take the value of a step."""
        self.last = value
        if not math.isfinite(value):
            self.broken = step if self.broken is None else self.broken
            return
        self.best = min(self.best, (value, step))
        new = HistoryPoint(step, seconds, value, value, value, 1)
        if self.points and self.points[-1].count < self.stride:
            self.points[-1] = self.points[-1].joined(new)
            return
        if len(self.points) == POINTS:
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points, self.stride = [a.joined(b) for a, b in pairs], 2 * self.stride
        self.points.append(new)

    def data(self) -> dict[str, Any]:
        """The curve as JSON has it."""
        return {
            "unit": self.unit,
            "last": self.last if math.isfinite(self.last) else str(self.last),
            "best": list(self.best) if self.points else None,
            "broken": self.broken,
            "points": [[p.step, round(p.seconds, 3), p.mean, p.low, p.high] for p in self.points],
        }


@dataclass(frozen=True)
class LoggedSample:
    """A text, or an image as an address with its data, that a run showed at a step."""

    step: int
    text: str = ""
    image: str = ""


class History:
    """All that was logged, for readers in other threads."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic, live: bool = True):
        self.name = name
        self.total: int | None = None
        self.lock = threading.Condition()
        self.curves: dict[str, Curve] = {}
        self.machine: dict[str, Curve] = {}
        self.samples: dict[str, list[LoggedSample]] = {}
        self.at: dict[str, int] = {}  # the last step of each curve
        self.step, self.items, self.version, self.ended = 0, 0, 0, False
        self._clock, self._live, self._from = clock, live, clock()
        self._mark = (0.0, 0, 0)  # seconds, step and items of the last measurement

    @property
    def seconds(self) -> float:
        """How long the run has lasted."""
        return self._clock() - self._from

    def begin(self, step: int) -> None:
        """Go on after this many steps; throughput counts from here."""
        with self.lock:
            self.step, self._mark = step, (self.seconds, step, self.items)

    def add(
        self,
        step: int,
        values: Mapping[str, float],
        samples: Mapping[str, LoggedSample],
        items: int = 0,
    ) -> None:
        """Take what a step logged."""
        with self.lock:
            seconds = self.seconds
            self.step, self.items = step, self.items + items
            for name, value in values.items():
                self.curves.setdefault(name, Curve()).add(step, seconds, value)
                self.at[name] = step
            for name, sample in samples.items():
                kept = self.samples.setdefault(name, [])
                kept.append(sample)
                del kept[:-SAMPLES]
            self._measure(seconds)
            self._tell()

    def end(self) -> None:
        """Say that nothing more comes."""
        with self.lock:
            self.ended = True
            self._tell()

    def _tell(self) -> None:
        self.version += 1
        self.lock.notify_all()

    def _measure(self, seconds: float) -> None:
        """Add throughput since the last measurement, and memory now, when some time has passed."""
        since, step, items = self._mark
        passed = seconds - since
        if not self._live or passed < EVERY:
            return
        found = {"steps": ("steps/s", (self.step - step) / passed)}
        if self.items:
            found["items"] = ("items/s", (self.items - items) / passed)
        found |= {f"memory of {k}": ("B", float(n)) for k, n in memory().items()}
        for name, (unit, value) in found.items():
            self.machine.setdefault(name, Curve(unit)).add(self.step, seconds, value)
        self._mark = (seconds, self.step, self.items)

    def data(self) -> dict[str, Any]:
        """The run as JSON has it."""
        with self.lock:
            return {
                "name": self.name, "step": self.step, "total": self.total, "ended": self.ended,
                "seconds": round(self.seconds, 3) if self._live else None, "version": self.version,
                "curves": {k: c.data() for k, c in self.curves.items()},
                "machine": {k: c.data() for k, c in self.machine.items()},
                "samples": {k: [vars(s) for s in v] for k, v in self.samples.items()},
            }  # fmt: skip


def memory() -> dict[str, int]:
    """Bytes that this process has in memory, and that it uses of each GPU it has opened."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):  # not Linux
        return memory_in_use()
    return {"the process": pages * mmap.PAGESIZE} | memory_in_use()
