"""The accesses of a kernel in their context: what positions are and which facts hold of them.

Every loop variable is written as start + step * j with a counter j of its own, so that all counters
begin at 0 as the proofs demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from tessera.core.dims import Size, substitute, symbol, symbols
from tessera.core.intervals import extremes
from tessera.ir.tile.ir import Block, Kernel, Memory, Operation, Tile
from tessera.ir.tile.ranges import Range, range_of


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of counters.  Equal ones are one object, so that what was proved of it is found fast."""

    facts: tuple[Size, ...]
    counts: Mapping[str, Size]


@lru_cache(maxsize=1 << 12)
def _known(facts: tuple[Size, ...], counts: tuple[tuple[str, Size], ...]) -> Known:
    return Known(facts, dict(counts))


@dataclass(frozen=True, eq=False)
class LoopContext:
    """Where an operation stands: loops around it, the meaning of their variables, facts of all."""

    env: Mapping[str, Size]  # loop variables as start + step * j
    counters: tuple[str, ...]  # the j, outermost first
    facts: tuple[Size, ...]  # at least 0, in terms of counters
    counts: Mapping[str, Size]  # of which the counters and the grid variables stay below
    _found: dict[Size, Size] = field(default_factory=dict, repr=False)

    @cached_property
    def known(self) -> Known:
        """What holds of the counters."""
        return _known(self.facts, tuple(self.counts.items()))

    def position(self, x: Size) -> Size:
        """A size in terms of counters.  Most accesses of a loop are at the same few positions."""
        if isinstance(x, int):
            return x
        found = self._found.get(x)
        if found is None:
            found = self._found[x] = substitute(x, self.env)
        return found

    def names(self, values: Iterable[Size | None]) -> set[str]:
        """The sizes that positions depend on, through the facts about their counters too."""
        found = {s for x in values if x is not None for s in symbols(x)}
        for f in reversed(self.facts):
            if symbols(f) & found:
                found |= symbols(f)
        return {s for s in found if not s.startswith("_")}


@dataclass(frozen=True)
class Access:
    """A memory operation in its context, and where its elements lie along each axis."""

    op: Operation
    context: LoopContext
    low: tuple[Size | None, ...]  # first element along each axis; None when it is not known
    high: tuple[Size | None, ...]  # last element

    @property
    def memory(self) -> Memory:
        assert self.op.memory is not None
        return self.op.memory

    @property
    def shape(self) -> tuple[Size, ...]:
        """The shape of the memory."""
        return tuple(map(self.context.position, self.memory.type.shape))

    @property
    def writes(self) -> bool:
        return self.op.traits.writes

    @property
    def masked(self) -> tuple[int, ...]:
        masked: tuple[int, ...] = self.op.attributes["masked"]
        return masked


def grid_facts(kernel: Kernel, sizes: Mapping[str, int]) -> tuple[Size, ...]:
    """What holds of the grid variables."""
    return tuple(substitute(n, sizes) - 1 - symbol(name) for name, n in kernel.grid)


@lru_cache(maxsize=1 << 14)
def _counted(start: Size, stop: Size, step: Size, counter: str) -> tuple[Size, Size, Size]:
    """The variable of a loop by its counter, what is left to its end, and how often it runs."""
    value = start + step * symbol(counter)
    return value, stop - 1 - value, (stop - start + step - 1) // step


class AccessWalk:
    """Reads a kernel in order and gives its accesses; sizes that are known stand for themselves."""

    def __init__(
        self, kernel: Kernel, sizes: Mapping[str, int] | None = None, facts: Sequence[Size] = ()
    ):
        self.kernel, self.count, self.sizes = kernel, 0, dict(sizes or {})
        self.facts = tuple(substitute(f, self.sizes) for f in facts)
        self.ranges: dict[Tile, Range] = {}

    def accesses(self) -> Iterator[Access]:
        """All loads, stores, gathers and scatters."""
        yield from self.block(self.kernel.body, self.outermost())

    def outermost(self) -> LoopContext:
        """The context of the body of the kernel."""
        counts = {name: substitute(n, self.sizes) for name, n in self.kernel.grid}
        facts = (*self.facts, *grid_facts(self.kernel, self.sizes))
        return LoopContext(self.sizes, (), facts, counts)

    def block(self, block: Block, context: LoopContext) -> Iterator[Access]:
        for op in block.operations:
            if op.block is not None:
                yield from self.block(op.block, self.inside(op, context))
            elif op.traits.reads or op.traits.writes:
                yield self.access(op, context)
            made = range_of(op, self.ranges, context.position)
            if made is not None:
                self.ranges[op.results[0]] = made

    def inside(self, op: Operation, context: LoopContext) -> LoopContext:
        """The context of the body of a loop."""
        self.count += 1
        a, name = op.attributes, f"_j{self.count}"
        start, stop, step = context.position(a["start"]), context.position(a["stop"]), a["step"]
        value, left, turns = _counted(start, stop, step, name)
        env = {**context.env, a["variable"]: value}
        facts = (*context.facts, left)
        _, most = extremes(turns, context.counts)
        counts = context.counts if most is None else {**context.counts, name: most}
        return LoopContext(env, (*context.counters, name), facts, counts)

    def access(self, op: Operation, context: LoopContext) -> Access:
        a = op.attributes
        low: list[Size | None] = []
        high: list[Size | None] = []
        tiles = op.operands[1:] if op.name == "scatter" else op.operands
        moved = dict(zip(a.get("picked", ()), tiles, strict=False))
        for axis, (at, n) in enumerate(zip(a["at"], a["extent"], strict=True)):
            place = context.position(at)
            if axis in moved:
                r = self.ranges.get(moved[axis], Range())
                low.append(None if r.low is None else place + r.low)
                high.append(None if r.high is None else place + r.high)
            else:
                low.append(place)
                high.append(place if n == 1 else place + (n - 1))
        return Access(op, context, tuple(low), tuple(high))
