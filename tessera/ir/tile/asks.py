"""What a block of a contraction will be written to and read with, asked for while it is computed.

A processor has few places for lines that are on their way: when all the lines of a block are asked for
at once, what the block reads meanwhile waits behind them.  So some rows at a time are asked for, in parts
of the sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tessera.core.dims import Size, substitute
from tessera.ir.schedule.ir import Axis, Kernel, Term, reads
from tessera.ir.tile.ir import Builder, Memory

_LEAST = 96  # k of a part: a part ends with a jump that the processor may not foresee


@dataclass(frozen=True)
class Ask:
    """Rows of a memory, from where a block begins."""

    memory: Memory
    at: tuple[Size, ...]
    write: bool

    def rows(self, b: Builder, first: Size, count: int, width: int) -> None:
        """Ask for so many rows."""
        *batch, m, n = self.at
        extent = (*(1 for _ in batch), count, width)
        b.prefetch(self.memory, (*batch, m + first, n), extent, write=self.write)


def asks(
    kernel: Kernel, memory: Mapping[str, Memory], out: Mapping[str, Memory], env: Mapping[str, Size]
) -> Iterator[Ask]:
    """The outputs of a block, and what its stages read at its own points, where that lies in rows."""
    axes = kernel.stages[0].axes
    own = {s.name for s in kernel.stages}
    for s in kernel.stages:
        if s.name in out:
            yield Ask(out[s.name], tuple(env[a.name] for a in axes), write=True)
    later = {r for s in kernel.stages[1:] for r in reads(s.term)}
    for r in sorted((r for r in later if r.source not in own), key=str):
        if _in_rows(r.index, axes):
            at = tuple(substitute(i, env) for i in r.index)
            yield Ask(memory[r.source], at, write=False)


def _in_rows(index: tuple[Size | Term, ...], axes: tuple[Axis, ...]) -> bool:
    data = any(isinstance(i, Term) for i in index)
    return not data and index[-2:] == tuple(a.variable for a in axes[-2:])


def parts(height: int, k: Size) -> int:
    """In how many parts a sum of at most so many k is computed: each asks for as many rows."""
    known = k if isinstance(k, int) else 0
    return max(
        d for d in range(1, height + 1) if height % d == 0 and (d == 1 or known >= d * _LEAST)
    )
