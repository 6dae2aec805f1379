"""Primitives on a GPU: those that need another form than on a CPU.

A concatenation copies what a block of rows has of each operand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod

from tessera.core.dims import larger, smaller
from tessera.core.processor import SETS, Processor, assume
from tessera.core.types import TensorType
from tessera.ir.schedule.gpu_blocks import power, warps_for
from tessera.ir.schedule.ir import (
    Primitive,
)
from tessera.ir.tile.cpu.movement import lower_prefetch
from tessera.ir.tile.cpu.primitives import lower_primitive
from tessera.ir.tile.cpu.scatter import WITH_COPY
from tessera.ir.tile.gpu.convolution import CONVOLUTIONS
from tessera.ir.tile.gpu.count import count_between, count_places
from tessera.ir.tile.gpu.fft import TRANSFORMS
from tessera.ir.tile.gpu.pooling import POOLS
from tessera.ir.tile.gpu.scan import SCANS
from tessera.ir.tile.gpu.scatter import scatter_rows
from tessera.ir.tile.gpu.search import searchsorted
from tessera.ir.tile.gpu.small_matrices import SMALL_MATRICES
from tessera.ir.tile.gpu.sort import SORTS
from tessera.ir.tile.gpu.topk import topk
from tessera.ir.tile.ir import Builder
from tessera.ir.tile.launch import Expansion, Launch, Threads

_COLUMNS = 1024  # that a block copies at once
_LEAST = 16  # columns that are worth a block's width
_OPERANDS = 64  # of a kernel that asks of each whether a block is its
_NARROW = 128  # columns of a warp
_EACH = 16  # elements of a thread that copies
_FEWEST = 1024  # elements of a scatter: fewer are not worth an order
# What primitives that are lowered as on a CPU ask of a processor.  The host's would make the code of a GPU
# depend on the machine that compiles it.
_LIKE = Processor(
    "gpu", "", "", SETS["avx512f"], frozenset(), frozenset(), vector=64,
    first=48 << 10, near=2 << 20, threads=8,
)  # fmt: skip


def expand_primitive(step: Primitive, types: Mapping[str, TensorType]) -> Expansion:
    """The launches of a primitive."""
    own = _OWN.get(step.primitive)
    made = None if own is None else own(step, types)
    if made is not None:
        return made
    with assume(_LIKE):
        return lower_primitive(step, types)


def _scatter(step: Primitive, types: Mapping[str, TensorType]) -> Expansion:
    few = sum(prod(map(int, types[n].shape)) for n in step.operands[:2]) < _FEWEST
    return (None if few else scatter_rows(step, types)) or WITH_COPY[step.primitive](step, types)


def _concat(step: Primitive, types: Mapping[str, TensorType]) -> Expansion | None:
    (out,) = step.results
    t, axis = types[out], step.params["axis"]
    outer = prod(int(n) for n in t.shape[:axis])
    widths = [prod(int(n) for n in types[x].shape[axis:]) for x in step.operands]
    if t.dtype.kind == "c" or 0 in t.shape:
        return None
    if any(w % _LEAST for w in widths):
        return _concat_odd(step, t, outer, widths)
    b = Builder(step.name)
    sources = [b.parameter(f"x{i}", TensorType(t.dtype, (outer, w))) for i, w in enumerate(widths)]
    y = b.parameter("y", TensorType(t.dtype, (outer, sum(widths))), writable=True)
    columns = [min(w & -w, _COLUMNS) for w in widths]  # the next operand begins behind the last one
    rows = max(min(4 * _COLUMNS // max(columns), power(outer)), 1)
    at = b.program(-(-outer // rows)) * rows
    masked = (0,) if outer % rows else ()
    begin = 0
    for x, width, n in zip(sources, widths, columns, strict=True):
        with b.loop(0, width, n) as loop:
            tile = b.load(x, (at, loop.variable), (rows, n), masked=masked)
            b.store(y, tile, (at, loop.variable + begin), (rows, n), masked=masked)
        begin += width
    threads = Threads(warps_for(rows * max(columns)))
    return Expansion((Launch(b.finish(), step.operands, (out,), threads),))


def _concat_odd(
    step: Primitive, t: TensorType, outer: int, widths: Sequence[int]
) -> Expansion | None:
    """Operands of odd widths: a block has columns of some rows of one of them, and ends where these end."""
    total = sum(widths)
    if outer * total >= 1 << 31 or len(widths) > _OPERANDS:
        return None
    b = Builder(step.name)
    sources = [b.parameter(f"x{i}", TensorType(t.dtype, (outer, w))) for i, w in enumerate(widths)]
    y = b.parameter("y", TensorType(t.dtype, (outer, total)), writable=True)
    shapes = [_odd_block(outer, w) for w in widths]
    across = [-(-w // n) for w, (_, n) in zip(widths, shapes, strict=True)]
    many = [-(-outer // rows) * a for (rows, _), a in zip(shapes, across, strict=True)]
    p = b.program(sum(many))
    first, begin = 0, 0
    for x, width, (rows, n), a, count in zip(sources, widths, shapes, across, many, strict=True):
        with b.loop(larger(p, first), smaller(p + 1, first + count), 1) as mine:
            number = mine.variable - first
            at, column = number // a * rows, number % a * n
            masked = [0] if outer % rows else []
            tail = [1] if width % n else []
            tile = b.load(x, (at, column), (rows, n), masked=(*masked, *tail))
            if not tail:
                b.store(y, tile, (at, column + begin), (rows, n), masked=masked)
            else:
                i = b.index(column, (1, n), 1)
                inside = b.apply("lt", i, b.index(width, (1, 1)))
                place = b.apply(
                    "where", inside, b.index(column + begin, (1, n), 1), b.index(total, (1, 1))
                )
                b.scatter(
                    y, tile, {1: place}, (at, 0), (rows, 1), (0, 1), (*masked, 1), distinct=True
                )
        first, begin = first + count, begin + width
    threads = Threads(warps_for(max(rows * n for rows, n in shapes), each=_EACH))
    return Expansion((Launch(b.finish(), step.operands, step.results, threads),))


def _odd_block(outer: int, width: int) -> tuple[int, int]:
    """Rows and columns of a block: as many columns as leave few of them without work."""
    n = 2 * _COLUMNS
    while n > 1 and (n >= 2 * width or (n > _NARROW and -(-width // n) * n * 7 > 8 * width)):
        n //= 2
    return max(min(2 * _COLUMNS // n, power(outer)), 1), n


_OWN: dict[str, Callable[[Primitive, Mapping[str, TensorType]], Expansion | None]] = {
    **dict.fromkeys(WITH_COPY, _scatter),
    "concat": _concat,
    **CONVOLUTIONS,
    **POOLS,
    **SORTS,
    "topk": topk,
    "count_places": count_places,
    "count_between": count_between,
    "searchsorted": searchsorted,
    **SCANS,
    **TRANSFORMS,
    **SMALL_MATRICES,
    "state_prefetch": partial(lower_prefetch, asks=False),
}


def kernels_of(step: Primitive, types: Mapping[str, TensorType]) -> Expansion | None:
    """The launches of an op that is a primitive on a GPU only; None where it has none."""
    own = _ALONE.get(step.primitive)
    return None if own is None else own(step, types)


_ALONE = {
    n: _OWN[n]
    for n in (
        "count_places",
        "count_between",
        "logcumsumexp",
        "searchsorted",
        "topk",
        *SORTS,
        *POOLS,
    )
}
