"""Convolutions and pooling."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.core.dtype import i64
from tessera.interop.stablehlo.rules.table import rule
from tessera.interop.stablehlo.scalars import fold_start
from tessera.interop.stablehlo.writer import Ssa, StableHloWriter, ints, type_text
from tessera.ir.graph.interp import wide
from tessera.ir.graph.ir import Node


def pairs_text(pairs: Any) -> str:
    """An attribute of (before, after) pairs."""
    rows = ", ".join(f"[{a}, {b}]" for a, b in pairs)
    return f"dense<{f'[{rows}]' if pairs else ''}> : {type_text(i64, (len(pairs), 2))}"


@rule("conv")
def _conv(w: StableHloWriter, n: Node, x: Ssa, k: Ssa) -> Any:
    p, at = n.params, wide(n.op, n.operands[0].dtype)
    if 0 in (*x.shape, *k.shape, *n.results[0].shape) or at.kind == "c":
        return None
    spatial = ", ".join(map(str, range(len(x.shape) - 2)))
    held = {
        "dimension_numbers": f"#stablehlo.conv<[b, f, {spatial}]x[o, i, {spatial}]->[b, f, {spatial}]>",
        "window_strides": ints(p["stride"]), "padding": pairs_text(p["padding"]),
        "lhs_dilation": ints(p["inner"]), "rhs_dilation": ints(p["dilation"]),
        "feature_group_count": f"{p['groups']} : i64", "batch_group_count": "1 : i64",
        "precision_config": "[#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]",
    }  # fmt: skip
    y = w.op("convolution", w.cast(x, at), w.cast(k, at), shape=n.results[0].shape, properties=held)
    return w.cast(y, n.results[0].dtype)


def window_fold(
    w: StableHloWriter, x: Ssa, fold: str, scalar: str, window: Any, padding: Any, **more: Any
) -> Ssa:
    """A fold over sliding windows."""
    stride, dilation = more.get("stride"), more.get("dilation")
    one = (1,) * len(x.shape)
    start = np.asarray(fold_start(scalar, x.dtype)).astype(x.dtype.np)
    body = w.region([(x.dtype, ())] * 2, lambda a, b: [w.op(fold, a, b)])
    held = {
        "window_dimensions": ints(window), "window_strides": ints(stride or one),
        "base_dilations": ints(one), "window_dilations": ints(dilation or one),
        "padding": pairs_text(padding),
    }  # fmt: skip
    shape = [
        (a + size + b - (k - 1) * d - 1) // s + 1
        for size, (a, b), k, s, d in zip(
            x.shape, padding, window, stride or one, dilation or one, strict=True
        )
    ]
    first = w.constant(start, x.dtype)
    return w.op("reduce_window", x, first, shape=shape, properties=held, regions=[body])


@rule("max_pool")
def _max_pool(w: StableHloWriter, n: Node, x: Ssa) -> Any:
    p = n.params
    if 0 in x.shape:
        return None
    ends = [(a, b + e) for (a, b), e in zip(p["padding"], p["overhang"], strict=True)]
    return window_fold(
        w, x, "maximum", "max", (1, 1, *p["size"]), [(0, 0), (0, 0), *ends],
        stride=(1, 1, *p["stride"]), dilation=(1, 1, *p["dilation"]),
    )  # fmt: skip
