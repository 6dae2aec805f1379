"""Pictures of a rolling cache, of lines and their kernels, and of sizes on their way through a program."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

import tessera as ts
from tessera import KVCache, Tensor, f32, op
from tools.drawing import BLUE, GREEN, GREY, ORANGE, PINK, YELLOW, Drawing

Left, Right = Tensor["B", "S", 64, f32], Tensor["B", "T", 64, f32]
_SLOTS, _WINDOW, _STEPS = 6, 4, 10


def ring() -> Drawing:
    """Which position is in which slot of a rolling cache, token by token, and which of them a query sees."""
    cache = KVCache.empty(1, 1, _SLOTS, 4, window=_WINDOW)
    one = op.ones((1, 1, 1, 4))
    side, x0, y0 = 44.0, 110.0, 62.0
    d = Drawing(int(x0 + side * _STEPS + 20), int(y0 + side * _SLOTS + 44), "A rolling cache")
    d.text(10, 22, f"KVCache.empty(..., size={_SLOTS}, window={_WINDOW})", "head")
    d.text(10, 40, "blue: what the newest query sees; grey: held, and out of the window", "note")
    for slot in range(_SLOTS):
        d.text(10, y0 + side * slot + 27, f"slot {slot}", "code")
    for step in range(_STEPS):
        cache = cache.append(one, one)
        seen = np.asarray(cache.seen(1)).reshape(-1)
        for slot, position in enumerate(np.asarray(cache.positions()).reshape(-1)):
            x, y = x0 + side * step, y0 + side * slot
            held = position >= 0
            d.box(x + 2, y + 2, side - 4, side - 4, (BLUE if seen[slot] else GREY) if held else "")
            if held:
                d.text(x + side / 2, y + 27, str(int(position)), "code", middle=True)
        d.text(x0 + side * (step + 0.5), y0 - 6, str(step + 1), "note", middle=True)
    d.text(x0, y0 + side * _SLOTS + 24, "each column: the cache after so many tokens", "note")
    return d


def head(x: Any, w: Any, b: Any, g: Any) -> Any:
    """The program of the picture of kernels."""
    h = op.gelu(x @ w + b)
    h = h - op.mean(h, axis=-1, keepdims=True)
    v = op.mean(h * h, axis=-1, keepdims=True)
    h = h / op.sqrt(v + 1e-5) * g
    return op.softmax(h @ op.transpose(w))


def kernels() -> Drawing:
    """Which lines of a program became which kernels."""
    lines, first = inspect.getsourcelines(head)
    shown = {first + i: line.strip() for i, line in enumerate(lines) if i >= 2}
    given = [op.ones(s) for s in ((512, 1024), (1024, 1024), (1024,), (1024,))]
    low = ts.jit(head, target="cuda:sm_90").lower(*given)
    found = [k for step in low.schedule.steps for k in getattr(step, "kernels", (step,))]
    colours = (BLUE, ORANGE, GREEN, PINK, YELLOW, GREY)
    texts = [list(_stages(k)) for k in found]
    tall = sum(46 + 15 * len(t) for t in texts)
    d = Drawing(800, max(tall, 26 * len(shown) + 20) + 40, "Lines and kernels")
    d.text(10, 22, "Python", "head")
    d.text(420, 22, f"{len(found)} kernels", "head")
    places = {}
    for i, (number, line) in enumerate(shown.items()):
        places[number] = 52 + 30 * i
        d.text(10, places[number], line, "code")
    y = 36.0
    for k, (kernel, stages) in enumerate(zip(found, texts, strict=True)):
        high = 30 + 15 * len(stages)
        d.box(420, y, 370, high, colours[k], rx=6)
        d.text(432, y + 18, kernel.name, "head")
        for i, words in enumerate(stages):
            d.text(432, y + 36 + 15 * i, words, "code")
        for number in sorted({s.location.line for s in kernel.stages if s.location}):
            if number in places:
                d.parts.append(
                    f'<path d="M330 {places[number] - 4}C375 {places[number] - 4} 375 {y + high / 2:.1f} '
                    f'418 {y + high / 2:.1f}" fill="none" stroke="{colours[k]}" stroke-width="1.5"/>'
                )
        y += high + 16
    return d


def _stages(kernel: Any) -> Iterator[str]:
    for s in kernel.stages:
        size = ", ".join(str(a.size) for a in s.axes)
        fold = (
            f"{s.combine} over {', '.join(str(a.size) for a in s.reduced)}" if s.reduced else "each"
        )
        yield f"{s.name}: f32[{size}]  {fold}"


def join(x: Left, y: Right) -> Any:
    """The program of the picture of sizes."""
    both = op.concat([x, y], axis=1)
    pairs = op.reshape(both, (both.shape[0], -1, 2, 32))
    heads = op.transpose(pairs, (0, 2, 1, 3))
    return op.pad(heads, ((0, 0), (0, 0), (1, 1), (0, 0)))


def sizes() -> Drawing:
    """The sizes of a program, from the annotations to the result."""
    rows = list(_rows(str(ts.shapes(join))))
    d = Drawing(760, 44 + 36 * len(rows), "Sizes with names")
    d.text(10, 22, "one trace for every B, S and T", "head")
    given = {"x", "y"}
    for i, (name, kind, line) in enumerate(rows):
        y = 36 + 36 * i
        colour = ORANGE if name in given else (GREEN if name == "result" else BLUE)
        d.text(10, y + 18, name, "code")
        d.box(110, y, 210, 26, colour)
        d.text(122, y + 17, kind, "code")
        d.text(340, y + 18, line, "code")
    return d


def _rows(report: str) -> Iterator[tuple[str, str, str]]:
    """The name, the type and the line of Python of what has a shape."""
    for row in report.splitlines():
        words = re.split(r"\s{2,}", row.strip())
        line = words[-1].partition(": ")[2] if len(words) > 2 else ""
        if row.startswith("returns"):
            yield "result", row.split(maxsplit=1)[1], ""
        elif "[]" not in words[1]:
            yield words[0], words[1], line
