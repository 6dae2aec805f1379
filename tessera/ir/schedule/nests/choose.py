"""The nest of a kernel when none was given: blocks for the registers and caches of a CPU.

Contractions, measured by benchmarks/nests.py: 6 rows by 64 columns in registers; a panel of the right
factor packed for about 1032 rows, whose blocks finish all leaves of their sums, or leaf by leaf for 258
rows where there are many leaves; a panel to an instance, or four of them where leaves wait or the cache
keeps the left factor: six rows go through all of them where a sum is one leaf, so that they write longer
runs of a row, and through two where it is two leaves; a first cache of 32 KiB has blocks of 8 by 48, which
read less of a panel; a left factor whose last axis is not k is packed too, for more rows and panels, and
in strips of long sums; a few rows read the right factor in place, in strips.  There are a few
instances for each core, so that no thread waits long for another.

Kernels of rows: an instance computes a row, or two that are folded in one leaf, together; where rows are
few, instances share the columns, and the subtrees of long folds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tessera.core.dims import Size, product
from tessera.core.dtype import f32
from tessera.core.folds import LANES, LEAF
from tessera.core.processor import expected_threads, first_bytes, near_bytes
from tessera.ir.schedule.factors import factors, lies_along
from tessera.ir.schedule.ir import LAW, Kernel, Read, Stage
from tessera.ir.schedule.nests.blocks import block, has_room
from tessera.ir.schedule.nests.matrix import matrix_nest
from tessera.ir.schedule.nests.nest import Nest, NestLoop
from tessera.ir.schedule.sweeps import (
    by_pass,
    folds_chains,
    folds_lanes,
    goes_together,
    has_columns_alone,
    has_few_rows,
    is_uniform,
)

_TALL, _PANELS = 258, 4  # rows and panels of an instance
_TALLER, _MORE_PANELS = 516, 8  # the same when both factors are packed
_TALLEST = 1032  # rows when sums are short, so that few leaves wait in scratch
_KEPT = 5 << 19  # bytes of a left factor, the most that the second cache keeps for the next panel
_ABREAST = 2  # panels for each pass over rows of a left factor that it does not keep
_PART = 4  # of the second cache that they take, at most a quarter
_FEW = 4  # rows that need no packing
_SLIM = 48  # rows for which a whole leaf is packed in strips
_STRIP, _LINES = 128, 8  # k of a strip
_SHORT = 64  # the same for few rows
_FAR = 4096  # bytes between rows that share places in the first cache
_FEW_LEAVES = 4  # that a block computes one after another
_RUN = 1024  # columns that a few rows read at once: in f32 a page, in which a processor looks ahead
_SHORT_RUN = 256  # the fewest, unless a core had none; runs of 64 take half as long again
_PAIR = 2  # instances for each core where runs would get short
_EACH = 4  # instances for each core
_EVEN = 6  # the same while instances are so tall that half of it costs nothing: cores are not all as fast
_LOW = 264  # rows below which an instance gets narrower, not lower
_FITTER = 0.99  # of the columns that are computed, if another block is to be worth it
_LIGHTER = 1.03  # the same if it reads less of a panel, which gains a twentieth
_SMALL = 3 << 14  # bytes of a first cache, if there are fewer
_SQUARE = 64  # a side of an instance that packs both factors, if others need it to be small

_BLOCK = 4096  # columns of an instance when there are few rows
_CHAINS, _MORE_CHAINS = 256, 1024  # the same when every column is folded, fewer if cores would rest
_STREAMS = 4  # leaves side by side: the memory answers several far places at once
_MORE_STREAMS = 8  # the same when rows are long and only folded
_TOGETHER = 2  # short rows that go through passes together
_LANE_LEAVES = 64  # of a subtree: 32768 elements of a row
_CHAIN_LEAVES = 4  # the same for columns: 2048 elements of each
_MOST_COLUMNS = 2048  # more of them are work enough for all threads


def default_nest(kernel: Kernel) -> Nest:
    """The nest of a kernel."""
    if not kernel.contracts:
        return _of_rows(kernel)
    found = matrix_nest(kernel) or _of_contraction(kernel)
    return found if kernel.tile is None else tiled(found, kernel.tile)


def tiled(nest: Nest, tile: tuple[int, int, int]) -> Nest:
    """A nest whose instances compute blocks of the rows and columns asked for, in whole blocks of registers.

    A size of 0 is not asked for.
    The depth of a block is that of a leaf: the order of sums belongs to the program (core/folds.py).
    """
    loops = list(nest.loops)
    for axis, wanted in zip("mn", tile[:2], strict=True):
        own = [i for i, x in enumerate(loops) if x.axis == axis]
        if not wanted or not own or loops[own[0]].kind != "parallel":
            continue
        grain = loops[own[1]].step if len(own) > 1 else 1
        loops[own[0]] = replace(loops[own[0]], step=-(-wanted // grain) * grain)
    return Nest(tuple(loops), nest.staged)


def _of_contraction(kernel: Kernel) -> Nest:
    head = kernel.stages[0]
    sizes = _Sizes(head.axes[-2].size, head.axes[-1].size, _batch(head))
    left, right = factors(head)
    (over,) = head.reduced
    turned = not lies_along(left, over)
    stages_left = turned or not isinstance(left, Read)
    few = isinstance(sizes.m, int) and sizes.m <= _FEW
    shape = block(head.dtype)
    high, broad = _least_waste(shape, sizes.n, _FITTER if few else _fitter(shape))
    mr = min(high, max(sizes.m, 1)) if isinstance(sizes.m, int) else high
    nr = _fitting(broad, sizes.n)
    if few and lies_along(right, head.axes[-1]):
        return _of_few_rows(sizes, mr, nr)
    if few:
        return _of_few_rows_turned(head, mr, nr, stages_left)
    slim = isinstance(sizes.m, int) and sizes.m <= _SLIM and _is_over(over.size, _SHORT)
    if slim and not stages_left:
        rows = NestLoop("m", -(-max(sizes.m, 1) // mr) * mr, "parallel")
        strips = (NestLoop("k", LEAF), NestLoop("k", _STRIP))
        return _nest((rows, NestLoop("n", nr, "parallel"), *strips), mr, [("right", 4)])
    if stages_left:
        tall, wide = _packed_instance(sizes, mr, nr)
    else:
        short = has_room() and not _is_over(over.size, _FEW_LEAVES * LEAF + 1)
        panels = _panels(over.size, nr, head.dtype.bits) if short else _PANELS
        tall, wide = _instance(sizes, mr, nr, short, panels)
    if not stages_left and has_room() and _is_few_leaves(over.size):
        instance = (NestLoop("m", tall, "parallel"), NestLoop("n", wide, "parallel"))
        if nr < wide <= _ABREAST * nr:
            return _nest(instance, mr, [("right", 2)], (NestLoop("n", nr), NestLoop("k", LEAF)))
        return _nest((*instance, NestLoop("n", nr)), mr, [("right", 3)], (NestLoop("k", LEAF),))
    if not stages_left and wide > nr and not _is_over(over.size, LEAF + 1):
        columns = (
            NestLoop("m", tall, "parallel"),
            NestLoop("n", wide, "parallel"),
            NestLoop("k", LEAF),
        )
        return _nest(columns, mr, [("right", 3)], (NestLoop("n", nr),))
    leaves = [NestLoop("k", LEAF)]
    short_sums = 2 * LEAF if has_room() else LEAF  # which need no scratch beside the packed factors
    if turned and isinstance(left, Read) and _is_over(over.size, short_sums + 1):
        leaves += [NestLoop("k", _STRIP)]
    loops = (
        NestLoop("m", tall, "parallel"),
        NestLoop("n", wide, "parallel"),
        *leaves,
        NestLoop("n", nr),
    )
    inner = len(loops) - 1
    return _nest(loops, mr, ([("left", inner)] if stages_left else []) + [("right", inner + 1)])


@dataclass(frozen=True)
class _Sizes:
    m: Size
    n: Size
    batch: Size


def _batch(head: Stage) -> Size:
    total: Size = 1
    for a in head.axes[:-2]:
        total = total * a.size
    return total


def _nest(
    loops: tuple[NestLoop, ...],
    mr: int,
    staged: list[tuple[str, int]],
    inner: tuple[NestLoop, ...] = (),
) -> Nest:
    """Loops around the rows of a block of registers, and others (leaves of its sums, or panels) between
    rows and block.
    """
    block = (NestLoop("k", 1), NestLoop("m", 1, "unroll"), NestLoop("n", LANES, "vector"))
    return Nest((*loops, NestLoop("m", mr), *inner, *block), tuple(staged))


def _panels(k: Size, nr: int, bits: int) -> int:
    """How many panels an instance has of so many k: all if the second cache keeps the left factor from one
    to the next, or two if they leave it so much room that rows can go through both.
    """
    if not _is_over(k, _KEPT * 8 // bits // _TALLEST):
        return _PANELS
    fits = isinstance(k, int) and _ABREAST * nr * k * bits // 8 <= near_bytes() // _PART
    return _ABREAST if fits else 1


def _is_few_leaves(k: Size) -> bool:
    """Whether a block finishes all its leaves at once: a panel of so many k stays in the second cache."""
    return isinstance(k, int) and LEAF < k <= _FEW_LEAVES * LEAF


def _of_few_rows(sizes: _Sizes, mr: int, nr: int) -> Nest:
    """Long runs of the right factor's rows, a few of them at once: its memory is all that counts."""
    run = _fitting(_RUN, sizes.n)
    if isinstance(sizes.n, int):
        least = min(_SHORT_RUN, -(-sizes.n // expected_threads()))
        run = max(min(run, -(-sizes.n // (_PAIR * expected_threads()))), least)
    run = max(run // nr, 1) * nr
    loops = (NestLoop("m", mr, "parallel"), NestLoop("n", run, "parallel"), NestLoop("k", LEAF))
    if run == nr:  # a block of registers, whose sums stay there
        return _nest((*loops, NestLoop("n", nr)), mr, [])
    return _nest((*loops, NestLoop("k", _LINES), NestLoop("n", nr)), mr, [])


def _of_few_rows_turned(head: Stage, mr: int, nr: int, stages_left: bool) -> Nest:
    """Squares of the right factor are turned and used at once: so many rows of it as the
    first cache keeps.
    """
    (over,) = head.reduced
    far = _is_over(over.size, _FAR * 8 // head.dtype.bits)
    wide, strip = (LANES, _SHORT // 2) if far else (nr, _SHORT)
    loops = (NestLoop("m", mr, "parallel"), NestLoop("n", wide, "parallel"))
    staged = [("left", 4)] if stages_left else []
    return _nest((*loops, NestLoop("k", LEAF), NestLoop("k", strip)), mr, [*staged, ("right", 4)])


def _fitting(most: int, size: Size) -> int:
    """So many columns, or as many vectors as there are."""
    return min(most, -(-max(size, 1) // LANES) * LANES) if isinstance(size, int) else most


def _fitter(shape: tuple[int, int]) -> float:
    """How many columns another block may compute instead of one: fewer, unless reading less of a broad
    panel gains more.
    """
    return _LIGHTER if first_bytes() < _SMALL and shape[1] > 2 * LANES else _FITTER


def _least_waste(shape: tuple[int, int], n: Size, fitter: float) -> tuple[int, int]:
    """The block, or one of as many sums with a vector less in a row, if it fits the columns better."""
    high, broad = shape
    less = broad - LANES
    if not isinstance(n, int) or n <= broad or less < LANES or high * broad % less:
        return shape
    waste, other = (-(-n // w) * w for w in (broad, less))
    return (high * broad // less, less) if other < fitter * waste else shape


def _packed_instance(sizes: _Sizes, mr: int, nr: int) -> tuple[int, int]:
    """Rows and columns of an instance that packs both factors: wide, since turning the left one costs most,
    until it gets low; and with enough instances as long as that pays."""
    tall, wide = _TALLER // mr * mr, _MORE_PANELS * nr
    m, n, batch = sizes.m, sizes.n, sizes.batch
    if not (isinstance(m, int) and isinstance(n, int) and isinstance(batch, int)):
        return tall, wide
    tall, wide = min(tall, -(-max(m, 1) // mr) * mr), min(wide, -(-max(n, 1) // nr) * nr)
    while max(tall, wide) > _SQUARE and not _fills(batch * -(-m // tall) * -(-n // wide)):
        if wide > tall and tall <= _LOW:
            wide = -(-wide // 2 // nr) * nr
        else:
            tall = -(-tall // 2 // mr) * mr
    return _even(m, tall, mr), _even(n, wide, nr)


def _fills(count: int) -> bool:
    """Whether so many large instances keep all cores busy: many do, or as many for each."""
    return count >= _EACH * expected_threads() or (count > 0 and count % expected_threads() == 0)


def _instance(sizes: _Sizes, mr: int, nr: int, short: bool, panels: int) -> tuple[int, int]:
    """Rows and columns of an instance: large, but with enough instances, and of even heights.

    More rows share a packed factor when sums are short, so that few leaves wait in scratch beside them.
    """
    tall, wide = _TALL // mr * mr, _PANELS * nr
    m, n, batch = sizes.m, sizes.n, sizes.batch
    if not (isinstance(m, int) and isinstance(n, int) and isinstance(batch, int)):
        return tall, wide
    if short:
        tall, wide = _TALLEST // mr * mr, panels * nr

    def lacks(each: int) -> bool:
        return batch * -(-m // tall) * -(-n // wide) < each * expected_threads()

    while wide > nr and lacks(_EACH):
        wide = max(wide // 2 // nr, 1) * nr
    while tall > 8 * mr and lacks(_EACH):
        tall = max(tall // 2 // mr, 1) * mr
    half = _TALLEST // 2 // mr * mr
    if tall >= 2 * half and lacks(_EVEN):
        tall = half
    return _even(m, tall, mr), _even(n, wide, nr)


def _even(m: int, tall: int, mr: int) -> int:
    """Rows of an instance when all have about as many."""
    chunks = max(-(-m // tall), 1)
    return max(-(-m // chunks // mr), 1) * mr


# Kernels of rows --------------------------------------------------------------------------------


def _of_rows(kernel: Kernel) -> Nest:
    rows, stages = kernel.rows, kernel.stages
    loops = [NestLoop(f"r{i}", 1, "parallel") for i in range(rows)]
    if not any(s.axes[rows:] or s.reduced for s in stages):
        return Nest(tuple(loops))
    if has_few_rows(kernel):
        loops += _shared_columns(kernel)
    chains = [s for s in stages if folds_chains(s, rows)]
    loops += [NestLoop("c", _chains(kernel))] if chains else []
    plain = any(s.axes[rows:] and not s.combine for s in stages)
    loops += [NestLoop("c", block(f32)[1])] if plain else []
    lanes = any(folds_lanes(s, rows) for s in stages)
    loops += [NestLoop("l", _STREAMS if plain else _streams(stages), "unroll")] if lanes else []
    if _waits(kernel):
        last = NestLoop(f"r{rows - 1}", 1, "unroll")
        loops = [replace(x, step=_TOGETHER) if x.axis == last.axis else x for x in loops] + [last]
    return Nest((*loops, NestLoop("c", LANES, "vector")))


def _waits(kernel: Kernel) -> bool:
    """Whether rows are so short that one waits for its folds most of the time: several go together, if
    there are many.
    """
    rows, folds = kernel.rows, [s for s in kernel.stages if s.combine]
    short = all(isinstance(n := s.reduced[0].size, int) and n <= LEAF for s in folds)
    if not (rows and folds and short and kernel.order == LAW and goes_together(kernel)):
        return False
    count = product(tuple(a.size for a in kernel.stages[0].axes[:rows]))
    last = kernel.stages[0].axes[rows - 1].size
    many = isinstance(count, int) and count >= _TOGETHER * _EACH * expected_threads()
    return many and isinstance(last, int) and last % _TOGETHER == 0


def _streams(stages: tuple[Stage, ...]) -> int:
    """Leaves side by side of rows that are only folded: more if there are enough in every row."""
    sizes = [s.reduced[0].size for s in stages if s.reduced]
    many = all(isinstance(n, int) and n >= _MORE_STREAMS * LEAF for n in sizes)
    return _MORE_STREAMS if many else _STREAMS


def _shared_columns(kernel: Kernel) -> list[NestLoop]:
    """What instances share beside the rows: columns, and subtrees of long folds."""
    rows, folds = kernel.rows, [s for s in kernel.stages if s.combine]
    columns, leaves = [], []
    if has_columns_alone(kernel):
        block = _chains(kernel) if folds else _BLOCK
        columns = [block] if _is_over(kernel.stages[0].axes[-1].size, block + 1) else []
    if any(_is_long(s, rows) for s in folds) and all(map(is_uniform, by_pass(kernel))):
        if any(folds_lanes(s, rows) for s in folds):
            columns = [_LANE_LEAVES * LEAF if kernel.order == LAW else _share(kernel)]
        if any(_is_long(s, rows) for s in folds if folds_chains(s, rows)):
            leaves = [_CHAIN_LEAVES * LEAF]
    return [NestLoop("c", n, "parallel") for n in columns] + [
        NestLoop("k", n, "parallel") for n in leaves
    ]


def _chains(kernel: Kernel) -> int:
    """Columns that an instance folds: long runs of rows, if there are enough for all cores."""
    size = kernel.stages[0].axes[-1].size
    if not isinstance(size, int):
        return _CHAINS
    return min(max(size // (2 * expected_threads()) // _CHAINS, 1) * _CHAINS, _MORE_CHAINS)


def _share(kernel: Kernel) -> int:
    """Elements of a long fold for each of a few instances of every core, in any order."""
    sizes = [s.reduced[0].size for s in kernel.stages if s.reduced]
    longest = max((n for n in sizes if isinstance(n, int)), default=0)
    return max(-(-longest // (_EACH * expected_threads()) // LEAF), _LANE_LEAVES) * LEAF


def _is_long(s: Stage, rows: int) -> bool:
    """Whether a fold has more than one subtree, or may have."""
    if folds_lanes(s, rows):
        return _is_over(s.reduced[0].size, 2 * _LANE_LEAVES * LEAF)
    columns = s.axes[-1].size
    few = isinstance(columns, int) and columns <= _MOST_COLUMNS
    return few and _is_over(s.reduced[0].size, 2 * _CHAIN_LEAVES * LEAF)


def _is_over(size: Size, limit: int) -> bool:
    return not isinstance(size, int) or size >= limit
