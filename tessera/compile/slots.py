"""Bound programs: where the memory of a program is at known sizes, and what of it runs in one call.

    slots: inputs and tables, results, what the host makes; then the arena

A buffer is a slot and an offset; a view is an offset and strides in another buffer.  Launches that follow
each other are one segment, and every other step is one of its own.  Programs of the CPU
(cpu/bound_program.py) and of GPUs (gpu/planned.py) are bound by what is here, and add how their launches
are packed and how memory is had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from tessera.core.types import TensorType
from tessera.ir.graph.ir import substitute_params
from tessera.ir.schedule.ir import HostCall
from tessera.ir.schedule.layout import layout_of, row_major
from tessera.ir.schedule.memory import (
    MemoryPlan,
    StepAccess,
    Storage,
    View,
    numbered,
    plan_memory,
    size_of,
)

Layout = tuple[int, tuple[int, ...]]  # offset and strides, in bytes
Extent = tuple[int, int, int]  # slot, first byte, byte after the last
T = TypeVar("T")


class Views:
    """The types of buffers at the sizes of a call, and those that are views of others."""

    types: dict[str, TensorType]
    views: dict[str, View]
    sizes: Mapping[str, int]

    def root(self, name: str) -> str:
        """The buffer that a view shows."""
        return self.views[name].base if name in self.views else name

    def layout(self, name: str) -> Layout:
        """The offset and the strides of a buffer in the one that it shows."""
        v = self.views.get(name)
        return (0, row_major(self.types[name])) if v is None else (v.offset, v.strides)

    def alias(self, y: str, x: str, layout: Layout) -> None:
        """Let y be a view of what x is."""
        self.views[y] = View(self.root(x), *layout)

    def shown(self, s: HostCall) -> list[tuple[str, str, Layout]] | None:
        """What each result of a step is where the step only shows its operands: (result, operand, layout);
        None for other steps, and for views that are no offset and strides.
        """
        if s.node.op.call == "barrier":
            pairs = zip(s.results, s.operands, strict=True)
            return [(y, x, self.layout(x)) for y, x in pairs]
        if s.node.op.view is None:
            return None
        (x,), (y,) = s.operands, s.results
        params = substitute_params(s.node.params, self.sizes)
        layout = layout_of(s.node.op, self.types[x], self.types[y], params, self.layout(x))
        return None if layout is None else [(y, x, layout)]


class Slots(Views):
    """The slot and the offset of every buffer, as the memory plan has it."""

    plan: MemoryPlan
    places: Mapping[str, tuple[int, int]]  # of buffers that are no views
    given: int  # slots of inputs, which come first
    results: list[Storage]  # the slots that come next
    arena_slot: int  # behind all others

    def number(
        self, name: str, steps: Sequence[StepAccess], inputs: Sequence[str],
        outputs: Sequence[str], donated: frozenset[str],
    ) -> None:  # fmt: skip
        """Plan the memory of these steps, and number its slots."""
        self.plan = plan_memory(name, self.types, steps, inputs, outputs, self.views, donated)
        self.results = [s for s in self.plan.storages if s.kind == "result"]
        names, self.places = numbered(self.plan, inputs)
        self.given, self.arena_slot = len(inputs), len(names)

    @property
    def host_slots(self) -> int:
        """How many slots there are for what the host makes, between results and the arena."""
        return self.arena_slot - self.given - len(self.results)

    def place(self, name: str) -> tuple[int, int]:
        """Slot and offset of a buffer, through views too."""
        v = self.views.get(name)
        if v is None:
            return self.places[name]
        slot, offset = self.places[v.base]
        return slot, offset + v.offset

    def slot(self, name: str) -> int:
        """The slot of a buffer that is no view."""
        return self.places[name][0]

    def where(self, name: str) -> tuple[int, int, tuple[int, ...]]:
        """The slot of a buffer, and its offset and strides in bytes there."""
        return *self.place(name), self.layout(name)[1]

    def extent(self, name: str) -> Extent:
        """The bytes of the whole that a buffer is part of."""
        root = self.root(name)
        slot, begin = self.places[root]
        return slot, begin, begin + size_of(self.types[root])

    def storage_of(self, name: str) -> Storage:
        """The piece of memory that a buffer lies in."""
        return self.plan.place[self.root(name)]

    def is_done(self, access: StepAccess) -> bool:
        """Whether a step copies what already lies where it should."""
        return access.copies and self.place(access.reads[0]) == self.place(access.writes[0])

    def is_overwritten(self, name: str) -> bool:
        """Whether something else takes the memory of an input later."""
        return len(self.plan.place[name].lives) > 1


def segments(
    steps: Sequence[tuple[StepAccess, T]], is_launch: Callable[[T], bool]
) -> Iterator[tuple[int, list[tuple[StepAccess, T]]]]:
    """Launches that follow each other, and other steps one by one, each with the number of its last step."""
    launches: list[tuple[StepAccess, T]] = []
    for i, (access, what) in enumerate(steps):
        if is_launch(what):
            launches.append((access, what))
            continue
        if launches:
            yield i - 1, launches
            launches = []
        yield i, [(access, what)]
    if launches:
        yield len(steps) - 1, launches
