"""The windows of pooling: what they see of (batch, channels, ...), and how many elements they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.constraints import same
from tessera.core.dims import Dim, Size, larger, product, smaller
from tessera.core.dtype import DType
from tessera.core.errors import OperandError, ShapeError
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Value
from tessera.ir.graph.op import Params, Types
from tessera.ops.convolution import Pairs, padding_pairs
from tessera.ops.creation import iota
from tessera.ops.define import ArrayLike, as_value, broadcast, cast_to, full_of
from tessera.ops.elementwise import add, maximum, minimum, mul, sub
from tessera.ops.shape import pad, reshape
from tessera.ops.windows import count, reach, spatial, window_reference, windows


def settle(
    op: str,
    x: ArrayLike,
    rank: int,
    size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil: bool,
) -> tuple[Value, dict[str, Any]]:
    """x and the parameters of its windows.

    overhang is what ceil_mode puts after the padding, so that a last window that starts in x or in
    the padding before it, but does not fit, counts too.
    """
    v = as_value(x, op)
    rank = rank or v.ndim - 2
    if v.ndim != rank + 2 or rank < 1:
        raise ShapeError(
            f"{op}: x is {v.type}, expected (batch, channels, ...) with {max(rank, 0) or 'some'} spatial axes"
        )
    sizes = spatial(op, "size", size, rank, 1)
    steps = sizes if stride is None else spatial(op, "stride", stride, rank, 1)
    gaps = spatial(op, "dilation", dilation, rank, 1)
    spans = [reach(k, d) for k, d in zip(sizes, gaps, strict=True)]
    pairs = padding_pairs(op, padding, v.shape[2:], spans, steps)
    for (a, b), span in zip(pairs, spans, strict=True):
        if not isinstance(a, Dim) and not isinstance(b, Dim) and max(a, b) >= span:
            raise OperandError(
                f"{op}: padding {(a, b)} must be smaller than the window, which spans {span}"
            )
    extra = tuple(
        _overhang(n, p, span, s) if ceil else 0
        for n, p, span, s in zip(v.shape[2:], pairs, spans, steps, strict=True)
    )
    params = {"size": sizes, "stride": steps, "padding": pairs, "overhang": extra}
    return v, {**params, "dilation": gaps}


def _overhang(n: Size, padding: tuple[Size, Size], span: Size, stride: Size) -> Size:
    low, high = padding
    rest = low + n + high - span
    last = smaller((rest + stride - 1) // stride, (n + low - 1) // stride)
    return larger(last * stride - rest, 0)


def pool_types(op: str, types: Types, p: Params) -> list[TensorType]:
    """The type of a pooling of the first operand."""
    t = types[0]
    sizes = []
    for i, n in enumerate(t.shape[2:]):
        low, high = p["padding"][i]
        long = low + n + high + p["overhang"][i]
        sizes.append(count(op, i, long, p["size"][i], p["stride"][i], p["dilation"][i]))
    return [t.with_shape((*t.shape[:2], *sizes))]


def ends(padding: Pairs, overhang: Sequence[Size]) -> tuple[tuple[Size, ...], tuple[Size, ...]]:
    """What goes before and after each of the axes."""
    high = tuple(b + more for (_, b), more in zip(padding, overhang, strict=True))
    return (0, 0, *(a for a, _ in padding)), (0, 0, *high)


def seen(x: Value, fill: Any, p: Params) -> Value:
    """The windows of x, with a fill around it."""
    low, high = ends(p["padding"], p["overhang"])
    if any(not isinstance(n, int) or n for n in (*low, *high)):
        value = full_of((), fill, x.dtype)
        x = pad.bind(x, value, low=low, high=high, inner=(0,) * x.ndim)
    return windows.bind(x, size=p["size"], stride=p["stride"], dilation=p["dilation"])


def seen_reference(x: Any, fill: Any, p: Params) -> Any:
    """The windows of an array."""
    around: Any = ends(p["padding"], p["overhang"])
    if any(map(any, around)):
        x = np.pad(x, list(zip(*around, strict=True)), constant_values=fill)
    return window_reference(x, p["size"], p["stride"], p["dilation"])


def inside(p: Params) -> tuple[int, ...]:
    """The axes of the windows that count the elements of one window."""
    rank = len(p["size"])
    return tuple(range(2 + rank, 2 + 2 * rank))


def held(x: Value, p: Params, include: bool) -> Value | Size:
    """How many elements each window holds: those of x, and of the padding if it is included."""
    if include and all(same(n, 0) for n in p["overhang"]):
        return product(p["size"])
    places = pool_types("avg_pool", [x.type], p)[0].shape
    total: Value | None = None
    for i, n in enumerate(x.shape[2:]):
        low, high = p["padding"][i]
        start = sub(mul(iota((places[2 + i],)), p["stride"][i]), low)
        stop = minimum(add(start, p["size"][i]), n + high if include else n)
        along_axis = sub(stop, start if include else maximum(start, 0))
        shape = (*(1,) * i, places[2 + i], *(1,) * (len(places) - 3 - i))
        along = broadcast(reshape(along_axis, shape), places[2:])
        total = along if total is None else mul(total, along)
    assert total is not None
    return broadcast(cast_to(total, x.dtype), places)


def held_reference(x: Any, p: Params, include: bool, places: Sequence[int]) -> Any:
    """How many elements each window of an array holds."""
    total: Any = 1
    for i, n in enumerate(x.shape[2:]):
        low, high = p["padding"][i]
        start = np.arange(places[i]) * p["stride"][i] - low
        stop = np.minimum(start + p["size"][i], n + high if include else n)
        along = stop - (start if include else np.maximum(start, 0))
        total = total * along.reshape(-1, *(1,) * (len(places) - 1 - i))
    return total.astype(x.dtype)


def lowest(dtype: DType) -> Any:
    """What no element is below."""
    if dtype.kind == "f":
        return float("-inf")
    return 0 if dtype.kind in "bu" else -(2 ** (dtype.bits - 1))
