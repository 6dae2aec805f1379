"""Values as HTML for notebooks: a type and numbers in a table, graphs and memory as SVG, matrices as small
images.

Text takes the colour of the notebook, so that all of it is readable on light and dark pages.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import singledispatch
from html import escape
from typing import Any

import numpy as np

from tessera.algebra.laws.derivation import Derivation
from tessera.algebra.laws.law import Law
from tessera.algebra.laws.show import Letters, shown
from tessera.algebra.operator import Operator
from tessera.core.dtype import f64
from tessera.core.png import png
from tessera.inspect.page_data import kind_of, nests_of, step_kind
from tessera.inspect.page_layout import layered
from tessera.inspect.page_links import read_by, written_by
from tessera.inspect.page_text import input_names
from tessera.inspect.plots import plot
from tessera.ir.graph.ir import Graph, Value
from tessera.ir.schedule.ir import HostCall, Program
from tessera.ir.schedule.memory import MemoryPlan, readable
from tessera.lang.schedule import Schedule
from tessera.lang.tensor import Tensor

# Colours by Okabe and Ito, as in the inspector.
COLOURS = {
    "contraction": "#0072b2", "fold": "#d55e00", "elementwise": "#009e73", "move": "#8a8f98",
    "input": "#e69f00",
    "constant": "#8a8f98", "whole": "#cc79a7", "control": "#a06a00", "arena": "#0072b2", "result": "#009e73",
    "host": "#d55e00",
}  # fmt: skip
_ROWS, _EDGE = (
    12,
    5,
)  # rows and columns of a table of numbers, and how many at each end of longer ones
_NODES, _LAYER = 300, 46  # of a graph that is drawn; the height of a layer
_DENSE = 512  # rows of an operator whose entries are drawn
_PIXELS = 160  # of a side of an image
_CELL = 'style="text-align:right;padding:1px 6px;font-family:monospace"'


@singledispatch
def html(x: Any) -> str:
    """The value as HTML that needs nothing else."""
    return f"<pre>{escape(str(x))}</pre>"


# Tensors


@html.register
def _(x: Tensor) -> str:
    if x.storage is None:
        return f"<pre>{escape(repr(x))}</pre>"
    head = f"<code>{escape(str(x.type))}</code> on {escape(str(x.device))}"
    if x.size == 0:
        return f"<div>{head}, empty</div>"
    a = np.asarray(x)
    wide = _wide(a)
    if wide is not None and a.ndim:
        good = wide[np.isfinite(wide)]
        head += f"; {_range(good)}" + _odd(wide)
    return f"<div>{head}</div>{_numbers(a, wide)}"


def _wide(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Real numbers as f64; None where there are none, as of complex ones."""
    try:
        return None if np.iscomplexobj(a) else a.astype(f64.np)
    except (TypeError, ValueError):
        return None


def _range(good: np.ndarray[Any, Any]) -> str:
    if not good.size:
        return "no finite number"
    return f"min {good.min():.4g}, mean {good.mean():.4g}, max {good.max():.4g}"


def _odd(wide: np.ndarray[Any, Any]) -> str:
    counts = {"NaN": int(np.isnan(wide).sum()), "infinite": int(np.isinf(wide).sum())}
    return "".join(f", <b>{n} {name}</b>" for name, n in counts.items() if n)


def _numbers(a: np.ndarray[Any, Any], wide: np.ndarray[Any, Any] | None) -> str:
    """A table up to rank 2, an image of a large matrix, text of the rest."""
    if a.ndim == 2 and wide is not None and min(a.shape) > _ROWS:
        return image(wide)
    if a.ndim > 2:
        return f"<pre>{escape(np.array2string(a, threshold=60, edgeitems=2))}</pre>"
    rows = a.reshape(1, -1) if a.ndim < 2 else a
    body = []
    for i in _kept(len(rows)):
        cells = ["⋮" if i is None or j is None else _cell(rows[i, j]) for j in _kept(rows.shape[1])]
        body.append("".join(f"<td {_CELL}>{c}</td>" for c in cells))
    return f"<table>{''.join(f'<tr>{r}</tr>' for r in body)}</table>"


def _cell(x: Any) -> str:
    return str(bool(x)) if isinstance(x, np.bool_) else f"{x:.5g}"


def _kept(n: int) -> list[int | None]:
    """Indices of a table; None stands for those that are left out."""
    if n <= _ROWS:
        return list(range(n))
    return [*range(_EDGE), None, *range(n - _EDGE, n)]


def image(a: np.ndarray[Any, Any]) -> str:
    """A matrix as an image: orange above zero, blue below, white at it; the largest of
    each patch is shown.
    """
    a = np.where(np.isfinite(a), a, 0.0)
    small = _patches(a)
    top = np.abs(small).max() or 1.0
    t = np.sqrt(np.abs(small) / top)[..., None]  # so that small ones are seen
    colour = np.where(
        small[..., None] > 0, np.array([213.0, 94.0, 0.0]), np.array([0.0, 114.0, 178.0])
    )
    pixels = (255 + t * (colour - 255)).astype(np.uint8)
    scale = max(1, 2 * _PIXELS // max(small.shape))
    size = f'width="{small.shape[1] * scale}" height="{small.shape[0] * scale}"'
    return (
        f'<img {size} style="image-rendering:pixelated;border:1px solid #8886" alt="matrix {a.shape[0]} x '
        f'{a.shape[1]}" '
        f'src="data:image/png;base64,{base64.b64encode(png(pixels)).decode()}">'
    )  # fmt: skip


def _patches(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The matrix in at most so many pixels, each with the element of its patch that is farthest from zero."""
    for axis in (0, 1):
        n = a.shape[axis]
        if n > _PIXELS:
            cuts = np.arange(_PIXELS) * n // _PIXELS
            high = np.maximum.reduceat(a, cuts, axis)
            low = np.minimum.reduceat(a, cuts, axis)
            a = np.where(high >= -low, high, low)
    return a


# Operators


@html.register
def _(a: Operator) -> str:
    flags = ", ".join(sorted(a.flags)) or "no flags"
    known = all(isinstance(n, int) and n <= _DENSE for n in a.shape) and _is_known(a)
    picture = image(_wide_of(a)) if known else ""
    return (
        f'<div style="display:flex;gap:16px;align-items:flex-start"><div><code>{escape(a.type)}</code> '
        f"{escape(flags)}"
        f"<ul>{_tree(a)}</ul></div>{picture}</div>"
    )


def _is_known(a: Operator) -> bool:
    held = all(getattr(d, "storage", d) is not None for d in a.data)
    return held and all(map(_is_known, a.parts))


def _wide_of(a: Operator) -> np.ndarray[Any, Any]:
    """The matrix of an operator; of a complex one the sizes of its entries."""
    dense = np.asarray(a.todense())
    return (np.abs(dense) if np.iscomplexobj(dense) else dense).astype(f64.np)


def _tree(a: Operator) -> str:
    inner = f"<ul>{''.join(map(_tree, a.parts))}</ul>" if a.parts else ""
    return f"<li><b>{escape(a.kind)}</b> <code>{escape(a.type)}</code>{inner}</li>"


@html.register
def _(d: Derivation) -> str:
    letters = Letters()
    forms = [(d.start, "as written", "")]
    forms += [(s.whole, s.name, s.law.equation if isinstance(s.law, Law) else "") for s in d.steps]
    rows = []
    for term, law, equation in forms:
        c = d.cost(term)
        rows.append(
            (
                shown(term, letters),
                law,
                equation,
                f"{c.flops:.4g}",
                f"{c.bytes:.4g}",
                f"{c.launches:g}",
            )
        )
    table = _table(("form", "law", "equation", "flops", "bytes", "launches"), rows)
    return f"{table}<div>{escape('; '.join(letters.lines()))}</div>"


# Programs


@html.register
def _(g: Graph) -> str:
    head = f"<div>graph <b>{escape(g.name)}</b>: {len(g.inputs)} inputs, {len(g.nodes)} nodes</div>"
    if len(g.nodes) > _NODES:
        return f"{head}<div>too many to draw here; f.inspect(...) shows them</div>"
    return head + _drawn(g)


@dataclass(frozen=True)
class _NodeBox:
    """A node of a graph in its picture."""

    label: str
    kind: str
    type: str
    operands: tuple[int, ...]
    width: float


def _boxes(g: Graph) -> list[_NodeBox]:
    index: dict[Value, int] = {v: i for i, v in enumerate(g.inputs)}
    out = [
        _NodeBox(x, kind_of(None), str(v.type), (), _width(x))
        for x, v in zip(input_names(g), g.inputs, strict=True)
    ]
    for n in g.nodes:
        types = ", ".join(str(v.type) for v in n.results)
        given = tuple(index[v] for v in n.operands)
        index.update(dict.fromkeys(n.results, len(out)))
        out.append(_NodeBox(n.op.name, kind_of(n), types, given, _width(n.op.name)))
    return out


def _width(label: str) -> float:
    return 7.2 * len(label) + 18


def _drawn(g: Graph) -> str:
    """The nodes in layers, with their edges."""
    boxes = _boxes(g)
    free = [b.kind in ("input", "constant", "move") for b in boxes]
    spots = layered([b.operands for b in boxes], [b.width for b in boxes], free)
    left = min((x - b.width / 2 for (x, _), b in zip(spots, boxes, strict=True)), default=0) - 4
    right = max((x + b.width / 2 for (x, _), b in zip(spots, boxes, strict=True)), default=0) + 4
    tall = _LAYER * (max((y for _, y in spots), default=0) + 1)
    edges = [_edge(spots[m], spots[i]) for i, b in enumerate(boxes) for m in b.operands]
    nodes = [_node(b, *spot) for b, spot in zip(boxes, spots, strict=True)]
    return _svg(right - left, tall, f"{left:.0f} 0 {right - left:.0f} {tall}", [*edges, *nodes])


def _edge(above: tuple[float, int], below: tuple[float, int]) -> str:
    (x1, y1), (x2, y2) = above, below
    a, b = _LAYER * y1 + 34, _LAYER * y2 + 8
    curve = f"M{x1:.0f} {a}C{x1:.0f} {a + 12} {x2:.0f} {b - 12} {x2:.0f} {b}"
    return f'<path d="{curve}" fill="none" stroke="currentColor" stroke-opacity=".4"/>'


def _node(b: _NodeBox, x: float, y: int) -> str:
    c, top, rounded = COLOURS[b.kind], _LAYER * y + 8, 13 if b.kind == "input" else 4
    return (
        f'<g><rect x="{x - b.width / 2:.0f}" y="{top}" width="{b.width:.0f}" height="26" rx="{rounded}" '
        f'fill="{c}" fill-opacity=".15" stroke="{c}"/><text x="{x:.0f}" y="{top + 17}" text-anchor="middle" '
        f'font-size="12" font-family="sans-serif" fill="currentColor">{escape(b.label)}</text>'
        f"<title>{escape(b.type)}</title></g>"
    )


def _svg(width: float, height: float, box: str, parts: Iterable[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="{box}" style="max-width:100%;height:auto">{"".join(parts)}</svg>'
    )


@html.register
def _(p: Program) -> str:
    rows = []
    for s in p.steps:
        name = s.node.op.name if isinstance(s, HostCall) else s.name
        loops = "; ".join(x["nest"] for x in nests_of(s))
        rows.append((name, step_kind(s), ", ".join(read_by(s)), ", ".join(written_by(s)), loops))
    head = (
        f"<div>program <b>{escape(p.name)}</b>: {len(p.buffers)} buffers, {len(p.steps)} steps, returns "
        f"{escape(', '.join(p.outputs))}</div>"
    )
    return head + _table(("step", "kind", "reads", "writes", "loops, outermost first"), rows)


@html.register
def _(s: Schedule) -> str:
    rows = [
        (f.name, str(getattr(s, f.name))) for f in fields(s) if getattr(s, f.name) not in (None, ())
    ]
    return f"<code>{escape(str(s))}</code>{_table(('parameter', 'value'), rows)}"


@html.register
def _(m: MemoryPlan) -> str:
    head = (
        f"<div>peak {readable(m.peak)} = arena {readable(m.arena)} + results {readable(m.results)} + "
        f"host and scratch {readable(m.beside)}</div>"
    )
    return head + _timeline(m)


def _timeline(m: MemoryPlan) -> str:
    """Steps to the right, addresses downwards; results below the arena."""
    steps = max(len(m.steps), 1)
    wide, tall, out, below = 640.0, 240.0, list[str](), m.arena
    own = [s for s in m.storages if s.kind != "input"]
    whole = max(m.arena + sum(s.size for s in own if s.space != "arena"), 1)
    for s in own:
        at = s.offset if s.space == "arena" else below
        below += 0 if s.space == "arena" else s.size
        for name, (first, last) in s.lives.items():
            x, w = (
                wide * max(first, 0) / steps,
                wide * (min(last, steps - 1) - max(first, 0) + 1) / steps,
            )
            y, h = tall * at / whole, max(2.0, tall * s.size / whole)
            c = COLOURS.get(s.kind, COLOURS["move"])
            size = readable(s.size)
            label = f"{name}: {m.types[name]}, {size}, {s.kind}, steps {first} to {last}"
            out.append(
                f'<g><rect x="{x:.1f}" y="{y:.1f}" width="{max(w, 1):.1f}" height="{h:.1f}" '
                f'fill="{c}" fill-opacity=".18" stroke="{c}"/><title>{escape(label)}</title></g>'
            )
    return _svg(wide + 4, tall + 4, f"-2 -2 {wide + 4} {tall + 4}", out)


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th style="text-align:left">{escape(n)}</th>' for n in names)
    body = "".join(f"<tr>{''.join(map(_left, r))}</tr>" for r in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _left(text: str) -> str:
    return f'<td style="text-align:left">{escape(text)}</td>'


__all__ = ["html", "image", "plot"]
