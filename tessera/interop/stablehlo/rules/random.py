"""Random bits: Philox4x32-10 in integer arithmetic, the same bits as here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.core.dtype import u32, u64
from tessera.core.philox import MULTIPLIERS, ROUNDS, WEYL
from tessera.interop.stablehlo.rules.table import rule
from tessera.interop.stablehlo.writer import Ssa, StableHloWriter
from tessera.ir.graph.ir import Node

_MASK = (1 << 32) - 1  # the low word


class _HloWords:
    """Arithmetic on 32-bit words held in u64."""

    def __init__(self, w: StableHloWriter):
        self.w = w

    def op(self, name: str, a: Ssa, b: Ssa | int) -> Ssa:
        return self.w.op(name, a, b if isinstance(b, Ssa) else self.w.like(b, a))

    def low(self, a: Ssa) -> Ssa:
        return self.op("and", a, _MASK)

    def high(self, a: Ssa) -> Ssa:
        return self.op("shift_right_logical", a, 32)

    def block(self, words: Sequence[Ssa], key: Sequence[Ssa]) -> list[Ssa]:
        """The four words of a block."""
        found = list(words)
        for i in range(ROUNDS):
            c0, c1, c2, c3 = found
            p0, p1 = (self.op("multiply", c, m) for c, m in zip((c0, c2), MULTIPLIERS, strict=True))
            e0, e1 = (self.low(self.op("add", k, i * s)) for k, s in zip(key, WEYL, strict=True))
            found = [
                self.op("xor", self.op("xor", self.high(p1), c1), e0), self.low(p1),
                self.op("xor", self.op("xor", self.high(p0), c3), e1), self.low(p0),
            ]  # fmt: skip
        return found


@rule("random_bits")
def _random_bits(w: StableHloWriter, n: Node, k0: Ssa, k1: Ssa, counter: Ssa) -> Any:
    p, math = n.params, _HloWords(w)
    words = p["dtype"].bits // 32
    block, first = divmod(p["draw"] * words, 4)
    c = w.cast(counter, u64)
    fixed = [w.full(k, u64, c.shape) for k in (block, p["purpose"])]
    made = math.block([math.low(c), math.high(c), *fixed], [w.cast(k, u64) for k in (k0, k1)])
    made = made[first : first + words]
    if words == 1:
        return w.cast(made[0], u32)
    return math.op("or", made[0], math.op("shift_left", made[1], 32))
