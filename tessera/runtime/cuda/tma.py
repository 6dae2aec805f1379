"""TMA descriptors: how the copy engine of Hopper and later finds tiles of a tensor."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from tessera.runtime.cuda.driver import load

BYTES, _LINE = 128, 64
# CUtensorMapDataType; 8-bit floats and bools are bytes to a copy.
TYPES = {
    np.dtype(t): code
    for code, types in {
        0: ("u1", "i1", "?", ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
        1: ("u2", "i2"), 2: ("u4",), 3: ("i4",), 4: ("u8", "c8"), 5: ("i8",), 6: ("f2",), 7: ("f4",),
        8: ("f8",), 9: (ml_dtypes.bfloat16,),
    }.items()
    for t in types
}  # fmt: skip
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}


def tensor_map(
    ptr: int, dtype: Any, shape: Sequence[int], strides_bytes: Sequence[int], box: Sequence[int],
    swizzle: int = 0, l2promotion: int = 128, nan_fill: bool = False,
) -> bytes:  # fmt: skip
    """The descriptor of a tensor, last axis innermost, that is read by boxes.

    Strides are bytes, one for each axis; that of the last is the size of an element.  Elements out of
    bounds are zero, or NaN.
    """
    d, rank = np.dtype(dtype), len(shape)
    assert 1 <= rank <= 5, f"a tensor map of rank {rank}"
    assert len(box) == len(strides_bytes) == rank, f"{shape}, {strides_bytes}, {box}"
    assert strides_bytes[-1] == d.itemsize, f"the last stride of {strides_bytes} is no element"
    about = f" for {d} {tuple(shape)} at {ptr:#x}, strides of {tuple(strides_bytes)} bytes"
    return encoded(
        ptr, TYPES[d], shape[::-1], strides_bytes[-2::-1], box[::-1], SWIZZLES[swizzle],
        _PROMOTIONS[l2promotion], nan_fill, f"{about}, box {tuple(box)}, swizzle {swizzle}",
    )  # fmt: skip


def encoded(
    ptr: int, dtype: int, shape: Sequence[int], strides: Sequence[int], box: Sequence[int],
    swizzle: int = 0, l2promotion: int = 2, nan_fill: bool = False, about: str = "",
) -> bytes:  # fmt: skip
    """The descriptor by the driver's own numbers, innermost axis first and without its stride."""
    rank = len(shape)
    memory = ctypes.create_string_buffer(BYTES + _LINE)
    at = ctypes.addressof(memory)
    at += -at % _LINE
    sizes = (ctypes.c_uint64 * rank)(*shape)
    steps = (ctypes.c_uint64 * rank)(*strides)
    boxes = (ctypes.c_uint32 * rank)(*box)
    ones = (ctypes.c_uint32 * rank)(*[1] * rank)
    driver = load("cuda")
    code = driver.cuTensorMapEncodeTiled(
        at, dtype, rank, ptr, sizes, steps, boxes, ones, 0, swizzle, l2promotion, int(nan_fill)
    )
    driver.check("cuTensorMapEncodeTiled", code, about)
    return ctypes.string_at(at, BYTES)


_ANYWHERE = 4096  # a launch puts the address in


class TmaDescriptor(NamedTuple):
    """What a descriptor of the copy engine says of a memory, last axis innermost; strides are bytes."""

    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int

    def map(self) -> bytes:
        """The descriptor, of memory that a launch will name."""
        return tensor_map(_ANYWHERE, *self)
