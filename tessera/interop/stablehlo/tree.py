"""A StableHLO module as a tree of ops, and the types and constants in its text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tessera.core.dtype import DType, as_dtype
from tessera.core.types import TensorType
from tessera.interop.stablehlo.writer import StableHloError


@dataclass(frozen=True)
class HloRegion:
    """Ops in order, with the names of the arguments."""

    arguments: tuple[str, ...]
    ops: tuple[HloOp, ...]


@dataclass(frozen=True)
class HloOp:
    """One op: names of operands and results, attributes, regions and the types of the results."""

    name: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    attributes: dict[str, Any]
    regions: tuple[HloRegion, ...]
    types: tuple[TensorType, ...]
    line: int


@dataclass(frozen=True)
class HloFunction:
    """A function of a module."""

    name: str
    body: HloRegion
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]


@dataclass(frozen=True)
class Resource:
    """A constant that the end of the file holds."""

    name: str
    type: TensorType


@dataclass
class HloModule:
    """The functions of a module by name, and the bytes of resources."""

    name: str = "module"
    functions: dict[str, HloFunction] = field(default_factory=dict)
    resources: dict[str, bytes] = field(default_factory=dict)


_ELEMENTS = {
    "i1": "bool", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "ui8": "u8", "ui16": "u16",
    "ui32": "u32", "ui64": "u64", "index": "i64", "f16": "f16", "bf16": "bf16", "f32": "f32", "f64": "f64",
    "complex<f32>": "c64", "complex<f64>": "c128", "f8E4M3FN": "f8e4m3", "f8E5M2": "f8e5m2",
}  # fmt: skip


def tensor_type(text: str, line: int) -> TensorType:
    """The type that `tensor<4x5xf32>` states."""
    inner = text[len("tensor<") : -1].partition(",")[0].strip()
    sizes = []
    while found := re.match(r"(\d+|\?)x", inner):
        if found[1] == "?":
            raise StableHloError(
                f"stablehlo: line {line} has the type {text}, but sizes must be known; lower the function "
                "for arrays of known sizes"
            )
        sizes.append(int(found[1]))
        inner = inner[found.end() :]
    if inner not in _ELEMENTS:
        raise StableHloError(f"stablehlo: line {line}: elements of {text} have no dtype here")
    return TensorType(as_dtype(_ELEMENTS[inner]), tuple(sizes))


def dense(text: str, t: TensorType, line: int) -> np.ndarray[Any, Any]:
    """The array that `dense<...>` states for a type."""
    body = text[len("dense<") : -1].strip()
    shape = tuple(int(n) for n in t.shape)
    count = int(np.prod(shape, dtype=np.int64))
    if body.startswith('"0x'):
        data = bytes.fromhex(body.strip('"')[2:])
        return _of_bytes(data, t.dtype, shape, line)
    if not body:
        return np.zeros(shape, t.dtype.np)
    words = _words(body)
    if len(words) not in (1, count):
        raise StableHloError(f"stablehlo: line {line}: a constant of {t} has {len(words)} elements")
    flat = np.array([_number(w, t.dtype, line) for w in words])
    flat = flat.astype(t.dtype.np)
    return np.broadcast_to(flat[0], shape) if len(words) == 1 else flat.reshape(shape)


def _words(body: str) -> list[str]:
    if "(" in body:  # complex numbers
        return re.findall(r"\([^()]*\)", body)
    return [w for w in re.split(r"[\[\],\s]+", body) if w]


def _number(w: str, dtype: DType, line: int) -> Any:
    try:
        if w.startswith("("):
            re_, im = (_number(p.strip(), dtype.real, line) for p in w[1:-1].split(","))
            return complex(re_, im)
        if w in ("true", "false"):
            return w == "true"
        if dtype.kind in "iub":
            return _wrapped(int(w, 0), dtype)
        if w[:2] == "0x":
            data = int(w, 16).to_bytes(dtype.bits // 8, "little")
            return np.frombuffer(data, dtype.np)[0].astype(np.float64)
        return float(w)
    except (ValueError, OverflowError):
        raise StableHloError(f"stablehlo: line {line}: '{w}' is no {dtype}") from None


def _wrapped(n: int, dtype: DType) -> Any:
    return np.dtype(dtype.np).type(n) if dtype.kind != "b" else bool(n)


def _of_bytes(data: bytes, dtype: DType, shape: tuple[int, ...], line: int) -> np.ndarray[Any, Any]:
    count = int(np.prod(shape, dtype=np.int64))
    if dtype.kind == "b":
        bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        found = (
            bits[:count].astype(bool) if len(data) < count else np.frombuffer(data, np.uint8) != 0
        )
    elif len(data) % np.dtype(dtype.np).itemsize:
        raise StableHloError(f"stablehlo: line {line}: {len(data)} bytes are no numbers of {dtype}")
    else:
        found = np.frombuffer(data, dtype.np)
    if found.size == 1:
        return np.broadcast_to(found[0], shape)
    if found.size != count:
        raise StableHloError(
            f"stablehlo: line {line}: a constant of {count} elements has {found.size}"
        )
    return found.reshape(shape)


def resource(module: HloModule, r: Resource, line: int) -> np.ndarray[Any, Any]:
    """The array of a resource: four bytes of alignment, then the data."""
    if r.name not in module.resources:
        raise StableHloError(f"stablehlo: line {line}: there is no resource '{r.name}'")
    return _of_bytes(
        module.resources[r.name][4:], r.type.dtype, tuple(map(int, r.type.shape)), line
    )
