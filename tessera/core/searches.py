"""The search in a sorted axis as a primitive; its results are integers, the same from any algorithm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tessera.core.dtype import i64
from tessera.core.primitive import Array, Definition, Params, Types, are_plain


def _supports(types: Types, p: Params) -> bool:
    x, v = types
    size = x.shape[0]  # it says how often the axis is halved
    return are_plain(types, p) and x.dtype is v.dtype and isinstance(size, int) and size > 0


def _evaluate(xs: Sequence[Array], p: Params) -> list[Array]:
    x, v = (a.astype(np.float32) if a.dtype.kind == "V" or a.dtype == np.float16 else a for a in xs)
    return [np.asarray(np.searchsorted(x, v, p["side"])).astype(np.int64)]


SEARCHES = (
    Definition("searchsorted", _supports, lambda types, p: [types[1].with_dtype(i64)], _evaluate),
)
