"""The search space: nests that a kernel may be computed by, the default first, in a fixed order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tessera.core.dims import Size
from tessera.core.errors import ScheduleError
from tessera.core.folds import LANES, LEAF
from tessera.ir.schedule.ir import Kernel
from tessera.ir.schedule.nests.choose import default_nest
from tessera.ir.schedule.nests.legality import axes_of, is_legal, row_axes
from tessera.ir.schedule.nests.matrix import matrix_nests
from tessera.ir.schedule.nests.nest import Nest, NestLoop
from tessera.ir.schedule.sweeps import folds_chains, folds_lanes, has_columns_alone

_BLOCKS = ((6, 64), (8, 48), (4, 64), (12, 32), (4, 32), (1, 64))  # of registers
_TALL, _WIDE = (1, 4, 16, 43, 86), (1, 4, 16)  # blocks of an instance
_BATCH = 4  # rows of the batch of an instance
_ROWS = (1, 2, 4, 8, 16, 32)  # rows of an instance
_TOGETHER = (2, 4)  # rows that may go through passes together
_WIDTHS = (16, 32, 48, 64, 96, 128, 192, 256)  # columns of a chunk
_SHARED = tuple(1 << n for n in range(8, 17))  # columns of an instance
_LEAVES = tuple(1 << n for n in range(12))  # leaves of an instance
_STREAMS = (4, 1, 2, 8, 6, 3)  # leaves side by side


def nests(kernel: Kernel) -> Iterator[Nest]:
    """Nests that a kernel may be computed by: the default, then some dozens to hundreds of others."""
    seen = {default_nest(kernel): True}
    yield next(iter(seen))
    for loops, staged in _contraction(kernel) if kernel.contracts else _rows(kernel):
        try:
            nest = Nest(tuple(loops), tuple(staged))
        except ScheduleError:  # steps that do not divide each other
            continue
        if nest not in seen and is_legal(kernel, nest):
            seen[nest] = True
            yield nest


_Draft = tuple[tuple[NestLoop, ...], tuple[tuple[str, int], ...]]


def _contraction(kernel: Kernel) -> Iterator[_Draft]:
    m, n = (a.size for a in kernel.stages[0].axes[-2:])
    for nest in matrix_nests(kernel):
        yield nest.loops, nest.staged
    blocks = [b for b in _BLOCKS if _fits(b[0], m, 1) and _fits(b[1], n, LANES)]
    for mr, nr in blocks or [(1, LANES)]:
        for loops, staged in _blocked(mr, nr, m, n):
            yield loops, staged
            if kernel.rows:
                yield _of_batch(f"b{kernel.rows - 1}", loops, staged)


def _of_batch(
    axis: str, loops: tuple[NestLoop, ...], staged: tuple[tuple[str, int], ...]
) -> _Draft:
    """The same for several rows of the batch, one after another."""
    shared = sum(x.kind == "parallel" for x in loops)
    outer, inner = NestLoop(axis, _BATCH, "parallel"), NestLoop(axis, 1)
    moved = tuple((name, at + 2) for name, at in staged)
    return (outer, *loops[:shared], inner, *loops[shared:]), moved


def _blocked(mr: int, nr: int, m: Size, n: Size) -> Iterator[_Draft]:
    """Nests around one block of registers: how it is walked, and which factors are copied."""
    end = (NestLoop("k", 1), NestLoop("m", 1, "unroll"), NestLoop("n", LANES, "vector"))
    talls = [t for t in _TALL if _fits(t * mr, m, mr)]
    wides = [w for w in _WIDE if _fits(w * nr, n, nr)]
    for tall, wide in product(talls, wides):
        rows, columns = NestLoop("m", tall * mr, "parallel"), NestLoop("n", wide * nr, "parallel")
        leaf, block = NestLoop("k", LEAF), (NestLoop("n", nr), NestLoop("m", mr))
        yield (rows, columns, leaf, *block, *end), (("right", 4),)
        yield (rows, columns, leaf, *block, *end), (("left", 3), ("right", 4))
        yield (columns, rows, leaf, *block, *end), (("right", 4),)
        yield (rows, columns, leaf, *block[::-1], *end), (("right", 3),)
        yield (rows, columns, leaf, *block[::-1], *end), ()
        yield (rows, columns, leaf, NestLoop("k", 128), *block, *end), (("right", 5),)
        yield (rows, columns, leaf, NestLoop("k", 8), *block, *end), ()


def _rows(kernel: Kernel) -> Iterator[_Draft]:
    names, axes = row_axes(kernel), axes_of(kernel)
    orders = [names, names[::-1]] if len(names) > 1 else [names]
    for order, each, (shared, chunk) in product(orders, _ROWS, _columns(kernel, "c" in axes)):
        if names and not _fits(each, kernel.stages[0].axes[kernel.rows - 1].size, 1):
            continue
        outer = [NestLoop(r, each if r == names[-1] else 1, "parallel") for r in order]
        inner = [NestLoop(names[-1], 1)] if each > 1 and names else []
        if names or each == 1:
            yield (*outer, *shared, *inner, *chunk), ()
        if names and chunk and each in _TOGETHER:
            yield (*outer, *shared, *chunk[:-1], NestLoop(names[-1], 1, "unroll"), chunk[-1]), ()


def _columns(
    kernel: Kernel, present: bool
) -> Iterator[tuple[tuple[NestLoop, ...], tuple[NestLoop, ...]]]:
    """What instances share of the columns, and how one of them walks through the rest."""
    if not present:
        yield (), ()
        return
    stages, rows = kernel.stages, kernel.rows
    chains = [s for s in stages if folds_chains(s, rows)]
    lanes = any(folds_lanes(s, rows) for s in stages)
    plain = any(s.axes[rows:] for s in stages)
    chunks: list[tuple[NestLoop, ...]] = [(NestLoop("c", w),) for w in _WIDTHS] if plain else [()]
    if chains and len(chains) < len(stages):
        chunks += [(NestLoop("c", w), NestLoop("c", 64)) for w in _WIDTHS if w > 64]
    long = lanes and _fits(2 * LEAF, _longest(kernel), 1)
    streams: list[tuple[NestLoop, ...]] = (
        [(NestLoop("l", n, "unroll"),) for n in _STREAMS] if long else [()]
    )
    vector = NestLoop("c", LANES, "vector")
    for shared, chunk, stream in product(_sharings(kernel, lanes, bool(chains)), chunks, streams):
        yield shared, (*chunk, *stream, vector)


def _sharings(kernel: Kernel, lanes: bool, chains: bool) -> list[tuple[NestLoop, ...]]:
    """Loops over columns and over what is folded for them that instances may share."""
    found: list[tuple[NestLoop, ...]] = [()]
    leaves = [LEAF * n for n in _LEAVES if _fits(LEAF * n, _longest(kernel), 1)]
    if has_columns_alone(kernel):
        size = kernel.stages[0].axes[-1].size
        found += [(NestLoop("c", n, "parallel"),) for n in _SHARED if _fits(n, size, 1)]
    if lanes and len(leaves) > 1:
        found += [(NestLoop("c", n, "parallel"),) for n in leaves]
    if chains and len(leaves) > 1:
        found += [(*first, NestLoop("k", n, "parallel")) for first in found for n in leaves]
    return found


def _longest(kernel: Kernel) -> Size:
    """The length of the longest fold, or one that is not known."""
    sizes = [a.size for s in kernel.stages for a in s.reduced]
    known = [n for n in sizes if isinstance(n, int)]
    return max(known, default=0) if len(known) == len(sizes) else next(
        n for n in sizes if not isinstance(n, int))  # fmt: skip


def _fits(block: int, size: Size, grain: int) -> bool:
    """Whether an axis has as much as a block, rounded up to the grain."""
    return not isinstance(size, int) or block <= -(-max(size, 1) // grain) * grain
