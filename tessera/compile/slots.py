"""The places of the buffers of a bound program: numbered slots and offsets; views are offsets and strides of
others.

Programs of the CPU (cpu/bound_program.py) and of GPUs (gpu/planned.py) are bound to sizes by the same rules.
"""

from __future__ import annotations

from collections.abc import Mapping

from tessera.core.types import TensorType
from tessera.ir.schedule.layout import row_major
from tessera.ir.schedule.memory import View

Layout = tuple[int, tuple[int, ...]]  # offset and strides, in bytes


class Views:
    """The types of buffers, and those that are views of others."""

    types: dict[str, TensorType]
    views: dict[str, View]

    def _root(self, name: str) -> str:
        """The buffer that a view shows."""
        return self.views[name].base if name in self.views else name

    def _layout(self, name: str) -> Layout:
        v = self.views.get(name)
        return (0, row_major(self.types[name])) if v is None else (v.offset, v.strides)

    def _alias(self, y: str, x: str, layout: Layout) -> None:
        """Let y be a view of what x is."""
        self.views[y] = View(self._root(x), *layout)


class Slots(Views):
    """The slot and the offset of every buffer that has memory of its own."""

    _places: Mapping[str, tuple[int, int]]

    def _place(self, name: str) -> tuple[int, int]:
        """Slot and offset of a buffer, through views too."""
        v = self.views.get(name)
        if v is None:
            return self._places[name]
        slot, offset = self._places[v.base]
        return slot, offset + v.offset
