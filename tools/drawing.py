"""The parts of an SVG file of the documentation: boxes, words and lines, in light and dark."""

from __future__ import annotations

from html import escape

# Colours by Okabe and Ito, as in the inspector.
BLUE, ORANGE, GREEN, GREY, PINK, YELLOW = (
    "#0072b2", "#d55e00", "#009e73", "#8a8f98", "#cc79a7", "#e69f00",
)  # fmt: skip
STYLE = """<style>
text{font:12px ui-sans-serif,system-ui,sans-serif;fill:#24292f}
.code{font:11px ui-monospace,Menlo,Consolas,monospace;white-space:pre}
.head{font-weight:600;font-size:14px}.note{fill:#57606a}
.panel{fill:#8a8f98;fill-opacity:.08}.line{stroke:#57606a;fill:none}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.note{fill:#9da7b3}.line{stroke:#9da7b3}}
</style>"""


class Drawing:
    """The parts of an SVG file."""

    def __init__(self, width: int, height: int, title: str):
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def box(self, x: float, y: float, w: float, h: float, colour: str = "", rx: int = 4) -> None:
        """A rectangle: a panel, or one with a colour."""
        paint = (
            f'fill="{colour}" fill-opacity=".18" stroke="{colour}"' if colour else 'class="panel"'
        )
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="{rx}" {paint}/>'
        )

    def text(self, x: float, y: float, words: str, kind: str = "", middle: bool = False) -> None:
        """A line of text; kind: code, head or note."""
        anchor = ' text-anchor="middle"' if middle else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}"{anchor} '
            f'xml:space="preserve">{escape(words)}</text>'
        )

    def line(self, *points: tuple[float, float], arrow: bool = False) -> None:
        """A line through points."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline class="line" points="{path}"/>')
        if arrow:
            x, y = points[-1]
            self.parts.append(f'<path d="M{x:.1f} {y:.1f}l-6 -4v8z" fill="{GREY}" stroke="none"/>')

    def __str__(self) -> str:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
            f'viewBox="0 0 {self.width} {self.height}" role="img"><title>{escape(self.title)}</title>\n'
            + "\n".join([STYLE, *self.parts])
            + "\n</svg>\n"
        )
