"""random_bits: the words of Philox for every element of a counter, as core/philox.py has them.

w[i] = philox(k, i)   ->   program i by 4096: for i by 16: ten rounds in vectors
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from tessera.core.dims import product, smaller
from tessera.core.dtype import u32, u64
from tessera.core.folds import LANES
from tessera.core.philox import MULTIPLIERS, ROUNDS, WEYL
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.ir import Builder, Memory, Tile
from tessera.ir.tile.launch import Expansion, Launch

_BLOCK = 4096  # elements of an instance
_LOW, _HALF = (1 << 32) - 1, 32


def lower_draws(step: Primitive, types: Mapping[str, TensorType]) -> Expansion:
    """One kernel on flat tensors."""
    t = types[step.results[0]]
    size, b, p = product(t.shape), Builder("random_bits"), step.params
    dtypes = {"k0": u32, "k1": u32, "counter": u64}
    given = [b.parameter(name, TensorType(d, (size,))) for name, d in dtypes.items()]
    out = b.parameter("out", TensorType(t.dtype, (size,)), writable=True)
    start = b.program((size + _BLOCK - 1) // _BLOCK) * _BLOCK
    stop = smaller(start + _BLOCK, size)
    whole = (stop - start) // LANES * LANES + start
    for first, last, masked in ((start, whole, ()), (whole, stop, (0,))):
        if first != last:
            with b.loop(first, last, LANES) as loop:
                at = (loop.variable,)
                tiles = [b.load(m, at, (LANES,), masked=masked) for m in given]
                word = words_of(b, tiles, out, p["draw"], p["purpose"])
                b.store(out, word, at, (LANES,), masked=masked)
    return Expansion((Launch(b.finish(), step.operands, step.results),))


def words_of(b: Builder, given: Sequence[Tile], out: Memory, draw: int, purpose: int) -> Tile:
    """The word of each element, from tiles of the words of its key and of its counter."""
    (k0, k1), c, dtype = (b.cast(k, u64) for k in given[:2]), given[2], out.type.dtype
    words = dtype.bits // 32
    block, first = divmod(draw * words, 4)
    rest = [b.full(u64, c.shape, x) for x in (block, purpose)]
    made = _philox(b, [_low(b, c), _high(b, c), *rest], k0, k1)[first : first + words]
    word = made[0]
    if words == 2:
        high = b.apply("shift_left", made[1], b.full(u64, (1,), _HALF))
        word = b.apply("or", word, high)
    return b.cast(word, dtype)


def _philox(b: Builder, words: list[Tile], k0: Tile, k1: Tile) -> list[Tile]:
    """The four words of a block."""
    number, xor = partial(b.full, u64, (1,)), partial(b.apply, "xor")
    for i in range(ROUNDS):
        c0, c1, c2, c3 = words
        p0, p1 = (b.apply("mul", c, number(m)) for c, m in zip((c0, c2), MULTIPLIERS, strict=True))
        e0, e1 = (
            _low(b, b.apply("add", k, number(i * w))) for k, w in zip((k0, k1), WEYL, strict=True)
        )
        words = [
            xor(xor(_high(b, p1), c1), e0),
            _low(b, p1),
            xor(xor(_high(b, p0), c3), e1),
            _low(b, p0),
        ]
    return words


def _low(b: Builder, x: Tile) -> Tile:
    return b.apply("and", x, b.full(u64, (1,), _LOW))


def _high(b: Builder, x: Tile) -> Tile:
    return b.apply("shift_right", x, b.full(u64, (1,), _HALF))


DRAWS = {"random_bits": lower_draws}
