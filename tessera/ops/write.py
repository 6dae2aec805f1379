"""Writes as primitives: what dynamic_update_slice and state_write are where a target leaves the rest of a
tensor alone.
"""

from __future__ import annotations

from tessera.core.writes import WRITES
from tessera.ir.graph.op import Op, register

_EVALUATE = {d.name: d.evaluate for d in WRITES}

WRITE_SLICE = register(Op(
    "write_slice", "x with a box from a start on replaced.", call="write_slice", infer=lambda types,
    p: [types[0]],
    numpy=lambda *xs: _EVALUATE["write_slice"](xs, {})[0], moves=True, kinds=("buifc", "buifc", "iu"),
))  # fmt: skip
WRITE_ROWS = register(Op(
    "write_rows", "A cache with rows of each sequence replaced.", call="write_rows", infer=lambda types,
    p: [types[0]],
    numpy=lambda *xs, wrap: _EVALUATE["write_rows"](xs, {"wrap": wrap})[0], moves=True,
    kinds=("buifc", "buifc", "iu", "iu"), effects=frozenset(("state",)),
))  # fmt: skip
