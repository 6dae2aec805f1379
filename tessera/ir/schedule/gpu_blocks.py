"""How much of a kernel one block of threads takes: the defaults of the GPU lowering.

Folds are trees and products are chains over k, so none of these numbers changes a bit, but for LONGEST,
HALVED_PIECE and AT_ONCE: they are part of the order in which rows are folded whose length AT_ONCE does not
divide.
"""

from __future__ import annotations

from dataclasses import dataclass

from tessera.core.dims import Size

ELEMENTS = 4096  # of a tile that passes through registers once
FEWEST = 128  # columns of a block
LONGEST = 16384  # columns that one block folds without a loop
PIECE = 2048  # columns of a longer row that it takes at a time
HALVED_PIECE = 4096  # and of one that is read number by number
# Numbers that a thread reads at once: 16 bytes of bf16.  Halves of rows of 4096 bf16, which are read so, took
# 97 us where neighbours take 19 (H200).
AT_ONCE = 8
EACH = 32  # elements of a thread that has little to do with each
# and of one that computes functions of many instructions, which would have no registers for more
EACH_LONG = 8
EACH_FOLDED = 32  # of one that folds rows
MANY = 4  # tensors: a thread of a kernel with more has few elements of each
MULTIPROCESSORS = 132  # of an H100 or H200 (SXM); a choice of blocks, never of bits
_NARROWEST = 16  # columns of a tile that matrix units take
ENOUGH = 264  # blocks that keep a GPU busy


@dataclass(frozen=True)
class RowsBlock:
    """Rows, columns, and steps of a folded axis that a block takes at once."""

    rows: int
    columns: int
    steps: int = 64


LONG = 32768  # terms: shorter sums, as those of every layer of a network, are one chain


@dataclass(frozen=True)
class ProductBlock:
    """A block of a product, the depth of a step, and how blocks follow each other."""

    m: int
    n: int
    k: int
    group: int = 8  # rows of blocks that share columns while these are in the cache
    persistent: int = (
        0  # blocks of threads that stay and take one block of the product after another
    )
    warps: int = 0  # 0 where they follow from the block, as the stages
    stages: int = 0


SHARED = ProductBlock(128, 256, 64)  # of products that run in one launch


def power(n: Size) -> int:
    """The power of two that holds n."""
    return 1 << (int(n) - 1).bit_length() if int(n) > 1 else 1


def rows_block(
    rows: int, columns: int, folds: bool, tensors: int, elements: int = ELEMENTS
) -> RowsBlock:
    """The block of a kernel of rows that reads and writes so many tensors: whole rows where they are
    folded.
    """
    if folds and columns > LONGEST:
        return RowsBlock(1, piece(columns))
    wide = min(power(columns), LONGEST if folds else elements)
    many = max(min(2 * elements // wide, power(rows)), 1)
    if tensors > MANY or (folds and wide < ELEMENTS):
        many = max(1024 // wide, 1)  # more would have no registers, or wait for each other
    while many > 1 and rows // many < ENOUGH:
        many //= 2
    while not folds and wide > FEWEST and rows * -(-columns // wide) < ENOUGH:
        wide //= 2  # a small tensor: few elements for each thread
    return RowsBlock(many, wide)


def is_halved(length: int) -> bool:
    """Whether a row is folded by halves: threads read it number by number."""
    return length % AT_ONCE != 0


def piece(length: int) -> int:
    """The columns of a long row that a block takes at a time."""
    return HALVED_PIECE if is_halved(length) else PIECE


def chain_block(columns: int, steps: int, bits: int, reads: int, folds: int) -> RowsBlock:
    """The block of a fold for each column: a warp, 16 bytes of a row in each of its threads.

    A thread holds all steps of its columns, and must not run out of registers.
    """
    wide = 256 if bits == 16 else 128  # more bytes of one number each would wait in each thread
    most = 16 if reads <= 2 and folds == 1 else 8
    return RowsBlock(1, min(power(columns), wide), min(power(steps), most))


def warps_for(elements: int, tensors: int = 0, each: int = EACH) -> int:
    """How many warps share a tile: so many elements for each thread, or fewer."""
    if tensors > MANY:
        return max(min(elements // 128, 8), 1)
    return max(min(elements // (32 * each), 16), 1)


def padded(n: int) -> int:
    """The columns of one tile that holds n."""
    return max(_NARROWEST, 1 << (n - 1).bit_length())


def pieces(size: int) -> tuple[tuple[int, int], ...]:
    """Where the tiles of a head begin, and how wide they are: one, or two where these are narrower by a
    tenth.
    """
    whole = padded(size)
    first = whole // 2
    rest = padded(max(size - first, 1))
    if first >= _NARROWEST and 10 * (first + rest) <= 9 * whole:
        return (0, first), (first, rest)
    return ((0, whole),)


def width(size: int) -> int:
    """Columns of all tiles of a head."""
    return sum(n for _, n in pieces(size))
