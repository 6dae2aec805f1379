"""Views of a program at symbolic sizes: offsets and strides, in bytes, as polynomials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tessera.core.dims import Size, product, substitute, symbol
from tessera.core.types import TensorType
from tessera.ir.graph.op import Op
from tessera.ir.schedule.index import narrow

Layout = tuple[Size, tuple[Size, ...]]  # offset and strides, in bytes


def row_major(t: TensorType) -> tuple[Size, ...]:
    """The strides of a tensor whose elements lie in order, without gaps."""
    step = np.dtype(t.dtype.np).itemsize
    return tuple(product(t.shape[i + 1 :]) * step for i in range(t.rank))


def is_row_major(t: TensorType, strides: Sequence[Size]) -> bool:
    """Whether elements lie in order at all sizes; axes of one element have any stride."""
    return all(n == 1 or a == b for n, a, b in zip(t.shape, strides, row_major(t), strict=True))


def layout_of(
    op: Op, operand: TensorType, result: TensorType, params: Mapping[str, Any], base: Layout
) -> Layout | None:
    """Where a view lies when its operand has this layout; None when no strides can say it."""
    offset, strides = base
    assert op.view is not None, op.name
    if op.reshapes and is_row_major(operand, strides):
        return offset, row_major(result)
    axes: dict[str, Size] = {f"_v{i}": n for i, n in enumerate(result.shape)}
    place = op.view(tuple(symbol(a) for a in axes), (operand,), params)
    address: Size = offset
    for index, stride in zip(place, strides, strict=True):
        address = address + narrow(index, axes) * stride
    return _linear(address, list(axes))


def _linear(address: Size, axes: Sequence[str]) -> Layout | None:
    """The constant and the factor of each axis; None unless the address is their sum."""
    zero: dict[str, Size] = dict.fromkeys(axes, 0)
    offset = substitute(address, zero)
    factors = tuple(substitute(address, {**zero, a: 1}) - offset for a in axes)
    total = offset
    for a, f in zip(axes, factors, strict=True):
        total = total + f * symbol(a)
    return (offset, factors) if total == address else None
