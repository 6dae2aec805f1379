"""The launches of a program for a GPU as bytes: cells of memory, code, and what each kernel is given
(docs/abi.md).

Cells are numbered: the inputs, data of the weights, results, the arena, and scratch.  A launch reads and
writes at addresses in cells; launches run in order.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.core.types import TensorType
from tessera.deploy.dtypes import BY_CODE, DTYPES

MAGIC, VERSION = b"TSGP", 2  # version 1 has no numerics
_POINTER, _VALUE, _MAP = range(3)
MOST_VALUE, MOST_AXES, MOST_MAP_AXES = 64, 8, 5


@dataclass(frozen=True)
class CellPointer:
    """A parameter: the address of a cell, and bytes beyond it."""

    cell: int
    offset: int


@dataclass(frozen=True)
class BoxParameter:
    """A parameter: a descriptor of the copy engine for memory in a cell, as
    cuTensorMapEncodeTiled is told.
    """

    cell: int
    offset: int
    dtype: int  # CUtensorMapDataType
    swizzle: int  # CUtensorMapSwizzle
    shape: tuple[int, ...]  # innermost axis first, as in the two below
    strides: tuple[int, ...]  # bytes, without that of the innermost axis
    box: tuple[int, ...]


Parameter = CellPointer | bytes | BoxParameter


@dataclass(frozen=True)
class PlannedLaunch:
    """A kernel on so many blocks."""

    name: str
    code: int
    blocks: int
    threads: int
    shared: int  # bytes
    own_scratch: (
        bool  # whether the first parameter that the compiler adds is the address of scratch
    )
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class Named:
    """An input or output; the cell and the offset of an input are its number and 0."""

    name: str
    type: TensorType
    cell: int
    offset: int = 0


@dataclass(frozen=True)
class DevicePlan:
    """A program for a GPU at known sizes."""

    target: str
    inputs: tuple[Named, ...]
    data: tuple[
        tuple[int, int], ...
    ]  # where arrays begin after the weights' header, and their bytes
    results: tuple[int, ...]  # bytes
    arena: int
    scratch: int
    outputs: tuple[Named, ...]
    codes: tuple[tuple[str, int, int], ...]  # function, where its image begins, bytes
    launches: tuple[PlannedLaunch, ...]
    numerics: str = ""  # not known of plans of version 1

    @property
    def sizes(self) -> list[int]:
        """The bytes of every cell."""
        held = [size_of(x.type) for x in self.inputs]
        return [*held, *(n for _, n in self.data), *self.results, self.arena, self.scratch]

    def encode(self) -> bytes:
        """The plan as bytes."""
        parts = (
            [_named(x) for x in self.inputs],
            [struct.pack("<QQ", *x) for x in self.data],
            [struct.pack("<Q", n) for n in self.results],
            [_named(x) + struct.pack("<IQ", x.cell, x.offset) for x in self.outputs],
            [_text(n) + struct.pack("<QQ", at, size) for n, at, size in self.codes],
            [_launch(x) for x in self.launches],
        )
        head = MAGIC + _u32(VERSION) + _text(self.target) + _text(self.numerics)
        head += struct.pack("<QQ", self.arena, self.scratch)
        return head + b"".join(_u32(len(p)) + b"".join(p) for p in parts)


def size_of(t: TensorType) -> int:
    """Bytes of a tensor whose sizes are known."""
    return int(np.prod([int(n) for n in t.shape], dtype=np.int64)) * np.dtype(t.dtype.np).itemsize


def _u32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def _text(s: str) -> bytes:
    data = s.encode()
    return _u32(len(data)) + data


def _named(x: Named) -> bytes:
    shape = struct.pack(f"<{x.type.rank}Q", *(int(n) for n in x.type.shape))
    return _text(x.name) + _u32(DTYPES[x.type.dtype.name], x.type.rank) + shape


def _launch(x: PlannedLaunch) -> bytes:
    head = _text(x.name) + _u32(
        x.code, x.blocks, x.threads, x.shared, int(x.own_scratch), len(x.parameters)
    )
    return head + b"".join(map(_parameter, x.parameters))


def _parameter(p: Parameter) -> bytes:
    if isinstance(p, CellPointer):
        return _u32(_POINTER, p.cell) + struct.pack("<Q", p.offset)
    if isinstance(p, bytes):
        return _u32(_VALUE, len(p)) + p
    n = len(p.shape)
    head = _u32(_MAP, p.cell) + struct.pack("<Q", p.offset) + _u32(p.dtype, p.swizzle, n)
    return head + struct.pack(f"<{n}Q{n - 1}Q{n}I", *p.shape, *p.strides, *p.box)


# Reading ------------------------------------------------------------------------------------------


class _ByteReader:
    """Bytes from the front; what is not as it should be raises ValueError."""

    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def take(self, n: int) -> bytes:
        got = self.data[self.at : self.at + n]
        if len(got) < n:
            raise ValueError("it ends early")
        self.at += n
        return got

    def numbers(self, form: str) -> Any:
        form = "<" + form
        return struct.unpack(form, self.take(struct.calcsize(form)))

    def u32(self, most: int = 0xFFFFFFFF) -> int:
        (n,) = self.numbers("I")
        if n > most:
            raise ValueError(f"{n} is more than {most}")
        return int(n)

    def text(self) -> str:
        return self.take(self.u32(4096)).decode()

    def count(self) -> range:
        return range(self.u32(len(self.data)))


def decode(data: bytes) -> DevicePlan:
    """A plan from its bytes; raises ValueError unless every number in it fits."""
    r = _ByteReader(data)
    if r.take(4) != MAGIC:
        raise ValueError("it is no plan of launches")
    if (version := r.u32()) not in (1, VERSION):
        raise ValueError(f"it has version {version}, expected 1 or {VERSION}")
    target, numerics = r.text(), r.text() if version > 1 else ""
    arena, scratch = r.numbers("QQ")
    inputs = tuple(_read_named(r, i) for i in r.count())
    spans = tuple(r.numbers("QQ") for _ in r.count())
    results = tuple(r.numbers("Q")[0] for _ in r.count())
    outputs = tuple(_read_output(r) for _ in r.count())
    codes = tuple((r.text(), *r.numbers("QQ")) for _ in r.count())
    launches = tuple(_read_launch(r) for _ in r.count())
    if r.at != len(data):
        raise ValueError("bytes follow its end")
    made = DevicePlan(
        target, inputs, spans, results, arena, scratch, outputs, codes, launches, numerics
    )  # fmt: skip
    _check(made)
    return made


def _read_named(r: _ByteReader, cell: int) -> Named:
    name, dtype, rank = r.text(), BY_CODE[r.u32()], r.u32(MOST_AXES)
    shape = r.numbers(f"{rank}Q")
    if any(n >= 1 << 48 for n in shape):
        raise ValueError("a size is out of range")
    return Named(name, TensorType(dtype, tuple(shape)), cell)


def _read_output(r: _ByteReader) -> Named:
    x = _read_named(r, 0)
    cell, offset = r.numbers("IQ")
    return Named(x.name, x.type, cell, offset)


def _read_launch(r: _ByteReader) -> PlannedLaunch:
    name = r.text()
    code, blocks, threads, shared, own = (r.u32() for _ in range(5))
    given = tuple(_read_parameter(r) for _ in r.count())
    return PlannedLaunch(name, code, blocks, threads, shared, bool(own), given)


def _read_parameter(r: _ByteReader) -> Parameter:
    kind = r.u32(_MAP)
    if kind == _VALUE:
        return r.take(r.u32(MOST_VALUE))
    cell, offset = r.numbers("IQ")
    if kind == _POINTER:
        return CellPointer(cell, offset)
    dtype, swizzle, n = r.numbers("III")
    if not 1 <= n <= MOST_MAP_AXES or dtype > 12 or swizzle > 3:
        raise ValueError("a descriptor is out of range")
    return BoxParameter(
        cell, offset, dtype, swizzle, r.numbers(f"{n}Q"), r.numbers(f"{n - 1}Q"), r.numbers(f"{n}I")
    )


def _check(p: DevicePlan) -> None:
    sizes = p.sizes
    if any(n >= 1 << 48 for n in sizes) or sum(sizes) >= 1 << 48:
        raise ValueError("a size is out of range")
    places: list[tuple[int, int, int]] = [(x.cell, x.offset, size_of(x.type)) for x in p.outputs]
    for x in p.launches:
        if x.code >= len(p.codes) or not 1 <= x.threads <= 1024 or not 1 <= x.blocks < 1 << 31:
            raise ValueError(f"launch {x.name}")
        if x.shared >= 1 << 20:
            raise ValueError(f"launch {x.name}")
        places += [(q.cell, q.offset, 0) for q in x.parameters if not isinstance(q, bytes)]
    for cell, offset, n in places:
        if cell >= len(sizes) or offset + n > sizes[cell]:
            raise ValueError("an address lies outside of its memory")


def spans_fit(p: DevicePlan, data: int, code: int) -> bool:
    """Whether everything lies inside of so many bytes of data and of code."""
    inside: Sequence[tuple[int, int, int]] = [(a, n, data) for a, n in p.data]
    return all(a + n <= room for a, n, room in [*inside, *((a, n, code) for _, a, n in p.codes)])
