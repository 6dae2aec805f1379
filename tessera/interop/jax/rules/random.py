"""Keys and random bits: Threefry-2x32 with 20 rounds.

Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).  A key of JAX is a
tensor u32[2].
"""

from __future__ import annotations

import math
from typing import Any

from tessera.core.dtype import u32, u64
from tessera.interop.jax.rules.table import Params, rule
from tessera.ir.graph.ir import Value
from tessera.lang import op

_TURNS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA  # the key schedule's constant of Threefry (Salmon et al., 2011)


def _turned(x: Value, by: int) -> Value:
    left, right = op.bitwise_left_shift(x, by), op.bitwise_right_shift(x, 32 - by)
    return op.bitwise_or(left, right)


@rule("threefry2x32")
def _threefry(p: Params, k0: Value, k1: Value, x0: Value, x1: Value) -> Any:
    last = op.bitwise_xor(op.bitwise_xor(k0, k1), _PARITY)
    keys = (k0, k1, last)
    a, b = op.add(x0, k0), op.add(x1, k1)
    for block in range(5):
        for by in _TURNS[block % 2]:
            a = op.add(a, b)
            b = op.bitwise_xor(a, _turned(b, by))
        a = op.add(a, keys[(block + 1) % 3])
        b = op.add(op.add(b, keys[(block + 2) % 3]), block + 1)
    return [a, b]


@rule("random_wrap", "random_unwrap")
def _key(p: Params, x: Value) -> Value:
    return x


@rule("iota_2x32_shape")
def _counter(p: Params) -> Any:
    """The place of each element as two words."""
    shape = tuple(map(int, p["shape"]))
    count = op.reshape(op.iota((math.prod(shape),), 0, u64), shape)
    return [op.cast(op.bitwise_right_shift(count, 32), u32), op.cast(count, u32)]
