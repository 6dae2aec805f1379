"""clashes: where two parameters are one memory, no element is loaded after another instance may have
stored it, nor after this one has.

A load and a store of the same element clash unless the load comes first: in the same instance, in the
same turn of every loop around both, and before it in the text.  Every other pair of points is refuted:
there are no values of the counters at which the boxes overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tessera.core.dims import Size, bounds, substitute, symbol
from tessera.core.errors import VerifyError
from tessera.core.prove import refute
from tessera.ir.tile.ir import Kernel, Memory
from tessera.ir.tile.scope import Access, AccessWalk


class Clash(NamedTuple):
    """A load that may come after a store of the same element."""

    load: Access
    store: Access

    def __str__(self) -> str:
        x, y = self.load.memory.name, self.store.memory.name
        first, second = (", ".join(map(str, a.op.attributes["at"])) for a in self)
        return f"{y} in the place of {x}: the load at [{first}] may follow the store at [{second}]"


def verify_shares(kernel: Kernel, shares: tuple[tuple[int, int], ...]) -> None:
    """Raise VerifyError unless results may lie where operands lie, each pair (operand, result) by itself."""
    accesses = list(AccessWalk(kernel).accesses()) if shares else []
    for i, j in shares:
        for clash in clashes(kernel, kernel.parameters[i], kernel.parameters[j], accesses):
            raise VerifyError(f"{kernel.name}: {clash}").at(clash.load.op.location)


def clashes(
    kernel: Kernel, operand: Memory, result: Memory, accesses: Sequence[Access]
) -> Iterator[Clash]:
    """The loads of an operand, among the accesses of a kernel, that are not proved to come before the stores
    of their elements.
    """
    grid = [name for name, n in kernel.grid if n != 1]
    stores = [(j, a) for j, a in enumerate(accesses) if a.memory is result]
    for i, load in enumerate(accesses):
        if load.memory is operand:
            for j, store in stores:
                if not _apart(load, store, grid, before=j < i):
                    yield Clash(load, store)


def _apart(load: Access, store: Access, grid: list[str], before: bool) -> bool:
    """Whether no store of an element may come before its load."""
    names = [*grid, *load.context.counters, *store.context.counters]
    other = {name: symbol(f"{name}_other") for name in names}
    facts = [*load.context.facts, *(substitute(f, other) for f in store.context.facts)]
    facts += _overlap(load, store, other)
    if any(bounds(f)[1] < 0 for f in facts):
        return True
    common = [a for a in load.context.counters if a in store.context.counters]
    pairs = [(symbol(name), other[name]) for name in (*grid, *common)]
    cases = [[*_equal(pairs[:k]), p - q - 1] for k, (p, q) in enumerate(pairs)]
    cases += [[*_equal(pairs[:k]), q - p - 1] for k, (p, q) in enumerate(pairs[: len(grid)])]
    if before:
        cases.append([*_equal(pairs)])
    return all(refute([*facts, *case]) for case in cases)


def _equal(pairs: Sequence[tuple[Size, Size]]) -> Iterator[Size]:
    for p, q in pairs:
        yield p - q
        yield q - p


def _overlap(load: Access, store: Access, other: Mapping[str, Size]) -> Iterator[Size]:
    """What holds when two boxes have an element in common."""
    for axis in range(len(load.low)):
        ends = load.low[axis], load.high[axis], store.low[axis], store.high[axis]
        low, high, first, last = (0 if e is None else e for e in ends)
        if None not in ends:
            yield high - substitute(first, other)
            yield substitute(last, other) - low
