"""Flame graphs: a page of its own that shows where the time goes, from the user's calls down to kernels.

A box is as wide as its time; boxes below are what it called.  A click zooms, Escape goes back, the search
field marks names.  The page needs no network, follows the theme of the system and uses colours that
colour-blind people tell apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from string import Template

from tessera.inspect.profile_rows import TimeSpan, self_times

_HEIGHT = 22  # pixels of a box
_THIN = 2e-4  # of the whole: what is thinner is not drawn
# Okabe and Ito's colours.
_COLOURS = {
    "kernel": "#0072b2", "launch": "#0072b2", "host": "#e69f00", "copy": "#e69f00",
    "program": "#56b4e9", "loop": "#56b4e9", "call": "#56b4e9", "op": "#56b4e9", "references": "#e69f00",
    "trace": "#cc79a7",
    "compile": "#cc79a7", "tune": "#cc79a7", "profiler": "#999999", "python": "#f0e442",
}  # fmt: skip


class _FlameBox:
    """A name under its caller, with its own time."""

    def __init__(self, name: str, kind: str):
        self.name, self.kind, self.own = name, kind, 0
        self.inside: dict[tuple[str, str], _FlameBox] = {}

    def at(self, name: str, kind: str) -> _FlameBox:
        return self.inside.setdefault((name, kind), _FlameBox(name, kind))

    @property
    def time(self) -> int:
        return self.own + sum(b.time for b in self.inside.values())

    @property
    def depth(self) -> int:
        return 1 + max((b.depth for b in self.inside.values()), default=0)


def flame_graph(spans: Sequence[TimeSpan], wall: float) -> str:
    """The page."""
    root = _tree(spans, int(wall * 1e9))
    total = max(root.time, 1)
    boxes = "\n".join(_drawn(root, 0, 0, total))
    kinds = {"kernels": "kernel", "host": "host", "programs and ops": "program", "compiling": "compile",
             "Python": "python", "profiler": "profiler"}  # fmt: skip
    legend = "".join(
        f'<span><i style="background:{_COLOURS[kind]}"></i>{name}</span>'
        for name, kind in kinds.items()
    )
    return Template(_PAGE).substitute(
        boxes=boxes,
        height=root.depth * _HEIGHT,
        row=_HEIGHT,
        legend=legend,
        total=f"{total / 1e6:.3f}",
    )


def _tree(spans: Sequence[TimeSpan], wall: int) -> _FlameBox:
    root = _FlameBox("all", "python")
    open_: list[tuple[TimeSpan, _FlameBox]] = []
    for s, own in zip(spans, self_times(spans), strict=True):
        while open_ and (open_[-1][0].thread != s.thread or open_[-1][0].end <= s.begin):
            open_.pop()
        if open_:
            box = open_[-1][1]
        else:
            box = root
            for frame in s.stack[:-1] if s.kind in ("kernel", "host", "copy") else s.stack:
                box = box.at(frame, "python")
        box = box.at(s.name, s.kind)
        box.own += max(own, 0)
        open_.append((s, box))
    root.own = max(wall - root.time, 0)
    return root


def _drawn(box: _FlameBox, begin: int, depth: int, total: int) -> Iterator[str]:
    time = box.time
    if time < _THIN * total:
        return
    percent, dark = 100 / total, box.kind in ("kernel", "launch")
    ink = ' style="fill:#fff"' if dark else ""
    text = f"{box.name}: {time / 1e6:.3f} ms, {time / total:.1%}"
    yield (
        f'<g data-x="{begin * percent:.4f}" data-w="{time * percent:.4f}" data-n="{escape(box.name)}">'
        f"<title>{escape(text)}</title>"
        f'<rect x="{begin * percent:.4f}%" y="{depth * _HEIGHT}" width="{time * percent:.4f}%" '
        f'height="{_HEIGHT - 1}" fill="{_COLOURS.get(box.kind, "#999999")}"/>'
        f'<svg x="{begin * percent:.4f}%" y="{depth * _HEIGHT}" width="{time * percent:.4f}%" '
        f'height="{_HEIGHT}"><text x="4" y="15"{ink}>{escape(_brief(box.name))}</text></svg></g>'
    )
    for inner in sorted(box.inside.values(), key=lambda b: -b.time):
        yield from _drawn(inner, begin, depth + 1, total)
        begin += inner.time


def _brief(name: str) -> str:
    """A frame without the folders of its file."""
    head, bracket, rest = name.partition(" (")
    return f"{head} ({rest.rpartition('/')[2]}" if bracket else name


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Flame graph</title><style>
:root { color-scheme: light dark; --ink: #111; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #eee; --paper: #181818; } }
body { font: 14px system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 1em; }
svg text { font: 12px ui-monospace, monospace; fill: #000; pointer-events: none; }
g { cursor: pointer; } g.dim { opacity: .25; } g:hover rect, g:focus rect { stroke: var(--ink); }
i { display: inline-block; width: 1em; height: 1em; margin: 0 .3em 0 1em; vertical-align: -2px; }
input { font: inherit; padding: .2em .4em; }
</style></head><body>
<p>$total ms <input id="find" type="search" placeholder="search" aria-label="search"> $legend</p>
<svg id="flame" width="100%" height="$height" role="img" aria-label="flame graph">
$boxes
</svg>
<script>
const all = [...document.querySelectorAll("#flame > g")];
function zoom(x, w) {
  for (const g of all) {
    const left = (g.dataset.x - x) * 100 / w, wide = g.dataset.w * 100 / w;
    const begin = Math.max(left, 0), end = Math.min(left + wide, 100);
    g.style.display = end - begin > 0.01 ? "" : "none";
    for (const part of [g.children[1], g.children[2]]) {
      part.setAttribute("x", begin + "%");
      part.setAttribute("width", Math.max(end - begin, 0) + "%");
    }
  }
}
for (const g of all) {
  g.tabIndex = 0;
  g.onclick = () => zoom(+g.dataset.x, +g.dataset.w);
  g.onkeydown = e => { if (e.key === "Enter") g.onclick(); };
}
document.onkeydown = e => { if (e.key === "Escape") zoom(0, 100); };
document.getElementById("find").oninput = e => {
  const word = e.target.value.toLowerCase();
  for (const g of all) g.classList.toggle("dim", !g.dataset.n.toLowerCase().includes(word));
};
</script></body></html>
"""  # noqa: E501
