"""Pictures of values: what a notebook shows of them, and `.plot()`.

What draws them is above everything that is drawn, so it is installed from there and loaded when first used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tessera.core.provided import Provided


class Pictures(Protocol):
    """What can draw."""

    def html(self, x: Any) -> str:
        """The value as HTML that needs nothing else."""

    def plot(self, x: Any, ax: Any) -> Any:
        """Draw the value with matplotlib; the axes that it was drawn on."""


PICTURES: Provided[Callable[[], Pictures]] = Provided("pictures", "what draws a value")


class Pictured:
    """A value that notebooks show as a picture."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """The value as HTML, for a notebook."""
        return PICTURES.get()().html(self)


class Plotted(Pictured):
    """A value that can be drawn with matplotlib, too."""

    __slots__ = ()

    def plot(self, ax: Any = None) -> Any:
        """Draw it with matplotlib, on new axes unless given; returns the axes."""
        return PICTURES.get()().plot(self, ax)
