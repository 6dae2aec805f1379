"""The derivatives of pooling as ops of their own, which a GPU has kernels for.

`max_pool_tangent` pushes a tangent forward, and its transpose is `max_pool_grad`; both know the result y,
so that the largest elements of a window are those that equal it.  Where several do, they share.
`avg_pool_grad` is the transpose of avg_pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.constraints import unify
from tessera.core.dims import Shape, Size
from tessera.core.errors import ShapeError
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value, bind
from tessera.ir.graph.op import Params, Sample, Types
from tessera.ops.batching import Mask, batch_size, in_front
from tessera.ops.define import (
    FUNCTIONS,
    ArrayLike,
    as_value,
    broadcast,
    cast_to,
    define,
    floating,
    full_of,
    wide,
)
from tessera.ops.elementwise import div, eq, maximum, mul
from tessera.ops.pool_windows import (
    ends,
    held,
    held_reference,
    inside,
    lowest,
    pool_types,
    seen,
    seen_reference,
    settle,
)
from tessera.ops.reduction import spread
from tessera.ops.reduction import sum as sum_of
from tessera.ops.shape import pad, reshape
from tessera.ops.windows import fold_windows


def _like(op: str, types: Types, shapes: Sequence[Shape]) -> None:
    """Raise unless operands have these shapes."""
    for t, shape in zip(types, shapes, strict=True):
        right = t.rank == len(shape) and all(
            unify(a, b, f"{op}: the results of the pooling")
            for a, b in zip(t.shape, shape, strict=True)
        )
        if not right:
            raise ShapeError(f"{op}: an operand is {t}, expected the shape {list(shape)}")


def _won(x: Value, y: Value, p: Params) -> Value:
    """1 where an element of a window equals its largest, 0 elsewhere."""
    windows = seen(x, lowest(x.dtype), p)
    return cast_to(eq(windows, spread(y, windows, inside(p))), x.dtype)


def _won_reference(x: Any, y: Any, p: Params) -> Any:
    windows = seen_reference(x, -np.inf, p)
    return (windows == y.reshape(*y.shape, *(1,) * len(p["size"]))).astype(x.dtype)


def _folded(parts: Value, sizes: Sequence[Size], p: Params) -> Value:
    """Elements of windows added up where they came from; what came from the padding is dropped."""
    low, high = ends(p["padding"], p["overhang"])
    long = tuple(a + n + b for a, n, b in zip(low[2:], sizes, high[2:], strict=True))
    y = fold_windows.bind(parts, shape=long, stride=p["stride"], dilation=p["dilation"])
    cut = {"low": tuple(0 - n for n in low), "high": tuple(0 - n for n in high)}
    return pad.bind(y, full_of((), 0, y.dtype), inner=(0,) * y.ndim, **cut)


def _folded_reference(parts: Any, sizes: Sequence[int], p: Params) -> Any:
    low, high = ends(p["padding"], p["overhang"])
    long: Any = tuple(a + n + b for a, n, b in zip(low[2:], sizes, high[2:], strict=True))
    fold: Any = fold_windows.op.numpy
    y = fold(parts, shape=long, stride=p["stride"], dilation=p["dilation"])
    cut: Any = tuple(slice(a, a + n) for a, n in zip(low[2:], sizes, strict=True))
    return y[(..., *cut)]


def _decomposed(n: Node, ts: Sequence[Value | None]) -> Any:
    return NotImplemented


def _batch(n: Node, operands: Sequence[Value], batched: Mask) -> Any:
    """Problems are stacked in the batch."""
    size = batch_size(operands, batched)
    xs = [in_front(x, b, size) for x, b in zip(operands, batched, strict=True)]
    flat = [reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:])) for x in xs]
    y: Value = bind(n.op, *flat, **n.params)
    return reshape(y, (*xs[0].shape[:2], *y.shape[1:]))


# The largest


def _tangent_types(types: Types, p: Params) -> list[TensorType]:
    (made,) = pool_types("max_pool_tangent", types, p)
    _like("max_pool_tangent", types[1:], (made.shape, types[0].shape))
    return [made]


def _tangent(x: Value, y: Value, t: Value, **p: Any) -> Value:
    x, y, t = wide(x, y, t)
    won = _won(x, y, p)
    many = maximum(sum_of(won, inside(p)), 1)
    return div(sum_of(mul(won, seen(t, 0, p)), inside(p)), many)


def _tangent_reference(x: Any, y: Any, t: Any, **p: Any) -> Any:
    won = _won_reference(x, y, p)
    many = np.maximum(np.sum(won, inside(p)), 1)
    return (np.sum(won * seen_reference(t, 0, p), inside(p)) / many).astype(x.dtype)


@define(
    infer=_tangent_types, decompose=_tangent, numpy=_tangent_reference, jvp=_decomposed, kinds="f",
    batch=_batch,
    transpose=lambda n, ct, k: max_pool_grad.bind(*n.operands[:2], ct, **n.params),
    samples=(
        Sample((1, 2, 4), (1, 2, 2), (1, 2, 4), size=2),
        Sample((2, 1, 5), (2, 1, 3), (2, 1, 5), size=3, stride=2, padding=1),
        Sample((1, 1, 4, 3), (1, 1, 4, 3), (1, 1, 4, 3), size=1),
    ),
)  # fmt: skip
def max_pool_tangent(
    x: ArrayLike,
    y: ArrayLike,
    t: ArrayLike,
    size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Value:
    """The tangent of y = max_pool(x) for a tangent t of x."""
    v, params = settle("max_pool_tangent", x, 0, size, stride, padding, dilation, ceil_mode)
    rest = [cast_to(as_value(u, "max_pool_tangent"), v.dtype) for u in (y, t)]
    return max_pool_tangent.bind(v, *rest, **params)


def _grad_types(types: Types, p: Params) -> list[TensorType]:
    (made,) = pool_types("max_pool_grad", types, p)
    _like("max_pool_grad", types[1:], (made.shape, made.shape))
    return [types[0]]


def _grad(x: Value, y: Value, ct: Value, **p: Any) -> Value:
    x, y, ct = wide(x, y, ct)
    won = _won(x, y, p)
    share = div(ct, maximum(sum_of(won, inside(p)), 1))
    return _folded(mul(won, spread(share, won, inside(p))), x.shape[2:], p)


def _grad_reference(x: Any, y: Any, ct: Any, **p: Any) -> Any:
    won = _won_reference(x, y, p)
    share = ct / np.maximum(np.sum(won, inside(p)), 1)
    parts = won * share.reshape(*share.shape, *(1,) * len(p["size"]))
    return _folded_reference(parts, x.shape[2:], p).astype(x.dtype)


@define(
    infer=_grad_types, decompose=_grad, numpy=_grad_reference, jvp=_decomposed, kinds="f", batch=_batch,
    kernel="pool",
    transpose=lambda n, ct, k: max_pool_tangent.bind(*n.operands[:2], ct, **n.params),
    samples=(
        Sample((1, 2, 4), (1, 2, 2), (1, 2, 2), size=2),
        Sample((2, 1, 5), (2, 1, 3), (2, 1, 3), size=3, stride=2, padding=1),
        Sample((1, 1, 4, 3), (1, 1, 4, 3), (1, 1, 4, 3), size=1),
    ),
)  # fmt: skip
def max_pool_grad(
    x: ArrayLike,
    y: ArrayLike,
    ct: ArrayLike,
    size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Value:
    """The cotangent of x for a cotangent of y = max_pool(x): elements of a window that equal y share it."""
    v, params = settle("max_pool_grad", x, 0, size, stride, padding, dilation, ceil_mode)
    rest = [cast_to(as_value(u, "max_pool_grad"), v.dtype) for u in (y, ct)]
    return max_pool_grad.bind(v, *rest, **params)


# The mean


def _avg_grad_types(types: Types, p: Params) -> list[TensorType]:
    (ct,) = types
    made = ct.with_shape((*ct.shape[:2], *p["sizes"]))
    _like("avg_pool_grad", types, [pool_types("avg_pool_grad", [made], p)[0].shape])
    return [made]


def _avg_grad(ct: Value, sizes: Any, include_pad: bool, **p: Any) -> Value:
    (g,) = wide(ct)
    like = full_of((*g.shape[:2], *sizes), 0, g.dtype)
    share = div(g, held(like, p, include_pad))
    parts = broadcast(reshape(share, (*g.shape, *(1,) * len(sizes))), (*g.shape, *p["size"]))
    return _folded(parts, sizes, p)


def _avg_grad_reference(ct: Any, sizes: Any, include_pad: bool, **p: Any) -> Any:
    like = np.zeros((*ct.shape[:2], *sizes), ct.dtype)
    share = ct / held_reference(like, p, include_pad, ct.shape[2:])
    parts = np.broadcast_to(share.reshape(*ct.shape, *(1,) * len(sizes)), (*ct.shape, *p["size"]))
    return _folded_reference(parts, sizes, p).astype(ct.dtype)


def _avg_grad_transpose(n: Node, ct: Value, k: int) -> Value:
    p = {name: v for name, v in n.params.items() if name != "sizes"}
    made: Value = FUNCTIONS["avg_pool"].bind(ct, **p)
    return made


@define(
    infer=_avg_grad_types, decompose=_avg_grad, numpy=_avg_grad_reference, kinds="f", batch=_batch,
    kernel="pool",
    linear=(0,), transpose=_avg_grad_transpose,
    samples=(
        Sample((1, 2, 2), sizes=(4,), size=2),
        Sample((2, 1, 3), sizes=(5,), size=3, stride=2, padding=1, count_include_pad=False),
        Sample((1, 1, 2, 3), sizes=(3, 5), size=2, stride=(1, 2), ceil_mode=True),
    ),
)  # fmt: skip
def avg_pool_grad(
    ct: ArrayLike,
    sizes: Any,
    size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Value:
    """The cotangent of x, of `sizes` along its spatial axes, for a cotangent of avg_pool(x)."""
    v = floating(as_value(ct, "avg_pool_grad"))
    like = full_of((*v.shape[:2], *sizes), 0, v.dtype)
    _, params = settle("avg_pool_grad", like, 0, size, stride, padding, 1, ceil_mode)
    return avg_pool_grad.bind(v, sizes=tuple(sizes), **params, include_pad=bool(count_include_pad))
