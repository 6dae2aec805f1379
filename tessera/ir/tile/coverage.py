"""coverage: prove that a kernel writes every element of a memory.

    store y at (8 * _m, 0), extent (8, N), _m of (M + 7) // 8 instances    ->   all of y
    store y at (1, 0)                                                      ->   not proved

What is not proved is a question of cost alone: such a result begins as zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from tessera.core.dims import (
    Dim,
    Size,
    bounds,
    product,
    smaller,
    substitute,
    symbol,
    symbols,
    unflattened,
)
from tessera.ir.tile.ir import Block, Kernel, Memory, Operation, walk

_MOST = 4  # counters that one position may mix


@dataclass(frozen=True)
class Count:
    """How a counter runs."""

    stop: Size
    start: Size = 0
    step: int = 1


Counts = Mapping[str, Count]


def is_covered(kernel: Kernel, m: Memory) -> bool:
    """Whether every element of a memory is written, for all sizes; False where that is open."""
    grid = {name: Count(count) for name, count in kernel.grid}
    if any(n == 0 for n in m.type.shape):
        return True
    if any(op.memory is m and op.traits.reads for op in walk(kernel.body)):
        return False  # what it reads before it writes there must be zeros
    boxes = [(op, counts) for op, counts in _stores(kernel.body, grid) if op.memory is m]
    if any(
        _covers(m, op.attributes["at"], op.attributes["extent"], counts) for op, counts in boxes
    ):
        return True
    return any(_together(m, boxes, axis) for axis in range(m.type.rank))


def _stores(block: Block, counts: Counts) -> Iterator[tuple[Operation, Counts]]:
    """Stores that happen in every instance, with the counters around them."""
    for op in block.operations:
        if op.name == "store":
            yield op, counts
        elif op.block is not None and not _ends_early(op):
            a = op.attributes
            own = {a["variable"]: Count(a["stop"], a["start"], a["step"])}
            yield from _stores(op.block, {**counts, **own})


def _ends_early(op: Operation) -> bool:
    """Whether data may end a loop before its last step."""
    return bool(op.attributes.get("bounded") or op.attributes.get("going"))


def _together(m: Memory, boxes: Sequence[tuple[Operation, Counts]], axis: int) -> bool:
    """Whether stores that differ in a number along one axis cover a memory, one beside the other."""
    size = m.type.shape[axis]
    if not isinstance(size, int):
        return False
    groups: dict[tuple[Size, ...], list[tuple[Operation, Counts]]] = {}
    for op, counts in boxes:
        at = op.attributes["at"]
        if isinstance(at[axis], int):
            groups.setdefault((*at[:axis], *at[axis + 1 :]), []).append((op, counts))
    for group in groups.values():
        reached = 0
        for op, _ in sorted(group, key=lambda x: x[0].attributes["at"][axis]):
            if op.attributes["at"][axis] > reached:
                break
            reached = max(reached, op.attributes["at"][axis] + op.attributes["extent"][axis])
        first, counts = group[0]
        at, extent = (list(first.attributes[x]) for x in ("at", "extent"))
        at[axis], extent[axis] = 0, reached
        if reached >= size and _covers(m, at, extent, counts):
            return True
    return False


def _covers(m: Memory, at: Sequence[Size], extent: Sequence[int], counts: Counts) -> bool:
    """Whether a box covers a memory as its counters run, each along axes of its own."""
    free, shape = dict(counts), m.type.shape
    axis = 0
    while axis < len(shape):
        done = _several(shape[axis:], at[axis:], extent[axis:], free)
        if not done and not _along(shape[axis], at[axis], extent[axis], free):
            return False
        axis += done or 1
    return True


def _several(
    shape: Sequence[Size], at: Sequence[Size], extent: Sequence[int], free: dict[str, Count]
) -> int:
    """How many axes one counter numbers in row-major order, element by element."""
    for n in range(len(shape), 1, -1):
        sizes = tuple(shape[:n])
        for name, c in free.items():
            numbered = list(at[:n]) == unflattened(symbol(name), sizes)
            if c == Count(product(sizes)) and numbered and set(extent[:n]) == {1}:
                del free[name]
                return n
    return 0


def _along(size: Size, at: Size, extent: int, free: dict[str, Count]) -> bool:
    """Whether a box covers one axis; takes the counters that it needs."""
    if at == 0 and isinstance(size, int) and extent >= size:
        return True
    names = sorted(symbols(at) & free.keys())
    if not names or len(names) > _MOST:
        return False
    used = _alone(size, at, extent, names[0], free) if len(names) == 1 else None
    for order in permutations(names) if used is None else ():
        place, total = _numbered(order, free)
        block = _factor(at, place)
        if block is not None and block <= extent and _reaches(total * block, size):
            used = names
            break
    for name in used or ():
        del free[name]
    return used is not None


def _alone(size: Size, at: Size, extent: int, name: str, free: Counts) -> list[str] | None:
    """The counters that one counter, up or down, or one in stretches of another, needs to cover an axis."""
    c = free[name]
    down = substitute(at, {name: c.stop - 1 - symbol(name)}) if c.step == 1 else at
    block = _factor(at, symbol(name)) or _factor(down, symbol(name))
    if block is None or block * c.step > extent:
        return None
    if c.start == 0:
        return [name] if _reaches(c.stop * block, size) else None
    for other in symbols(c.start) & free.keys():
        stretch = _factor(c.start, symbol(other))
        if block == 1 and stretch and c.stop == smaller(size, c.start + stretch):
            whole = free[other].start == 0 and free[other].step == 1
            return [name, other] if whole and _reaches(free[other].stop * stretch, size) else None
    return None


def _numbered(order: Sequence[str], free: Counts) -> tuple[Size, Size]:
    """The number that counters make together, the last one fastest, and how many numbers there are."""
    place: Size = 0
    total: Size = 1
    for name in order:
        c = free[name]
        if c != Count(c.stop):
            return 0, 0
        place, total = place * c.stop + symbol(name), total * c.stop
    return place, total


def _factor(at: Size, place: Size) -> int | None:
    """The number b with at = b * place; None if there is none."""
    if isinstance(place, int) or isinstance(at, int):
        return None
    return next((b for b in {abs(c) for _, c in at.terms} if b * place == at), None)


def _reaches(end: Size, size: Size) -> bool:
    """Whether end >= size; end may be a quotient that is rounded up, times its divisor."""
    if bounds(end - size)[0] >= 0:
        return True
    divisors = {abs(c) for _, c in end.terms} if isinstance(end, Dim) else set()
    return any(end == (size + b - 1) // b * b for b in divisors)
