"""Images: resizing, sampling at coordinates, boxes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.core.dtype import f32, i64
from tessera.interop.onnx.model import Array, OnnxError
from tessera.interop.onnx.rule import NodeCall, axes_of, host, integers, one, rule
from tessera.ir.graph.ir import concrete
from tessera.lang import op
from tessera.ops.define import as_value
from tessera.ops.resize import weighted_sums

# Resize ---------------------------------------------------------------------------------------


@rule("Upsample")
def _upsample(n: NodeCall, x: Any, scales: Any = None) -> Any:
    given = n.get("scales") if scales is None else host(scales, "scales").reshape(-1)
    factors = [float(s) for s in given]
    sizes = [math.floor(int(s) * f) for s, f in zip(x.shape, factors, strict=True)]
    mode = "linear" if n.get("mode", "nearest") in ("linear", "bilinear") else "nearest"
    y = as_value(x)
    for axis, (size, factor) in enumerate(zip(sizes, factors, strict=True)):
        y = _along(y, axis, size, factor, mode, "asymmetric", "floor", _Options())
    return y


class _Options:
    """What Resize says beside its mode."""

    def __init__(self, n: NodeCall | None = None):
        self.cubic = -0.75 if n is None else n.get("cubic_coeff_a", -0.75)
        self.exclude = bool(n and n.get("exclude_outside", 0))
        self.antialias = bool(n and n.get("antialias", 0))
        self.roi: tuple[float, float] = (0.0, 1.0)


@rule("Resize")
def _resize(n: NodeCall, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None) -> Any:
    x = as_value(x)
    if n.version < 11:
        return _upsample(n, x, roi)
    axes = axes_of(n.get("axes", range(x.ndim)), x.ndim)
    lengths = [int(x.shape[a]) for a in axes]
    factors, wanted = _scales(n, lengths, scales, sizes)
    mode = n.get("mode", "nearest")
    where = n.get("coordinate_transformation_mode", "half_pixel")
    rounding = n.get("nearest_mode", "round_prefer_floor")
    regions = None if roi is None or not len(roi.shape) else host(roi, "roi").astype(np.float64)
    outside: Any = None
    for k, axis in enumerate(axes):
        options = _Options(n)
        if where == "tf_crop_and_resize" and regions is not None and regions.size:
            options.roi = (float(regions[k]), float(regions[k + len(axes)]))
        if where == "tf_crop_and_resize":
            beyond = _is_beyond(lengths[k], wanted[k], factors[k], options)
            if beyond.any():
                view = op.reshape(beyond, tuple(-1 if j == axis else 1 for j in range(x.ndim)))
                outside = view if outside is None else op.logical_or(outside, view)
        x = _along(x, axis, wanted[k], factors[k], mode, where, rounding, options)
    if outside is None:
        return x
    return op.where(outside, op.full((), n.get("extrapolation_value", 0.0), x.dtype), x)


def _scales(
    n: NodeCall, lengths: list[int], scales: Any, sizes: Any
) -> tuple[list[float], list[int]]:
    """The scale and the new size of each axis."""
    given = None if scales is None else [float(s) for s in host(scales, "scales").reshape(-1)]
    if given:
        return given, [math.floor(m * s) for m, s in zip(lengths, given, strict=True)]
    if sizes is None:
        raise OnnxError("has neither scales nor sizes")
    wanted = integers(sizes, "sizes")
    ratios = [w / max(m, 1) for w, m in zip(wanted, lengths, strict=True)]
    policy = n.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return ratios, wanted
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    return [ratio] * len(lengths), [math.floor(m * ratio + 0.5) for m in lengths]


def _coordinates(length: int, size: int, scale: float, where: str, o: _Options) -> Array:
    """The place in x of each element of the result."""
    y = np.arange(size, dtype=np.float64)
    width = scale * length
    if where == "align_corners":
        return np.zeros(size) if width == 1 else y * (length - 1) / (width - 1)
    if where == "asymmetric":
        return y / scale
    if where == "tf_crop_and_resize":
        low, high = o.roi
        if width == 1:
            return np.full(size, (high - low) * (length - 1) / 2) + low * (length - 1)
        return y * (high - low) * (length - 1) / (width - 1) + low * (length - 1)
    centres = (y + 0.5) / scale - 0.5
    if where == "half_pixel":
        return centres
    if where == "pytorch_half_pixel":
        return np.full(size, -0.5) if width == 1 else centres
    if where == "half_pixel_symmetric":
        return centres + length / 2 * (1 - size / width)
    raise OnnxError(f"coordinate_transformation_mode is '{where}'")


def _is_beyond(length: int, size: int, scale: float, o: _Options) -> Array:
    at = _coordinates(length, size, scale, "tf_crop_and_resize", o)
    return (at < 0) | (at > length - 1)


def _along(
    x: Any, axis: int, size: int, scale: float, mode: str, where: str, rounding: str, o: _Options
) -> Any:
    length = int(x.shape[axis])
    if size == length and scale == 1 and where != "tf_crop_and_resize":
        return x
    at = _coordinates(length, size, scale, where, o)
    if mode == "nearest":
        return op.take(x, np.clip(_ROUNDING[rounding](at), 0, length - 1).astype(np.int64), axis)
    weights = _weights(at, length, scale, mode, o)
    y = weighted_sums(x if x.dtype.kind == "f" else op.cast(x, f32), weights, axis)
    return op.cast(y, x.dtype)


_ROUNDING: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _weights(at: Array, length: int, scale: float, mode: str, o: _Options) -> Array:
    """Row i holds the share of each element of an axis in element i of the result."""
    s = min(scale, 1.0) if o.antialias else 1.0
    reach = (1 if mode == "linear" else 2) / s
    first = np.floor(at).astype(np.int64)
    taps = np.arange(-math.ceil(reach) - 1, math.ceil(reach) + 2)
    places = first[:, None] + taps
    distance = np.abs(places - at[:, None]) * s
    w = np.clip(1 - distance, 0, None) if mode == "linear" else _cubic(distance, o.cubic)
    if o.exclude:
        w = np.where((places >= 0) & (places < length), w, 0)
    if o.exclude or o.antialias:
        w = w / w.sum(1, keepdims=True)
    out = np.zeros((len(at), length))
    np.add.at(out, (np.arange(len(at))[:, None], np.clip(places, 0, length - 1)), w)
    return out


def _cubic(d: Array, a: float) -> Array:
    """Keys' cubic convolution kernel at distances d."""
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


# Sampling -------------------------------------------------------------------------------------


@rule("GridSample")
def _grid_sample(n: NodeCall, x: Any, grid: Any) -> Any:
    """Elements of x at coordinates from -1 to 1, the last axis first."""
    x, grid = as_value(x), as_value(grid)
    rank = x.ndim - 2
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(n.get("mode"), n.get("mode", "linear"))
    corners, padding = bool(n.get("align_corners", 0)), n.get("padding_mode", "zeros")
    at = []
    for k in range(rank):
        length = int(x.shape[2 + k])
        u = op.index(grid, (..., rank - 1 - k))
        if corners:
            u = op.mul(op.add(u, 1.0), (length - 1) / 2)
        else:
            u = op.div(op.sub(op.mul(op.add(u, 1.0), float(length)), 1.0), 2.0)
        u = op.round(u) if mode == "nearest" else u
        at.append(u if mode == "cubic" else _inside(u, length, padding, corners))
    taps = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}[mode]
    total: Any = None
    for offsets in np.ndindex(*(len(taps),) * rank):
        part = _tap(x, at, [taps[i] for i in offsets], mode, padding, corners)
        total = part if total is None else op.add(total, part)
    return op.cast(total, x.dtype)


def _inside(u: Any, length: int, padding: str, corners: bool) -> Any:
    """Coordinates brought inside, by the edge or by reflection."""
    if padding == "border":
        return op.clip(u, 0, length - 1)
    if padding != "reflection":
        return u
    low, high = (0.0, length - 1.0) if corners else (-0.5, length - 0.5)
    span = high - low
    if span == 0:
        return op.zeros_like(u)
    turn = op.remainder(op.sub(u, low), 2 * span)
    back = op.sub(2 * span, turn)
    return op.add(op.minimum(turn, back), low)


def _tap(x: Any, at: list[Any], taps: list[int], mode: str, padding: str, corners: bool) -> Any:
    """One of the elements around each coordinate, times its weight."""
    places, weight, valid = [], None, None
    for k, (u, t) in enumerate(zip(at, taps, strict=True)):
        length = int(x.shape[2 + k])
        base = op.floor(u)
        place = op.add(base, float(t))
        if mode != "nearest":
            d = op.abs(op.sub(place, u))
            w = op.maximum(op.sub(1.0, d), 0.0) if mode == "linear" else _cubic_weight(d)
            weight = w if weight is None else op.mul(weight, w)
        if mode == "cubic":
            place = _inside(place, length, padding, corners)
        if padding == "zeros":
            ok = op.logical_and(op.ge(place, 0), op.le(place, length - 1))
            valid = ok if valid is None else op.logical_and(valid, ok)
        places.append(op.cast(op.clip(place, 0, length - 1), i64))
    picked = _picked(x, places)
    for factor in (weight, None if valid is None else op.cast(valid, x.dtype)):
        if factor is not None:
            picked = op.mul(picked, op.expand_dims(op.cast(factor, x.dtype), 1))
    return picked


def _cubic_weight(d: Any, a: float = -0.75) -> Any:
    near = op.add(op.mul(op.mul(op.sub(op.mul(d, a + 2), a + 3), d), d), 1.0)
    far = op.sub(op.mul(op.add(op.mul(op.sub(op.mul(d, a), 5 * a), d), 8 * a), d), 4 * a)
    return op.where(op.le(d, 1), near, far)


def _picked(x: Any, places: list[Any]) -> Any:
    """x[b, c, p...] for indices (batch, ...): the result is (batch, channels, ...)."""
    shape = tuple(places[0].shape)
    batch = op.iota(shape, 0)
    found = op.gather(x, batch, *places, axes=(0, *range(2, 2 + len(places))))
    return op.moveaxis(found, -1, 1)


@rule("AffineGrid")
def _affine_grid(n: NodeCall, theta: Any, size: Any) -> Any:
    """Coordinates of the places of an image under an affine map."""
    theta = as_value(theta)
    sizes = integers(size, "size")[2:]
    corners = n.get("align_corners", 0)
    axes = []
    for s in sizes:
        step = np.arange(s, dtype=np.float64)
        axes.append(step * 2 / (s - 1) - 1 if corners else (step * 2 + 1) / s - 1)
    mesh = np.meshgrid(*axes, indexing="ij")
    points = np.stack([*mesh[::-1], np.ones(sizes)], -1).reshape(-1, len(sizes) + 1)
    points = points.astype(theta.dtype.np)
    grid = op.matmul(points, op.swapaxes(theta, 1, 2))
    return op.reshape(grid, (theta.shape[0], *sizes, len(sizes)))


# Boxes ----------------------------------------------------------------------------------------


@rule("RoiAlign")
def _roi_align(n: NodeCall, x: Any, rois: Any, batch: Any) -> Any:
    """Means or maxima of samples in the bins of boxes."""
    x, rois = as_value(x), as_value(rois)
    half = n.get("coordinate_transformation_mode", "half_pixel") == "half_pixel" and n.version >= 16
    scale, ratio = n.get("spatial_scale", 1.0), n.get("sampling_ratio", 0)
    bins = (n.get("output_height", 1), n.get("output_width", 1))
    box = op.sub(op.mul(rois, scale), 0.5 if half else 0.0)
    start = [op.index(box, (slice(None), k)) for k in (1, 0)]
    extent = [
        op.sub(op.index(box, (slice(None), k + 2)), s) for k, s in zip((1, 0), start, strict=True)
    ]
    if not half:
        extent = [op.maximum(e, 1.0) for e in extent]
    counts: list[Any] = [ratio, ratio]
    if ratio <= 0:
        known = [host(e, "the size of a box") for e in extent]
        counts = [np.ceil(e / b).astype(np.int64) for e, b in zip(known, bins, strict=True)]
        if any(len(set(c.tolist())) > 1 for c in counts):
            parts = [
                _roi_align(n, x, rois[i : i + 1], batch[i : i + 1])
                for i in range(int(rois.shape[0]))
            ]
            return op.concat(parts, 0)
        counts = [int(c[0]) if c.size else 1 for c in counts]
    return _bins(x, op.cast(batch, i64), start, extent, bins, counts, n.get("mode", "avg"))


@rule("MaxRoiPool")
def _max_roi_pool(n: NodeCall, x: Any, rois: Any) -> Any:
    """The largest element in each bin of boxes (image, x1, y1, x2, y2); 0 in a bin without elements."""
    x, rois = as_value(x), as_value(rois)
    scale, bins = n.get("spatial_scale", 1.0), n.need("pooled_shape")
    if x.ndim != 4 or rois.ndim != 2 or len(bins) != 2 or min(bins) < 1:
        raise OnnxError(
            f"x is {x.type}, rois are {rois.type} and pooled_shape is {bins}, expected images, (boxes, 5) "
            "and two numbers above 0"
        )
    batch = op.cast(op.index(rois, (slice(None), 0)), i64)
    pixels = op.take(x, batch, axis=0)
    lowest = concrete(np.array(-np.inf, x.dtype.np), x.dtype)
    for axis, low, high, count in ((3, 1, 3, bins[1]), (2, 2, 4, bins[0])):
        inside = _bin_holds(op.index(rois, (slice(None), low)), op.index(rois, (slice(None), high)),
                            scale, count, pixels.shape[axis])  # fmt: skip
        moved = op.moveaxis(pixels, axis, -1)  # (boxes, channels, other axis, size)
        mask = op.expand_dims(op.expand_dims(inside, 1), 1)
        found = op.max(op.where(mask, op.expand_dims(moved, 3), lowest), axis=-1)
        pixels = op.moveaxis(found, -1, axis)
    return op.where(op.eq(pixels, lowest), op.zeros((), x.dtype), pixels)


def _bin_holds(low: Any, high: Any, scale: float, count: int, size: Any) -> Any:
    """Which of `size` places lie in each of `count` bins of the boxes from low to high."""
    start, end = (_half_up(op.mul(v, scale)) for v in (low, high))
    width = op.div(op.maximum(op.add(op.sub(end, start), 1.0), 1.0), float(count))
    bins = concrete(np.arange(count, dtype=np.float32))
    start, width = op.expand_dims(start, 1), op.expand_dims(width, 1)
    first = op.expand_dims(op.add(op.floor(op.mul(width, bins)), start), -1)
    last = op.expand_dims(op.add(op.ceil(op.mul(width, op.add(bins, 1.0))), start), -1)
    places = op.cast(op.arange(size), first.dtype)
    return op.logical_and(op.ge(places, first), op.lt(places, last))


def _half_up(x: Any) -> Any:
    """The nearest whole number; halves go away from zero."""
    return op.trunc(op.add(x, op.copysign(concrete(np.array(0.5, np.float32)), x)))


def _bins(
    x: Any, batch: Any, start: list[Any], extent: list[Any], bins: Any, counts: Any, mode: str
) -> Any:
    at = []
    for s, e, b, c in zip(start, extent, bins, counts, strict=True):
        steps = ((np.arange(b)[:, None] + (np.arange(c) + 0.5) / c) / b).astype(np.float32)
        at.append(op.add(op.reshape(s, (-1, 1, 1)), op.mul(op.reshape(e, (-1, 1, 1)), steps)))
    y = op.reshape(at[0], (-1, bins[0], 1, counts[0], 1))
    u = op.reshape(at[1], (-1, 1, bins[1], 1, counts[1]))
    shape = (int(batch.shape[0]), *bins, *counts)
    parts = _corners(x, op.reshape(batch, (-1, 1, 1, 1, 1)), y, u, shape)
    if mode == "max":
        best = parts[0]
        for p in parts[1:]:
            best = op.maximum(best, p)
        found = op.max(best, (3, 4))
    else:
        total = op.add(op.add(parts[0], parts[1]), op.add(parts[2], parts[3]))
        found = op.mean(total, (3, 4))
    return op.moveaxis(found, -1, 1)


def _corners(x: Any, batch: Any, y: Any, u: Any, shape: Any) -> list[Any]:
    """The four elements around each sample, times their weights."""
    height, width = int(x.shape[2]), int(x.shape[3])
    ok = op.logical_and(
        op.logical_and(op.ge(y, -1.0), op.le(y, float(height))),
        op.logical_and(op.ge(u, -1.0), op.le(u, float(width))),
    )
    ends = []
    for v, length in ((y, height), (u, width)):
        low = op.minimum(op.floor(op.maximum(v, 0.0)), float(length - 1))
        high = op.minimum(op.add(low, 1.0), float(length - 1))
        part = op.sub(op.minimum(op.maximum(v, 0.0), float(length - 1)), low)
        ends.append(((low, op.sub(1.0, part)), (high, part)))
    out = []
    for py, wy in ends[0]:
        for pu, wu in ends[1]:
            index = [op.broadcast_to(op.cast(p, i64), shape) for p in (batch, py, pu)]
            weight = op.mul(op.mul(wy, wu), op.cast(ok, x.dtype))
            picked = op.gather(x, *index, axes=(0, 2, 3))
            out.append(op.mul(picked, op.expand_dims(op.broadcast_to(weight, shape), -1)))
    return out


@rule("NonMaxSuppression", host=True)
def _non_max_suppression(
    n: NodeCall, boxes: Any, scores: Any, most: Any = None, overlap: Any = None, least: Any = None
) -> Any:
    """Boxes of each class, best first, less those that overlap a better one."""
    limit = 0 if most is None else int(one(most, "max_output_boxes_per_class"))
    threshold = 0.0 if overlap is None else float(one(overlap, "iou_threshold"))
    floor = -np.inf if least is None else float(one(least, "score_threshold"))
    found = []
    for b in range(scores.shape[0]):
        corners = _box_corners(boxes[b], n.get("center_point_box", 0))
        for c in range(scores.shape[1]):
            kept = _suppressed(corners, scores[b, c], limit, threshold, floor)
            found += [(b, c, i) for i in kept]
    return np.array(found, np.int64).reshape(-1, 3)


def _box_corners(boxes: Array, centred: int) -> Array:
    b = boxes.astype(np.float32)
    if centred:
        half = b[:, 2:] / 2
        return np.concatenate([b[:, :2] - half, b[:, :2] + half], 1)
    return np.concatenate([np.minimum(b[:, :2], b[:, 2:]), np.maximum(b[:, :2], b[:, 2:])], 1)


def _suppressed(
    corners: Array, scores: Array, limit: int, threshold: float, floor: float
) -> list[int]:
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] > floor]
    area = np.prod(corners[:, 2:] - corners[:, :2], axis=1)
    kept: list[int] = []
    while order.size and len(kept) < limit:
        i, order = int(order[0]), order[1:]
        kept.append(i)
        low = np.maximum(corners[i, :2], corners[order, :2])
        high = np.minimum(corners[i, 2:], corners[order, 2:])
        common = np.prod(np.clip(high - low, 0, None), axis=1)
        union = area[i] + area[order] - common
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where((common > 0) & (union > 0), common / union, 0)
        order = order[ratio <= threshold]
    return kept


@rule("DeformConv")
def _deform_conv(
    n: NodeCall, x: Any, w: Any, offset: Any, bias: Any = None, mask: Any = None
) -> Any:
    """A convolution whose samples are moved by offsets, bilinear between the elements of x."""
    x, w, offset = as_value(x), as_value(w), as_value(offset)
    batch, channels, height, width = map(int, x.shape)
    out, _, kh, kw = map(int, w.shape)
    oh, ow = map(int, offset.shape[2:])
    groups, shared = n.get("group", 1), n.get("offset_group", 1)
    (sy, sx), (dy, dx) = n.get("strides", [1, 1]), n.get("dilations", [1, 1])
    top, left = n.get("pads", [0] * 4)[:2]
    moved = op.reshape(offset, (batch, shared, kh, kw, 2, oh, ow))
    rows = np.arange(oh) * sy - top + (np.arange(kh) * dy)[:, None, None, None]
    columns = np.arange(ow) * sx - left + (np.arange(kw) * dx)[:, None, None]
    y = op.add(
        op.index(moved, (..., 0, slice(None), slice(None))), _f32(rows.reshape(kh, 1, oh, 1))
    )
    u = op.add(
        op.index(moved, (..., 1, slice(None), slice(None))), _f32(columns.reshape(1, kw, 1, ow))
    )
    grouped = op.reshape(x, (batch * shared, channels // shared, height, width))
    samples = _bilinear(grouped, _joined(y), _joined(u))
    if mask is not None:
        factor = op.reshape(mask, (batch * shared, 1, kh, kw, oh, ow))
        samples = op.mul(samples, factor)
    split = op.reshape(samples, (batch, groups, channels // groups, kh, kw, oh, ow))
    kernel = op.reshape(w, (groups, out // groups, channels // groups, kh, kw))
    found = op.einsum("bgcijhw,gocij->bgohw", split, kernel)
    found = op.reshape(found, (batch, out, oh, ow))
    return found if bias is None else op.add(found, op.reshape(bias, (1, -1, 1, 1)))


def _f32(x: Array) -> Array:
    return x.astype(np.float32)


def _joined(x: Any) -> Any:
    return op.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))


def _bilinear(x: Any, y: Any, u: Any) -> Any:
    """x (batch, channels, height, width) at places (batch, ...), zero outside."""
    total: Any = None
    for i in (0, 1):
        for j in (0, 1):
            part = _tap(x, [y, u], [i, j], "linear", "zeros", True)
            total = part if total is None else op.add(total, part)
    return total
