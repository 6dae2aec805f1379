"""Instruction sets: which of LLVM's intrinsics serve vectors on which machine, with the same bits.

A row of the products of parts of words serves vectors of so many words on machines that have all of its
features; the first that fits is taken.  Where none does, the parts are taken out by shifts and multiplied
one by one, with the same bits. So it is with the rows for matrix registers.
"""

from __future__ import annotations

from typing import NamedTuple

from tessera.core.dtype import DType, f32


class Instruction(NamedTuple):
    """acc + the sum of products of parts, for vectors of `words` words."""

    parts: int
    words: int
    features: frozenset[str]
    intrinsic: str


_VNNI, _SMALL = frozenset(["avx512vnni"]), frozenset(["avx512vnni", "avx512vl"])
INSTRUCTIONS = (
    Instruction(4, 16, _VNNI, "llvm.x86.avx512.vpdpbusd.512"),
    Instruction(4, 8, _SMALL, "llvm.x86.avx512.vpdpbusd.256"),
    Instruction(4, 4, _SMALL, "llvm.x86.avx512.vpdpbusd.128"),
    Instruction(2, 16, _VNNI, "llvm.x86.avx512.vpdpwssd.512"),
    Instruction(2, 8, _SMALL, "llvm.x86.avx512.vpdpwssd.256"),
    Instruction(2, 4, _SMALL, "llvm.x86.avx512.vpdpwssd.128"),
)


def instruction(features: frozenset[str], parts: int, words: int) -> str | None:
    """The intrinsic for vectors of so many words, if the machine has one."""
    for row in INSTRUCTIONS:
        if row.parts == parts and row.words == words and row.features <= features:
            return row.intrinsic
    return None


class MatrixInstruction(NamedTuple):
    """acc + a b for 16 by 16 words in matrix registers, parts of words multiplied as numbers of two
    dtypes.
    """

    left: str
    right: str
    features: frozenset[str]
    intrinsic: str


_BYTES, _BF16 = frozenset(["amx-tile", "amx-int8"]), frozenset(["amx-tile", "amx-bf16"])
MATRIX_INSTRUCTIONS = (
    MatrixInstruction("i8", "i8", _BYTES, "llvm.x86.tdpbssd"),
    MatrixInstruction("i8", "u8", _BYTES, "llvm.x86.tdpbsud"),
    MatrixInstruction("u8", "i8", _BYTES, "llvm.x86.tdpbusd"),
    MatrixInstruction("u8", "u8", _BYTES, "llvm.x86.tdpbuud"),
    MatrixInstruction("bf16", "bf16", _BF16, "llvm.x86.tdpbf16ps"),
)


def matrix_instruction(features: frozenset[str], left: str, right: str) -> str | None:
    """The intrinsic that multiplies words of two dtypes in matrix registers, if the machine has one."""
    for row in MATRIX_INSTRUCTIONS:
        if (row.left, row.right) == (left, right) and row.features <= features:
            return row.intrinsic
    return None


# What the instruction for the larger or the smaller of two numbers is told; to it -0 lies below +0.
EXTREMES = {"max": 5, "min": 4}


def has_extremes(features: frozenset[str], dtype: DType, words: int) -> bool:
    """Whether one instruction compares such vectors; elsewhere LLVM takes five."""
    needed = {"avx512dq"} if words == 16 else {"avx512dq", "avx512vl"}
    return dtype is f32 and words in (16, 8, 4, 2, 1) and needed <= features


def has_powers(features: frozenset[str], dtype: DType, words: int) -> bool:
    """Whether one instruction multiplies such vectors by powers of two; elsewhere it takes six."""
    return dtype is f32 and words == 16 and "avx512f" in features
