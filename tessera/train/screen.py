"""A run in a terminal: progress, throughput, memory, curves drawn with Braille dots, the newest samples."""

from __future__ import annotations

import math
import textwrap
from itertools import pairwise

from tessera.train.history import Curve, History

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # of a Braille cell, by column and row
_ROWS = ((3, 4), (6, 2))  # so many curves at most: so many rows each; one row where there are more


def screen(run: History, width: int = 80) -> str:
    """The run as lines of text of at most this width."""
    with run.lock:
        rows = next((tall for n, tall in _ROWS if len(run.curves) <= n), 1)
        lines = [_head(run)[:width]]
        for name, curve in run.curves.items():
            lines += _drawn(name, curve, width, rows)
        for name, samples in run.samples.items():
            if samples[-1].text:
                text = " ".join(samples[-1].text.split())
                said = f"{name} at step {samples[-1].step}: {text}"
                lines += textwrap.wrap(said, width, max_lines=3, placeholder=" ...")
        return "\n".join(line.rstrip() for line in lines)


def line(run: History) -> str:
    """The run in one line, for an output that is no terminal."""
    with run.lock:
        values = "  ".join(f"{name} {number(c.last)}" for name, c in run.curves.items())
        return f"{_head(run)}  {values}".rstrip()


def number(x: float) -> str:
    """A number in few characters."""
    return f"{x:,.0f}" if 1e4 <= abs(x) < 1e9 else f"{x:.4g}"


def size(n: float) -> str:
    """A number of bytes in few characters."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            break
        n /= 1024
    return f"{n:.3g} {unit}" if n < 1000 else f"{n:.0f} {unit}"


def span(seconds: float) -> str:
    """A time in few characters."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{whole}s"
    )


def _head(run: History) -> str:
    parts = [run.name] if run.name else []
    if run.total:
        done = min(1.0, run.step / run.total)
        filled = round(16 * done)
        parts.append(f"{run.step}/{run.total} {'━' * filled}{'─' * (16 - filled)} {done:4.0%}")
    else:
        parts.append(f"step {run.step}")
    rate = run.machine.get("steps")
    for name in ("steps", "items"):
        if name in run.machine:
            curve = run.machine[name]
            parts.append(f"{number(curve.last)} {curve.unit}")
    if run.total and not run.ended and rate is not None and rate.last > 0:
        parts.append(f"{span((run.total - run.step) / rate.last)} left")
    parts += [size(c.last) for name, c in run.machine.items() if name.startswith("memory")]
    return "  ".join(parts)


def _drawn(name: str, curve: Curve, width: int, rows: int) -> list[str]:
    """A curve beside its name, its last value and its minimum."""
    said = [f"{name} {number(curve.last)}"]
    if curve.broken is not None:
        said.append(f"not finite at {curve.broken}")
    elif curve.points:
        said.append(f"min {number(curve.best[0])}")
    side = 26
    texts = said[:rows] if curve.broken is None or rows > 1 else [f"{name} is not finite"]
    dots = plotted(curve, max(8, width - side - 1), rows)
    texts += [""] * (rows - len(texts))
    return [f"{t[:side]:<{side}} {d}" for t, d in zip(texts, dots, strict=True)]


def plotted(curve: Curve, columns: int, rows: int) -> list[str]:
    """The curve in Braille dots, two across and four down in each cell."""
    wide, tall = 2 * columns, 4 * rows
    means = _across([p.mean for p in curve.points], wide)
    if not means:
        return [""] * rows
    low, high = min(means), max(means)
    scale = (tall - 1) / (high - low) if high > low and math.isfinite(high - low) else 0.0
    cells = [[0] * columns for _ in range(rows)]
    for x, value in enumerate(means):
        y = tall - 1 - round((value - low) * scale) if scale else tall // 2
        cells[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
    return ["".join(chr(0x2800 + c) for c in row) for row in cells]


def _across(values: list[float], columns: int) -> list[float]:
    """Values for so many columns: each repeated, or means of neighbours."""
    n = len(values)
    if n <= columns:
        return [values[x * n // columns] for x in range(columns)] if values else []
    cuts = [x * n // columns for x in range(columns + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
