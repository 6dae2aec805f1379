"""Primitives on a GPU: those that need another form than on a CPU.

A concatenation copies what a block of rows has of each operand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod

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
from tessera.ir.tile.gpu.count import count_places
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
    if t.dtype.kind == "c" or 0 in t.shape or any(w % _LEAST for w in widths):
        return None
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


_OWN: dict[str, Callable[[Primitive, Mapping[str, TensorType]], Expansion | None]] = {
    **dict.fromkeys(WITH_COPY, _scatter),
    "concat": _concat,
    **CONVOLUTIONS,
    **POOLS,
    **SORTS,
    "topk": topk,
    "count_places": count_places,
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
    n: _OWN[n] for n in ("count_places", "logcumsumexp", "searchsorted", "topk", *SORTS, *POOLS)
}
