"""Comparing profiles: what became slower, beyond a limit that a build may fail by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.inspect.profile_rows import ProfileRow

_NOTABLE = 0.01  # of the whole time that a change must be to count


@dataclass(frozen=True)
class TimeChange:
    """The usual seconds of one run of something, before and now; None where there was none."""

    name: str
    before: float | None
    now: float | None
    runs: int = 1  # in a run of everything

    @property
    def ratio(self) -> float:
        """How many times longer it takes now."""
        return self.now / self.before if self.now is not None and self.before else 1.0

    @property
    def lost(self) -> float:
        """Seconds that all of its runs take longer now."""
        return ((self.now or 0.0) - (self.before or 0.0)) * self.runs


@dataclass(frozen=True)
class Comparison:
    """Two profiles side by side; prints as a table."""

    changes: tuple[TimeChange, ...]

    @property
    def total(self) -> TimeChange:
        """Everything together, as often as it runs now."""
        before = sum((c.before or 0.0) * c.runs for c in self.changes)
        now = sum((c.now or 0.0) * c.runs for c in self.changes)
        return TimeChange("total", before, now)

    def regressions(self, limit: float = 0.1) -> list[TimeChange]:
        """What takes longer by more than `limit` (0.1: a tenth), and the total if it does."""
        whole = self.total
        least = _NOTABLE * (whole.before or 0.0)
        slower = [
            c for c in (*self.changes, whole)
            if c.before and c.now is not None and c.ratio > 1 + limit and c.lost > least
        ]  # fmt: skip
        return sorted(slower, key=lambda c: -c.lost)

    def __str__(self) -> str:
        rows = [("before ms", "now ms", "ratio", "")]
        for c in (*sorted(self.changes, key=lambda c: -abs(c.lost)), self.total):
            both = c.before is not None and c.now is not None
            rows.append((_ms(c.before), _ms(c.now), f"{c.ratio:.2f}x" if both else "", c.name))
        widths = [max(map(len, c)) for c in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join([*(c.rjust(w) for c, w in zip(r[:3], widths, strict=False)), r[3]]).rstrip()
            for r in rows
        )


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.3f}"


def compared(before: Sequence[ProfileRow], now: Sequence[ProfileRow]) -> Comparison:
    """Rows of two profiles by their names."""
    old = {(r.program, r.name): r for r in before}
    new = {(r.program, r.name): r for r in now}
    changes = []
    for key in dict.fromkeys((*old, *new)):
        a, b = old.get(key), new.get(key)
        name = key[1] if (b or old[key]).kind == "kernel" else ": ".join(key)
        runs = len((b or old[key]).runs)
        changes.append(
            TimeChange(name, None if a is None else a.usual, None if b is None else b.usual, runs)
        )
    return Comparison(tuple(changes))
