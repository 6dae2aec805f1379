"""The weights of a bundle: one safetensors file, in which every tensor begins at a cache line."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from tessera.core.dtype import DType, as_dtype
from tessera.core.errors import FileError
from tessera.files import header

Array = np.ndarray[Any, np.dtype[Any]]
LINE = 64  # bytes of a cache line
_PAD = "padding."
# The format's dtype of ours, and the sizes of the axes that it has beside.  Bytes are as in memory.
_STORED: dict[str, tuple[str, tuple[int, ...]]] = {
    "bool": ("BOOL", ()), "i4": ("I8", ()), "i8": ("I8", ()), "i16": ("I16", ()), "i32": ("I32", ()),
    "i64": ("I64", ()),
    "u8": ("U8", ()), "u16": ("U16", ()), "u32": ("U32", ()), "u64": ("U64", ()), "f8e4m3": ("F8_E4M3", ()),
    "f8e5m2": ("F8_E5M2", ()), "f16": ("F16", ()), "bf16": ("BF16", ()), "f32": ("F32", ()),
    "tf32": ("F32", ()),
    "f64": ("F64", ()), "c64": ("F32", (2,)), "c128": ("F64", (2,)),
}  # fmt: skip


class WeightWriter:
    """Arrays on their way into a file; one that is there already is kept once."""

    def __init__(self) -> None:
        self.names: dict[Any, str] = {}
        self.tensors: dict[str, tuple[DType, tuple[int, ...], int, bytes]] = {}
        self._rows: list[tuple[str, str, tuple[int, ...], int]] = []
        self._parts: list[bytes] = []
        self._at = 0

    def keep(self, x: Array, dtype: DType, name: str) -> str:
        """The name under which an array is kept."""
        data = np.ascontiguousarray(x).tobytes()
        digest = hashlib.sha256(data).digest()
        key = dtype.name, x.shape, digest
        if key in self.names:
            return self.names[key]
        free, n = name, 1
        while free in self.tensors:
            free, n = f"{name}~{n}", n + 1
        self._align()
        stored, more = _STORED[dtype.name]
        self.names[key] = free
        self.tensors[free] = dtype, x.shape, self._at, digest
        self._put(free, stored, (*x.shape, *more), data)
        return free

    def offset(self, name: str) -> int:
        """Where the bytes of a tensor begin after the header."""
        return self.tensors[name][2]

    def _align(self) -> None:
        short = -self._at % LINE
        if short:
            self._put(f"{_PAD}{len(self._rows)}", "U8", (short,), bytes(short))

    def _put(self, name: str, dtype: str, shape: tuple[int, ...], data: bytes) -> None:
        self._rows.append((name, dtype, shape, len(data)))
        self._parts.append(data)
        self._at += len(data)

    def manifest(self) -> dict[str, Any]:
        """What the manifest says of the tensors."""
        return {
            name: {"dtype": str(dtype), "shape": list(shape), "sha256": digest.hex()}
            for name, (dtype, shape, _, digest) in sorted(self.tensors.items())
        }

    def file(self) -> bytes:
        """The safetensors file."""
        return header.write(self._rows, {}) + b"".join(self._parts)


PIECE = 16384  # bytes that are compressed by themselves


def pieces(data: bytes) -> bytes:
    """The digests of the pieces of a file, by which a reader verifies several at once."""
    view = memoryview(data)
    parts = (view[i : i + PIECE] for i in range(0, len(data), PIECE))
    head = struct.pack("<IIQ", PIECE, 0, len(data))
    return head + b"".join(hashlib.sha256(p).digest() for p in parts)


def read(where: str, data: memoryview, told: Mapping[str, Any]) -> dict[str, Array]:
    """The arrays of a file, mapped, by name; `told` is what the manifest says of them."""
    found = header.read(where, _BytesFile(data), len(data))
    return {name: _array(where, data[found.data :], found, name, t) for name, t in told.items()}


def _array(where: str, data: memoryview, found: header.Header, name: str, told: Any) -> Array:
    e = found.entries.get(name)
    if e is None or not isinstance(told, dict) or not {"dtype", "shape"} <= told.keys():
        raise FileError(f"bundle: {where} has no tensor {name!r} as its manifest states")
    dtype = as_dtype(told["dtype"])
    kind, more = _STORED[dtype.name]
    if e.dtype != kind or list(e.shape) != [*told["shape"], *more]:
        raise FileError(f"bundle: {where} holds {name!r} otherwise than its manifest states")
    raw = np.frombuffer(data[e.start : e.stop], np.uint8)
    shape = tuple(told["shape"])
    if not math.prod(shape):
        return np.empty(shape, dtype.np)
    return raw.view(np.dtype(dtype.np)).reshape(shape)


class _BytesFile:
    """Bytes as an open file."""

    def __init__(self, data: memoryview):
        self._data, self._at = data, 0

    def seek(self, at: int) -> None:
        self._at = at

    def read(self, n: int) -> bytes:
        got = bytes(self._data[self._at : self._at + n])
        self._at += len(got)
        return got
