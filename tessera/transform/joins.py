"""joins: adjacent windows of zeros are joined, not added.

    %1 = pad(%a, 0, after 2); %2 = pad(%b, 0, before 3); %3 = add(%1, %2)   ->   %3 = concat(%a + 0, %b + 0)

The derivative of what was cut into parts is such a sum.  Adding 0.0 turns -0.0 into 0.0 and changes nothing
else, so the parts are added to 0.0 before they are joined, and no bit changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tessera.core.rewrite import Rule
from tessera.ir.graph.ir import Node, Value
from tessera.ops.elementwise import add
from tessera.ops.shape import concat, pad
from tessera.transform.identities import plain
from tessera.transform.maker import Found, Maker


@dataclass(frozen=True)
class _Window:
    """A tensor between zeros along one axis."""

    inside: Value
    axis: int
    low: int
    high: int

    @property
    def stop(self) -> int:
        size = self.inside.shape[self.axis]
        assert isinstance(size, int), size
        return self.low + size


def _window(v: Value, m: Maker) -> _Window | None:
    n = v.node
    if n is None or n.op is not pad.op or not _is_zero(n.operands[1], m) or any(n.params["inner"]):
        return None
    low, high = n.params["low"], n.params["high"]
    axes = [i for i in range(v.ndim) if low[i] != 0 or high[i] != 0]
    inside = n.operands[0]
    if len(axes) != 1 or not plain(v.dtype):
        return None
    (a,) = axes
    sizes = (low[a], high[a], inside.shape[a])
    if not all(isinstance(s, int) and s >= 0 for s in sizes):
        return None
    return _Window(inside, a, low[a], high[a])


def _is_zero(v: Value, m: Maker) -> bool:
    """Whether every element is 0, and not -0.0."""
    x = m.number(v)
    return x is not None and x == 0 and not (isinstance(x, float) and math.copysign(1, x) < 0)


def _join(n: Node, m: Maker) -> Found:
    a, b = (_window(v, m) for v in n.operands)
    if a is None or b is None or a.axis != b.axis or a.inside.dtype.kind not in "uif":
        return None
    if a.low > b.low:
        a, b = b, a
    if a.stop != b.low:
        return None
    x, y = (_without_minus_zero(w.inside, m) for w in (a, b))
    joined = None if x is None or y is None else m.apply("concat", x, y, axis=a.axis)
    if joined is None or (a.low == 0 and b.high == 0):
        return joined
    ends = {
        k: tuple(size if i == a.axis else 0 for i in range(n.results[0].ndim))
        for k, size in (("low", a.low), ("high", b.high), ("inner", 0))
    }
    zero = m.full(n.results[0].type.with_shape(()), 0)
    return None if zero is None else m.apply("pad", joined[0], zero[0], **ends)


def _without_minus_zero(v: Value, m: Maker) -> Value | None:
    """v + 0.0, or v itself if that changes nothing."""
    if v.dtype.kind != "f" or _has_no_minus_zero(v, m):
        return v
    zero = m.full(v.type, 0.0)
    found = None if zero is None else m.apply("add", v, zero[0])
    return None if found is None else found[0]


def _has_no_minus_zero(v: Value, m: Maker) -> bool:
    n = v.node
    if n is None:
        return False
    if n.op is concat.op or n.op.view is not None:
        return all(_has_no_minus_zero(x, m) for x in n.operands)
    return n.op is add.op and any(_is_zero(x, m) for x in n.operands)


JOINS: tuple[Rule[Node, Value], ...] = (
    Rule("join", "pad(x, 0, after) + pad(y, 0, before) -> concat(x + 0, y + 0)", ("add",), _join),
)
