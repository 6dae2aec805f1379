"""Sliding windows: how nodes state them, and convolutions over them."""

from __future__ import annotations

from typing import Any

from tessera.interop.onnx.model import OnnxError
from tessera.interop.onnx.rule import NodeCall
from tessera.lang import op


def window(n: NodeCall, sizes: Any, kernel: Any) -> dict[str, Any]:
    """Stride, padding and dilation of sliding windows over axes of these sizes."""
    rank = len(sizes)
    stride = tuple(n.get("strides", [1] * rank))
    dilation = tuple(n.get("dilations", [1] * rank))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    return {"stride": stride, "dilation": dilation, "padding": _padding(n, sizes, spans, stride)}


def _padding(n: NodeCall, sizes: Any, spans: Any, stride: Any) -> tuple[tuple[Any, Any], ...]:
    auto = n.get("auto_pad", "NOTSET")
    rank = len(sizes)
    if auto in ("NOTSET", ""):
        pads = n.get("pads", [0] * 2 * rank)
        if len(pads) != 2 * rank:
            raise OnnxError(f"pads is {pads}, expected {2 * rank} numbers")
        return tuple((pads[k], pads[k + rank]) for k in range(rank))
    if auto == "VALID":
        return ((0, 0),) * rank
    pairs = []
    for size, span, s in zip(sizes, spans, stride, strict=True):
        total = max((-(-int(size) // s) - 1) * s + span - int(size), 0)
        small, large = total // 2, total - total // 2
        pairs.append((small, large) if auto == "SAME_UPPER" else (large, small))
    return tuple(pairs)


def convolved(x: Any, w: Any, bias: Any, groups: int, p: dict[str, Any]) -> Any:
    """A convolution; spatial axes of one place are left out, which vectors run along otherwise."""
    rank = len(x.shape) - 2
    one = [
        k
        for k in range(rank)
        if x.shape[2 + k] == 1 and w.shape[2 + k] == 1 and p["padding"][k] == (0, 0)
    ]
    one = one[: rank - 1]
    if not one:
        return op.conv(x, w, bias, groups=groups, **p)
    rest = [k for k in range(rank) if k not in one]
    short = {name: tuple(v[k] for k in rest) for name, v in p.items()}
    x, w = (op.reshape(v, (*v.shape[:2], *(v.shape[2 + k] for k in rest))) for v in (x, w))
    y = op.conv(x, w, bias, groups=groups, **short)
    sizes = [1] * rank
    for k, size in zip(rest, y.shape[2:], strict=True):
        sizes[k] = size
    return op.reshape(y, (*y.shape[:2], *sizes))
