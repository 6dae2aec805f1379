"""What a trace assumes of data, and the program checks: how long a slice is whose ends are data.

    Slice(x, i, Min(n, i + 1))  ->  dynamic_slice(x, i, 1), assuming that Min(n, i + 1) - i is 1

The length is the distance of two numbers that are computed from one value by adding constants.  A program
gives whether all that it assumed held; where it did not, the model runs node by node (plan.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from tessera.interop.onnx.rule import is_known, tracing
from tessera.ir.graph.ir import Value, host_data
from tessera.ir.graph.op import Op
from tessera.lang import op
from tessera.ops.define import as_value

_HELD: ContextVar[list[Value] | None] = ContextVar("assumptions", default=None)
_DEEPEST = 32  # nodes between a bound and the value that it is computed from


@contextmanager
def assumptions() -> Iterator[list[Value]]:
    """Collect what is assumed in the block; the caller answers for it."""
    found: list[Value] = []
    token = _HELD.set(found)
    try:
        yield found
    finally:
        _HELD.reset(token)


@contextmanager
def collected() -> Iterator[list[Value]]:
    """The same inside of a trace, for a region; nothing is collected where nothing may be assumed."""
    if not allowed():
        yield []
        return
    with assumptions() as found:
        yield found


def answered(f: Callable[[], Any], before: Any = None) -> tuple[Any, Any]:
    """What a traced region gives, and whether what it assumes holds."""
    with assumptions() as held:
        found = f()
    return found, all_hold(held, before)


def allowed() -> bool:
    """Whether a trace may assume something."""
    return tracing() and _HELD.get() is not None


def assume(holds: Any) -> None:
    """Go on as if a condition held."""
    held = _HELD.get()
    assert held is not None
    held.append(op.reshape(holds, ()))


def all_hold(held: Sequence[Value], before: Any = None) -> Any:
    """Whether all of these conditions hold."""
    found = before
    for x in held:
        found = x if found is None else op.logical_and(found, x)
    return as_value(np.array(True)) if found is None else found


def distance(start: Any, stop: Any) -> int | None:
    """How far stop lies behind start where both are one value plus constants; None: unknown."""
    a = dict(_sums(as_value(start), 0))
    for base, number in _sums(as_value(stop), 0):
        if base in a and number >= a[base]:
            return int(number - a[base])
    return None


def _sums(v: Value, depth: int) -> list[tuple[Value | None, Any]]:
    """The ways to see a number as a value (None: nothing) plus a constant; a minimum is one of its sides."""
    known = _number(v)
    if known is not None:
        return [(None, known)]
    follow = None if v.node is None or depth > _DEEPEST else _THROUGH.get(v.node.op.name)
    return [(v, 0)] if follow is None else [(v, 0), *follow(v.node, depth + 1)]


def _same(n: Any, depth: int) -> list[tuple[Value | None, Any]]:
    return _sums(n.operands[0], depth)


def _added(n: Any, depth: int) -> list[tuple[Value | None, Any]]:
    a, b = n.operands
    if _number(a) is not None:
        a, b = b, a
    number = _number(b)
    return [] if number is None else [(v, k + number) for v, k in _sums(a, depth)]


def _lesser(n: Any, depth: int) -> list[tuple[Value | None, Any]]:
    return [s for v in n.operands for s in _sums(v, depth) if s[0] is not None]


_THROUGH: dict[str, Callable[[Any, int], list[tuple[Value | None, Any]]]] = {
    "reshape": _same, "cast": _same, "broadcast_to": _same, "add": _added, "minimum": _lesser,
}  # fmt: skip


def _is_same(op: Op) -> bool:
    """Whether an op shows the numbers of its operand."""
    return op.reshapes or op.casts or op.spreads


def _number(v: Value) -> Any:
    """The number that a value of one element is known to be."""
    if is_known(v):
        data = host_data(v)
    elif v.node is not None and v.node.op.makes == "data":
        held = v.node.params["value"]
        data = held.array if hasattr(held, "array") else host_data(held)
    elif v.node is not None and _is_same(v.node.op):
        return _number(v.node.operands[0])
    else:
        return None
    whole = data.reshape(-1)
    if not whole.size or whole.dtype.kind not in "iuf" or (whole != whole[0]).any():
        return None
    number = whole[0].item()
    return number if number == int(number) else None
