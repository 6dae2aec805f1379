"""Move text and formats that Tessera has no dtype for: rules that only move elements move codes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.interop.onnx.model import STRING, Array
from tessera.interop.onnx.rule import NodeCall, is_foreign, is_text
from tessera.ir.graph.ir import Value, eagerly


def apply(run: Callable[..., Any], call: NodeCall, args: Sequence[Any]) -> Any:
    """The outputs of a rule on codes, turned back into what they stand for."""
    table: dict[Any, int] = {}
    dtype = next(x.dtype for x in args if is_foreign(x))
    coded = [_codes(x, table) if is_foreign(x) else x for x in args]
    with eagerly():
        out = run(call, *coded)
    names = np.empty(len(table), object)
    names[:] = list(table)
    return _decoded(out, names, dtype)


def _codes(x: Array, table: dict[Any, int]) -> Array:
    if is_text(x):
        flat = [table.setdefault(s, len(table)) for s in x.reshape(-1)]
        return np.array(flat, np.int64).reshape(x.shape)
    return x.view(np.uint8).astype(np.int64)


def _decoded(out: Any, names: Array, dtype: np.dtype[Any]) -> Any:
    if isinstance(out, tuple | list):
        return type(out)(_decoded(x, names, dtype) for x in out)
    data = np.asarray(out) if isinstance(out, Value) else out
    if data.dtype != np.int64:
        return data
    if dtype == STRING:
        return names[data] if data.size else np.empty(data.shape, object)
    return data.astype(np.uint8).view(dtype)
