"""Safetensors files and folders of them, mapped into memory and checked before anything is used."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tessera.core.errors import ModelError
from tessera.models.blocks import Array
from tessera.models.gguf import mapped

LONGEST_HEADER = 100 << 20  # bytes, as in the format's own reader
MOST_AXES = 8  # models have four or fewer; a hostile header could have thousands
DTYPES: dict[str, Any] = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2, "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip


class Safetensors:
    """An open file: the tensors by name, without copies."""

    def __init__(self, path: Path):
        self.path = path
        self._data = mapped(path)
        self._base, header = _header(self._data, path)
        self.tensors = {k: _row(k, v, self, path) for k, v in header.items() if k != "__metadata__"}

    @property
    def room(self) -> int:
        """Bytes after the header."""
        return len(self._data) - self._base

    def tensor(self, name: str) -> Array:
        """A tensor in the dtype of the file."""
        dtype, shape, start = self.tensors[name]
        flat = np.frombuffer(self._data, dtype, math.prod(shape), self._base + start)
        return flat.reshape(shape)


def _header(data: Any, path: Path) -> tuple[int, dict[str, Any]]:
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(len(data) - 8, LONGEST_HEADER):
        raise ModelError(
            f"{path}: is not a safetensors file: its header of {size} bytes is not in it"
        )
    try:
        header = json.loads(data[8 : 8 + size])
    except (ValueError, RecursionError):
        raise ModelError(f"{path}: is not a safetensors file: its header is not JSON") from None
    if not isinstance(header, dict):
        raise ModelError(f"{path}: is not a safetensors file: its header is no object")
    return 8 + size, header


def _row(name: str, row: Any, file: Safetensors, path: Path) -> tuple[Any, tuple[int, ...], int]:
    """The dtype, shape and first byte of a tensor."""
    row = row if isinstance(row, dict) else {}
    kind, shape, ends = row.get("dtype"), row.get("shape"), row.get("data_offsets")
    if not isinstance(kind, str) or kind not in DTYPES:
        raise ModelError(
            f"{path}: tensor {name} has the dtype {kind!r}, expected one of {', '.join(DTYPES)}"
        )
    if not _sizes(shape, MOST_AXES) or not _sizes(ends, 2) or len(ends) != 2:
        raise ModelError(f"{path}: tensor {name} has no valid shape and offsets")
    dtype = np.dtype(DTYPES[kind])
    if ends[1] - ends[0] != math.prod(shape) * dtype.itemsize or ends[1] > file.room:
        raise ModelError(
            f"{path}: tensor {name} is {kind}{shape}, which bytes {ends[0]} to {ends[1]} of {file.room} "
            "cannot hold"
        )
    return dtype, tuple(shape), ends[0]


def _sizes(x: Any, most: int) -> bool:
    return isinstance(x, list) and len(x) <= most and all(type(n) is int and n >= 0 for n in x)


class Folder:
    """The weights of a Hugging Face folder by the names in its files."""

    def __init__(self, path: Path):
        self.path = path
        self._files = _files(path)

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name."""
        return name in self._files

    def tensor(self, name: str) -> Array:
        """A tensor in the dtype of its file."""
        if name not in self._files:
            raise ModelError(f"{self.path}: there is no tensor {name}")
        return self._files[name].tensor(name)

    @property
    def names(self) -> list[str]:
        """All tensors."""
        return list(self._files)


def _files(path: Path) -> dict[str, Safetensors]:
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        whole = Safetensors(path / "model.safetensors")
        return dict.fromkeys(whole.tensors, whole)
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not all(_plain(f) for f in listed.values()):
        raise ModelError(f"{index}: weight_map does not name files of this folder")
    files = {name: Safetensors(path / name) for name in sorted(set(listed.values()))}
    for tensor, name in listed.items():
        if tensor not in files[name].tensors:
            raise ModelError(f"{index}: tensor {tensor} is not in {name}")
    return {tensor: files[name] for tensor, name in listed.items()}


def _plain(name: Any) -> bool:
    """Whether this names a file within the folder, not a path to elsewhere."""
    return isinstance(name, str) and name == Path(name).name and name.endswith(".safetensors")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object."""
    try:
        found = json.loads(path.read_text())
    except OSError as e:
        raise ModelError(f"{path}: cannot be read ({e.strerror})") from None
    except (ValueError, RecursionError) as e:
        raise ModelError(f"{path}: is not JSON ({e})") from None
    if not isinstance(found, dict):
        raise ModelError(f"{path}: is not a JSON object")
    return found
