"""Streams: kernels in which the rows of a matrix pass by a vector in shared memory.

    y = f(...); store(shared, y)
    for m: for k: acc = dot(load(shared, k), load(w, m, k), acc); store(z, g(acc))

There may be several products with different rows of one matrix.  Whatever differs from this form in any way
is no stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tessera.core.dims import symbol
from tessera.core.dtype import bf16, f16
from tessera.ir.schedule.thin_products import WIDE
from tessera.ir.tile.gpu.flash_forward_match import TmaBox, memory_of
from tessera.ir.tile.ir import Kernel, Memory, Operation

_VECTORS = frozenset(
    (
        "apply",
        "cast",
        "fold",
        "full",
        "index",
        "load",
        "reshape",
        "broadcast",
        "store",
        "alloc",
        "barrier",
    )
)


@dataclass(frozen=True)
class GemvParts:
    """The parts of a kernel."""

    kernel: Kernel
    shared: Memory  # the vector
    before: tuple[Operation, ...]
    blocks: Operation  # the loop over blocks of rows
    loop: Operation  # that over the vector
    rows: tuple[Operation, ...]  # the loads of rows of the matrix, one for each part
    after: tuple[Operation, ...]

    @property
    def matrix(self) -> TmaBox:
        """What is fetched at once, for one part."""
        columns, depth = self.rows[0].attributes["extent"]
        return TmaBox(memory_of(self.rows[0]), int(columns), int(depth))

    @property
    def is_wide(self) -> bool:
        """Whether the matrix is the first factor, since it has many rows."""
        return self.matrix.rows == WIDE

    @property
    def offsets(self) -> tuple[Any, ...]:
        """How many rows behind the first one of a block each part begins."""
        first = symbol(self.blocks.attributes["variable"]) * self.matrix.rows
        return tuple(op.attributes["at"][0] - first for op in self.rows)

    @property
    def length(self) -> int:
        """Numbers of the vector."""
        (n,) = self.shared.type.shape
        return int(n)


def stream(kernel: Kernel) -> GemvParts | None:
    """The parts of a kernel that is a stream."""
    *before, last = kernel.body.operations
    allocated = [op for op in before if op.name == "alloc"]
    if last.name != "for" or last.operands or len(allocated) != 1 or len(kernel.grid) != 1:
        return None
    assert last.block is not None
    names = [op.name for op in last.block.operations]
    if "for" not in names or kernel.sizes:
        return None
    parts = names.index("for")
    *zeros, loop = last.block.operations[: parts + 1]
    assert loop.block is not None
    inside = [op.name for op in loop.block.operations]
    if {op.name for op in zeros} != {"full"} or inside != [
        "load", *["load"] * parts, "reshape", *["dot"] * parts
    ]:  # fmt: skip
        return None
    part, *rows = loop.block.operations[: parts + 1]
    shared, after = memory_of(allocated[0]), last.block.operations[parts + 1 :]
    found = GemvParts(kernel, shared, tuple(before), last, loop, tuple(rows), tuple(after))
    fits = part.memory is shared and _is_whole(found)
    return found if fits and _are_vectors(found.before) and _are_vectors(found.after) else None


def _is_whole(s: GemvParts) -> bool:
    (number, count), a, b = s.kernel.grid[0], s.loop.attributes, s.matrix
    outer = s.blocks.attributes
    return (
        (a["start"], a["stop"], a["step"]) == (0, s.length, b.columns)
        and (outer["start"], outer["step"]) == (symbol(number), count)
        and all(isinstance(n, int) for n in s.offsets)
        and all(memory_of(op) is b.memory for op in s.rows)
        and s.length % b.columns == 0
        and all(tuple(op.attributes["axes"]) == (1, 0) for op in s.rows)
        and not any(op.attributes["masked"] for op in s.rows)
        and b.memory.type.dtype in (bf16, f16)
        and b.shape[1] == s.length
    )


def _are_vectors(operations: tuple[Operation, ...]) -> bool:
    """Whether all tiles have one axis at most that is longer than 1, apart from those of folds."""
    for op in operations:
        if op.name == "for":
            assert op.block is not None
            if op.operands or not _are_vectors(op.block.operations):
                return False
        elif op.name not in _VECTORS or op.attributes.get("masked"):
            return False
    return True
