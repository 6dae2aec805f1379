"""plan: where the instances of a reversed kernel put the gradient of a tensor.

An element of a tensor may be loaded by many instances.  A grid axis whose instances load parts that do not
overlap shares the gradient; each instance along any other axis has a gradient of its own, and these are added
up after the kernel in the order of the grid.  So no two instances write one element, and sums have one order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from tessera.core.dims import Size, SizeFunction, product, substitute, symbol, symbols, unflattened
from tessera.ir.tile.cpu.legalize.ranges import Range, range_of
from tessera.ir.tile.ir import Block, Kernel, Memory, Operation


@dataclass(frozen=True)
class LoopAccess:
    """A load or a store, and the loops around it, outermost first."""

    op: Operation
    loops: tuple[Mapping[str, Any], ...]

    @property
    def at(self) -> tuple[Size, ...]:
        """The first element of the box."""
        found: tuple[Size, ...] = self.op.attributes["at"]
        return found

    @property
    def extent(self) -> tuple[int, ...]:
        """The sizes of the box."""
        found: tuple[int, ...] = self.op.attributes["extent"]
        return found

    @property
    def picked(self) -> frozenset[int]:
        """The axes along which data say where elements are."""
        return frozenset(self.op.attributes.get("picked", ()))

    @property
    def is_box(self) -> bool:
        """Whether the elements lie side by side: data move them all by one number."""
        indices = self.op.operands[-len(self.picked) :] if self.picked else ()
        return all(n == 1 for t in indices for n in t.shape)


@dataclass(frozen=True)
class GradientPlace:
    """The gradient of a memory: axes of its own in front, and how instances write to it."""

    own: tuple[tuple[str, Size], ...]  # grid axes whose instances have a gradient each
    adds: bool  # whether an instance meets an element more than once
    partial: bool  # whether some elements are met by no instance, and must be 0 before
    serial: bool = False  # whether instances add to one gradient, one after the other


def ends_by_data(loop: Mapping[str, Any]) -> bool:
    """Whether data end a loop, by its attributes."""
    return bool(loop.get("bounded") or loop.get("going"))


def loads_of(kernel: Kernel, memory: Memory) -> list[LoopAccess]:
    """The operations that read a memory."""
    return [x for x in accesses(kernel, memory) if x.op.traits.reads]


def stores_of(kernel: Kernel, memory: Memory) -> list[LoopAccess]:
    """The operations that write to a memory."""
    return [x for x in accesses(kernel, memory) if x.op.traits.writes]


def accesses(kernel: Kernel, memory: Memory) -> list[LoopAccess]:
    """The operations that read a memory or write to it."""
    found: list[LoopAccess] = []

    def walk(block: Block, loops: tuple[Mapping[str, Any], ...]) -> None:
        for op in block.operations:
            if op.block is not None:
                walk(op.block, (*loops, op.attributes))
            elif op.memory is memory and (op.traits.reads or op.traits.writes):
                found.append(LoopAccess(op, loops))

    walk(kernel.body, ())
    return found


def place_of(kernel: Kernel, memory: Memory) -> GradientPlace:
    """Where the gradient of a memory goes that is loaded and not stored to.

    Where data say what is loaded, a gradient for every instance would be as large as the tensor for a few
    elements of it: the instances run one after the other instead.
    """
    loads, grid = loads_of(kernel, memory), dict(kernel.grid)
    own = tuple((g, n) for g, n in kernel.grid if n != 1 and not _is_parted(loads, g, memory))
    if any(x.picked for x in loads):
        return GradientPlace((), bool(own) or not meets_once(loads), True, bool(own))
    adds, names = not meets_once(loads), {g for g, _ in own}
    bounds = [n for x in loads for a in x.loops for n in (a["start"], a["stop"])]
    moved = any(symbols(n) & names for n in (*bounds, *(n for x in loads for n in x.at)))
    return GradientPlace(own, adds, adds or moved or not _covers(loads, memory, grid))


# Instances that do not overlap ------------------------------------------------------------------


def _is_parted(loads: Sequence[LoopAccess], g: str, memory: Memory) -> bool:
    """Whether instances with different g load no element in common."""
    if not loads:
        return True
    if _batch_axes(loads, g, memory):
        return True
    return any(_parts(loads, g, axis) for axis in range(memory.type.rank))


def _batch_axes(loads: Sequence[LoopAccess], g: str, memory: Memory) -> int:
    """How many leading axes g runs over as one, if it does in every load."""
    shape = memory.type.shape
    for count in range(len(shape), 0, -1):
        place = tuple(unflattened(symbol(g), shape[:count]))
        own = all(x.at[:count] == place and set(x.extent[:count]) == {1} for x in loads)
        if own and all(i >= count for x in loads for i in x.picked):
            return count
    return 0


def _parts(loads: Sequence[LoopAccess], g: str, axis: int) -> bool:
    """Whether along an axis an instance stays between c g and c (g + 1)."""
    steps: set[int] = set()
    low, high = math.inf, -math.inf
    for x in loads:
        at, counters = _unrolled(x, axis)
        step = _factor(at, g)
        if step is None or axis in x.picked:
            return False
        steps.add(step)
        first, last = range_of(at - step * symbol(g), counters)
        low, high = min(low, first), max(high, last + x.extent[axis])
    return len(steps) == 1 and high - low <= min(steps)


def _unrolled(x: LoopAccess, axis: int) -> tuple[Size, dict[str, Range]]:
    """A position with every loop's counter as its start and the distance from it."""
    at, counters = x.at[axis], {}
    for a in reversed(x.loops):
        name = a["variable"]
        at = substitute(at, {name: a["start"] + symbol(name)})
        counters[name] = (0.0, _length(a["start"], a["stop"]) - 1)
    return at, counters


def _length(start: Size, stop: Size) -> float:
    """At most how far a loop runs."""
    if not isinstance(stop, int) and len(stop.terms) == 1:
        ((monomial, factor),) = stop.terms
        atom = monomial[0][0] if monomial else None
        if (
            factor == 1
            and len(monomial) == 1
            and isinstance(atom, SizeFunction)
            and atom.function == "min"
        ):
            return min(_length(start, atom.left), _length(start, atom.right))
    return range_of(stop - start, {})[1]


def _factor(x: Size, name: str) -> int | None:
    """The number that a counter is multiplied by, if that is all there is of it."""
    step = substitute(x, {name: 1}) - substitute(x, {name: 0})
    linear = isinstance(step, int) and step > 0 and name not in symbols(x - step * symbol(name))
    return step if linear and isinstance(step, int) else None


# Elements that an instance meets once ---------------------------------------------------------------


def meets_once(found: Sequence[LoopAccess]) -> bool:
    """Whether one instance meets every element at most once in these operations."""
    if any(not _advances(x) or not (x.is_box or _says_distinct(x)) for x in found):
        return False
    return all(_disjoint(x, y) for x, y in combinations(found, 2))


def _says_distinct(x: LoopAccess) -> bool:
    return bool(x.op.attributes.get("distinct"))


def _advances(x: LoopAccess) -> bool:
    """Whether every loop around moves the box on by its extent, each along an axis of its own."""
    taken: set[int] = set()
    for a in x.loops:
        free = (
            i
            for i, at in enumerate(x.at)
            if i not in taken
            and i not in x.picked
            and (_factor(at, a["variable"]) or 0) * a["step"] >= x.extent[i]
            and all(b is a or b["variable"] not in symbols(at) for b in x.loops)
        )
        axis = next(free, None)
        if axis is None:
            return False
        taken.add(axis)
    return True


def _disjoint(x: LoopAccess, y: LoopAccess) -> bool:
    """Whether two boxes are a fixed distance apart that leaves no element in common."""
    boxes = enumerate(zip(x.at, y.at, x.extent, y.extent, strict=True))
    for i, (a, b, n, m) in boxes:
        if i in x.picked | y.picked:
            continue
        apart = b - a
        moving = {c["variable"] for c in (*x.loops, *y.loops)}
        if isinstance(apart, int) and moving.isdisjoint(symbols(a)) and (apart >= n or -apart >= m):
            return True
    return False


# Elements that no instance meets ------------------------------------------------------------------


def _covers(loads: Sequence[LoopAccess], memory: Memory, grid: Mapping[str, Size]) -> bool:
    """Whether the instances load all elements: one load does, or several side by side along an axis."""
    if len(loads) == 1:
        return _covering(loads[0], memory, grid, None)
    for axis, size in enumerate(memory.type.shape):
        rows = sorted(loads, key=lambda x: str(x.at[axis]).zfill(12))
        end: Size = 0
        for x in rows:
            end = end + x.extent[axis] if x.at[axis] == end else -1
        if end == size and all(_covering(x, memory, grid, axis) for x in loads):
            return True
    return False


def _covering(x: LoopAccess, memory: Memory, grid: Mapping[str, Size], but: int | None) -> bool:
    """Whether a load meets all elements along every axis, but one."""
    shape, loops = memory.type.shape, {a["variable"]: a for a in x.loops}
    for g, count in grid.items():
        lead = _batch_axes([x], g, memory)
        if lead > 1 and count == product(shape[:lead]):
            return all(
                _along(x, i, shape, grid, loops) for i in range(lead, len(shape)) if i != but
            )
    used = [n for i, at in enumerate(x.at) if i != but for n in symbols(at) if n.startswith("_")]
    if len(used) != len(set(used)):
        return False
    return all(_along(x, i, shape, grid, loops) for i in range(len(shape)) if i != but)


def _along(
    x: LoopAccess,
    axis: int,
    shape: Sequence[Size],
    grid: Mapping[str, Size],
    loops: Mapping[str, Any],
) -> bool:
    at, extent, size = x.at[axis], x.extent[axis], shape[axis]
    if at == 0:
        return isinstance(size, int) and extent >= size
    for g, count in grid.items():
        step = _factor(at, g)
        if step is not None and at == step * symbol(g) and step <= extent:
            return count == (size + step - 1) // step
    for name, a in loops.items():
        if at == symbol(name) and a["step"] <= extent and not ends_by_data(a):
            return bool(a["start"] == 0 and a["stop"] == size)
    return False
