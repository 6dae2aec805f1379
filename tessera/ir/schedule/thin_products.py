"""Thin products: a matrix times a vector, in one launch with what makes the vector.

    s = add over k of x[k] x[k]; y[k] = x[k] rsqrt(s); z[m] = add over k of w[m, k] y[k]   ->   one Thin step

Such a product waits for memory, so that every block of threads makes the vector in less time than a
launch takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tessera.core.dims import symbols
from tessera.core.dtype import bf16, f16
from tessera.ir.schedule.factors import bare, factors
from tessera.ir.schedule.gpu_blocks import power
from tessera.ir.schedule.ir import Axis, Kernel, Read, Stage, Term, reads

COLUMNS = 16  # rows of the matrix that a block takes: columns of what a matrix instruction makes
WIDE = 64  # where a matrix has many: the matrix is then the first factor, each warp has 16 rows
_MANY = 192  # wide blocks that fill a GPU
_SHORTEST, _LONGEST = 1024, 4096  # vectors; longer ones have too few blocks for their chains
_FEWEST = 1024  # rows of a matrix that is worth it


@dataclass(frozen=True)
class Thin:
    """A product, and the stages that make its vector: one kernel, whose `before` first stages are those.

    It may be several products of different rows of one matrix, as many as it has `parts`.
    """

    kernel: Kernel
    before: int
    parts: int = 1

    @property
    def heads(self) -> tuple[Stage, ...]:
        """The products."""
        return self.kernel.stages[self.before : self.before + self.parts]


def are_many(rows: int) -> bool:
    """Whether so many rows are taken in wide blocks."""
    return rows % WIDE == 0 and rows >= _MANY * WIDE


def is_thin(k: Kernel) -> bool:
    """Whether a kernel is a matrix times a vector of narrow floats, in whole blocks."""
    if not k.contracts or k.seen or len(k.stages[0].axes) != 2:
        return False
    head = k.stages[0]
    (m, n), (over,) = head.axes, head.reduced
    matrix, vector = (bare(t) for t in factors(head))
    if not isinstance(matrix, Read) or n.size != 1:
        return False
    rows, depth = int(m.size), int(over.size)
    return (
        matrix.dtype is vector.dtype
        and matrix.dtype in (bf16, f16)
        and matrix.index == (m.variable, over.variable)
        and all(is_box(r, [over], None) for r in reads(vector))
        and rows % COLUMNS == 0 and rows >= _FEWEST
        and depth == power(depth) and _SHORTEST <= depth <= _LONGEST
        and all(s.axes == head.axes and s.combine is None for s in k.stages[1:])
    )  # fmt: skip


def makes_vectors(k: Kernel, n: int) -> bool:
    """Whether a kernel makes vectors of n numbers from vectors, and folds of them."""
    made = {s.name: s for s in k.stages}
    return not k.contracts and all(_is_vector(s, n, made) for s in k.stages)


def _is_vector(s: Stage, n: int, made: Mapping[str, Stage]) -> bool:
    long = [a for a in (*s.axes, *s.reduced) if a.size != 1]
    if len(long) > 1 or any(a.size != n for a in long) or s.dtype.bits < 16:
        return False
    if (s.combine is None) == bool(s.reduced) or (s.reduced and s.reduced[0] not in long):
        return False
    return all(is_box(r, long, made.get(r.source)) for r in reads(s.term))


def is_box(r: Read, long: list[Axis], source: Stage | None) -> bool:
    """Whether a read is of a number, or of neighbours along the axis; and of a stage where it stands."""
    if any(isinstance(x, Term) for x in r.index):
        return False
    moving = [x for x in r.index if long and long[0].name in symbols(x)]
    if len(moving) > 1 or any(long[0].name in symbols(x - long[0].variable) for x in moving):
        return False
    return source is None or all(x == long[0].variable for x in moving)
