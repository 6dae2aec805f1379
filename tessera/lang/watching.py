"""ts.watch: values of a run by name, with their statistics, a histogram and where a NaN came from."""

from __future__ import annotations

import json
import math
import os
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tessera.core import tree
from tessera.core.blame import blames_arguments, brief
from tessera.core.errors import NumericalError, OperandError
from tessera.core.source import Location, caller
from tessera.ir.graph.ir import Value, current_builder, host_data
from tessera.ir.graph.numbers import check_numbers
from tessera.lang import op

BINS = 24  # of a histogram
KEPT = 256  # statistics of one name, newest last
_OPEN: list[Watched] = []  # innermost last


@dataclass(frozen=True)
class Statistics:
    """One value: its shape, and minimum, maximum, mean, deviation and histogram of its finite elements.

    Complex numbers count by their magnitude.
    """

    shape: tuple[int, ...]
    dtype: str
    low: float | None = None  # None where no element is finite
    high: float | None = None
    mean: float | None = None
    std: float | None = None
    zeros: int = 0
    nans: int = 0
    infinities: int = 0
    first_bad: tuple[int, ...] | None = None  # of the first NaN, or else the first infinity
    histogram: tuple[int, ...] = ()  # counts of BINS equal parts from low to high

    @classmethod
    def of(cls, data: Any, dtype: str) -> Statistics:
        """The statistics of an array."""
        a = np.asarray(data)
        wide = np.abs(a) if a.dtype.kind == "c" else a
        wide = wide.astype(np.float64)
        nan, inf = np.isnan(wide), np.isinf(wide)
        bad = np.argwhere(nan) if nan.any() else np.argwhere(inf)
        finite = wide[~(nan | inf)]
        told: dict[str, Any] = {
            "zeros": int((wide == 0).sum()), "nans": int(nan.sum()), "infinities": int(inf.sum()),
            "first_bad": tuple(map(int, bad[0])) if len(bad) else None,
        }  # fmt: skip
        if not finite.size:
            return cls(a.shape, dtype, **told)
        low, high = float(finite.min()), float(finite.max())
        return cls(
            a.shape, dtype, low, high, *_moments(finite, low, high), **told,
            histogram=_histogram(finite, low, high),
        )  # fmt: skip

    @property
    def is_finite(self) -> bool:
        """Whether every element is a number."""
        return not (self.nans or self.infinities)

    def __str__(self) -> str:
        shape = f"{self.dtype}[{','.join(map(str, self.shape))}]"
        if self.low is None:
            said = "no finite element" if self.nans + self.infinities else "no element"
        else:
            said = f"min {self.low:.4g} max {self.high:.4g} mean {self.mean:.4g} std {self.std:.4g}"
        for count, what in ((self.nans, "NaN"), (self.infinities, "infinite")):
            said += f", {count} {what}" if count else ""
        first = "" if self.first_bad is None else f", first at {list(self.first_bad)}"
        return f"{shape} {said}{first}"


def _moments(a: Any, low: float, high: float) -> tuple[float, float]:
    """Mean and standard deviation, also of numbers whose squares are not finite."""
    scale = max(abs(low), abs(high)) or 1.0
    return float((a / scale).mean() * scale), float((a / scale).std() * scale)


def _histogram(a: Any, low: float, high: float) -> tuple[int, ...]:
    if not math.isfinite(high - low):  # as wide as the format: halves still fit
        a, low, high = a / 2, low / 2, high / 2
    if high == low:
        return (a.size, *(0,) * (BINS - 1))
    part = np.minimum(((a - low) / (high - low) * BINS).astype(np.int64), BINS - 1)
    return tuple(np.bincount(part, minlength=BINS).tolist())


@dataclass
class Watch:
    """One watched value: where it is watched, how often it was seen, and its newest statistics."""

    name: str
    location: Location | None
    seen: int = 0
    broken: int | None = None  # the first time, counted from 1, that some element was not finite
    statistics: deque[Statistics] = field(default_factory=lambda: deque(maxlen=KEPT))

    @property
    def last(self) -> Statistics:
        """The newest statistics."""
        return self.statistics[-1]

    def add(self, s: Statistics) -> None:
        """Take the statistics of the next time."""
        self.seen += 1
        self.statistics.append(s)
        if self.broken is None and not s.is_finite:
            self.broken = self.seen


class Watched:
    """What was watched while a block of ts.watching ran, by name; its text is a table."""

    def __init__(self, show: bool = False) -> None:
        self.values: dict[str, Watch] = {}
        self.origin: NumericalError | None = None
        self._show = show

    def __getitem__(self, name: str) -> Watch:
        if name not in self.values:
            known = ", ".join(map(repr, self.values)) or "nothing was"
            raise OperandError(f"watching: {name!r} was not watched; known: {known}")
        return self.values[name]

    def add(self, name: str, location: Location | None, data: Any, dtype: str) -> None:
        """Take a value."""
        w = self.values.setdefault(name, Watch(name, location))
        w.add(Statistics.of(data, dtype))
        if self._show:
            sys.stderr.write(f"{name}: {w.last}\n")

    def found(self, e: NumericalError) -> None:
        """Take the op that made a NaN or an infinity; the first one counts."""
        self.origin = self.origin or e

    def __str__(self) -> str:
        lines = []
        width = max((len(n) for n in self.values), default=0)
        for w in self.values.values():
            times = f"{w.seen} time{'s' * (w.seen > 1)}"
            bad = f", not finite since time {w.broken}" if w.broken is not None else ""
            lines.append(f"{w.name:<{width}}  {w.last}, {times}{bad}")
        lines += [f"origin: {self.origin}"] if self.origin is not None else []
        return "\n".join(lines) or "nothing was watched"

    def data(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        return {
            "origin": None if self.origin is None else str(self.origin),
            "values": [
                {
                    "name": w.name, "seen": w.seen, "broken": w.broken,
                    "place": None if w.location is None else list(w.location),
                    "statistics": [asdict(s) for s in w.statistics],
                }
                for w in self.values.values()
            ],
        }  # fmt: skip

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the record as a JSON file."""
        Path(path).write_text(json.dumps(self.data(), allow_nan=False, indent=1) + "\n")


@blames_arguments
def watch(x: Any, name: str = "") -> Any:
    """x, whose values are noted each time the program runs: shape, statistics, histogram, NaN.

    x is a tensor or a tree of tensors; without a name it has that of its line.  Inside `with ts.watching()`
    the values are kept; outside of one each is a line on stderr.
    """
    if not isinstance(name, str):
        raise OperandError(
            f"watch: name is {type(name).__name__} {brief(name, 40)}, expected a string"
        )
    where = caller()
    own = name or ("value" if where is None else f"{Path(where.file).name}:{where.line}")
    leaves, structure = tree.flatten(x)
    for leaf in leaves:
        if not isinstance(leaf, Value):
            raise OperandError(
                f"watch: got {type(leaf).__name__} {brief(leaf, 40)}, expected a tensor, or a tree of "
                "tensors; ts.tensor(x) makes one"
            )
    if not leaves:
        raise OperandError("watch: the tree has no tensor in it")
    names = tree.paths(x, own)
    return tree.unflatten(
        structure, [_watched(v, n, where) for v, n in zip(leaves, names, strict=True)]
    )


def _watched(x: Value, name: str, where: Location | None) -> Value:
    def note(data: Any) -> None:
        (_OPEN[-1] if _OPEN else Watched(show=True)).add(name, where, data, str(x.dtype))

    if current_builder() is None:
        note(host_data(x))
        return x
    note.__name__ = f"watch {name}"
    return op.watch(x, x, to=note)


@contextmanager
def _opened(made: Watched) -> Iterator[Watched]:
    _OPEN.append(made)
    try:
        yield made
    finally:
        _OPEN.remove(made)


@blames_arguments
@contextmanager
def watching(
    origins: bool = False, infinities: bool = False, show: bool = False
) -> Iterator[Watched]:
    """Keep what ts.watch sees while the block runs: `seen["name"].last`, `print(seen)`, `seen.save(path)`.

    With origins=True compiled functions run op by op, and `seen.origin` is the first op that made a NaN (or,
    with infinities=True, an infinity) from operands without one, with the line of the program; the run goes
    on.  show=True prints each value, too.
    """
    for n, v in (("origins", origins), ("infinities", infinities), ("show", show)):
        if not isinstance(v, bool):
            raise OperandError(
                f"watching: {n} is {type(v).__name__} {brief(v, 40)}, expected True or False"
            )
    if infinities and not origins:
        raise OperandError("watching: infinities=True is for origins=True")
    with _opened(Watched(show)) as made:
        if not origins:
            yield made
            return
        with check_numbers(infinities, "watching", made.found):
            yield made
