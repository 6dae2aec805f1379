"""Which tiles of a kernel are too large for the registers, and which must go the same way."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tessera.core.folds import LANES
from tessera.core.processor import Registers
from tessera.core.types import TensorType
from tessera.ir.tile.ir import Kernel, Operation, Tile, walk

_MOST = 32  # registers that a tile may take


def size_of(t: Tile) -> int:
    """How many elements a tile has."""
    return math.prod(t.shape)


def fits(t: TensorType, of: Registers) -> bool:
    """Whether a tile can live in registers."""
    shape: tuple[int, ...] = t.shape  # type: ignore[assignment]
    lanes = min(shape[-1], LANES) if shape else 1
    each = -(-lanes * max(t.dtype.bits // 8, 1) // of.bytes)
    vectors = math.prod(shape[:-1]) * -(-(shape[-1] if shape else 1) // LANES)
    return vectors * each <= _MOST


def large_tiles(kernel: Kernel, of: Registers) -> set[Tile]:
    """The tiles that do not fit, and those which meet them in an operation; single elements never do."""
    groups = [g for op in walk(kernel.body) for g in _meeting(op)]
    large = {t for g in groups for t in g if not fits(t.type, of)}
    before = -1
    while before != len(large):
        before = len(large)
        for g in groups:
            if not large.isdisjoint(g):
                large.update(t for t in g if size_of(t) > 1)
    return large


def _meeting(op: Operation) -> Iterator[tuple[Tile, ...]]:
    """Groups of tiles of an operation that are all in registers or none of them."""
    if op.block is None:
        yield (*op.operands, *op.results)
        return
    yield from zip(op.operands, op.block.arguments, op.block.outputs, op.results, strict=True)
