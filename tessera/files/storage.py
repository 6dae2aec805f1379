"""How tensors are stored in a file: the format's dtypes, and ours that it does not have.

i4 is packed two to a byte, the first in the low bits; complex numbers are pairs along a last axis of two.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from tessera.core.dtype import FORMATS, DType, as_dtype
from tessera.core.errors import FileError
from tessera.files.header import TensorEntry

Array = np.ndarray[Any, np.dtype[Any]]

_NAMES = {name: d.format.file for name, d in FORMATS.items()}
# What NumPy reads the format's dtypes as.
_NUMPY: dict[str, Any] = {
    **{n: as_dtype(d).np for d, n in _NAMES.items() if d not in ("i4", "c64", "c128")},
    "C64": np.complex64,
}


class Stored(NamedTuple):
    """A tensor as a file holds it."""

    dtype: str  # the format's
    shape: tuple[int, ...]
    bytes: Array  # flat


def stored(data: Array, dtype: DType) -> Stored:
    """The bytes of a tensor."""
    flat = np.ascontiguousarray(data).reshape(-1)
    name, shape = file_type(dtype, data.shape)
    return Stored(name, shape, (_packed(flat) if dtype.name == "i4" else flat).view(np.uint8))


def file_type(dtype: DType, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """The dtype and the shape that a tensor has in a file."""
    name = _NAMES[dtype.name]
    if dtype.name == "i4":
        return name, ((math.prod(shape) + 1) // 2,)
    return name, (*shape, 2) if dtype.kind == "c" else shape


def _packed(x: Array) -> Array:
    flat = x.view(np.uint8) & 15
    if flat.size % 2:
        flat = np.append(flat, np.uint8(0))
    return flat[::2] | flat[1::2] << 4


def _unpacked(x: Array, shape: tuple[int, ...]) -> Array:
    both = np.stack([x & 15, x >> 4], axis=-1).reshape(-1)[: math.prod(shape)]
    signed = (both.astype(np.int8) ^ 8) - 8
    return signed.astype(ml_dtypes.int4).reshape(shape)


def restored(
    where: str, e: TensorEntry, raw: Array, dtype: DType | None, shape: tuple[int, ...] | None
) -> Array:
    """The array of an entry whose bytes these are, of a dtype of ours where a manifest states one."""
    if dtype is not None and dtype.name == "i4":
        assert shape is not None
        return _unpacked(raw, shape)
    kind = np.dtype(dtype_of(where, e).np)
    if e.dtype == "BOOL" and raw.size and int(raw.max()) > 1:
        raise FileError(
            f"load: {where}: tensor {e.name!r} is BOOL but holds bytes other than 0 and 1; the file is "
            "damaged"
        )
    if raw.ctypes.data % kind.alignment:
        raw = raw.copy()
    if dtype is not None and dtype.kind == "c":
        kind = np.dtype(dtype.np)
        return raw.view(kind).reshape(e.shape[:-1])
    return raw.view(kind).reshape(e.shape)


def dtype_of(where: str, e: TensorEntry) -> DType:
    """The dtype of ours that an entry without a manifest has."""
    if e.dtype in _NUMPY:
        return as_dtype(_NUMPY[e.dtype])
    raise FileError(
        f"load: {where}: tensor {e.name!r} is {e.dtype}, which no dtype of Tessera holds; convert it first"
    )
