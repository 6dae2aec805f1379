"""Primitives on a GPU: those that need another form than on a CPU.

A sum into numbered rows is a product: y[r] = x[r] + sum over i of (r = index[i]) v[i], whose order is that of
the indices, whatever block computes it; what is not finite is counted apart.  A concatenation copies what a block of rows has of each operand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import inf, prod
from typing import Any

import ml_dtypes

from tessera.core.dtype import DType, bool_, i64
from tessera.core.processor import SETS, Processor, assume
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import (
    Apply,
    Axis,
    Cast,
    Kernel,
    Literal,
    Position,
    Primitive,
    Read,
    Stage,
    Term,
)
from tessera.ir.tile.gpu.blocks import power, warps_for
from tessera.ir.tile.gpu.contraction import Contraction
from tessera.ir.tile.gpu.convolution import CONVOLUTIONS
from tessera.ir.tile.gpu.pooling import POOLS
from tessera.ir.tile.gpu.random import random_bits
from tessera.ir.tile.gpu.scan import SCANS
from tessera.ir.tile.gpu.scatter import MOST, scatter_sums
from tessera.ir.tile.gpu.search import searchsorted
from tessera.ir.tile.gpu.sort import SORTS
from tessera.ir.tile.gpu.topk import topk
from tessera.ir.tile.ir import Builder
from tessera.ir.tile.launch import Expansion, Launch, Threads
from tessera.ir.tile.movement import lower_prefetch
from tessera.ir.tile.primitives import lower_primitive
from tessera.ir.tile.scatter import WITH_COPY

_finfo: Any = ml_dtypes.finfo
_COLUMNS = 1024  # that a block copies at once
_LEAST = 16  # columns that are worth a block's width
_FEWEST = 64  # rows to add: fewer are not worth a product
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


def _scatter_add(step: Primitive, types: Mapping[str, TensorType]) -> Expansion | None:
    x, v, index = (types[n] for n in step.operands[:3])
    rows, count = int(x.shape[0]), prod(int(n) for n in index.shape)
    columns = prod(int(n) for n in x.shape[1:])
    usual = tuple(step.params["axes"]) == (0,) and len(step.operands) == 3 and x.dtype.kind == "f"
    if not usual or count < _FEWEST or not columns or x.dtype is not v.dtype:
        return WITH_COPY["scatter_add"](step, types)
    if count <= MOST:
        operands = (step.operands[0], step.operands[1], step.operands[2])
        return scatter_sums(operands, step.results[0], rows, columns, count, x.dtype.base)
    return _sums_by_products(step, rows, columns, count, x.dtype.base)


def _sums_by_products(
    step: Primitive, rows: int, columns: int, count: int, dtype: DType
) -> Expansion:
    """One product of all that is finite; two more tell which sums met an infinity or a NaN.

    The rest of a row is multiplied by 0, which must not meet one of these: 0 * inf is NaN.
    """
    m, n, k = Axis("_m", rows), Axis("_n", columns), Axis("_k", count)
    names, wide, (out,) = step.operands, dtype.accum, step.results
    place = Read(i64, names[2], (k.variable,))  # one that is no row meets none
    test = Apply(bool_, "eq", (Position(i64, m.variable), place))
    one, zero = Literal(dtype, 1.0), Literal(dtype, 0.0)
    chosen = Apply(dtype, "where", (test, one, zero))
    row = Read(dtype, names[1], (k.variable, n.variable))
    largest = float(_finfo(dtype.np).max)
    below = Apply(bool_, "le", (row, Literal(dtype, largest)))
    above = Apply(bool_, "ge", (row, Literal(dtype, -largest)))
    finite = Apply(dtype, "where", (Apply(bool_, "logical_and", (below, above)), row, zero))
    high, low = f"{out}_high", f"{out}_low"  # how many were inf or NaN, and how many -inf or NaN
    here = (m.variable, n.variable)
    flat = {
        names[0]: TensorType(dtype, (rows, columns)), names[1]: TensorType(dtype, (count, columns)),
        names[2]: TensorType(i64, (count,)), out: TensorType(dtype, (rows, columns)),
        high: TensorType(wide, (rows, columns)), low: TensorType(wide, (rows, columns)),
    }  # fmt: skip

    def launched(made: str, term: Term, last: Callable[[Term], Term]) -> Launch:
        product = Apply(wide, "mul", (_wide(chosen, wide), _wide(term, wide)))
        total = Stage(f"{made}_sum", (m, n), (k,), "add", product)
        final = Stage(made, (m, n), (), None, last(Read(wide, total.name, here)))
        kernel = Kernel(f"{step.name}_{made}", 0, (total, final), (made,))
        c = Contraction(kernel, flat)
        return Launch(c.kernel(), tuple(kernel.inputs()), (made,), c.threads)

    def met(name: str, value: float) -> Term:
        some = Apply(bool_, "gt", (Read(wide, name, here), Literal(wide, 0.0)))
        return Apply(wide, "where", (some, Literal(wide, value), Literal(wide, 0.0)))

    def whole(total: Term) -> Term:
        before = _wide(Read(dtype, names[0], here), wide)
        sums: Term = Apply(wide, "add", (before, total))
        for name, value in ((high, inf), (low, -inf)):
            sums = Apply(wide, "add", (sums, met(name, value)))
        return sums if wide is dtype else Cast(dtype, sums)

    same: Callable[[Term], Term] = lambda total: total  # noqa: E731
    return Expansion(
        (
            launched(high, Apply(dtype, "where", (below, zero, one)), same),
            launched(low, Apply(dtype, "where", (above, zero, one)), same),
            launched(out, finite, whole),
        ),
        {high: flat[high], low: flat[low]},
    )


def _wide(t: Term, dtype: DType) -> Term:
    return t if t.dtype is dtype else Cast(dtype, t)


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
    **WITH_COPY,
    "scatter_add": _scatter_add,
    "concat": _concat,
    **CONVOLUTIONS,
    **POOLS,
    **SORTS,
    "topk": topk,
    "random_bits": random_bits,
    "searchsorted": searchsorted,
    **SCANS,
    "state_prefetch": partial(lower_prefetch, asks=False),
}


def kernels_of(step: Primitive, types: Mapping[str, TensorType]) -> Expansion | None:
    """The launches of an op that is a primitive on a GPU only; None where it has none."""
    own = _ALONE.get(step.primitive)
    return None if own is None else own(step, types)


_ALONE = {n: _OWN[n] for n in ("random_bits", "searchsorted", "topk", *SORTS, *POOLS)}
