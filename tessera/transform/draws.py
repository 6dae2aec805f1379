"""draws: random words as elementwise ops, so that kernels compute them where they are wanted.

    %w = random_bits(%k0, %k1, %i)   ->   %w = u32(philox_low(%k0, %k1, %i, 0))

A counter is then a place and a key two numbers of the kernel that turns the words into numbers: neither
lies in memory for every element.  The words are those of core/philox.py.
"""

from __future__ import annotations

from tessera.core.dtype import u64
from tessera.core.rewrite import Rule
from tessera.core.scalar import SCALARS, apply, arg
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import OWN, UNLISTED, Op
from tessera.ops.elementwise import bitwise_right_shift, cast
from tessera.transform.maker import Found, Maker


def _philox(part: str) -> Op:
    """The op that makes half of a block; operands and result are u64."""
    row = SCALARS[f"philox_{part}"]
    op = Op(
        row.name, f"Two words of a block of Philox4x32-10: the {part} ones.",
        signature="..., ..., ..., ... -> ...", kinds="u", numpy=row.numpy,
        body=apply(row.name, *map(arg, range(row.arity))),
    )  # fmt: skip
    UNLISTED[op.name] = op
    OWN.add(op)
    return op


_HALVES = _philox("low"), _philox("high")


def _inline(n: Node, m: Maker) -> Found:
    p, result = n.params, n.results[0]
    words = result.dtype.bits // 32
    block, first = divmod(p["draw"] * words, 4)
    k0, k1 = (m.make(cast.op, (v,), dtype=u64) for v in n.operands[:2])
    rest = m.full(n.operands[2].type, block | p["purpose"] << 32)
    if k0 is None or k1 is None or rest is None:
        return None
    given = (*k0, *k1, n.operands[2], *rest)
    made = m.make(_HALVES[first // 2], given)
    if made is None or words == 2:
        return made
    return _word(made[0], first % 2, result, m)


def _word(pair: Value, place: int, result: Value, m: Maker) -> Found:
    """One of two words."""
    if place:
        by = m.full(pair.type, 32)
        moved = None if by is None else m.make(bitwise_right_shift.op, (pair, *by))
        if moved is None:
            return None
        pair = moved[0]
    return m.make(cast.op, (pair,), dtype=result.dtype)


DRAWS: tuple[Rule[Node, Value], ...] = (
    Rule("inline_draws", "random_bits(k, i) -> philox_low(k, i)", ("random_bits",), _inline),
)  # fmt: skip
