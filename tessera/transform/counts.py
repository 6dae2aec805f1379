"""counts: sums of ones by number are counts, which need no order and no values.

    %y = scatter_add(zeros(n), ones, %i)   ->   %y = count_places(%i) {size = n}
    %p = where(%v == %e[n], n - 1, searchsorted(%e, %v) - 1); count_places(%p)   ->   count_between(%e, %v)

Whole numbers add up to the same in any order, so a kernel may count in parts.  Numbers outside of the counts
are dropped, so that tests before a count, which put them outside, are of no use; and the elements of a
histogram are placed and counted at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
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
MOST_BINS = 256  # that numbers are placed in and counted at once: more are counted from memory


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


def _between(types: Types, p: Params) -> tuple[TensorType, ...]:
    return (TensorType(as_dtype(p["dtype"]), (int(types[0].shape[0]) - 1,)),)


def _counted_between(edges: Any, v: Any, dtype: Any) -> Any:
    n = len(edges) - 1
    place = np.searchsorted(edges, v.reshape(-1), "right") - 1
    return _counted(np.where(v.reshape(-1) == edges[-1], n - 1, place), n, dtype)


# The last bin has both of its edges; NaN is in none.
BETWEEN = Op(
    "count_between", "How many numbers lie between neighbours of a sorted axis.", call="count_between",
    infer=_between, kinds="f", total=True, numpy=_counted_between,
)  # fmt: skip
for _op in (COUNT, BETWEEN):
    UNLISTED[_op.name] = _op
    OWN.add(_op)


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


def _bare(n: Node, m: Maker) -> Found:
    """The operand of a count without tests that only put outside of the counts what is outside already."""
    (v,), size = n.operands, n.params["size"]
    found = _unwrapped(v, m)
    if found is None:
        kept = _tested(v, m)
        if kept is None or not kept.outside(size):
            return None
        found = kept.value
    return m.make(COUNT, (found,), **n.params)


@dataclass(frozen=True)
class _Tested:
    """where(0 <= value and value < end, value, other)."""

    value: Value
    end: int
    other: int

    def outside(self, size: int) -> bool:
        """Whether the choice changes no count of so many numbers."""
        return self.end >= size and not 0 <= self.other < size


def _made_by(v: Value, name: str) -> tuple[Value, ...] | None:
    return v.node.operands if v.node is not None and v.node.op.name == name else None


def _tested(v: Value, m: Maker) -> _Tested | None:
    chosen = _made_by(v, "where")
    both = None if chosen is None else _made_by(chosen[0], "logical_and")
    if chosen is None or both is None:
        return None
    _, value, other = chosen
    low, high = _made_by(both[0], "ge"), _made_by(both[1], "lt")
    if low is None or high is None or low[0] is not value or high[0] is not value:
        return None
    end, else_ = m.number(high[1]), m.number(other)
    if m.number(low[1]) != 0 or end is None or else_ is None:
        return None
    return _Tested(value, end, else_)


def _unwrapped(v: Value, m: Maker) -> Value | None:
    """An index that counts from the end where it is negative, and never is."""
    chosen = _made_by(v, "where")
    test = None if chosen is None else _made_by(chosen[0], "lt")
    if chosen is None or test is None or test[0] is not chosen[2] or m.number(test[1]) != 0:
        return None
    known = _tested(chosen[2], m)
    return chosen[2] if known is not None and known.other >= 0 else None


def _placed(n: Node, m: Maker) -> Found:
    """A count of the bins that numbers lie in."""
    chosen, size = _made_by(n.operands[0], "where"), n.params["size"]
    if chosen is None or size > MOST_BINS or m.number(chosen[1]) != size - 1:
        return None
    test, less = _made_by(chosen[0], "eq"), _made_by(chosen[2], "sub")
    searched = None if less is None or m.number(less[1]) != 1 else less[0]
    found = None if searched is None else _made_by(searched, "searchsorted")
    if test is None or found is None or searched is None or searched.node is None:
        return None
    edges, v = found
    plain = edges.dtype is v.dtype and v.dtype is v.dtype.base and edges.ndim == 1
    if searched.node.params["side"] != "right" or test[0] is not v or not plain:
        return None
    if edges.shape[0] != size + 1 or not _is_last(test[1], edges, size):
        return None
    return m.make(BETWEEN, (edges, v), dtype=n.params["dtype"])


def _is_last(v: Value, edges: Value, size: int) -> bool:
    """Whether a value is the last edge, everywhere."""
    for name in ("broadcast_to", "reshape", "slice"):
        inner = _made_by(v, name)
        if inner is None:
            continue
        assert v.node is not None
        if name == "slice":
            return inner[0] is edges and v.node.params["start"] == (size,)
        v = inner[0]
    return False


COUNTS: tuple[Rule[Node, Value], ...] = (
    Rule("count", "scatter_add(0, 1, i) -> count_places(i)", ("scatter_add",), _counts),
    Rule(
        "count_bare",
        "count_places(where(0 <= i < n, i, n)) -> count_places(i)",
        ("count_places",),
        _bare,
    ),
    Rule(
        "count_between",
        "count_places(where(v == e[n], n - 1, searchsorted(e, v) - 1)) -> count_between(e, v)",
        ("count_places",),
        _placed,
    ),
    Rule("count_fewer", "count_places(i)[:k] -> count_places(i) {size = k}", ("slice",), _fewer),
)
