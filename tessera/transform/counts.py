"""counts: sums of ones by number are counts, which need no order and no values.

    %y = scatter_add(zeros(n), ones, %i)   ->   %y = count_places(%i) {size = n}

Whole numbers add up to the same in any order, so a kernel may count in parts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tessera.core.dtype import as_dtype
from tessera.core.rewrite import Rule
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import OWN, UNLISTED, Op, Params, Types
from tessera.transform.maker import Found, Maker

MOST = 1 << 31  # numbers that are counted at once
FEWEST = 1 << 12  # elements: fewer are counted as any scatter


def _infer(types: Types, p: Params) -> tuple[TensorType, ...]:
    return (TensorType(as_dtype(p["dtype"]), (p["size"],)),)


def _counted(i: Any, size: int, dtype: Any) -> Any:
    inside = i[(i >= 0) & (i < size)].astype(np.int64)
    return np.bincount(inside, minlength=size).astype(as_dtype(dtype).np)


# Numbers outside of 0 ... size - 1 are dropped.
COUNT = Op(
    "count_places", "How often each number is there.", call="count_places", infer=_infer,
    kinds="iu", total=True, numpy=_counted,
)  # fmt: skip
UNLISTED[COUNT.name] = COUNT
OWN.add(COUNT)


def _counts(n: Node, m: Maker) -> Found:
    if len(n.operands) != 3 or n.params["axes"] != (0,):
        return None
    x, ones, i = n.operands
    known = all(isinstance(s, int) for s in (*x.shape, *i.shape))
    if x.ndim != 1 or x.dtype.kind not in "iu" or x.dtype is not x.dtype.base or not known:
        return None
    if m.number(x) != 0 or m.number(ones) != 1 or i.dtype.kind not in "iu":
        return None
    count = math.prod(int(s) for s in i.shape)
    if not (0 < int(x.shape[0]) <= MOST and FEWEST <= count < 1 << 31):
        return None
    return m.make(COUNT, (i,), size=int(x.shape[0]), dtype=x.dtype)


def _fewer(n: Node, m: Maker) -> Found:
    v, p = n.operands[0], n.params
    if v.node is None or v.node.op is not COUNT or p["start"] != (0,) or p["step"] != (1,):
        return None
    return m.make(COUNT, v.node.operands, **{**v.node.params, "size": p["stop"][0]})


COUNTS: tuple[Rule[Node, Value], ...] = (
    Rule("count", "scatter_add(0, 1, i) -> count_places(i)", ("scatter_add",), _counts),
    Rule("count_fewer", "count_places(i)[:k] -> count_places(i) {size = k}", ("slice",), _fewer),
)
