"""layout: a view of a tensor in memory as an offset and strides, where its index map is linear.

transpose of f32[2,3] at strides (12, 4)   ->   strides (4, 12)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tessera.core.dims import Size, Symbol, symbol
from tessera.core.types import TensorType
from tessera.ir.graph.op import Op
from tessera.ir.schedule.index import narrow

Layout = tuple[int, tuple[int, ...]]  # byte offset and strides in bytes


def row_major(t: TensorType) -> tuple[int, ...]:
    """The strides of a tensor whose elements lie in order, without gaps."""
    step = np.dtype(t.dtype.np).itemsize
    return tuple(step * prod(int(n) for n in t.shape[i + 1 :]) for i in range(t.rank))


def is_row_major(t: TensorType, strides: Sequence[int]) -> bool:
    """Whether elements lie in order; axes of one element have any stride."""
    return all(n == 1 or a == b for n, a, b in zip(t.shape, strides, row_major(t), strict=True))


def layout_of(
    op: Op, operand: TensorType, result: TensorType, params: Mapping[str, Any], base: Layout
) -> Layout | None:
    """Where a view lies when its operand has this layout; None when no strides can say it."""
    offset, strides = base
    if op.view is None or 0 in operand.shape or 0 in result.shape:
        return None
    if op.reshapes and is_row_major(operand, strides):
        return offset, row_major(result)
    axes: dict[str, Size] = {f"_v{i}": n for i, n in enumerate(result.shape)}
    place = op.view(tuple(symbol(a) for a in axes), (operand,), params)
    address: Size = offset
    for index, stride in zip(place, strides, strict=True):
        address = address + narrow(index, axes) * stride
    return _linear(address, list(axes))


def _linear(address: Size, axes: Sequence[str]) -> Layout | None:
    """The constant and the factor of each axis."""
    if isinstance(address, int):
        return address, (0,) * len(axes)
    offset, factors = 0, dict.fromkeys(axes, 0)
    for monomial, factor in address.terms:
        match monomial:
            case ():
                offset = factor
            case ((Symbol(name), 1),):
                factors[name] = factor
            case _:
                return None
    return offset, tuple(factors.values())
