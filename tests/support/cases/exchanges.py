"""Random kernels whose tiles exchange elements, and what NumPy says of them."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np

from tessera.core.dtype import DType, bf16, f32, f64, i64, u32
from tessera.core.types import TensorType
from tessera.ir.tile.ir import Builder, Kernel

DTYPES: tuple[DType, ...] = (f32, f64, i64, u32, bf16)


def exchanges(count: int, seed: int) -> Iterator[tuple[Kernel, list[Any], Any]]:
    """A kernel, its arrays, and what it leaves in the last of them."""
    r = Random(seed)
    for i in range(count):
        given, made = 2 ** r.randint(0, 4), 2 ** r.randint(0, 4)
        places = 2 ** r.randint(max(0, made.bit_length() - given.bit_length()), 6)
        dtype = r.choice(DTYPES)
        shape = (*_cut(r, given), *_cut(r, places))
        order = _order(r, shape, made)
        if order is None:
            continue
        b = Builder(f"exchange{i}")
        x = b.parameter("x", TensorType(dtype, (given, places)))
        each = given * places // made
        y = b.parameter("y", TensorType(dtype, (made, each)), True)
        held = [b.load(x, (k, 0), (1, places), (1,)) for k in range(given)]
        for k, t in enumerate(b.exchange(held, shape, order, made)):
            b.store(y, t, (k, 0), (1, each), (1,))
        numbers = np.arange(given * places).reshape(given, places).astype(dtype.np)
        want = numbers.reshape(shape).transpose(order).reshape(made, each)
        yield b.finish(), [numbers, np.zeros((made, each), dtype.np)], want


def _cut(r: Random, n: int) -> list[int]:
    """Factors of a power of two, some of them 1."""
    found = []
    while n > 1:
        found.append(2 ** r.randint(0, n.bit_length() - 1))
        n //= found[-1]
    return found


def _order(r: Random, shape: tuple[int, ...], made: int) -> tuple[int, ...] | None:
    """An order of axes whose first ones number so many tiles."""
    for _ in range(40):
        order = r.sample(range(len(shape)), len(shape))
        sizes = np.cumprod([1, *(shape[i] for i in order)]).tolist()
        if made in sizes:
            return tuple(order)
    return None
