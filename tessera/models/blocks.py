"""Block formats of GGUF tensors: codes of few bits with a scale, and in some an offset, for each group.

Every format is one row of `FORMATS`: the fields of a block, and how they become `Groups`.  An element is
code * scale + offset in f32, one rounding each, which is the arithmetic of the formats' authors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Groups:
    """Codes (blocks, groups, size) of i8, with scales and offsets (blocks, groups) of f32."""

    codes: Array
    scale: Array
    offset: Array | None = None

    def values(self) -> Array:
        """The elements, one row for each block."""
        with np.errstate(all="ignore"):  # a scale may be anything, in a damaged file too
            out = self.codes.astype(np.float32) * self.scale[..., None]
            if self.offset is not None:
                out += self.offset[..., None]
        return out.reshape(len(out), -1)


@dataclass(frozen=True)
class BlockFormat:
    """A type of tensor data: how many elements a block has, its fields, and what they mean."""

    name: str
    elements: int
    fields: np.dtype[Any]
    groups: Callable[[Array], Groups] | None = None  # None: plain numbers of the dtype `fields`

    @property
    def bytes(self) -> int:
        """The bytes of a block."""
        return self.fields.itemsize


def dequantise(f: BlockFormat, data: Array) -> Array:
    """The f32 elements of bytes that hold whole blocks, flat."""
    blocks = np.frombuffer(data, f.fields)
    if f.groups is None:
        return blocks.astype(np.float32)
    out = np.empty((len(blocks), f.elements), np.float32)
    step = max(1, _AT_ONCE // f.elements)
    for i in range(0, len(blocks), step):
        out[i : i + step] = f.groups(blocks[i : i + step]).values()
    return out.reshape(-1)


_AT_ONCE = 1 << 20  # elements whose intermediate arrays stay within a few MB


def _f32(x: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return x.astype(np.float32)


def _bits(x: Array, *shifts: int, mask: int) -> Array:
    """Fields of bytes (blocks, n) at shifts, as (blocks, shifts, n)."""
    out: Array = (x[:, None, :] >> np.array(shifts, np.uint8)[:, None]) & np.uint8(mask)
    return out


def _nibbles(x: Array) -> Array:
    """The lower halves of all bytes, then the upper halves."""
    return _bits(x, 0, 4, mask=15).reshape(len(x), -1)


def _fifth(b: Array) -> Array:
    """Nibbles with a fifth bit each from a word of 32 bits."""
    high = np.unpackbits(b["high"], axis=-1, bitorder="little")
    out: Array = _nibbles(b["codes"]) | (high << np.uint8(4))
    return out


def _one_group(codes: Array, b: Array) -> Groups:
    """A block that is one group."""
    offset = _f32(b["offset"])[:, None] if "offset" in (b.dtype.names or ()) else None
    return Groups(codes.astype(np.int8)[:, None], _f32(b["scale"])[:, None], offset)


def _q2_k(b: Array) -> Groups:
    codes = _bits(b["codes"].reshape(-1, 32), 0, 2, 4, 6, mask=3)
    low, high = b["scales"] & np.uint8(15), b["scales"] >> np.uint8(4)
    scale = _f32(b["scale"])[:, None] * _f32(low)
    return Groups(codes.reshape(-1, 16, 16).astype(np.int8), scale, _offset(b, high))


def _q3_k(b: Array) -> Groups:
    low = _bits(b["codes"].reshape(-1, 32), 0, 2, 4, 6, mask=3).reshape(-1, 256)
    high = _bits(b["high"], *range(8), mask=1).reshape(-1, 256)
    codes = low.astype(np.int8) - np.int8(4) * (high ^ np.uint8(1)).astype(np.int8)
    packed = b["scales"]
    four = _nibbles(packed[:, :8])
    two = _bits(packed[:, 8:], 0, 2, 4, 6, mask=3).reshape(-1, 16)
    six = (four | (two << np.uint8(4))).astype(np.int8) - np.int8(32)
    return Groups(codes.reshape(-1, 16, 16), _f32(b["scale"])[:, None] * _f32(six))


def _six_bit_pairs(packed: Array) -> tuple[Array, Array]:
    """Eight scales and eight offsets of six bits, from twelve bytes."""
    a, b, c = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scale = [a & np.uint8(63), (c & np.uint8(15)) | ((a >> np.uint8(2)) & np.uint8(48))]
    offset = [b & np.uint8(63), (c >> np.uint8(4)) | ((b >> np.uint8(2)) & np.uint8(48))]
    return np.concatenate(scale, axis=-1), np.concatenate(offset, axis=-1)


def _offset(b: Array, lowest: Array) -> Array:
    """What the scaled lowest values take away."""
    with np.errstate(all="ignore"):
        return -(_f32(b["lowest"])[:, None] * _f32(lowest))


def _pairs(b: Array, codes: Array) -> Groups:
    """Eight groups of 32 with six-bit scales and lowest values."""
    scales, lowest = _six_bit_pairs(b["scales"])
    with np.errstate(all="ignore"):
        scale = _f32(b["scale"])[:, None] * _f32(scales)
    return Groups(codes.reshape(-1, 8, 32).astype(np.int8), scale, _offset(b, lowest))


def _q4_k(b: Array) -> Groups:
    return _pairs(b, _bits(b["codes"].reshape(-1, 32), 0, 4, mask=15))


def _q5_k(b: Array) -> Groups:
    low = _bits(b["codes"].reshape(-1, 32), 0, 4, mask=15).reshape(-1, 256)
    high = _bits(b["high"], *range(8), mask=1).reshape(-1, 256)
    return _pairs(b, low | (high << np.uint8(4)))


def _q6_k(b: Array) -> Groups:
    low = _bits(b["codes"].reshape(-1, 64), 0, 4, mask=15).reshape(-1, 256)
    high = _bits(b["high"].reshape(-1, 32), 0, 2, 4, 6, mask=3).reshape(-1, 256)
    codes = (low | (high << np.uint8(4))).astype(np.int8) - np.int8(32)
    with np.errstate(all="ignore"):
        scale = _f32(b["scale"])[:, None] * _f32(b["scales"])
    return Groups(codes.reshape(-1, 16, 16), scale)


# Twice the values of the OCP format e2m1, whose smallest step is a half.
E2M1_TWICE = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def half_exponent(e: Array) -> Array:
    """2 ** (e - 128) for exponents of 8 bits, subnormal where e is 0 or 1."""
    word = e.astype(np.uint32)
    small = np.uint32(0x00200000) << np.minimum(word, 1)
    return np.where(word < 2, small, (np.maximum(word, 1) - 1) << np.uint32(23)).view(np.float32)


def _mxfp4(b: Array) -> Groups:
    codes = E2M1_TWICE[_nibbles(b["codes"])]
    return Groups(codes[:, None], half_exponent(b["exponent"])[:, None])


def _fields(*fields: Any) -> np.dtype[Any]:
    return np.dtype(list(fields))


_SCALE, _OFFSET, _LOWEST = ("scale", "<f2"), ("offset", "<f2"), ("lowest", "<f2")


def _bytes(name: str, n: int) -> tuple[str, str, tuple[int]]:
    return name, "u1", (n,)


FORMATS = {  # by the number of the type in a file
    0: BlockFormat("F32", 1, np.dtype("<f4")),
    1: BlockFormat("F16", 1, np.dtype("<f2")),
    30: BlockFormat("BF16", 1, np.dtype(ml_dtypes.bfloat16)),
    2: BlockFormat("Q4_0", 32, _fields(_SCALE, _bytes("codes", 16)),
              lambda b: _one_group(_nibbles(b["codes"]).astype(np.int8) - np.int8(8), b)),
    3: BlockFormat("Q4_1", 32, _fields(_SCALE, _OFFSET, _bytes("codes", 16)),
              lambda b: _one_group(_nibbles(b["codes"]), b)),
    6: BlockFormat("Q5_0", 32, _fields(_SCALE, _bytes("high", 4), _bytes("codes", 16)),
              lambda b: _one_group(_fifth(b).astype(np.int8) - np.int8(16), b)),
    7: BlockFormat("Q5_1", 32, _fields(_SCALE, _OFFSET, _bytes("high", 4), _bytes("codes", 16)),
              lambda b: _one_group(_fifth(b), b)),
    8: BlockFormat("Q8_0", 32, _fields(_SCALE, ("codes", "i1", (32,))),
              lambda b: _one_group(b["codes"], b)),
    10: BlockFormat("Q2_K", 256, _fields(_bytes("scales", 16), _bytes("codes", 64), _SCALE, _LOWEST), _q2_k),
    11: BlockFormat("Q3_K", 256, _fields(_bytes("high", 32), _bytes("codes", 64), _bytes("scales", 12),
                                     _SCALE), _q3_k),
    12: BlockFormat("Q4_K", 256, _fields(_SCALE, _LOWEST, _bytes("scales", 12), _bytes("codes", 128)), _q4_k),
    13: BlockFormat("Q5_K", 256, _fields(_SCALE, _LOWEST, _bytes("scales", 12), _bytes("high", 32),
                                    _bytes("codes", 128)), _q5_k),
    14: BlockFormat("Q6_K", 256,
               _fields(_bytes("codes", 128), _bytes("high", 64), ("scales", "i1", (16,)), _SCALE),
               _q6_k),
    39: BlockFormat("MXFP4", 32, _fields(("exponent", "u1"), _bytes("codes", 16)), _mxfp4),
}  # fmt: skip
