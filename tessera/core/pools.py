"""The largest element of each window, as a primitive.

Places of a window are compared one after another, the last axis running fastest, from the least number of
the dtype on; padding counts as that.  The order shows in no bit, but for which NaN a window with several of
them gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.convolutions import MOST_AXES, padded, seen
from tessera.core.dims import Size
from tessera.core.dtype import as_dtype
from tessera.core.evaluate import identity, scalar
from tessera.core.primitive import Array, Definition, Params, Types, are_plain
from tessera.core.types import TensorType


def counts_of(t: TensorType, p: Params) -> list[Size]:
    """How many windows there are along each axis."""
    return [
        (a + n + b + more - (k - 1) * d - 1) // s + 1
        for n, k, s, d, (a, b), more in zip(
            t.shape[2:],
            p["size"],
            p["stride"],
            p["dilation"],
            p["padding"],
            p["overhang"],
            strict=True,
        )
    ]


def _supports(types: Types, p: Params) -> bool:
    """Floats, known windows and padding, and something in every axis."""
    (t,) = types
    known = [*p["size"], *p["stride"], *p["dilation"], *(k for pair in p["padding"] for k in pair)]
    if not are_plain(types, p) or t.dtype.kind != "f" or t.rank - 2 > MOST_AXES:
        return False
    if not all(isinstance(k, int) and k >= 0 for k in known) or 0 in t.shape:
        return False
    return 0 not in counts_of(t, p)


def _types(types: Types, p: Params) -> list[TensorType]:
    (t,) = types
    return [t.with_shape((*t.shape[:2], *counts_of(t, p)))]


def _max(xs: Sequence[Array], p: Params) -> list[Array]:
    (x,) = xs
    dtype = as_dtype(x.dtype)
    counts: Any = counts_of(TensorType(dtype, x.shape), p)
    found = np.full((*x.shape[:2], *counts), identity("max", dtype), x.dtype)
    spans = [
        (n - 1) * s + (k - 1) * d + 1
        for n, k, s, d in zip(counts, p["size"], p["stride"], p["dilation"], strict=True)
    ]
    low = [a for a, _ in p["padding"]]
    wide = padded(x, low, spans, identity("max", dtype))
    for at in np.ndindex(*p["size"]):
        here = seen(wide, at, counts, p["stride"], p["dilation"])
        found = scalar("max", (found, here), dtype)
    return [found]


POOLS = (Definition("max_pool", _supports, _types, _max),)
