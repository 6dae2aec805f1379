"""Parameters of kernels whose groups of threads have roles: memories as boxes of the copy engine."""

from __future__ import annotations

from tessera.ir.target.gluon.flash_forward_emit import SWIZZLE
from tessera.ir.tile.gpu.flash_forward_match import TmaBox
from tessera.runtime.cuda.launch import FixedValue, Parameter, TensorMap, i32, i64
from tessera.runtime.cuda.tma import TmaDescriptor


def described(box: TmaBox) -> tuple[TmaDescriptor, list[FixedValue]]:
    """The descriptor of a box, and its sizes and strides, which a kernel is given behind it."""
    rows, columns = box.shape
    dtype = box.memory.type.dtype
    size = dtype.bits // 8
    if box.is_line:
        count = rows * columns
        return TmaDescriptor(dtype.np, (count,), (size,), (box.columns,), 0), [i32(count), i64(1)]
    whole = TmaDescriptor(
        dtype.np, (rows, columns), (columns * size, size), (box.rows, SWIZZLE // size), SWIZZLE
    )
    return whole, [i32(rows), i32(columns), i64(columns), i64(1)]


def parameters(box: TmaBox, cell: int, offset: int) -> list[Parameter]:
    """What a kernel is given for a box: its descriptor, its sizes and its strides."""
    whole, rest = described(box)
    return [TensorMap(whole.map(), cell, offset), *rest]
