"""The block of a product: the one that a model of the device expects to be done first.

A multiprocessor multiplies, and its part of the second cache feeds it: a block of m by n takes for each k
the longer of m n / RATE and (m + n) bytes / FEED cycles, and the last round of blocks counts as a whole
one.  A sum along k is one chain in every block, so what is chosen changes no bit
(docs/decisions/070-blocks-of-products.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from tessera.ir.schedule.gpu_blocks import ENOUGH, MULTIPROCESSORS, ProductBlock, power

_RATE = 2048  # products of 16 bits that a multiprocessor of Hopper adds in a cycle
_FEED = 48  # bytes of factors that it gets in a cycle, when all of them ask
# Bytes of a row of a box, fewer of which are fetched at a fourth of the speed where most multiprocessors ask,
# each for rows of its own: 33x4096x4096 took 21.8 us in blocks of 64 by 32, and 15.6 by 64 (H200).
_LINE = 128
_BEGIN = 1500  # cycles until the first factors are there
_STORE = 32  # bytes of a result that it stores in a cycle
_LATENCY = 280  # cycles of a step at least: what a load takes, over the steps that overlap
# Fewer than 64 rows are not fetched as boxes: blocks of 32 took 1.4 times as long as of 64 (256x8192x256).
_BLOCKS = ((128, 256), (256, 128), (128, 128), (64, 256), (128, 64), (64, 128), (64, 64), (64, 32))
_SHORT = (256, 512)  # sums whose blocks end so often that two must share a multiprocessor
_LONG = 512  # terms of a sum whose steps are worth a deep block: one that is whole in a step has no registers
# Bits along k of a step: three steps of 32 by 32 take 48 of the 64 KB that every GPU has.
_DEEP = 2048
_SMALL = 40  # rows and columns together: three steps of 128 f32 of them take 60 KB
_NARROW = 8  # rows and columns of the smallest block of wide factors that has several of both
_MATRIX = 8192  # elements of a matrix that a block of few vectors asks for at once


@dataclass(frozen=True)
class ProductShape:
    """A product: its sizes, the bits of a factor, the stages with it, and whether its left factor lies
    along m.
    """

    batch: int
    m: int
    n: int
    k: int
    bits: int
    stages: int = 1
    turned: bool = False


def product_block(s: ProductShape) -> ProductBlock:
    """The block of a product."""
    if s.bits > 16:
        return _wide_factors(s)
    if s.n <= 16 and s.m >= 64:
        return _few_columns(s)
    if s.m <= 16 and s.n <= 64 and s.k >= 512 and s.batch * s.n <= 64:
        return ProductBlock(16, _fit(s.n, 32), 256)  # few blocks wait for memory, and ask for much
    if s.m <= 32 or s.n <= 16:
        return ProductBlock(_fit(s.m, 64), _fit(s.n, 64), _fit(s.k, 128))
    m, n = min(_BLOCKS, key=lambda b: cycles(s, *b))
    if s.stages > 2 and m * n == 128 * 256:
        m, n = 256, 128  # what follows reads rows of 128
    depth = _fit(s.k, max(_depth(s, m, n), 128 if s.bits == 8 else 0))
    if m * n < 128 * 256 or _blocks(s, m, n) < MULTIPROCESSORS:
        # In one round a block has the memory of its multiprocessor to itself.
        deep = (m, n) == (128, 128) and _is_one_round(s, m, n)
        return ProductBlock(m, n, depth, 8, 0, 0, 4 if deep and s.bits == 16 else 0)
    if s.stages <= 2 and s.bits == 16 and _SHORT[0] <= s.k <= _SHORT[1]:
        return ProductBlock(128, 128, depth, 8, 2 * MULTIPROCESSORS)
    return ProductBlock(m, n, depth, 8, MULTIPROCESSORS)


def _wide_factors(s: ProductShape) -> ProductBlock:
    """Factors of 32 bits and more, which no matrix unit takes as they are.

    Threads multiply, so a block of few rows has no more rows than there are.
    """
    m, n = _fit(s.m, 64), _fit(s.n, 64)
    if _blocks(s, m, n) < MULTIPROCESSORS and s.k >= _LONG:
        # They wait for memory, or for the sum before: more blocks ask for more, and each for much.
        m, n = (min(power(side), 32) for side in (s.m, s.n))
        while max(m, n) > _NARROW and _blocks(s, m, n) < MULTIPROCESSORS * 2 // 3:
            m, n = (m // 2, n) if m > n else (m, n // 2)
        warps = max(min(m * n // 128, 4), 1)
        # Of a small block, steps twice as deep: 1x4096x4096 took 18.5 us, and 22.7 with steps of 64 (H200).
        depth, stages = (2 * _DEEP, 3) if m + n <= _SMALL else (_DEEP, 4)
        return ProductBlock(m, n, depth // s.bits, 8, 0, warps, stages)
    return ProductBlock(m, n, _fit(s.k, 32))


def cycles(s: ProductShape, m: int, n: int) -> float:
    """What a product in blocks of m by n takes, where memory is no bound."""
    size = s.bits / 8
    fed = (m + n) * size
    if n * size < _LINE and s.m <= m and 2 * _blocks(s, m, n) > MULTIPROCESSORS:
        fed += 3 * n * size
    step = max(m * n / (_RATE * 16 / s.bits), fed / _FEED, _LATENCY / _depth(s, m, n))
    rounds = -(-_blocks(s, m, n) // MULTIPROCESSORS)
    steps = -(-s.k // _depth(s, m, n)) * _depth(s, m, n)
    return rounds * (steps * step + m * n * 2 / _STORE) + _BEGIN


def _depth(s: ProductShape, m: int, n: int) -> int:
    """The k of a step: more where a block has a multiprocessor to itself."""
    return 128 if m * n <= 128 * 64 and _is_one_round(s, m, n) else 64


def _is_one_round(s: ProductShape, m: int, n: int) -> bool:
    return _blocks(s, m, n) <= MULTIPROCESSORS


def _blocks(s: ProductShape, m: int, n: int) -> int:
    return s.batch * -(-s.m // m) * -(-s.n // n)


def _few_columns(s: ProductShape) -> ProductBlock:
    """A matrix that is read once, for few vectors: long runs of it, along whichever axis it lies."""
    if s.turned:
        depth = _fit(s.k, 64)
        if depth == 16:  # one step: what is asked for at once is all there is
            return ProductBlock(_fit(s.m, 1024), 16, 16, 1, 0, 0, 2)
        return ProductBlock(_fit(s.m, _MATRIX // depth), 16, depth, 1)
    few = s.batch * s.m <= 16 * ENOUGH
    depth = _fit(s.k, 512 if few else 256)
    rows = 16 if few else max(32, min(_fit(s.m, _MATRIX // depth), 512))
    return ProductBlock(rows, 16, depth, 1)


def _fit(n: int, most: int) -> int:
    return max(min(power(n), most), 16)
