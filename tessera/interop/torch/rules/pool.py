"""Pooling over windows, and resizing images."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tessera.core.dims import larger
from tessera.core.dtype import DType, f32, f64, i64
from tessera.interop.torch.rule import AtenCall, NoRuleError, as_dtype, number, pulled, rule
from tessera.lang import op


def _tuple(x: Any, rank: int, default: Any = None) -> tuple[int, ...]:
    given = default if x is None or (isinstance(x, list | tuple) and not x) else x
    given = given if isinstance(given, list | tuple) else [given]
    return tuple(given) * rank if len(given) == 1 else tuple(given)


def _batched(f: Any, x: Any, rank: int) -> Any:
    """f of x with a batch axis; f may return several results."""
    if x.ndim == rank + 2:
        return f(x)
    found = f(op.expand_dims(x, 0))
    return (
        tuple(op.squeeze(v, 0) for v in found) if isinstance(found, tuple) else op.squeeze(found, 0)
    )


@rule("max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool(
    n: AtenCall,
    x: Any,
    size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    rank = 2 if "2d" in n.target else 3
    size = _tuple(size, rank)
    stride, padding, dilation = (
        _tuple(stride, rank, size),
        _tuple(padding, rank),
        _tuple(dilation, rank),
    )

    def run(x: Any) -> Any:
        y = op.max_pool(x, size, stride, padding, dilation, ceil_mode)
        return y, _places(x, tuple(y.shape[2:]), size, stride, padding, dilation)

    return _batched(run, x, rank)


def _places(
    x: Any, made: tuple[Any, ...], size: Any, stride: Any, padding: Any, dilation: Any
) -> Any:
    """Where in its image the first largest element of each window is."""
    rank, image = len(size), tuple(x.shape[2:])
    low = number(-math.inf if x.dtype.kind == "f" else np.iinfo(x.dtype.np).min, x.dtype)
    reach = [
        (m - 1) * s + d * (k - 1) + 1
        for m, s, d, k in zip(made, stride, dilation, size, strict=True)
    ]
    width = [(0, 0), (0, 0)] + [
        (p, larger(r - i - p, 0)) for p, r, i in zip(padding, reach, image, strict=True)
    ]
    seen = op.windows(op.pad(x, width, low), size, stride=stride, dilation=dilation)
    seen = op.index(seen, (slice(None), slice(None), *(slice(0, m) for m in made)))
    flat = op.reshape(seen, (*seen.shape[: 2 + rank], math.prod(size)))
    best = op.argmax(flat, axis=-1)
    place: Any = op.zeros((), i64)
    for a in range(rank):
        inner = math.prod(size[a + 1 :])
        step = op.remainder(op.floor_divide(best, inner), size[a])
        at = op.add(op.mul(op.iota(best.shape, 2 + a), stride[a]), op.mul(step, dilation[a]))
        place = op.add(op.mul(place, image[a]), op.sub(at, padding[a]))
    return place


@rule("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
def _max_pool_backward(
    n: AtenCall,
    ct: Any,
    x: Any,
    size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    at: Any,
) -> Any:
    rank = 2 if "2d" in n.target else 3
    rows, places = tuple(x.shape[:-rank]), math.prod(x.shape[-rank:])
    flat = op.reshape(op.zeros(x.shape, x.dtype), (-1, places))
    index, cts = (op.reshape(v, (flat.shape[0], -1)) for v in (at, ct))
    found = op.scatter_add(flat, cts, op.iota(index.shape, 0), index)
    return op.reshape(found, (*rows, *x.shape[-rank:]))


def _averaged(
    n: AtenCall,
    x: Any,
    size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    include: bool,
    divisor: Any,
) -> Any:
    if x.dtype.kind != "f":
        raise NoRuleError(f"averages of {x.dtype}")
    rank = 2 if "2d" in n.target else 1 if "1d" in n.target else 3
    size = _tuple(size, rank)
    stride, padding = _tuple(stride, rank, size), _tuple(padding, rank)

    def run(x: Any) -> Any:
        y = op.avg_pool(x, size, stride, padding, ceil_mode, include or divisor is not None)
        if divisor is None:
            return y
        if ceil_mode:
            raise NoRuleError("divisor_override with windows past the border")
        return op.mul(y, number(math.prod(size) / divisor, x.dtype))

    return _batched(run, x, rank)


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(
    n: AtenCall, x: Any, size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    include: bool = True, divisor: Any = None,
) -> Any:  # fmt: skip
    return _averaged(n, x, size, stride, padding, ceil_mode, include, divisor)


@rule("avg_pool2d_backward", "avg_pool3d_backward")
def _avg_pool_backward(
    n: AtenCall,
    ct: Any,
    x: Any,
    size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    include: bool,
    divisor: Any,
) -> Any:
    def run(x: Any) -> Any:
        return _averaged(n, x, size, stride, padding, ceil_mode, include, divisor)

    return pulled(run, ct, x)[0]


@rule("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def _adaptive(n: AtenCall, x: Any, size: Any) -> Any:
    return _batched(lambda x: op.adaptive_avg_pool(x, tuple(size)), x, len(size))


@rule("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def _adaptive_backward(n: AtenCall, ct: Any, x: Any) -> Any:
    rank = 2 if "2d" in n.target else 3
    size = tuple(ct.shape[-rank:])
    return pulled(lambda x: _batched(lambda x: op.adaptive_avg_pool(x, size), x, rank), ct, x)[0]


def _nearest_places(size: Any, made: Any, scale: Any) -> Any:
    """The place that each of `made` places reads; the step is a float of 32 bits, as PyTorch's is."""
    if isinstance(size, int) and isinstance(made, int):
        step = np.float32(1 / scale) if scale else np.float32(size) / np.float32(made)
        places = np.floor(np.arange(made, dtype=np.float32) * step).astype(np.int64)
        return np.minimum(places, size - 1)
    ratio = number(1 / scale, f32) if scale else op.div(as_dtype(size, f32), as_dtype(made, f32))
    places = op.floor(op.mul(op.cast(op.iota((made,), 0, i64), f32), ratio))
    return op.minimum(op.cast(places, i64), as_dtype(size - 1, i64))


def _sizes(x: Any, size: Any, scales: Any, rank: int) -> tuple[tuple[Any, ...], list[Any]]:
    if size is not None:
        return tuple(size), list(scales or [None] * rank)
    image = x.shape[-rank:]
    return tuple(_scaled(s, k) for s, k in zip(image, scales, strict=True)), list(scales)


def _scaled(size: Any, scale: float) -> Any:
    """A size times a factor, rounded down."""
    if isinstance(size, int):
        return int(size * scale)
    if scale == int(scale):
        return size * int(scale)
    if 1 / scale == int(1 / scale):
        return size // int(1 / scale)
    raise NoRuleError(f"{scale} times a symbolic size")


@rule("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec")
def _nearest_vec(n: AtenCall, x: Any, size: Any, scales: Any) -> Any:
    rank = x.ndim - 2
    made, factors = _sizes(x, size, scales, rank)
    return _nearest(x, made, factors)


@rule("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def _nearest_sized(n: AtenCall, x: Any, size: Any, *scales: Any) -> Any:
    return _nearest(x, tuple(size), [*scales, *[None] * (x.ndim - 2 - len(scales))])


def _nearest(x: Any, made: tuple[Any, ...], factors: list[Any]) -> Any:
    for a, (m, f) in enumerate(zip(made, factors, strict=True)):
        x = op.take(x, _nearest_places(x.shape[2 + a], m, f), 2 + a)
    return x


@rule("upsample_nearest2d_backward", "upsample_nearest1d_backward", "upsample_nearest3d_backward")
def _nearest_backward(n: AtenCall, ct: Any, size: Any, input_size: Any, *scales: Any) -> Any:
    made, factors = tuple(size), [*scales, *[None] * (len(size) - len(scales))]
    zero = op.zeros(tuple(input_size), ct.dtype)
    return pulled(lambda x: _nearest(x, made, factors), ct, zero)[0]


def _linear_weights(size: Any, made: Any, align: bool, scale: Any, dtype: DType) -> Any:
    """The matrix that reads `made` places out of `size` by linear interpolation."""
    if not (isinstance(size, int) and isinstance(made, int)):
        return _open_weights(size, made, align, scale, dtype)
    i = np.arange(made)
    if align:
        at = i * ((size - 1) / (made - 1) if made > 1 else 0.0)
    else:
        at = np.maximum((i + 0.5) * (1 / scale if scale else size / made) - 0.5, 0)
    low = np.minimum(np.floor(at).astype(int), size - 1)
    high = np.minimum(low + 1, size - 1)
    weights = np.zeros((made, size))
    np.add.at(weights, (i, low), 1 - (at - low))
    np.add.at(weights, (i, high), at - low)
    return number(weights, dtype)


def _open_weights(size: Any, made: Any, align: bool, scale: Any, dtype: DType) -> Any:
    """The matrix for symbolic sizes: each place reads by its distance, where that is less than one."""

    def whole(s: Any) -> Any:
        return as_dtype(s, f64)

    i = op.cast(op.iota((made, size), 0, i64), f64)
    if align:
        at = op.mul(i, op.div(whole(size - 1), whole(larger(made - 1, 1))))
    else:
        ratio = number(1 / scale, f64) if scale else op.div(whole(size), whole(made))
        at = op.maximum(op.sub(op.mul(op.add(i, 0.5), ratio), 0.5), 0.0)
    far = op.abs(
        op.sub(op.minimum(at, whole(size - 1)), op.cast(op.iota((made, size), 1, i64), f64))
    )
    return as_dtype(op.maximum(op.sub(1.0, far), 0.0), dtype)


def _interpolated(x: Any, made: tuple[Any, ...], align: bool, factors: list[Any]) -> Any:
    for a, (m, f) in enumerate(zip(made, factors, strict=True)):
        w = _linear_weights(x.shape[2 + a], m, align, f, x.dtype)
        x = op.moveaxis(op.tensordot(x, w, axes=((2 + a,), (1,))), -1, 2 + a)
    return x


@rule("upsample_bilinear2d.vec", "upsample_linear1d.vec", "upsample_trilinear3d.vec")
def _linear_vec(n: AtenCall, x: Any, size: Any, align: bool, scales: Any) -> Any:
    made, factors = _sizes(x, size, scales, x.ndim - 2)
    return _interpolated(x, made, align, factors)


@rule("upsample_bilinear2d", "upsample_linear1d", "upsample_trilinear3d")
def _linear_sized(n: AtenCall, x: Any, size: Any, align: bool, *scales: Any) -> Any:
    factors = [*scales, *[None] * (x.ndim - 2 - len(scales))]
    return _interpolated(x, tuple(size), align, factors)


@rule("upsample_bilinear2d_backward", "upsample_linear1d_backward", "upsample_trilinear3d_backward")
def _linear_backward(
    n: AtenCall, ct: Any, size: Any, input_size: Any, align: bool, *scales: Any
) -> Any:
    factors = [*scales, *[None] * (len(size) - len(scales))]
    zero = op.zeros(tuple(input_size), ct.dtype)
    return pulled(lambda x: _interpolated(x, tuple(size), align, factors), ct, zero)[0]


_MODES = ("linear", "nearest", "cubic")
_PADDINGS = ("zeros", "border", "reflection")


def _sampled(x: Any, grid: Any, mode: int, padding: int, align: bool) -> Any:
    return op.grid_sample(x, grid, _MODES[mode], _PADDINGS[padding], align)


@rule("grid_sampler_2d", "grid_sampler_3d")
def _grid_sampler(n: AtenCall, x: Any, grid: Any, mode: int, padding: int, align: bool) -> Any:
    return as_dtype(_sampled(x, grid, mode, padding, align), n.dtype)


@rule("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def _grid_sampler_backward(
    n: AtenCall, ct: Any, x: Any, grid: Any, mode: int, padding: int, align: bool, mask: Any
) -> Any:
    dx, dg = pulled(lambda x, g: _sampled(x, g, mode, padding, align), ct, x, grid)
    return dx if mask[0] else None, dg if mask[1] else None
