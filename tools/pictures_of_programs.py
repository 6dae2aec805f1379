"""Pictures of what kernels and optimisers say about themselves: a grid with its edges, and learning rates."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera import KTile, block, kernel, optim, tile
from tessera.core.dims import substitute
from tools.drawing import BLUE, GREEN, ORANGE, PINK, YELLOW, Drawing

_M, _N = 90, 120  # of the matrix of the kernel, whose blocks do not fit
_SCALE = 3.2
Matrix = KTile["M", "N"]


@kernel.schedule(block(32, 48))
def doubled(x: Matrix) -> Any:
    """Blocks of both axes."""
    ctx = tile.context()
    return tile.load(x, rows=ctx.m, cols=ctx.n) * 2


def grid() -> Drawing:
    """The instances of a kernel on a matrix, and what of them lies beyond its edges."""
    low = doubled.lower(np.zeros((_M, _N), np.float32))
    rows, cols = (substitute(size, {"M": _M, "N": _N}) for _, size in low.grid)
    m, n = 32, 48
    x0, y0 = 20.0, 50.0
    d = Drawing(int(x0 + cols * n * _SCALE + 20), int(y0 + rows * m * _SCALE + 40), "A grid")
    d.text(
        x0,
        22,
        f"f32[{_M},{_N}] in blocks of {m} x {n}: a grid of {rows} x {cols} instances",
        "head",
    )
    d.text(x0, 40, "what lies beyond the edge is neither read nor written", "note")
    for i in range(rows):
        for j in range(cols):
            x, y = x0 + _SCALE * n * j, y0 + _SCALE * m * i
            d.box(x + 1, y + 1, _SCALE * n - 2, _SCALE * m - 2, "", rx=3)
            wide, tall = min(n, _N - n * j), min(m, _M - m * i)
            d.box(x + 1, y + 1, _SCALE * wide - 2, _SCALE * tall - 2, BLUE, rx=3)
            d.text(
                x + _SCALE * wide / 2, y + _SCALE * tall / 2 + 4, f"({i}, {j})", "code", middle=True
            )
    d.text(
        x0,
        y0 + rows * m * _SCALE + 22,
        f"rows {_M} = 2 x {m} + 26, columns {_N} = 2 x {n} + 24",
        "note",
    )
    return d


def schedules() -> Drawing:
    """Learning rates by step."""
    shown = [
        ("cosine(1, 100)", optim.cosine(1.0, 100), BLUE),
        ("warmup_cosine(1, 20, 100)", optim.warmup_cosine(1.0, 20, 100), ORANGE),
        ("one_cycle(1, 100)", optim.one_cycle(1.0, 100), GREEN),
        ("exponential(1, 0.97)", optim.exponential(1.0, 0.97), PINK),
        ("linear(1, 0, 100)", optim.linear(1.0, 0.0, 100), YELLOW),
    ]
    d = Drawing(720, 250, "Learning rates")
    d.text(50, 20, "learning rate by step, as a part of the highest", "head")
    d.line((50, 30), (50, 210), (500, 210))
    for k, (name, schedule, colour) in enumerate(shown):
        rates = [float(np.asarray(schedule(i))) for i in range(101)]
        path = " ".join(f"{50 + 4.5 * i:.1f},{210 - 170 * r:.1f}" for i, r in enumerate(rates))
        d.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        y = 60 + 26 * k
        d.parts.append(f'<path d="M520 {y - 4}h24" stroke="{colour}" stroke-width="3"/>')
        d.text(552, y, name, "code")
    for step in range(0, 101, 25):
        d.text(50 + 4.5 * step, 228, str(step), "note", middle=True)
    return d
