"""GGUF files: metadata and tensors, mapped into memory and checked before anything is used.

No count in a file makes us allocate: a string, an array or a tensor must be within the file before it is
read.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tessera.core.errors import ModelError
from tessera.models.blocks import FORMATS, Array, BlockFormat, Groups, dequantise

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32  # of a file that names none
MOST_AXES = 4  # GGML_MAX_DIMS
DEEPEST = 4  # arrays in arrays
STRING, ARRAY, BOOL = 8, 9, 7
NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "<u1", 10: "<u8", 11: "<i8",
    12: "<f8",
}  # fmt: skip


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of a file: the shape in NumPy's order, the format, and where its bytes lie."""

    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    start: int
    bytes: int


class GGUF:
    """An open file: `metadata` is a dict of Python values, `tensors` a dict of what is where."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self._data = mapped(self.path)
        r = _FileReader(self._data, str(self.path))
        if r.take(4) != MAGIC:
            raise r.error("is not a GGUF file: it does not start with GGUF")
        self.version: int = r.number("<u4")
        if self.version not in VERSIONS:
            raise r.error(
                f"has GGUF version {self.version}, expected 2 or 3; files of big-endian machines are not read"
            )
        tensors, pairs = r.number("<u8"), r.number("<u8")
        r.room_for(tensors, 24, "tensors")
        r.room_for(pairs, 12, "metadata pairs")
        self.metadata = _metadata(r, pairs)
        self.tensors = _tensors(r, tensors, _alignment(self.metadata, r))

    def data(self, name: str) -> Array:
        """The bytes of a tensor, without a copy."""
        t = self._info(name)
        return np.frombuffer(self._data, np.uint8, t.bytes, t.start)

    def groups(self, name: str) -> Groups:
        """The codes, scales and offsets of a tensor of few bits."""
        t = self._info(name)
        if t.format.groups is None:
            raise ModelError(
                f"{self.path.name}: tensor {name} is {t.format.name}, which has no blocks"
            )
        return t.format.groups(np.frombuffer(self.data(name), t.format.fields))

    def tensor(self, name: str) -> Array:
        """A tensor as f32."""
        t = self._info(name)
        return dequantise(t.format, self.data(name)).reshape(t.shape)

    def _info(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise ModelError(f"{self.path.name}: there is no tensor {name}")
        return self.tensors[name]


def mapped(path: Path) -> mmap.mmap | bytes:
    """The bytes of a file, read when they are used."""
    try:
        with path.open("rb") as f:
            if os.fstat(f.fileno()).st_size == 0:
                return b""
            return mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as e:
        raise ModelError(f"{path}: cannot be read ({e.strerror})") from None


@dataclass
class _FileReader:
    """A place in the bytes of a file."""

    data: mmap.mmap | bytes
    name: str
    at: int = 0

    def error(self, text: str) -> ModelError:
        return ModelError(f"{self.name}: the file {text}")

    def room_for(self, count: int, size: int, what: str) -> None:
        """Refuse a count whose elements cannot all be in the rest of the file."""
        left = len(self.data) - self.at
        if count * size > left:
            raise self.error(
                f"has {count} {what} by its own count, but {left} bytes follow at {self.at}"
            )

    def take(self, n: int) -> bytes:
        if self.at + n > len(self.data):
            raise self.error(f"ends at {len(self.data)}, where {n} bytes are expected at {self.at}")
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self, dtype: str) -> Any:
        d = np.dtype(dtype)
        return np.frombuffer(self.take(d.itemsize), d)[0].item()

    def text(self, what: str) -> str:
        (n,) = struct.unpack("<Q", self.take(8))
        self.room_for(n, 1, f"bytes in {what}")
        try:
            return self.take(n).decode()
        except UnicodeDecodeError as e:
            raise self.error(
                f"has {what} that is not UTF-8 at byte {self.at - n + e.start}"
            ) from None


def _metadata(r: _FileReader, pairs: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for _ in range(pairs):
        key = r.text("a key")
        if key in out:
            raise r.error(f"has the key {key} twice")
        out[key] = _value(r, r.number("<u4"), key, 0)
    return out


def _value(r: _FileReader, kind: int, key: str, depth: int) -> Any:
    if kind == STRING:
        return r.text(f"the value of {key}")
    if kind == ARRAY:
        return _array(r, key, depth)
    if kind not in NUMBERS:
        raise r.error(f"has type {kind} for the value of {key}, expected 0 to 12")
    value = r.number(NUMBERS[kind])
    return _as_bool(r, value, key) if kind == BOOL else value


def _as_bool(r: _FileReader, value: int, key: str) -> bool:
    if value not in (0, 1):
        raise r.error(f"has {value} for the bool {key}, expected 0 or 1")
    return bool(value)


def _array(r: _FileReader, key: str, depth: int) -> Any:
    kind, count = r.number("<u4"), r.number("<u8")
    if kind in NUMBERS:
        d = np.dtype(NUMBERS[kind])
        r.room_for(count, d.itemsize, f"elements in {key}")
        values = np.frombuffer(r.take(count * d.itemsize), d)
        if kind == BOOL and not np.isin(values, (0, 1)).all():
            raise r.error(f"has bools in {key} that are neither 0 nor 1")
        return values.astype(bool) if kind == BOOL else values
    if kind not in (STRING, ARRAY):
        raise r.error(f"has type {kind} for elements of {key}, expected 0 to 12")
    if depth >= DEEPEST:
        raise r.error(f"has arrays within arrays in {key}, {DEEPEST} deep")
    r.room_for(count, 8 if kind == STRING else 12, f"elements in {key}")
    if kind == STRING:
        return _strings(r, count, key)
    return [_value(r, kind, key, depth + 1) for _ in range(count)]


def _strings(r: _FileReader, count: int, key: str) -> list[str]:
    """Many strings, in a loop without calls: vocabularies have a hundred thousand."""
    data, at, end, out = r.data, r.at, len(r.data), []
    read = struct.Struct("<Q").unpack_from
    for _ in range(count):
        stop = at + 8 + read(data, at)[0] if at + 8 <= end else end + 1
        if stop > end:
            break
        try:
            out.append(data[at + 8 : stop].decode())
        except UnicodeDecodeError:
            break
        at = stop
    r.at = at
    return out + [
        r.text(f"the value of {key}") for _ in range(count - len(out))
    ]  # which says what is wrong


def _alignment(metadata: dict[str, Any], r: _FileReader) -> int:
    n = metadata.get("general.alignment", ALIGNMENT)
    if type(n) is not int or n < 8 or n % 8 or n > len(r.data):
        raise r.error(f"has alignment {n}, expected a multiple of 8")
    return n


def _tensors(r: _FileReader, count: int, alignment: int) -> dict[str, TensorInfo]:
    rows = [_tensor_row(r) for _ in range(count)]
    base = -(-r.at // alignment) * alignment
    out: dict[str, TensorInfo] = {}
    for name, shape, f, offset in rows:
        size = math.prod(shape) // f.elements * f.bytes
        if name in out:
            raise r.error(f"has the tensor {name} twice")
        if offset % alignment:
            raise r.error(
                f"has the tensor {name} at offset {offset}, which is no multiple of {alignment}"
            )
        if base + offset + size > len(r.data):
            raise r.error(
                f"has {len(r.data)} bytes, but the tensor {name} ends at {base + offset + size}; is it "
                "complete?"
            )
        out[name] = TensorInfo(name, shape, f, base + offset, size)
    return out


def _tensor_row(r: _FileReader) -> tuple[str, tuple[int, ...], BlockFormat, int]:
    name = r.text("the name of a tensor")
    axes = r.number("<u4")
    if axes > MOST_AXES:
        raise r.error(f"has {axes} axes for the tensor {name}, expected at most {MOST_AXES}")
    shape = tuple(r.number("<u8") for _ in range(axes))[::-1]
    kind, offset = r.number("<u4"), r.number("<u8")
    if kind not in FORMATS:
        known = ", ".join(f.name for f in FORMATS.values())
        raise r.error(
            f"has format {kind} for the tensor {name}, which is not read; known are {known}"
        )
    f = FORMATS[kind]
    if 0 in shape:
        raise r.error(f"has a tensor {name} of shape {shape}, expected sizes of 1 or more")
    if (shape[-1] if shape else 1) % f.elements:
        raise r.error(
            f"has rows of {shape[-1:]} elements in the tensor {name}, expected a multiple of {f.elements} "
            f"for {f.name}"
        )
    return name, shape, f, offset
