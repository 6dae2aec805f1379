"""Parameters of kernels whose groups of threads have roles: memories as boxes of the copy engine."""

from __future__ import annotations

from tessera.ir.target.gluon.flash_forward_emit import SWIZZLE
from tessera.ir.target.gluon.flash_forward_match import Box
from tessera.runtime.cuda.launch import Parameter, TensorMap, i32, i64
from tessera.runtime.cuda.tma import tensor_map

_ANYWHERE = 4096  # a launch puts the address in


def parameters(box: Box, cell: int, offset: int) -> list[Parameter]:
    """What a kernel is given for a box: its descriptor, its sizes and its strides."""
    rows, columns = box.shape
    dtype = box.memory.type.dtype
    size = dtype.bits // 8
    if box.is_line:
        count = rows * columns
        data = tensor_map(_ANYWHERE, dtype.np, (count,), (size,), (box.columns,))
        return [TensorMap(data, cell, offset), i32(count), i64(1)]
    data = tensor_map(
        _ANYWHERE, dtype.np, (rows, columns), (columns * size, size),
        (box.rows, SWIZZLE // size), SWIZZLE,
    )  # fmt: skip
    return [TensorMap(data, cell, offset), i32(rows), i32(columns), i64(columns), i64(1)]
