"""Contractions in matrix registers: which kernels they compute, and by which nest.

    parallel m:256, parallel n:256, n:32, m:32, k:64, unroll m:16, vector n:16; stage left at 2; stage right
    at 2

`unroll m:16` says that 16 rows by 16 columns are computed at once; a step of k is one word of every column.
Bytes may be added in any order, so the law of bits holds; products of bf16 have the order of the instruction,
so only numerics `fast` computes them like this.
"""

from __future__ import annotations

from collections.abc import Iterator

from tessera.core.dims import Size, product
from tessera.core.dot_words import PARTS
from tessera.core.dtype import f32
from tessera.core.folds import LANES
from tessera.core.matrix_units import matrix_units
from tessera.core.processor import expected_threads, near_bytes
from tessera.ir.schedule.factors import axes_of, factors, lies_along
from tessera.ir.schedule.ir import ANY, Cast, Kernel, Read
from tessera.ir.schedule.nests.nest import Nest, NestLoop

SIDE = 16  # rows, columns and words of a register
REGISTERS = 8  # tile registers of AMX
_BYTES = {"i4": "i8", "i8": "i8", "u8": "u8"}  # and what they are in words
_FEWEST = 8  # rows and columns below which vectors are faster
_DEEP = 1024  # bytes of k that are packed at once, where there are more than twice as many
_MOST = 512  # rows and columns of an instance
_MANY = 8  # instances for each core, from which on some may have one more than others


def is_matrix(nest: Nest) -> bool:
    """Whether a nest computes in matrix registers."""
    return any(x.kind == "unroll" and x.step == SIDE for x in nest.loops)


def kinds(kernel: Kernel) -> tuple[str, str] | None:
    """The dtypes of the parts of words that a contraction can be computed with, if it can."""
    if not kernel.contracts or kernel.seen:
        return None
    head = kernel.stages[0]
    pair = factors(head)
    narrow = [t.operand.dtype.name for t in pair if isinstance(t, Cast)]
    if head.dtype.name in ("i32", "u32") and len(narrow) == 2 and set(narrow) <= set(_BYTES):
        return _BYTES[narrow[0]], _BYTES[narrow[1]]
    fast = kernel.order == ANY and head.dtype is f32
    return ("bf16", "bf16") if fast and narrow == ["bf16", "bf16"] else None


def is_of_bytes(kernel: Kernel) -> bool:
    """Whether a kernel adds up products of bytes."""
    found = kinds(kernel)
    return found is not None and found[0] != "bf16"


def grain(kernel: Kernel) -> int:
    """How many k a register holds, or 0 if none can."""
    found = kinds(kernel)
    return 0 if found is None else SIDE * PARTS[found[0]]


def has_unit(kernel: Kernel) -> bool:
    """Whether this machine has a matrix unit for a kernel."""
    found = kinds(kernel)
    return found is not None and ("bf16" if found[0] == "bf16" else "int8") in matrix_units()


def reads_rows(kernel: Kernel, high: int) -> bool:
    """Whether registers can take rows of the left factor as they lie: whole ones, along k."""
    *_, m, _ = kernel.stages[0].axes
    (over,) = kernel.stages[0].reduced
    left, found = factors(kernel.stages[0])[0], kinds(kernel)
    assert isinstance(left, Cast)
    plain = isinstance(left.operand, Read) and lies_along(left, over)
    lies = plain and found is not None and left.operand.dtype.name == found[0]
    has_rows = m.name in axes_of(left)
    return lies and has_rows and _divides(high, m.size) and _divides(grain(kernel), over.size)


def matrix_nest(kernel: Kernel) -> Nest | None:
    """The nest of a contraction in matrix registers, where that is faster."""
    if not has_unit(kernel):
        return None
    *batch, m, n = (a.size for a in kernel.stages[0].axes)
    if _is_below(m, _FEWEST) or _is_below(n, _FEWEST):
        return None
    high, broad = _block(m, n)
    # The packed factors fill half of the second cache, or a quarter beside sums that wait for strips of k.
    bytes_, strips = _packed(kernel)
    most = max(min(near_bytes() // (8 if strips else 4) // bytes_, _MOST), 2 * SIDE)
    rows = _MOST if reads_rows(kernel, high) and not strips else most
    tall, wide = _whole(m, high, rows), _whole(n, broad, most)
    count = product(tuple(batch))
    if isinstance(m, int) and isinstance(n, int) and isinstance(count, int):
        while max(tall // high, wide // broad) > 1 and not _is_enough(count, m, n, tall, wide):
            if wide == broad or tall >= max(wide, high + 1):
                tall = -(-tall // 2 // high) * high
            else:
                wide = -(-wide // 2 // broad) * broad
    return _nest(kernel, (tall, wide), (high, broad), _DEEP)


def matrix_nests(kernel: Kernel) -> Iterator[Nest]:
    """Nests in matrix registers to choose from, where the machine has some."""
    if not has_unit(kernel):
        return
    for high, broad in ((32, 32), (16, 64), (16, 32), (16, 16)):
        for tall in (4, 8, 16):
            for deep in (512, 1024, 2048):
                yield _nest(kernel, (tall * high, tall * broad), (high, broad), deep)


def _block(m: Size, n: Size) -> tuple[int, int]:
    """Rows and columns of a block of sums."""
    if _is_below(n, SIDE + 1):
        return (SIDE if _is_below(m, SIDE + 1) else 2 * SIDE), SIDE
    if _is_below(m, SIDE + 1):
        return SIDE, (2 if _is_below(n, 2 * SIDE + 1) else 4) * SIDE
    return 2 * SIDE, 2 * SIDE


def _nest(kernel: Kernel, instance: tuple[int, int], block: tuple[int, int], deep: int) -> Nest:
    (tall, wide), (high, broad), step = instance, block, grain(kernel)
    strip = deep * step // 64
    (over,) = kernel.stages[0].reduced
    strips = (NestLoop("k", strip),) if not _is_below(over.size, 2 * strip + 1) else ()
    loops = (NestLoop("m", tall, "parallel"), NestLoop("n", wide, "parallel"), *strips)
    inner = (NestLoop("n", broad), NestLoop("m", high), NestLoop("k", step))
    at = len(loops)
    end = (NestLoop("m", SIDE, "unroll"), NestLoop("n", LANES, "vector"))
    left = () if not strips and reads_rows(kernel, high) else (("left", at),)
    return Nest((*loops, *inner, *end), (*left, ("right", at)))


def _packed(kernel: Kernel) -> tuple[int, bool]:
    """Bytes of k that are packed at once, and whether there are more of them."""
    (over,) = kernel.stages[0].reduced
    size = over.size * 64 // grain(kernel)
    if isinstance(size, int) and size <= 2 * _DEEP:
        return max(size, 64), False
    return _DEEP, True


def _whole(size: Size, block: int, most: int) -> int:
    """Points of an instance: so many, in blocks of about equal number, or as many as there are."""
    most = max(most // block, 1) * block
    if not isinstance(size, int):
        return most
    blocks = max(-(-size // block), 1)
    instances = -(-blocks * block // most)
    return -(-blocks // instances) * block


def _is_enough(batch: int, m: int, n: int, tall: int, wide: int) -> bool:
    """Whether there are enough instances for all cores, and as many for each."""
    count = batch * -(-m // tall) * -(-n // wide)
    return count >= _MANY * expected_threads() or (
        count >= expected_threads() and count % expected_threads() == 0
    )


def _divides(step: int, size: Size) -> bool:
    return isinstance(size, int) and size % step == 0


def _is_below(size: Size, limit: int) -> bool:
    return isinstance(size, int) and size < limit
