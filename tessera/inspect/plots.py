"""Plots with matplotlib, where looking beats reading: tensors, operators, memory, profiles."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np

from tessera.algebra.operator import Operator
from tessera.core.errors import OperandError, located
from tessera.ir.schedule.memory import MemoryPlan
from tessera.lang.tensor import Tensor
from tessera.tune.roofline import Peaks

_LARGEST = 2048  # rows of an operator whose matrix is drawn
COLOURS = {"arena": "#0072b2", "result": "#009e73", "host": "#d55e00"}


def axes(ax: Any = None, size: tuple[float, float] = (6.4, 4.0)) -> Any:
    """The axes that were given, or new ones."""
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError:
        raise located(
            OperandError("plot: matplotlib is not installed; get it with pip install matplotlib")
        ) from None
    return pyplot.subplots(figsize=size, layout="constrained")[1]


@singledispatch
def plot(x: Any, ax: Any) -> Any:
    """Draw a value; returns the axes that it was drawn on."""
    raise located(OperandError(f"plot: there is no picture of {type(x).__name__}"))


@plot.register
def _(x: Tensor, ax: Any) -> Any:
    if x.storage is None or x.ndim not in (1, 2) or x.size == 0:
        raise located(
            OperandError(
                f"plot: got {x.type}, expected a vector or a matrix with numbers; index it"
            )
        )
    a = np.asarray(x)
    parts = (("real", a.real), ("imaginary", a.imag)) if np.iscomplexobj(a) else (("", a),)
    if x.ndim == 2:
        return _matrix(
            np.abs(a) if np.iscomplexobj(a) else a.astype(np.float64), axes(ax), str(x.type)
        )
    ax = axes(ax)
    for name, part in parts:
        ax.plot(part.astype(np.float64), label=name)
    if len(parts) > 1:
        ax.legend()
    ax.set(title=str(x.type), xlabel="index")
    return ax


@plot.register
def _(a: Operator, ax: Any) -> Any:
    if not all(isinstance(n, int) and n <= _LARGEST for n in a.shape):
        raise located(
            OperandError(
                f"plot: {a} has more than {_LARGEST} rows or columns; plot a part, A[:100, :100]"
            )
        )
    dense = np.asarray(a.todense())
    return _matrix(np.abs(dense) if np.iscomplexobj(dense) else dense, axes(ax, (5, 5)), str(a))


def _matrix(a: np.ndarray[Any, Any], ax: Any, title: str) -> Any:
    """Blue below zero, red above; colours are symmetric about zero, so that its place is seen."""
    top = np.abs(a[np.isfinite(a)]).max(initial=0) or 1.0
    drawn = ax.imshow(a, cmap="RdBu_r", vmin=-top, vmax=top, interpolation="nearest", aspect="auto")
    ax.figure.colorbar(drawn, ax=ax)
    ax.set(title=title if len(title) < 60 else title[:57] + "...", xlabel="column", ylabel="row")
    return ax


@plot.register
def _(m: MemoryPlan, ax: Any) -> Any:
    ax = axes(ax, (8, 4))
    steps, below = max(len(m.steps), 1), m.arena
    for s in (s for s in m.storages if s.kind != "input"):
        at = s.offset if s.space == "arena" else below
        below += 0 if s.space == "arena" else s.size
        for first, last in s.lives.values():
            span = (max(first, 0), min(last, steps - 1) - max(first, 0) + 1)
            ax.broken_barh(
                [span],
                (at, s.size),
                facecolor=COLOURS.get(s.kind, "#8a8f98"),
                alpha=0.4,
                edgecolor="black",
                linewidth=0.5,
            )
    ax.axhline(m.arena, color="black", linewidth=0.8, linestyle=":")
    ax.set(
        xlim=(0, steps),
        ylim=(0, max(below, 1)),
        xlabel="step",
        ylabel="byte; results above the line",
        title=f"peak {m.peak:,} bytes",
    )
    return ax


def roofline(rows: Any, peaks: Peaks, ax: Any) -> Any:
    """Kernels by operations for each byte and operations a second, below what the machine reaches."""
    counted = [r for r in rows if r.work.flops and r.work.bytes and r.seconds]
    if not counted:
        raise located(OperandError("plot: the profile has no kernel with arithmetic"))
    ax = axes(ax, (7, 4.6))
    x = np.array([r.work.flops / r.work.bytes for r in counted])
    y = np.array([r.flops / r.seconds for r in counted])
    share = np.array([r.seconds for r in counted]) / max(r.seconds for r in counted)
    ridge = peaks.flops / peaks.bandwidth
    span = np.array([min(x.min(), ridge) / 4, ridge, max(x.max(), ridge) * 4])
    ax.loglog(span, np.minimum(peaks.flops, span * peaks.bandwidth), color="black")
    ax.scatter(x, y, s=30 + 300 * share, alpha=0.6, color="#0072b2", edgecolor="black")
    for r, px, py in sorted(zip(counted, x, y, strict=True), key=lambda t: -t[0].seconds)[:8]:
        ax.annotate(r.name, (px, py), xytext=(6, 4), textcoords="offset points", fontsize=8)
    ax.set(
        xlabel="operations for each byte",
        ylabel="operations a second",
        title="kernels below the roofline; larger: more time",
    )
    return ax
