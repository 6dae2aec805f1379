"""The order of a scatter: for each element the values that go there, in the order of the indices.

A value whose index is outside its axis is dropped.  Narrow floats add up and multiply in
f32 and are rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from tessera.core.dtype import as_dtype
from tessera.core.evaluate import cast, scalar
from tessera.core.primitive import Array, Definition, Params, are_plain

# The scalar op that joins a value to what is there; None puts the value in its place.
JOINS = {
    "scatter": None,
    "scatter_add": "add",
    "scatter_mul": "mul",
    "scatter_max": "max",
    "scatter_min": "min",
}
WIDE = frozenset(("add", "mul"))  # joins that round: narrow floats are joined in a wider format


def _evaluate(name: str, xs: Sequence[Array], p: Params) -> list[Array]:
    x, value, *indices = xs
    join, axes = JOINS[name], p["axes"]
    dtype = as_dtype(x.dtype)
    wide = dtype.compute if join in WIDE else dtype
    out = np.array(cast(x, wide))
    front = np.moveaxis(out, axes, range(len(axes)))
    flat = [i.reshape(-1) for i in indices]
    rows = cast(value, wide).reshape(flat[0].size, *front.shape[len(axes) :])
    for place, new in zip(zip(*flat, strict=True), rows, strict=True):
        if all(0 <= i < n for i, n in zip(place, front.shape, strict=False)):
            front[place] = new if join is None else scalar(join, (front[place], new), wide)
    return [cast(out, dtype)]


SCATTERS = tuple(
    Definition(name, are_plain, lambda types, p: types[:1], partial(_evaluate, name))
    for name in JOINS
)
