"""Tensors put together and padded: elements in new places, none computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tessera.core.primitive import Array, Definition, Params, Types, are_plain
from tessera.core.types import TensorType


def _concat_types(types: Types, p: Params) -> list[TensorType]:
    axis, first = p["axis"], types[0]
    size = sum(t.shape[axis] for t in types)
    return [first.with_shape((*first.shape[:axis], size, *first.shape[axis + 1 :]))]


def _concat(xs: Sequence[Array], p: Params) -> list[Array]:
    return [np.concatenate(xs, p["axis"])]


def _pads(types: Types, p: Params) -> bool:
    """There is a last axis to run along, and something to take where elements are moved apart."""
    empty = any(p["inner"]) and 0 in types[0].shape
    return are_plain(types, p) and types[0].rank > 0 and not empty


def _pad_types(types: Types, p: Params) -> list[TensorType]:
    x = types[0]
    sizes = zip(p["low"], x.shape, p["high"], p["inner"], strict=True)
    return [
        x.with_shape(tuple(a + n + (n - 1) * i + b if i else a + n + b for a, n, b, i in sizes))
    ]


def _pad(xs: Sequence[Array], p: Params) -> list[Array]:
    x, value = xs
    if any(p["inner"]):
        apart = np.full([n + (n - 1) * i for n, i in zip(x.shape, p["inner"], strict=True)], value)
        apart[tuple(slice(None, None, i + 1) for i in p["inner"])] = x
        x = apart
    low, high = (np.asarray(p[side], int) for side in ("low", "high"))
    kept = tuple(
        slice(max(-a, 0), n - max(-b, 0)) for a, b, n in zip(low, high, x.shape, strict=True)
    )
    around = [(max(a, 0), max(b, 0)) for a, b in zip(low, high, strict=True)]
    return [np.pad(x[kept], around, constant_values=value)]


COPIES = (
    Definition("concat", are_plain, _concat_types, _concat),
    Definition("pad", _pads, _pad_types, _pad),
)
