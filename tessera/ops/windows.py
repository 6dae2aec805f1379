"""Sliding windows over the last axes: the view behind convolution and pooling, and its adjoint.

An axis of size n becomes two: which window, and which element of the window.  Window p, element k
is element p * stride + k * dilation of the axis.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.constraints import require, same, unify
from tessera.core.dims import Dim, Size
from tessera.core.errors import OperandError, ShapeError
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Value
from tessera.ir.graph.op import Index, Params, Sample, Types
from tessera.ops.batching import leading
from tessera.ops.define import ArrayLike, as_value, define, full_of
from tessera.ops.elementwise import add
from tessera.ops.shape import pad, reshape, slice_, transpose


def spatial(op: str, name: str, value: Any, rank: int, least: int) -> tuple[Any, ...]:
    """One number for each spatial axis, from one number or one for each."""
    given = tuple(value) if isinstance(value, tuple | list) else (value,) * rank
    if len(given) != rank:
        raise OperandError(
            f"{op}: {name} is {value!r}, expected one number or one for each of {rank} axes"
        )
    for n in given:
        if isinstance(n, bool) or not isinstance(n, int | Dim):
            raise OperandError(f"{op}: {name} is {value!r}, expected whole numbers")
        if isinstance(n, int) and n < least:
            raise OperandError(f"{op}: {name} is {value!r}, expected at least {least}")
    return given


def reach(size: Size, dilation: Size) -> Size:
    """How many elements a window spans from its first to its last."""
    return (size - 1) * dilation + 1


def count(op: str, axis: int, n: Size, size: Size, stride: Size, dilation: Size) -> Size:
    """How many windows fit in an axis of n elements."""
    span = reach(size, dilation)
    if not require("at_least", n, span, f"{op}: axis {axis}"):
        raise ShapeError(
            f"{op}: a window of {size} with dilation {dilation} spans {span} elements, but spatial "
            f"axis {axis} has {n} with its padding; pad more or use a smaller window"
        )
    return (n - span) // stride + 1


def _window_types(types: Types, p: Params) -> list[TensorType]:
    t, rank = types[0], len(p["size"])
    counts = tuple(
        count("windows", i, *args)
        for i, args in enumerate(
            zip(t.shape[t.rank - rank :], p["size"], p["stride"], p["dilation"], strict=True)
        )
    )
    return [t.with_shape((*t.shape[: t.rank - rank], *counts, *p["size"]))]


def _window_view(index: Index, types: Types, p: Params) -> Index:
    rank = len(p["size"])
    lead = len(index) - 2 * rank
    return (
        *index[:lead],
        *(
            index[lead + i] * p["stride"][i] + index[lead + rank + i] * p["dilation"][i]
            for i in range(rank)
        ),
    )


def window_reference(x: Any, size: Any, stride: Any, dilation: Any) -> Any:
    """The windows of a NumPy array, as a read-only view of it."""
    lead = x.ndim - len(size)
    spans: Any = [reach(k, d) for k, d in zip(size, dilation, strict=True)]
    # NumPy cannot make strided views of every ml_dtypes format, but of its bits.
    bits = x.view(f"u{x.itemsize}") if x.dtype.isbuiltin == 2 else x
    dense = np.lib.stride_tricks.sliding_window_view(bits, spans, axis=tuple(range(lead, x.ndim)))
    cut = [slice(None)] * lead + [slice(None, None, s) for s in (*stride, *dilation)]
    return dense[tuple(cut)].view(x.dtype)


@define(
    infer=_window_types, view=_window_view, numpy=window_reference, linear=(0,), batch=leading,
    transpose=lambda n, ct, k: fold_windows.bind(
        ct,
        shape=n.operands[0].shape[n.operands[0].ndim - len(n.params["size"]) :],
        stride=n.params["stride"], dilation=n.params["dilation"],
    ),
    samples=(
        Sample((5,), size=(3,)), Sample((2, 7), size=2, stride=2, dilation=3),
        Sample((2, 5, 4), size=(2, 3), stride=(2, 1)), Sample((0, 3), size=1), Sample((3,), size=3),
    ),
)  # fmt: skip
def windows(x: ArrayLike, size: Any, stride: Any = 1, dilation: Any = 1) -> Value:
    """Windows over the last axes: (..., n) gives (..., windows, size); a number is for one axis."""
    v = as_value(x, "windows")
    rank = len(size) if isinstance(size, tuple | list) else 1
    if rank > v.ndim:
        raise ShapeError(f"windows: {v.type} has fewer than {rank} axes")
    params = {"size": size, "stride": stride, "dilation": dilation}
    return windows.bind(v, **{k: spatial("windows", k, n, rank, 1) for k, n in params.items()})


# The adjoint: elements of windows added up where they came from


def _fold_types(types: Types, p: Params) -> list[TensorType]:
    t, rank = types[0], len(p["shape"])
    counts, sizes = t.shape[t.rank - 2 * rank : t.rank - rank], t.shape[t.rank - rank :]
    for i, n in enumerate(p["shape"]):
        made = count("fold_windows", i, n, sizes[i], p["stride"][i], p["dilation"][i])
        if not unify(counts[i], made, f"fold_windows: windows along axis {i}"):
            raise ShapeError(
                f"fold_windows: {t} has {counts[i]} windows along axis {i}, but {made} fit in {n}"
            )
    return [t.with_shape((*t.shape[: t.rank - 2 * rank], *p["shape"]))]


def _fold_reference(x: Any, shape: Any, stride: Any, dilation: Any) -> Any:
    rank = len(shape)
    lead, counts = x.shape[: x.ndim - 2 * rank], x.shape[x.ndim - 2 * rank : x.ndim - rank]
    out: Any = np.zeros((*lead, *shape), x.dtype)
    for k in np.ndindex(*x.shape[x.ndim - rank :]):
        into = tuple(
            slice(i * d, i * d + (c - 1) * s + 1, s)
            for i, d, c, s in zip(k, dilation, counts, stride, strict=True)
        )
        out[(..., *into)] += x[(..., *k)]
    return out


def _fold(x: Value, shape: Any, stride: Any, dilation: Any) -> Value:
    """A padded copy for each element of a window, added up; windows side by side are moved."""
    rank = len(shape)
    lead = x.ndim - 2 * rank
    counts, sizes = x.shape[lead : lead + rank], x.shape[lead + rank :]
    if all(d == 1 for d in dilation) and all(s == k for s, k in zip(stride, sizes, strict=True)):
        return _side_by_side(x, shape)
    total = None
    for k in itertools.product(*map(range, sizes)):
        at = (*(0,) * (lead + rank), *k)
        part = slice_(x, at, (*x.shape[: lead + rank], *(i + 1 for i in k)))
        low = tuple(i * d for i, d in zip(k, dilation, strict=True))
        high = tuple(
            n - a - reach(c, s) for n, a, c, s in zip(shape, low, counts, stride, strict=True)
        )
        term = pad.bind(
            reshape(part, x.shape[: lead + rank]), full_of((), 0, x.dtype),
            low=(0,) * lead + low, high=(0,) * lead + high,
            inner=(0,) * lead + tuple(s - 1 for s in stride),
        )  # fmt: skip
        total = term if total is None else add(total, term)
    assert total is not None
    return total


def _side_by_side(x: Value, shape: Any) -> Value:
    """Windows that touch and do not overlap."""
    rank = len(shape)
    lead = x.ndim - 2 * rank
    order = [axis for i in range(rank) for axis in (lead + i, lead + rank + i)]
    sizes = [x.shape[lead + i] * x.shape[lead + rank + i] for i in range(rank)]
    y = reshape(transpose(x, (*range(lead), *order)), (*x.shape[:lead], *sizes))
    high = tuple(n - m for n, m in zip(shape, sizes, strict=True))
    y = add(y, full_of(y.shape, 0, y.dtype))  # a sum from 0 has no -0.0
    if all(same(n, 0) for n in high):
        return y
    return pad.bind(
        y, full_of((), 0, y.dtype), low=(0,) * y.ndim, high=(0,) * lead + high, inner=(0,) * y.ndim
    )


def _fold_samples() -> Sequence[Sample]:
    return (
        Sample((3, 3), shape=(5,)), Sample((2, 2, 2), shape=(7,), stride=2, dilation=3),
        Sample((2, 2, 2, 2, 3), shape=(5, 4), stride=(2, 1)), Sample((0, 3, 1), shape=(3,)),
        Sample((2, 2, 2, 3, 3), shape=(6, 7), stride=3), Sample((2, 3), shape=(6,), stride=3),
    )  # fmt: skip


@define(
    infer=_fold_types, decompose=_fold, numpy=_fold_reference, linear=(0,), kinds="uifc",
    batch=leading,
    transpose=lambda n, ct, k: windows.bind(
        ct,
        size=n.operands[0].shape[n.operands[0].ndim - len(n.params["shape"]) :],
        stride=n.params["stride"], dilation=n.params["dilation"],
    ),
    samples=tuple(_fold_samples()),
)  # fmt: skip
def fold_windows(x: ArrayLike, shape: Any, stride: Any = 1, dilation: Any = 1) -> Value:
    """The adjoint of windows: (..., windows, size) added up into (..., *shape)."""
    v = as_value(x, "fold_windows")
    sizes = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    if v.ndim < 2 * len(sizes):
        raise ShapeError(f"fold_windows: {v.type} has fewer than {2 * len(sizes)} axes")
    params = {"shape": sizes, "stride": stride, "dilation": dilation}
    least = {"shape": 0, "stride": 1, "dilation": 1}
    return fold_windows.bind(
        v, **{k: spatial("fold_windows", k, n, len(sizes), least[k]) for k, n in params.items()}
    )
