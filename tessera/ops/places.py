"""Indices and labels that are data: who looks at them, and what one outside its axis means.

One rule (docs/indexing.md).  Eager code raises.  A compiled program has a defined result: a read takes the
nearest element, a write is dropped; under ts.checked() it raises too, by the op `checked_index`, which is
in a graph only then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.constraints import require
from tessera.core.dims import Size
from tessera.core.dtype import i64
from tessera.core.errors import AxisError, DTypeError, OperandError
from tessera.core.flags import flags
from tessera.ir.graph.ir import Node, Value, bind, concrete, host_data
from tessera.ir.graph.op import Sample
from tessera.ops.batching import Mask
from tessera.ops.define import as_value, cast_to, define, full_of
from tessera.ops.elementwise import add, ge, logical_and, lt, maximum, minimum, where


def _is_known(index: Value) -> bool:
    """Whether eager code can look at it: looking at what a GPU holds would wait for it."""
    return index.storage is not None and index.device.kind == "cpu"


def _fault(user: str, index: Any, low: int, high: int, what: str) -> AxisError | None:
    """What is wrong with indices of an array: the first that is not in low..high."""
    if not index.size or (low <= index.min() and index.max() <= high):
        return None
    bad = (index < low) | (index > high)
    at = np.unravel_index(int(np.argmax(bad)), bad.shape)
    place = f" at {[int(n) for n in at]}" if index.ndim else ""
    wanted = f"; use {low} to {high}" if high >= max(low, 0) else ", which is empty"
    return AxisError(f"{user} {index[at]}{place} is out of range for {what}{wanted}")


# In compiled programs


def _checked_index(index: Any, user: str, low: Any, high: Any, what: str, skip: int | None) -> Any:
    seen = index if skip is None else np.where(index == skip, low, index)
    error = _fault(user, seen, int(low), int(high), what)
    if error is not None:
        raise error
    return index


def _whole_batch(n: Node, operands: Sequence[Value], batched: Mask) -> Value:
    return bind(n.op, *operands, **n.params)  # type: ignore[no-any-return]


@define(
    infer=lambda types, p: types[:1], call="checked_index", numpy=_checked_index, moves=True, kinds="iu",
    jvp=lambda n, ts: None, batch=_whole_batch,
    samples=(
        Sample(np.array([0, 2, -1]), user="take: index", low=-3, high=2, what="axis 0"),
        Sample(np.array(4), user="cross_entropy: label", low=0, high=3, what="axis 1", skip=4),
    ),
)  # fmt: skip
def checked_index(
    index: Any, user: str, low: Size, high: Size, what: str, skip: int | None = None
) -> Value:
    """The index, if all of it is in low..high or equal to skip; else an error that names its user.

    It is in a program under ts.checked() alone.
    """
    v = as_value(index, "checked_index")
    return checked_index.bind(v, user=user, low=low, high=high, what=what, skip=skip)


def looked_at(
    user: str, index: Value, low: Size, high: Size, what: str, skip: int | None = None
) -> Value:
    """The index, which must be in low..high: at once where it is known, in the program under ts.checked()."""
    if isinstance(low, int) and isinstance(high, int) and _is_known(index):
        _checked_index(host_data(index), user, low, high, what, skip)
        return index
    return check_places(user, index, low, high, what, skip)


def check_places(
    user: str, index: Value, low: Size, high: Size, what: str, skip: int | None = None
) -> Value:
    """The index, which is looked at under ts.checked() alone."""
    if not flags().checked:
        return index
    return checked_index.bind(index, user=user, low=low, high=high, what=what, skip=skip)


# Indices along an axis


def in_bounds(op: str, index: Value, x: Value, axis: int) -> Value:
    """An i64 index counted from the front; one outside the axis is an error when it is known."""
    n = x.shape[axis]
    if index.dtype.kind not in "iu":
        raise DTypeError(f"{op}: the index is {index.type}, expected integers")
    if not _is_known(index) or (not isinstance(n, int) and host_data(index).min(initial=0) < 0):
        index = check_places(f"{op}: index", index, -n, n - 1, f"axis {axis} of {x.type}")
        return _from_front(index, n)
    if isinstance(n, int):
        return _known(op, index, n, x, axis)
    raw = host_data(index)
    least = int(raw.max(initial=-1)) + 1
    require("at_least", n, least, f"{op}: the indices along axis {axis} of {x.type}")
    return concrete(raw.astype(np.int64), i64, x.device)


def _known(op: str, index: Value, n: int, x: Value, axis: int) -> Value:
    """An index at hand, for an axis of known size."""
    raw = host_data(index)
    data = raw if index.dtype is i64 else raw.astype(np.int64, copy=False)
    if data.size and _greatest(data) >= n:
        error = _fault(f"{op}: index", raw, -n, n - 1, f"axis {axis} of {x.type}")
        if error is not None:
            raise error
        data = np.where(data < 0, data + n, data)
    if data is raw and index.dtype is i64 and index.device == x.device:
        return index
    return concrete(data, i64, x.device)


_FEW = 32  # so many numbers are looked at by Python in less time than NumPy takes to begin


def _greatest(data: Any) -> int:
    """The greatest of some indices, taken without their signs: those below 0 are large."""
    if data.size > _FEW:
        return int(data.view(np.uint64).max())
    numbers = data.tolist() if data.ndim == 1 else data.ravel().tolist()
    return max(numbers) if min(numbers) >= 0 else 1 << 64


def _from_front(index: Value, n: Size) -> Value:
    if index.dtype.kind != "u":
        wide = cast_to(index, i64)
        return where(lt(wide, 0), add(wide, n), wide)
    if index.dtype.bits == 64:  # what i64 cannot hold is far behind the end
        index = minimum(index, full_of((), (1 << 63) - 1, index.dtype))
    return cast_to(index, i64)


def _is_inside(index: Value, n: Size) -> bool:
    """Whether an index lies in 0..n-1 whatever the data are: the places of an axis of that size."""
    node = index.node
    if node is None or node.op.name != "iota":
        return False
    return bool(index.shape[node.params["axis"]] == n)


def nearest(indices: Sequence[Value], x: Value, axes: Sequence[int]) -> list[Value]:
    """Indices moved to the nearest element: where a read takes what it reads."""
    return [
        i if _is_inside(i, x.shape[a]) else minimum(maximum(i, 0), x.shape[a] - 1)
        for i, a in zip(indices, axes, strict=True)
    ]


def inside(indices: Sequence[Value], x: Value, axes: Sequence[int]) -> Value | None:
    """Where all indices are in their axes, which is where a write is done; None: everywhere."""
    out: Value | None = None
    for i, a in zip(indices, axes, strict=True):
        if _is_inside(i, x.shape[a]):
            continue
        here = logical_and(ge(i, 0), lt(i, x.shape[a]))
        out = here if out is None else logical_and(out, here)
    return out


# Labels


def labels_of(op: str, labels: Value, classes: Size, ignore: int | None, what: str) -> Value:
    """Numbers of classes, 0 to classes - 1 or `ignore`: others are errors, as for indices."""
    if ignore is not None and (isinstance(ignore, bool) or not isinstance(ignore, int)):
        raise OperandError(f"{op}: ignore_index is {ignore!r:.60}, expected a whole number or None")
    return looked_at(f"{op}: label", labels, 0, classes - 1, what, ignore)
