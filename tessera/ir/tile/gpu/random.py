"""random: the words of Philox for every element of a counter, as core/philox.py has them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod

from tessera.core.dtype import u32, u64
from tessera.core.philox import MULTIPLIERS, ROUNDS, WEYL
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.gpu.blocks import power
from tessera.ir.tile.ir import Builder, Kernel, Tile
from tessera.ir.tile.launch import Expansion, Launch, Threads

_ELEMENTS = 512  # of a block
_LOW, _HALF = (1 << 32) - 1, 32


def random_bits(step: Primitive, types: Mapping[str, TensorType]) -> Expansion | None:
    """One launch on flat tensors."""
    t = types[step.results[0]]
    if 0 in t.shape or any(types[x].shape != t.shape for x in step.operands):
        return None
    p = step.params
    kernel = _kernel(prod(int(n) for n in t.shape), t.dtype.bits // 32, p["draw"], p["purpose"])
    return Expansion((Launch(kernel, step.operands, step.results, Threads(4)),))


def _kernel(count: int, words: int, draw: int, purpose: int) -> Kernel:
    b, n = Builder("random_bits"), min(power(count), _ELEMENTS)
    given = [b.parameter(name, TensorType(u32, (count,))) for name in ("k0", "k1")]
    counter = b.parameter("counter", TensorType(u64, (count,)))
    out = b.parameter("out", TensorType(u64 if words == 2 else u32, (count,)), True)
    at = (b.program(-(-count // n)) * n,)
    k0, k1 = (b.cast(b.load(m, at, (n,), masked=(0,)), u64) for m in given)
    c = b.load(counter, at, (n,), masked=(0,))
    block, first = divmod(draw * words, 4)
    rest = [b.full(u64, (n,), x) for x in (block, purpose)]
    made = _philox(b, [_low(b, c), _high(b, c), *rest], k0, k1)[first : first + words]
    word = made[0]
    if words == 2:
        high = b.apply("shift_left", made[1], b.full(u64, (1,), _HALF))
        word = b.apply("or", word, high)
    b.store(out, b.cast(word, out.type.dtype), at, (n,), masked=(0,))
    return b.finish()


def _philox(b: Builder, words: list[Tile], k0: Tile, k1: Tile) -> list[Tile]:
    """The four words of a block."""
    number, xor = partial(b.full, u64, (1,)), partial(b.apply, "xor")
    for i in range(ROUNDS):
        c0, c1, c2, c3 = words
        p0, p1 = (b.apply("mul", c, number(m)) for c, m in zip((c0, c2), MULTIPLIERS, strict=True))
        e0, e1 = (
            _low(b, b.apply("add", k, number(i * w))) for k, w in zip((k0, k1), WEYL, strict=True)
        )
        words = [xor(xor(_high(b, p1), c1), e0), _low(b, p1), xor(xor(_high(b, p0), c3), e1), _low(b, p0)]  # fmt: skip
    return words


def _low(b: Builder, x: Tile) -> Tile:
    return b.apply("and", x, b.full(u64, (1,), _LOW))


def _high(b: Builder, x: Tile) -> Tile:
    return b.apply("shift_right", x, b.full(u64, (1,), _HALF))
