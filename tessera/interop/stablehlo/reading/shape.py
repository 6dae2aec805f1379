"""Ops that make, move, join and multiply elements."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from tessera.interop.jax.rules import RULES as PRIMITIVES
from tessera.interop.stablehlo.reading.table import OpFrame, rule
from tessera.interop.stablehlo.tree import HloOp
from tessera.ir.graph.ir import Value
from tessera.lang import op


def numbers(o: HloOp, *names: str) -> list[int]:
    """The whole numbers of an attribute, which has one of these names; none where it is left out."""
    for name in names:
        if name in o.attributes:
            return [int(n) for n in np.asarray(o.attributes[name]).reshape(-1)]
    return []


@rule("iota")
def _iota(frame: OpFrame, o: HloOp) -> Value:
    t = o.types[0]
    return op.iota(t.shape, numbers(o, "dim", "iota_dimension")[0], t.dtype)


@rule("reshape")
def _reshape(frame: OpFrame, o: HloOp, x: Value) -> Value:
    return op.reshape(x, o.types[0].shape)


@rule("broadcast_in_dim")
def _broadcast(frame: OpFrame, o: HloOp, x: Value) -> Value:
    p = {
        "shape": o.types[0].shape,
        "broadcast_dimensions": numbers(o, "dims", "broadcast_dimensions"),
    }
    return PRIMITIVES["broadcast_in_dim"](p, x)  # type: ignore[no-any-return]


@rule("transpose")
def _transpose(frame: OpFrame, o: HloOp, x: Value) -> Value:
    return op.transpose(x, numbers(o, "dims", "permutation"))


@rule("reverse")
def _reverse(frame: OpFrame, o: HloOp, x: Value) -> Value:
    axes = numbers(o, "dims", "dimensions")
    return op.flip(x, tuple(axes)) if axes else x


@rule("concatenate")
def _concatenate(frame: OpFrame, o: HloOp, *xs: Value) -> Value:
    return op.concat(xs, numbers(o, "dim", "dimension")[0])


@rule("slice")
def _slice(frame: OpFrame, o: HloOp, x: Value) -> Value:
    if "ranges" in o.attributes:
        parts = [(r[0], r[1], r[2] if len(r) > 2 else 1) for r in o.attributes["ranges"]]
    else:
        names = ("start_indices", "limit_indices", "strides")
        parts = list(zip(*(numbers(o, n) for n in names), strict=True))
    if not parts:
        return x
    low, high, step = (tuple(p[i] for p in parts) for i in range(3))
    return op.slice_(x, low, high, step)


@rule("pad")
def _pad(frame: OpFrame, o: HloOp, x: Value, value: Value) -> Value:
    low = numbers(o, "low", "edge_padding_low")
    high = numbers(o, "high", "edge_padding_high")
    inner = numbers(o, "interior", "interior_padding")
    return PRIMITIVES["pad"]({"padding_config": list(zip(low, high, inner, strict=True))}, x, value)  # type: ignore[no-any-return]


@rule("dynamic_slice")
def _dynamic_slice(frame: OpFrame, o: HloOp, x: Value, *starts: Value) -> Value:
    return op.dynamic_slice(x, starts, tuple(numbers(o, "sizes", "slice_sizes")))


@rule("dynamic_update_slice")
def _dynamic_update(frame: OpFrame, o: HloOp, x: Value, part: Value, *starts: Value) -> Value:
    return op.dynamic_update_slice(x, part, starts)


@rule("gather")
def _gather(frame: OpFrame, o: HloOp, x: Value, starts: Value) -> Value:
    d = o.attributes["dimension_numbers"]
    starts = _last(starts, d.get("index_vector_dim", 0))
    names = {
        k: d.get(k, [])
        for k in ("offset_dims", "collapsed_slice_dims", "start_index_map", "operand_batching_dims",
                  "start_indices_batching_dims")
    }  # fmt: skip
    p = {
        "dimension_numbers": SimpleNamespace(**names), "slice_sizes": numbers(o, "slice_sizes"),
        "mode": "CLIP",
        "fill_value": None,
    }  # fmt: skip
    return PRIMITIVES["gather"](p, x, starts)  # type: ignore[no-any-return]


def _last(starts: Value, axis: int) -> Value:
    """Indices whose parts stand along the last axis."""
    if axis == starts.ndim:
        return op.expand_dims(starts, -1)
    return starts if axis == starts.ndim - 1 else op.moveaxis(starts, axis, -1)


def written(frame: OpFrame, o: HloOp, kind: str, x: Value, starts: Value, value: Value) -> Value:
    """A scatter of one kind."""
    d = o.attributes["scatter_dimension_numbers"]
    names = {
        "update_window_dims": d.get("update_window_dims", []),
        "inserted_window_dims": d.get("inserted_window_dims", []),
        "scatter_dims_to_operand_dims": d.get("scatter_dims_to_operand_dims", []),
        "operand_batching_dims": d.get("input_batching_dims", []),
        "scatter_indices_batching_dims": d.get("scatter_indices_batching_dims", []),
    }
    p = {"dimension_numbers": SimpleNamespace(**names), "mode": "FILL_OR_DROP"}
    starts = _last(starts, d.get("index_vector_dim", 0))
    return PRIMITIVES[kind](p, x, starts, value)  # type: ignore[no-any-return]


@rule("dot_general")
def _dot_general(frame: OpFrame, o: HloOp, x: Value, y: Value) -> Value:
    a = o.attributes
    if "dot_dimension_numbers" in a:
        d = a["dot_dimension_numbers"]
        fold = d.get("lhs_contracting_dimensions", []), d.get("rhs_contracting_dimensions", [])
        batch = d.get("lhs_batching_dimensions", []), d.get("rhs_batching_dimensions", [])
    else:
        fold, batch = a.get("contracting_dims", ([], [])), a.get("batching_dims", ([], []))
    p = {"dimension_numbers": (fold, batch), "preferred_element_type": o.types[0].dtype}
    return PRIMITIVES["dot_general"](p, x, y)  # type: ignore[no-any-return]


@rule("dot")
def _dot(frame: OpFrame, o: HloOp, x: Value, y: Value) -> Value:
    p = {
        "dimension_numbers": (([x.ndim - 1], [0]), ([], [])),
        "preferred_element_type": o.types[0].dtype,
    }
    return PRIMITIVES["dot_general"](p, x, y)  # type: ignore[no-any-return]


@rule("convolution")
def _convolution(frame: OpFrame, o: HloOp, x: Value, k: Value) -> Value:
    a = o.attributes
    lhs, rhs, out = a["dimension_numbers"]
    count = x.ndim - 2
    turned = a.get("reverse", a.get("window_reversal")) or [False] * count
    back = tuple(rhs.index(i) for i, r in enumerate(np.asarray(turned).reshape(-1)) if r)
    k = op.flip(k, back) if back else k
    pad = np.asarray(a.get("pad", a.get("padding", np.zeros((count, 2), int)))).reshape(-1, 2)
    p = {
        "dimension_numbers": SimpleNamespace(
            lhs_spec=_spec(lhs, "b", "f"), rhs_spec=_spec(rhs, "o", "i"), out_spec=_spec(out, "b", "f")
        ),
        "feature_group_count": int(a.get("feature_group_count", 1)),
        "batch_group_count": int(a.get("batch_group_count", 1)),
        "window_strides": numbers(o, "stride", "window_strides") or [1] * count,
        "padding": [tuple(map(int, row)) for row in pad],
        "rhs_dilation": numbers(o, "rhs_dilate", "rhs_dilation") or [1] * count,
        "lhs_dilation": numbers(o, "lhs_dilate", "lhs_dilation") or [1] * count,
        "preferred_element_type": o.types[0].dtype,
    }  # fmt: skip
    return PRIMITIVES["conv_general_dilated"](p, x, k)  # type: ignore[no-any-return]


def _spec(letters: list[Any], first: str, second: str) -> tuple[int, ...]:
    rest = [letters.index(i) for i in range(len(letters) - 2)]
    return (letters.index(first), letters.index(second), *rest)


_FFTS = ("FFT", "IFFT", "RFFT", "IRFFT")


@rule("fft")
def _fft(frame: OpFrame, o: HloOp, x: Value) -> Value:
    kind = str(o.attributes.get("type", o.attributes.get("fft_type")))
    sizes = numbers(o, "length", "fft_length")
    return PRIMITIVES["fft"]({"fft_type": _FFTS.index(kind), "fft_lengths": sizes}, x)  # type: ignore[no-any-return]


@rule("cholesky")
def _cholesky(frame: OpFrame, o: HloOp, x: Value) -> Value:
    lower = bool(o.attributes.get("lower", False))
    x = op.tril(x) if lower else op.matrix_transpose(op.triu(x))
    sides = op.add(x, op.conj(op.matrix_transpose(op.tril(x, -1))))
    y = PRIMITIVES["cholesky"]({}, sides)
    return y if lower else op.conj(op.matrix_transpose(y))


@rule("triangular_solve")
def _triangular(frame: OpFrame, o: HloOp, a: Value, b: Value) -> Value:
    given = o.attributes
    how = str(given.get("transpose_a", "NO_TRANSPOSE"))
    p = {
        "left_side": given.get("left_side", True), "lower": given.get("lower", True),
        "transpose_a": how in ("TRANSPOSE", "ADJOINT"), "conjugate_a": how == "ADJOINT",
        "unit_diagonal": given.get("unit_diagonal", False),
    }  # fmt: skip
    return PRIMITIVES["triangular_solve"](p, a, b)  # type: ignore[no-any-return]


@rule("chlo.top_k")
def _top_k(frame: OpFrame, o: HloOp, x: Value) -> Any:
    return PRIMITIVES["top_k"]({"k": int(o.attributes["k"])}, x)
