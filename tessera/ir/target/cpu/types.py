"""Tiles as LLVM vectors: types, widths and constants."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.dtype import FORMATS, DType
from tessera.core.types import TensorType

LANES = 16  # elements of a vector in LLVM IR: AVX-512 in f32; LLVM splits it for narrower machines
# bf16 is its bits: what LLVM does with bfloat may pass through an instruction that drops subnormals.
# So are floats of 8 bits, and i4, whose upper four bits are 0.
_OWN = {"bool": "i1", "f16": "half", "f32": "float", "f64": "double"}
TYPES = {name: _OWN.get(name, f"i{max(d.bits, 8)}") for name, d in FORMATS.items() if d.kind != "c"}
SUFFIX = {"half": "f16", "float": "f32", "double": "f64"}


def chunks(n: int) -> list[int]:
    """The widths of the vectors that hold n elements."""
    return [LANES] * (n // LANES) + ([n % LANES] if n % LANES else [])


def widths_of(t: TensorType) -> list[int]:
    shape: tuple[int, ...] = t.shape  # type: ignore[assignment]
    return chunks(shape[-1] if shape else 1) * math.prod(shape[:-1])


def chunk_types(t: TensorType) -> list[str]:
    """The LLVM type of each vector of a tile."""
    return [vector_type(t.dtype, w) for w in widths_of(t)]


def indices(shape: Sequence[int]) -> list[tuple[int, ...]]:
    out: list[tuple[int, ...]] = [()]
    for n in shape:
        out = [(*i, k) for i in out for k in range(n)]
    return out


def vector_type(dtype: DType, width: int) -> str:
    return vector_of(TYPES[dtype.name], width)


def vector_of(kind: str, width: int) -> str:
    return kind if width == 1 else f"<{width} x {kind}>"


def memory_type(dtype: DType) -> str:
    return "i8" if dtype.kind == "b" else TYPES[dtype.name]


def suffix(kind: str) -> str:
    return SUFFIX.get(kind, kind)


def align_of(dtype: DType) -> int:
    return max(dtype.bits // 8, 1)


def constant(value: Any, dtype: DType, width: int) -> str:
    """A literal of a dtype, as a vector of a width."""
    text = _literal(value, dtype)
    if width == 1:
        return text
    return f"splat ({TYPES[dtype.name]} {text})"


def _literal(value: Any, dtype: DType) -> str:
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype.kind != "f":
        return str(int(value) & 15 if dtype.name == "i4" else int(value))
    with np.errstate(over="ignore"):
        rounded = dtype.np.type(value)
    if dtype.name in ("f32", "f64"):
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(rounded)))[0]:016X}"
    bits = int.from_bytes(rounded.tobytes(), "little")
    return f"0xH{bits:04X}" if dtype.name == "f16" else str(bits)
