"""Running folds as ONNX Scan nodes, and places in sorted lists as counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.core.dtype import DType
from tessera.core.scalar import Expr, arg
from tessera.interop.onnx.model import OnnxGraph, OnnxInfo
from tessera.interop.onnx.nodes import Emit
from tessera.interop.onnx.scalars import OnnxScalars
from tessera.interop.onnx.writer import OnnxWriter
from tessera.ir.graph.ir import Node

# Of a running fold, the scalar op that joins two elements.
_JOINED = {"cumprod": "mul", "cummax": "max", "cummin": "min", "logcumsumexp": "logaddexp"}


def _identity(how: str, dtype: DType) -> Any:
    """What a fold starts from."""
    if how == "mul":
        return 1
    if dtype.kind == "f":
        return np.inf if how == "min" else -np.inf
    if dtype.kind == "b":
        return how == "min"
    bounds = np.iinfo(dtype.np)
    return bounds.max if how == "min" else bounds.min


def _running(w: OnnxWriter, n: Node, x: str) -> Any:
    """Rows along the axis joined to the state, which is the next row of the result."""
    (v,), axis, how = n.operands, n.params["axis"], _JOINED[n.op.name]
    row = tuple(s for k, s in enumerate(v.shape) if k != axis)
    start = w.constant(np.full((1,) * len(row), _identity(how, v.dtype), v.dtype.np))
    start = w.emit("Expand", start, w.shape(row)) if row else start
    inner, own = OnnxWriter(w.opset, w), (w.fresh("state"), w.fresh("row"))
    joined = OnnxScalars(inner, list(own), [v.dtype] * 2, v.dtype).write(
        Expr(how, (arg(0), arg(1)))
    )
    sizes = tuple(s if isinstance(s, int) else str(s) for s in row)
    infos = [
        OnnxInfo(name, "tensor", np.dtype(v.dtype.np), sizes)
        for name in (*own, inner.emit("Identity", joined), inner.emit("Identity", joined))
    ]
    body = OnnxGraph(w.fresh("body"), tuple(infos[:2]), tuple(infos[2:]), tuple(inner.nodes), {})
    way = [int(n.params["reverse"])]
    _, rows = w.emit(
        "Scan", start, x, outputs=2, body=body, num_scan_inputs=1, scan_input_axes=[axis],
        scan_output_axes=[axis], scan_input_directions=way, scan_output_directions=way,
    )  # fmt: skip
    return rows


def _searchsorted(w: OnnxWriter, n: Node, x: str, values: str) -> Any:
    """How many elements lie before a value; NaN is behind all numbers."""
    dtype, side = n.operands[0].dtype, n.params["side"]
    if dtype.kind == "b":
        x, values = w.cast(x, np.int32), w.cast(values, np.int32)
    each = w.emit("Unsqueeze", values, w.ints([-1]))
    before = w.emit("Less" if side == "left" else "LessOrEqual", x, each)
    if dtype.kind == "f":
        last = w.emit("IsNaN", each)
        ahead = last if side == "right" else w.emit("And", last, w.emit("Not", w.emit("IsNaN", x)))
        before = w.emit("Or", before, ahead)
    counted = w.cast(before, np.int64)
    return w.emit("ReduceSum", counted, w.ints([-1]), keepdims=0)


RUNNING: dict[str, Emit] = {**dict.fromkeys(_JOINED, _running), "searchsorted": _searchsorted}
