"""Convolution and its transpose in any number of spatial axes.

One op, `conv`, carries every option; both of its adjoints are `conv` again, with the roles of
stride, dilation of the kernel and dilation of the input exchanged, so derivatives of any order stay
convolutions.  Layouts: x (batch, channels, ...), w (out channels, in channels / groups, ...).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.constraints import require, unify
from tessera.core.convolutions import is_pointwise
from tessera.core.dims import Dim, Shape, Size, larger, product
from tessera.core.errors import OperandError, ShapeError
from tessera.core.primitives import is_open, is_primitive
from tessera.core.promotion import promote_all
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Params, Sample, Types
from tessera.ops.batching import Mask, merged
from tessera.ops.contraction import contract
from tessera.ops.conv_phases import by_phases, input_reference, transposed_kernel
from tessera.ops.cutting import convolved
from tessera.ops.define import ArrayLike, as_value, broadcast, cast_to, define, full_of, public
from tessera.ops.elementwise import add
from tessera.ops.shape import moveaxis, pad, reshape, transpose
from tessera.ops.windows import count, reach, spatial, window_reference, windows

Pairs = tuple[tuple[Size, Size], ...]


def _stretched(n: Size, inner: Size) -> Size:
    """The length of an axis with inner - 1 zeros between neighbours."""
    return reach(n, inner) if isinstance(n, Dim) or n > 0 else 0


def _conv_types(types: Types, p: Params) -> list[TensorType]:
    x, w = types
    if x.rank < 3 or w.rank != x.rank:
        raise ShapeError(
            f"conv: operands {x}, {w} must be (batch, channels, ...) and (out, in / groups, ...)"
        )
    groups, channels = p["groups"], x.shape[1]
    if not unify(channels, w.shape[1] * groups, "conv: the channels of x and w"):
        raise ShapeError(
            f"conv: x {x} has {channels} channels but w {w} takes {w.shape[1]} in each of "
            f"{groups} groups, {w.shape[1] * groups} in all"
        )
    if not require("divisible", w.shape[0], groups, "conv: the out channels"):
        raise ShapeError(
            f"conv: groups {groups} do not divide the {w.shape[0]} out channels of w {w}"
        )
    for i, k in enumerate(w.shape[2:]):
        if k == 0:
            raise ShapeError(f"conv: spatial axis {i} of w {w} is empty")
    sizes = _counts("conv", x, w.shape[2:], p)
    return [x.with_shape((x.shape[0], w.shape[0], *sizes))]


def _counts(op: str, x: TensorType, window: Sequence[Size], p: Params) -> list[Size]:
    """How many windows there are along each spatial axis."""
    sizes = []
    for i, (n, k) in enumerate(zip(x.shape[2:], window, strict=True)):
        low, high = p["padding"][i]
        long = low + _stretched(n, p["inner"][i]) + high
        sizes.append(count(op, i, long, k, p["stride"][i], p["dilation"][i]))
    return sizes


def _padded_reference(x: Any, padding: Any, inner: Any) -> Any:
    """x with zeros between neighbours and around; negative padding cuts."""
    if all(i == 1 for i in inner) and all(a == b == 0 for a, b in padding):
        return x
    lead = x.shape[:2]
    long = [_stretched(n, i) for n, i in zip(x.shape[2:], inner, strict=True)]
    shape = (*lead, *(a + n + b for n, (a, b) in zip(long, padding, strict=True)))
    out: Any = np.zeros(shape, x.dtype)
    into: list[Any] = []
    take: list[Any] = []
    for n, i, (a, b) in zip(x.shape[2:], inner, padding, strict=True):
        first = max(-(a // i), 0) if a < 0 else 0  # the first element that is not cut
        last = n - max(-(b // i), 0) if b < 0 else n
        take.append(slice(first, max(last, first)))
        start = a + first * i
        into.append(slice(start, start + _stretched(max(last - first, 0), i), i))
    out[(..., *into)] = x[(..., *take)]
    return out


def _conv_reference(
    x: Any, w: Any, stride: Any, padding: Any, dilation: Any, inner: Any, groups: int
) -> Any:
    (batch, channels), rank = x.shape[:2], x.ndim - 2
    out = w.shape[0]
    seen = window_reference(_padded_reference(x, padding, inner), w.shape[2:], stride, dilation)
    counts = seen.shape[2 : 2 + rank]
    seen = seen.reshape(batch, groups, channels // groups, *seen.shape[2:])
    # One matrix product for each group: (batch and windows) by (channels and window).
    places, inside = range(3, 3 + rank), range(3 + rank, 3 + 2 * rank)
    rows = seen.transpose(1, 0, *places, 2, *inside)
    patch = channels // groups * int(np.prod(w.shape[2:]))
    rows = rows.reshape(groups, batch * int(np.prod(counts)), patch)
    y = np.matmul(rows, w.reshape(groups, out // groups, patch).swapaxes(1, 2))
    y = y.reshape(groups, batch, *counts, out // groups)
    return y.transpose(1, 0, 2 + rank, *range(2, 2 + rank)).reshape(batch, out, *counts)


def _conv(
    x: Value, w: Value, stride: Any, padding: Any, dilation: Any, inner: Any, groups: Size
) -> Value:
    params = {"stride": stride, "padding": padding, "dilation": dilation, "inner": inner}
    if is_pointwise((x.type, w.type), params):
        return _pointwise(x, w, groups)
    rank = x.ndim - 2
    wide = _spaced(x, padding, inner)
    params |= {"padding": ((0, 0),) * rank, "inner": (1,) * rank, "groups": groups}
    given = ("conv", (wide.type, w.type), params)
    if is_primitive(*given) or is_open(*given):
        return conv.bind(wide, w, **params)
    seen = windows.bind(wide, size=w.shape[2:], stride=stride, dilation=dilation)
    seen = reshape(seen, (x.shape[0], groups, x.shape[1] // groups, *seen.shape[2:]))
    kernel = reshape(w, (groups, w.shape[0] // groups, *w.shape[1:]))
    p, k = (" ".join(f"{c}{i}" for i in range(rank)) for c in "pk")
    y = contract(f"n g c {p} {k}, g o c {k} -> n g o {p}", seen, kernel)
    return reshape(y, (x.shape[0], w.shape[0], *y.shape[3:]))


def _spaced(x: Value, padding: Any, inner: Any) -> Value:
    """x with zeros between neighbours and around."""
    return pad.bind(
        x, full_of((), 0, x.dtype), low=(0, 0, *(a for a, _ in padding)),
        high=(0, 0, *(b for _, b in padding)), inner=(0, 0, *(i - 1 for i in inner)),
    )  # fmt: skip


def _pointwise(x: Value, w: Value, groups: Size) -> Value:
    """A window of one place: a matrix product for each element of the batch and each group."""
    places = product(x.shape[2:])
    made, into = w.shape[0] // groups, w.shape[1]
    if groups == 1 and places == 1:  # a row of channels for each element of the batch
        rows = reshape(x, (x.shape[0], into))
        y = contract("n c, o c -> n o", rows, reshape(w, (made, into)))
        return reshape(y, (x.shape[0], made, *x.shape[2:]))
    if groups == 1:
        seen = reshape(x, (x.shape[0], into, places))
        kernel = broadcast(reshape(w, (1, made, into)), (x.shape[0], made, into))
        y = contract("n o c, n c p -> n o p", kernel, seen)
        return reshape(y, (x.shape[0], made, *x.shape[2:]))
    seen = reshape(x, (x.shape[0], groups, into, places))
    kernel = broadcast(reshape(w, (1, groups, made, into)), (x.shape[0], groups, made, into))
    y = contract("n g o c, n g c p -> n g o p", kernel, seen)
    return reshape(y, (x.shape[0], w.shape[0], *x.shape[2:]))


# Adjoints


def _adjoint_in_x(shape: Shape, w: Value, ct: Value, p: Params) -> Value:
    """Every element of ct times the kernel, added up where the windows were."""
    if any(size == 0 for size in shape[2:]):
        return full_of(shape, 0, ct.dtype)
    padding = []
    for i, (size, k) in enumerate(zip(shape[2:], w.shape[2:], strict=True)):
        low = reach(k, p["dilation"][i]) - 1 - p["padding"][i][0]
        # The last place of x must be the last window.
        long = (size - 1) * p["inner"][i] + reach(k, p["dilation"][i])
        padding.append((low, long - low - reach(ct.shape[2 + i], p["stride"][i])))
    return conv.bind(
        ct, transposed_kernel(w, p["groups"]), stride=p["inner"], padding=tuple(padding),
        dilation=p["dilation"], inner=p["stride"], groups=p["groups"],
    )  # fmt: skip


def _adjoint(n: Node, ct: Value, k: int) -> Value:
    x, w = n.operands
    p = {name: v for name, v in n.params.items() if name != "inner"}
    if k == 0 and all(i == 1 for i in n.params["inner"]) and 0 not in x.shape:
        return conv_input.bind(ct, w, size=x.shape[2:], **p)
    if k == 0:
        return _adjoint_in_x(x.shape, w, ct, n.params)
    return conv_weights.bind(x, ct, window=w.shape[2:], **n.params)


def _conv_batch(n: Node, operands: Sequence[Value], batched: Mask) -> Value:
    """Inputs join the batch; kernels join the out channels, or groups when both are batched."""
    x, w = operands
    groups = n.params["groups"]
    if not batched[1]:
        return merged(n, operands, batched)
    size = w.shape[0]
    if batched[0]:
        front = moveaxis(x, 0, 1)
        x = reshape(front, (front.shape[0], size * front.shape[2], *front.shape[3:]))
        kernel, order = w, (size, groups)
    else:
        split = reshape(w, (size, groups, w.shape[1] // groups, *w.shape[2:]))
        kernel, order = moveaxis(split, 0, 1), (groups, size)
    kernel = reshape(kernel, (size * n.operands[1].shape[0], *w.shape[2:]))
    y = conv.bind(x, kernel, **{**n.params, "groups": groups * size if batched[0] else groups})
    y = reshape(y, (y.shape[0], *order, w.shape[1] // groups, *y.shape[2:]))
    y = moveaxis(y, 1 if batched[0] else 2, 0)
    return reshape(y, (*y.shape[:2], w.shape[1], *y.shape[4:]))


@define(
    infer=_conv_types, decompose=_conv, call="conv", total=True, numpy=_conv_reference, kinds="uifc",
    combine="add", linear=(0, 1), onnx="Conv", batch=_conv_batch, factors=convolved(("n c", "o c"), "n o"),
    transpose=_adjoint,
    samples=(
        Sample((2, 3, 5), (4, 3, 3)), Sample((1, 2, 6), (2, 2, 2), stride=2, padding=1),
        Sample((2, 4, 7), (2, 2, 3), dilation=2, padding=((2, 1),), groups=2),
        Sample((1, 2, 4), (3, 2, 3), inner=2, padding=1, stride=3), Sample((0, 2, 5), (3, 2, 2)),
        Sample((1, 2, 4, 5), (2, 1, 3, 2), padding="same", groups=2),
        Sample((1, 1, 3, 2, 4), (2, 1, 2, 2, 2), stride=(1, 1, 2)), Sample((1, 1, 1), (1, 1, 1)),
        Sample((1, 2, 4), (3, 2, 2), bias=(3,)),
    ),
)  # fmt: skip
def conv(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: Size = 1,
    inner: Any = 1,
) -> Value:
    """Sums of x times the kernel w over sliding windows, for every out channel.

    padding is a number, one for each axis, (before, after) pairs, "valid" (none) or "same" (as many
    windows as strides).  inner - 1 zeros are put between neighbours of x first.
    """
    return _convolve("conv", x, w, bias, stride, padding, dilation, groups, inner)


def _convolve(
    op: str,
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Size,
    inner: Any = 1,
) -> Value:
    v, k, *b = operands_of(op, x, w, bias)
    rank = v.ndim - 2
    steps, gaps, inners = (
        spatial(op, name, n, rank, 1)
        for name, n in (("stride", stride), ("dilation", dilation), ("inner", inner))
    )
    long = [_stretched(n, i) for n, i in zip(v.shape[2:], inners, strict=True)]
    spans = [reach(n, d) for n, d in zip(k.shape[2:], gaps, strict=True)]
    pairs = padding_pairs(op, padding, long, spans, steps)
    y = conv.bind(
        v, k, stride=steps, padding=pairs, dilation=gaps, inner=inners, groups=groups_of(op, groups)
    )
    return biased(op, y, b)


def groups_of(op: str, groups: Any) -> Size:
    (n,) = spatial(op, "groups", groups, 1, 1)
    return n  # type: ignore[no-any-return]


def operands_of(op: str, x: ArrayLike, w: ArrayLike, bias: ArrayLike, rank: int = 0) -> list[Value]:
    """Operands of one dtype; `rank` spatial axes when that is known."""
    values = [as_value(p, op) for p in (x, w, bias) if p is not None]
    v, k = values[:2]
    if v.ndim < 3 or k.ndim != v.ndim or (rank and v.ndim != rank + 2):
        axes = f"{rank} spatial axes" if rank else "spatial axes"
        raise ShapeError(
            f"{op}: operands {v.type}, {k.type} must be (batch, channels, ...) and "
            f"(out, in, ...) with {axes}"
        )
    dtype = promote_all([p.dtype for p in values])
    return [cast_to(p, dtype) for p in values]


def biased(op: str, y: Value, bias: Sequence[Value]) -> Value:
    if not bias:
        return y
    (b,) = bias
    if b.ndim != 1 or not unify(b.shape[0], y.shape[1], f"{op}: the bias and the out channels"):
        raise ShapeError(
            f"{op}: the bias is {b.type}, expected one number for each of {y.shape[1]} out channels"
        )
    return add(y, broadcast(reshape(b, (1, y.shape[1], *(1,) * (y.ndim - 2))), y.shape))


def padding_pairs(
    op: str, padding: Any, sizes: Sequence[Size], spans: Sequence[Size], strides: Sequence[Size]
) -> Pairs:
    """(before, after) of each spatial axis."""
    rank = len(sizes)
    if isinstance(padding, str):
        if padding == "valid":
            return ((0, 0),) * rank
        if padding == "same":
            return tuple(map(_same, sizes, spans, strides))
        raise OperandError(f"{op}: padding is {padding!r}, expected 'same', 'valid' or numbers")
    given = padding if isinstance(padding, tuple | list) else (padding,) * rank
    if len(given) != rank:
        raise OperandError(
            f"{op}: padding {padding!r} needs a number or a (before, after) for each of {rank} axes"
        )
    pairs = [p if isinstance(p, tuple | list) else (p, p) for p in given]
    return tuple(spatial(op, "padding", p, 2, 0) for p in pairs)


def _same(n: Size, span: Size, stride: Size) -> tuple[Size, Size]:
    """Padding for ceil(n / stride) windows, the odd one after."""
    total = larger(((n + stride - 1) // stride - 1) * stride + span - n, 0)
    return total // 2, total - total // 2


# The derivative in the kernel


def _weights_types(types: Types, p: Params) -> list[TensorType]:
    x, ct = types
    groups, counts = p["groups"], _counts("conv_weights", x, p["window"], p)
    right = x.rank == ct.rank == len(counts) + 2 and all(
        unify(a, b, "conv_weights: the results of the convolution")
        for a, b in zip(ct.shape, (x.shape[0], ct.shape[1], *counts), strict=True)
    )
    divided = right and all(
        require("divisible", t.shape[1], groups, "conv_weights: the channels") for t in types
    )
    if not divided:
        raise ShapeError(
            f"conv_weights: ct {ct} must have the shape of a conv of x {x} with windows of "
            f"{p['window']}, {groups} groups and the same batch"
        )
    return [x.with_shape((ct.shape[1], x.shape[1] // groups, *p["window"]))]


def _weights(x: Value, ct: Value, window: Any, groups: Size, **p: Any) -> Value:
    """Correlation of x with ct: the batch takes the place of the channels."""
    rank = x.ndim - 2
    if any(i != 1 for i in p["inner"]):
        wide = _spaced(x, p["padding"], p["inner"])
        plain = {**p, "padding": ((0, 0),) * rank, "inner": (1,) * rank}
        plain |= {"groups": groups, "window": window}
        given = ("conv_weights", (wide.type, ct.type), plain)
        if is_primitive(*given) or is_open(*given):
            return conv_weights.bind(wide, ct, **plain)
    batch, into, places = x.shape[0], x.shape[1] // groups, tuple(range(2, 2 + rank))
    if batch == 0:
        return full_of((ct.shape[1], into, *window), 0, ct.dtype)
    split = reshape(x, (batch, groups, into, *x.shape[2:]))
    left = reshape(
        transpose(split, (2, 1, 0, *(i + 1 for i in places))), (into, groups * batch, *x.shape[2:])
    )
    padding = []
    for i, k in enumerate(window):
        low = p["padding"][i][0]
        long = (k - 1) * p["dilation"][i] + reach(ct.shape[2 + i], p["stride"][i])
        padding.append((low, long - low - _stretched(x.shape[2 + i], p["inner"][i])))
    made = conv.bind(
        left, transpose(ct, (1, 0, *places)), stride=p["dilation"], padding=tuple(padding),
        dilation=p["stride"], inner=p["inner"], groups=groups,
    )  # fmt: skip
    return transpose(made, (1, 0, *places))


def _weights_reference(
    x: Any, ct: Any, window: Any, stride: Any, padding: Any, dilation: Any, inner: Any, groups: int
) -> Any:
    seen = window_reference(_padded_reference(x, padding, inner), window, stride, dilation)
    (batch, made), rank = ct.shape[:2], x.ndim - 2
    seen = seen.reshape(batch, groups, x.shape[1] // groups, *seen.shape[2:])
    given = ct.reshape(batch, groups, made // groups, *ct.shape[2:])
    places = tuple(range(2, 2 + rank))  # after the axis of groups is taken
    parts = [
        np.tensordot(given[:, g], seen[:, g], axes=((0, *places), (0, *places)))
        for g in range(groups)
    ]
    return np.concatenate(parts)


def _weights_adjoint(n: Node, ct: Value, k: int) -> Value:
    x, y = n.operands
    p = {name: v for name, v in n.params.items() if name != "window"}
    return conv.bind(x, ct, **p) if k else _adjoint_in_x(x.shape, ct, y, p)


@define(
    infer=_weights_types, decompose=_weights, call="conv_weights", total=True, numpy=_weights_reference,
    kinds="uifc", combine="add", linear=(0, 1), transpose=_weights_adjoint,
    factors=convolved(("n c", "n o"), "o c"),
    samples=(
        Sample((2, 3, 5), (2, 4, 3), window=3),
        Sample((1, 2, 6), (1, 2, 4), window=2, stride=2, padding=1),
        Sample((2, 4, 7), (2, 2, 6), window=3, dilation=2, padding=((2, 1),), groups=2),
        Sample((1, 2, 4), (1, 3, 3), window=3, inner=2, padding=1, stride=3),
        Sample((2, 2, 4, 5), (2, 2, 4, 5), window=(3, 3), padding=1, groups=2),
        Sample((0, 2, 5), (0, 3, 4), window=2), Sample((2, 3, 4), (2, 2, 4), window=1),
    ),
)  # fmt: skip
def conv_weights(
    x: ArrayLike,
    ct: ArrayLike,
    window: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: Size = 1,
    inner: Any = 1,
) -> Value:
    """The derivative of a conv in its kernel: x times ct, summed over the batch and all places.

    ct has the shape of the conv of x with a kernel of `window`, and the result that of the kernel.
    """
    v, y = operands_of("conv_weights", x, ct, None)
    rank = v.ndim - 2
    sizes, steps, gaps, inners = (
        spatial("conv_weights", name, n, rank, 1)
        for name, n in (
            ("window", window), ("stride", stride), ("dilation", dilation), ("inner", inner),
        )
    )  # fmt: skip
    long = [_stretched(n, i) for n, i in zip(v.shape[2:], inners, strict=True)]
    spans = [reach(n, d) for n, d in zip(sizes, gaps, strict=True)]
    pairs = padding_pairs("conv_weights", padding, long, spans, steps)
    return conv_weights.bind(
        v, y, window=sizes, stride=steps, padding=pairs, dilation=gaps, inner=inners,
        groups=groups_of("conv_weights", groups),
    )  # fmt: skip


# The derivative in x


def _input_types(types: Types, p: Params) -> list[TensorType]:
    ct, w = types
    made = ct.with_shape((ct.shape[0], w.shape[1] * p["groups"], *p["size"]))
    (seen,) = _conv_types((made, w), {**p, "inner": (1,) * len(p["size"])})
    if ct.rank != w.rank or not all(
        unify(a, b, "conv_input: the results of the convolution")
        for a, b in zip(ct.shape, seen.shape, strict=True)
    ):
        raise ShapeError(
            f"conv_input: ct {ct} must have the shape {seen} of a conv of {made} with w {w}"
        )
    return [made]


def _input(ct: Value, w: Value, size: Any, **p: Any) -> Value:
    """A convolution of ct for each phase of the strides, put between each other."""
    rank = len(size)
    shape: Shape = (ct.shape[0], w.shape[1] * p["groups"], *size)
    if any(n == 0 for n in (*shape, *ct.shape)):
        return full_of(shape, 0, ct.dtype)
    if all(s == 1 for s in p["stride"]):
        return _adjoint_in_x(shape, w, ct, {**p, "inner": (1,) * rank})
    return by_phases(conv, ct, w, size, **p)


def _input_adjoint(n: Node, g: Value, k: int) -> Value:
    ct, w = n.operands
    p = {name: v for name, v in n.params.items() if name != "size"} | {"inner": (1,) * (w.ndim - 2)}
    return conv_weights.bind(g, ct, window=w.shape[2:], **p) if k else conv.bind(g, w, **p)


def _input_batch(n: Node, operands: Sequence[Value], batched: Mask) -> Value:
    """Cotangents join the batch; kernels join the in channels, or groups when both are batched."""
    ct, w = operands
    groups = n.params["groups"]
    if not batched[1]:
        return merged(n, operands, batched)
    size, into = w.shape[0], w.shape[2]
    if batched[0]:
        front = moveaxis(ct, 0, 1)
        ct = reshape(front, (front.shape[0], size * front.shape[2], *front.shape[3:]))
        kernel, order = reshape(w, (size * w.shape[1], *w.shape[2:])), (size, groups)
    else:
        split = moveaxis(w, 0, 1)
        kernel, order = reshape(split, (w.shape[1], size * into, *w.shape[3:])), (groups, size)
    params = {**n.params, "groups": groups * size if batched[0] else groups}
    y = conv_input.bind(ct, kernel, **params)
    y = reshape(y, (y.shape[0], *order, into, *y.shape[2:]))
    y = moveaxis(y, 1 if batched[0] else 2, 0)
    return reshape(y, (*y.shape[:2], groups * into, *y.shape[4:]))


@define(
    infer=_input_types, decompose=_input, call="conv_input", total=True, numpy=input_reference, kinds="uifc",
    combine="add", linear=(0, 1), transpose=_input_adjoint, batch=_input_batch,
    factors=convolved(("n o", "o c"), "n c"),
    samples=(
        Sample((2, 4, 3), (4, 3, 3), size=5), Sample((1, 2, 4), (2, 2, 2), size=6, stride=2, padding=1),
        Sample((2, 2, 6), (2, 2, 3), size=7, dilation=2, padding=((2, 1),), groups=2),
        Sample((1, 2, 3, 2), (2, 9, 3, 2), size=(5, 6), stride=(2, 3), padding=((1, 1), (0, 1))),
        Sample((0, 3, 4), (3, 2, 2), size=5),
    ),
)  # fmt: skip
def conv_input(
    ct: ArrayLike,
    w: ArrayLike,
    size: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: Size = 1,
) -> Value:
    """The derivative of a conv in its x, of `size` along the spatial axes: ct times w, added up."""
    y, k = operands_of("conv_input", ct, w, None)
    rank = y.ndim - 2
    sizes, steps, gaps = (
        spatial("conv_input", name, n, rank, least)
        for name, n, least in (("size", size, 0), ("stride", stride, 1), ("dilation", dilation, 1))
    )
    spans = [reach(n, d) for n, d in zip(k.shape[2:], gaps, strict=True)]
    pairs = padding_pairs("conv_input", padding, sizes, spans, steps)
    return conv_input.bind(
        y, k, size=sizes, stride=steps, padding=pairs, dilation=gaps,
        groups=groups_of("conv_input", groups),
    )  # fmt: skip


# By number of spatial axes


@public
def conv1d(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: Size = 1,
) -> Value:
    """conv of x (batch, channels, length) with w (out, in / groups, size)."""
    operands_of("conv1d", x, w, bias, 1)
    return _convolve("conv1d", x, w, bias, stride, padding, dilation, groups)


@public
def conv2d(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: Size = 1,
) -> Value:
    """conv of x (batch, channels, height, width) with w (out, in / groups, height, width)."""
    operands_of("conv2d", x, w, bias, 2)
    return _convolve("conv2d", x, w, bias, stride, padding, dilation, groups)


@public
def conv3d(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: Size = 1,
) -> Value:
    """conv of x (batch, channels, depth, height, width) with w (out, in / groups, ...)."""
    operands_of("conv3d", x, w, bias, 3)
    return _convolve("conv3d", x, w, bias, stride, padding, dilation, groups)
