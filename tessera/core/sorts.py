"""The order of sorted elements: stable, NaN after every number, -0.0 equal to 0.0.

In descending order NaN comes first, and equal elements still keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.dims import product
from tessera.core.dtype import as_dtype, i64
from tessera.core.evaluate import cast
from tessera.core.primitive import Array, Definition, Params, Types, are_plain

LONGEST = 1 << 14  # elements along the axis that kernels sort
FEWEST = 8  # lines below which the host is as fast
_WORDS = {"f": "u4", "i": "i4", "u": "u4"}


def order(x: Array, axis: int, descending: bool) -> Array:
    """The indices that sort x along an axis."""
    x = cast(x, as_dtype(x.dtype).compute)
    if x.dtype.kind in _WORDS and x.dtype.itemsize == 4 and x.shape[axis] < 1 << 32:
        return (_packed(x, axis, descending) & 0xFFFFFFFF).astype(np.int64)
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    back = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - back, axis)


def _packed(x: Array, axis: int, descending: bool) -> Array:
    """Sorted words: the element above, as a number that orders it, and its index below."""
    if x.dtype.kind == "f":
        bits = np.where(np.isnan(x), np.float32(np.nan), x + np.float32(0)).view(np.uint32)
        bits = np.where(bits >> 31 == 1, ~bits, bits | np.uint32(1 << 31))
        bits = np.where(np.isnan(x), np.uint32(0xFFFFFFFF), bits)
    else:
        bits = x.view(np.uint32) ^ np.uint32(1 << 31 if x.dtype.kind == "i" else 0)
    if descending:
        bits = ~bits
    shape = [-1 if i == axis else 1 for i in range(x.ndim)]
    place = np.arange(x.shape[axis], dtype=np.uint64).reshape(shape)
    return np.sort(bits.astype(np.uint64) << np.uint64(32) | place, axis)


def _supports(types: Types, p: Params) -> bool:
    (t,), axis = types, p["axis"]
    n, rest = t.shape[axis], product((*t.shape[:axis], *t.shape[axis + 1 :]))
    many = not isinstance(rest, int) or rest >= FEWEST
    return are_plain(types, p) and isinstance(n, int) and 2 <= n <= LONGEST and many


def _argsort(xs: Sequence[Array], p: Params) -> list[Array]:
    return [order(xs[0], p["axis"], p["descending"])]


def _sort(xs: Sequence[Array], p: Params) -> list[Array]:
    return [np.take_along_axis(xs[0], order(xs[0], p["axis"], p["descending"]), p["axis"])]


def _topk(xs: Sequence[Array], p: Params) -> list[Array]:
    where = np.take(order(xs[0], p["axis"], p["largest"]), np.arange(p["k"]), p["axis"])
    return [np.take_along_axis(xs[0], where, p["axis"]), where]


def _topk_types(types: Types, p: Params) -> list[Any]:
    t, axis = types[0], p["axis"]
    out = t.with_shape((*t.shape[:axis], p["k"], *t.shape[axis + 1 :]))
    return [out, out.with_dtype(i64)]


SORTS = (
    Definition("argsort", _supports, lambda types, p: [types[0].with_dtype(i64)], _argsort),
    Definition("sort", _supports, lambda types, p: types[:1], _sort),
    Definition("topk", _supports, _topk_types, _topk),
)
