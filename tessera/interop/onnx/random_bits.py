"""Random bits as ONNX nodes: Philox4x32-10 in whole numbers of 64 bits, with the bits of every other target.

Run-times multiply signed numbers of 64 bits and shift unsigned ones: a word of 32 bits is a signed number,
and its high half is read from a product as an unsigned one.
"""

from __future__ import annotations

import numpy as np

from tessera.core.philox import MULTIPLIERS, ROUNDS, WEYL
from tessera.interop.onnx.nodes import Emit
from tessera.interop.onnx.writer import OnnxWriter
from tessera.ir.graph.ir import Node

_MASK = 0xFFFFFFFF  # the low word


class _Words:
    """Arithmetic on words of 32 bits, which are i64 here."""

    def __init__(self, w: OnnxWriter):
        self.w, self.mask = w, w.constant(np.array(_MASK, np.int64))

    def number(self, value: int) -> str:
        return self.w.constant(np.array(value, np.int64))

    def low(self, x: str) -> str:
        """The low word of a number of 64 bits."""
        found: str = self.w.emit("BitwiseAnd", x, self.mask)
        return found

    def high(self, x: str) -> str:
        """The high word."""
        half = self.w.constant(np.array(32, np.uint64))
        shifted = self.w.emit("BitShift", self.w.cast(x, np.uint64), half, direction="RIGHT")
        return self.w.cast(shifted, np.int64)

    def xor(self, x: str, *others: str) -> str:
        for y in others:
            x = self.w.emit("BitwiseXor", x, y)
        return x


def _philox(m: _Words, counter: list[str], key: list[str]) -> list[str]:
    """The four words of the block of a counter."""
    words = counter
    for i in range(ROUNDS):
        c0, c1, c2, c3 = words
        p0, p1 = (
            m.w.emit("Mul", c, m.number(by)) for c, by in zip((c0, c2), MULTIPLIERS, strict=True)
        )
        e0, e1 = (
            m.low(m.w.emit("Add", k, m.number(i * by))) for k, by in zip(key, WEYL, strict=True)
        )
        words = [m.xor(m.high(p1), c1, e0), m.low(p1), m.xor(m.high(p0), c3, e1), m.low(p0)]
    return words


def _random_bits(w: OnnxWriter, n: Node, k0: str, k1: str, counter: str) -> str:
    m, p = _Words(w), n.params
    count = p["dtype"].bits // 32
    block, first = divmod(p["draw"] * count, 4)
    i = w.cast(counter, np.int64)
    start = [m.low(i), m.high(i), m.number(block), m.number(p["purpose"])]
    made = _philox(m, start, [w.cast(k, np.int64) for k in (k0, k1)])[first : first + count]
    if count == 1:
        return w.cast(made[0], np.uint32)
    low, high = (w.cast(x, np.uint64) for x in made)
    shifted = w.emit("BitShift", high, w.constant(np.array(32, np.uint64)), direction="LEFT")
    found: str = w.emit("BitwiseOr", low, shifted)
    return found


RANDOM: dict[str, Emit] = {"random_bits": _random_bits}
