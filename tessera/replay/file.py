"""The file of a recorded run: a zip with a manifest, the programs as text, and the arrays that nothing in
it computes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tessera.core.dtype import as_dtype
from tessera.core.errors import FileError, MissingFileError
from tessera.core.zip_errors import ZIP_ERRORS

FORMAT, VERSION = "tessera-record", 1
KEPT = 4096  # elements of a value that a record keeps: all of a small one, evenly spaced ones of a large one
MOST_TEXT = 1 << 28  # bytes of a manifest or of a program
_UNREADABLE: tuple[type[Exception], ...] = (
    *ZIP_ERRORS,
    TypeError,
    AttributeError,
    RecursionError,
)
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Told:
    """What is known of an array: its type and the SHA-256 of its bytes."""

    dtype: str
    shape: tuple[int, ...]
    digest: str

    @staticmethod
    def of(x: Array) -> Told:
        """What is known of this one."""
        flat = np.ascontiguousarray(x)
        name = as_dtype(flat.dtype).name
        head = f"{name}{list(x.shape)}".encode()
        return Told(name, tuple(x.shape), hashlib.sha256(head + flat.tobytes()).hexdigest())

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class OpTold:
    """What an op of a program gave: its name, the user's line, and its results."""

    op: str
    where: str
    results: tuple[Told, ...]


@dataclass(frozen=True)
class Called:
    """One call of a jitted function."""

    function: str
    program: str  # digest of its text; "" where it cannot be written, as with functions of the user's inside
    target: str
    numerics: str
    inputs: tuple[Told, ...]
    outputs: tuple[Told, ...]
    ops: tuple[OpTold, ...] = ()


@dataclass
class Record:
    """A run: its calls in order, and the machine that it ran on."""

    machine: dict[str, str] = field(default_factory=dict)
    calls: list[Called] = field(default_factory=list)


class RecordWriter:
    """Writes a record while a run goes on; equal arrays and programs are written once."""

    def __init__(self, path: str | os.PathLike[str], machine: dict[str, str]):
        self.path, self.record = Path(path), Record(machine)
        self._written: set[str] = set()
        try:
            self._zip = zipfile.ZipFile(self.path, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
        except OSError as e:
            raise FileError(f"record: cannot write {path}: {e.strerror or e}") from None

    def put(self, name: str, data: bytes) -> None:
        """Write a part unless it is there."""
        if name not in self._written:
            self._written.add(name)
            self._zip.writestr(name, data)

    def close(self) -> None:
        """Write the manifest, and end the file."""
        whole = {"format": FORMAT, "version": VERSION, **asdict(self.record)}
        self._zip.writestr("manifest.json", json.dumps(whole, indent=1))
        self._zip.close()


class RecordReader:
    """Reads a record."""

    def __init__(self, path: str | os.PathLike[str]):
        if not Path(path).is_file():
            raise MissingFileError(f"replay: there is no file {path}")
        try:
            self._zip = zipfile.ZipFile(path)
            whole = json.loads(self._bytes("manifest.json", MOST_TEXT))
            if whole["format"] != FORMAT:
                raise ValueError(whole["format"])
            version = int(whole["version"])
            self.record = Record(dict(whole["machine"]), [_called(c) for c in whole["calls"]])
        except _UNREADABLE:
            raise FileError(
                f"replay: {path} is no record that ts.record wrote, or is damaged"
            ) from None
        if version > VERSION:
            raise FileError(
                f"replay: {path} has version {version}, which is newer than {VERSION}; use a newer Tessera"
            )
        self._names = set(self._zip.namelist())

    def has(self, name: str) -> bool:
        """Whether the file has a part of this name."""
        return name in self._names

    def text(self, name: str) -> str:
        """A part that is text."""
        try:
            return self._part(name, MOST_TEXT).decode()
        except UnicodeDecodeError:
            raise FileError(f"replay: {name} of the file is no text; it is damaged") from None

    def array(self, t: Told) -> Array:
        """An array that the file holds whole."""
        dtype = np.dtype(as_dtype(t.dtype).np)
        data = self._part(f"arrays/{t.digest}", math.prod(t.shape) * dtype.itemsize)
        if len(data) != math.prod(t.shape) * dtype.itemsize:
            raise FileError(f"replay: the array {t.digest[:12]} of the file is damaged")
        found = np.frombuffer(data, dtype).reshape(t.shape)
        if Told.of(found).digest != t.digest:
            raise FileError(f"replay: the array {t.digest[:12]} of the file is damaged")
        return found

    def kept(self, t: Told) -> Array | None:
        """Those elements of a value that were kept, in order; None where none were."""
        name = f"values/{t.digest}"
        if not self.has(name):
            return None
        dtype = np.dtype(as_dtype(t.dtype).np)
        data = self._part(name, KEPT * dtype.itemsize)
        if len(data) != len(places(math.prod(t.shape))) * dtype.itemsize:
            raise FileError(f"replay: the value {t.digest[:12]} of the file is damaged")
        return np.frombuffer(data, dtype)

    def _bytes(self, name: str, most: int) -> bytes:
        """A part of so many bytes at most, however small it is packed."""
        size = self._zip.getinfo(name).file_size
        if size > most:
            raise zipfile.BadZipFile(f"{name} has {size} bytes, expected at most {most}")
        return self._zip.read(name)

    def _part(self, name: str, most: int) -> bytes:
        try:
            return self._bytes(name, most)
        except ZIP_ERRORS as e:
            raise FileError(f"replay: the file lacks {name}, or it is damaged ({e})") from None


def places(size: int) -> Array:
    """The numbers of the elements of a value that are kept."""
    return (
        np.unique(np.linspace(0, size - 1, min(size, KEPT)).astype(np.int64))
        if size
        else np.zeros(0, np.int64)
    )


def _told(t: dict[str, Any]) -> Told:
    shape = tuple(int(n) for n in t["shape"])
    if any(n < 0 for n in shape):
        raise ValueError(shape)
    return Told(str(t["dtype"]), shape, str(t["digest"]))


def _called(c: dict[str, Any]) -> Called:
    ops = tuple(
        OpTold(str(o["op"]), str(o["where"]), tuple(map(_told, o["results"]))) for o in c["ops"]
    )
    return Called(
        str(c["function"]), str(c["program"]), str(c["target"]), str(c["numerics"]),
        tuple(map(_told, c["inputs"])),
        tuple(map(_told, c["outputs"])), ops,
    )  # fmt: skip
