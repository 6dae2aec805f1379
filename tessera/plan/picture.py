"""The picture of a plan: devices of the mesh in their groups, and the timeline of one step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from html import escape

from tessera.plan.choice import Choice
from tessera.plan.machine import Machine
from tessera.plan.model import Transformer
from tessera.plan.simulate import DeviceSpan, simulate

# Colours by Okabe and Ito, as in the inspector.
COLOURS = {
    "forward": "#0072b2", "backward": "#009e73", "reduce": "#d55e00", "update": "#cc79a7",
    "gather": "#e69f00",
}  # fmt: skip
STAGES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8f98", "#f0e442")
WIDTH, CELL, ROW = 960, 12, 16
# Microbatches of a replica that a timeline shows: as many as there are devices, and at least this many.
SHOWN = 16
MOST = 512  # devices that are drawn


def drawn(model: Transformer | None, machine: Machine, c: Choice, batch: int, title: str) -> str:
    """SVG that needs nothing else; text takes the colour of the page."""
    mesh, height = _mesh(machine, c)
    body = [_text(8, 18, title), *mesh]
    if model is not None:
        lines, more = _timeline(model, machine, c, batch, height + 24)
        body += lines
        height += more + 24
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height + 16}" '
        'font-family="sans-serif"'
    )
    return f'{head} font-size="11" fill="currentColor">' + "".join(body) + "</svg>"


def _text(x: float, y: float, s: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}">{escape(s)}</text>'


def _box(x: float, y: float, w: float, h: float, fill: str, title: str) -> str:
    where = f'x="{x:.2f}" y="{y:.2f}" width="{w:.2f}" height="{h:.2f}"'
    return (
        f'<rect {where} fill="{fill}" stroke="white" '
        f'stroke-width="0.4"><title>{escape(title)}</title></rect>'
    )


def _mesh(machine: Machine, c: Choice) -> tuple[list[str], int]:
    """One square for each device: a node a block, coloured by stage of the pipeline."""
    count = min(c.devices, MOST)
    node = machine.levels[0].size
    across = max(1, (WIDTH - 16) // (node * CELL + 8))
    made, bottom = [], 28
    for d in range(count):
        block, inside = divmod(d, node)
        x = 8 + block % across * (node * CELL + 8) + inside * CELL
        y = 28 + block // across * (CELL + 6)
        stage, rest = divmod(d, c.tp * c.dp)
        label = f"device {d}: pp {stage}, dp {rest // c.tp}, tp {rest % c.tp}"
        made.append(_box(x, y, CELL - 1, CELL - 1, STAGES[stage % len(STAGES)], label))
        bottom = y + CELL
    left = c.devices - count
    note = f"{machine.name}: colours are stages of the pipeline" + (
        f"; {left} more devices" if left else ""
    )
    return [*made, _text(8, bottom + 14, note)], bottom + 14


def _timeline(
    model: Transformer, machine: Machine, c: Choice, batch: int, top: int
) -> tuple[list[str], int]:
    """A step with few microbatches: the start and the end of the pipeline as they are, less of its middle."""
    shown = min(c.microbatches(batch), max(SHOWN, c.pp))
    shown -= shown % c.pp if c.chunks > 1 else 0
    s = simulate(model, machine, replace(c), c.dp * c.micro * shown, timeline=True)
    scale = (WIDTH - 24) / s.step
    note = (
        f"{shown} of {c.microbatches(batch)} microbatches, {s.step:.3g} s; rows are devices of the "
        "pipeline"
    )
    made = [_text(8, top + 12, note), *_legend(s.timeline, top + 12)]
    for x in s.timeline:
        what = f"{x.what} {x.micro}" if x.micro >= 0 else x.what
        label = f"{what}, part {x.part}: {x.start:.4g} to {x.end:.4g} s"
        w = max((x.end - x.start) * scale, 0.3)
        made.append(
            _box(8 + x.start * scale, top + 20 + x.device * ROW, w, ROW - 3, COLOURS[x.what], label)
        )
    return made, 20 + c.pp * ROW


def _legend(spans: tuple[DeviceSpan, ...], y: float) -> Iterator[str]:
    x = 480.0
    for name in dict.fromkeys(s.what for s in spans):
        yield _box(x, y - 9, 10, 10, COLOURS[name], name)
        yield _text(x + 14, y, name)
        x += 80
