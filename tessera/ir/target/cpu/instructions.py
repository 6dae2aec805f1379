"""Instruction sets: which of LLVM's intrinsics multiplies the parts of words on which machine.

A row serves vectors of so many words on machines that have all of its features; the first that fits
is taken.  Where none does, the parts are taken out by shifts and multiplied one by one, with the same bits.
"""

from __future__ import annotations

from typing import NamedTuple


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
