"""The order of a running fold: one chain along the axis, from the first element or from the last.

So a row has the same bits alone, in a batch and in pieces that hand the last value on.  Narrow floats
run in f32 and each result is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from tessera.core.dtype import DType, as_dtype
from tessera.core.evaluate import cast, scalar
from tessera.core.primitive import Array, Definition, Params, are_plain
from tessera.core.rounding import round_to

# The scalar op of each running fold.
FOLDS = {"cumsum": "add", "cumprod": "mul", "cummax": "max", "cummin": "min"}


def _chain(step: Callable[[Array | None, int], Array], n: int, reverse: bool) -> list[Array]:
    out: list[Array] = [np.empty(0)] * n
    last = None
    for i in range(n)[:: -1 if reverse else 1]:
        last = out[i] = step(last, i)
    return out


def _running(name: str, xs: Sequence[Array], p: Params) -> list[Array]:
    """y[i] = f(y[i-1], x[i]), and y is x at the first place."""
    (x,), op = xs, FOLDS[name]
    dtype = as_dtype(x.dtype)
    rows = np.moveaxis(cast(x, dtype.compute), p["axis"], 0)

    def step(last: Array | None, i: int) -> Array:
        return rows[i] if last is None else scalar(op, (last, rows[i]), dtype.compute)

    return [_stacked(_chain(step, len(rows), p["reverse"]), x, p["axis"], dtype)]


def _recurrence(xs: Sequence[Array], p: Params) -> list[Array]:
    """y[i] = a[i] * y[i-1] + b[i]: a product and a sum, each rounded, starting from 0."""
    dtype = as_dtype(xs[1].dtype)
    a, b = (np.moveaxis(cast(x, dtype.compute), p["axis"], 0) for x in xs)
    first = np.zeros(b.shape[1:], b.dtype)

    def step(last: Array | None, i: int) -> Array:
        product = scalar("mul", (a[i], first if last is None else last), dtype.compute)
        return scalar("add", (product, b[i]), dtype.compute)

    return [_stacked(_chain(step, len(b), p["reverse"]), xs[1], p["axis"], dtype)]


def _stacked(rows: list[Array], like: Array, axis: int, dtype: DType) -> Array:
    if not rows:
        return np.empty(like.shape, like.dtype)
    return round_to(np.stack(rows, axis), dtype)


SCANS = (
    *(
        Definition(name, are_plain, lambda types, p: types[-1:], partial(_running, name))
        for name in FOLDS
    ),
    Definition("linear_recurrence", are_plain, lambda types, p: types[-1:], _recurrence),
)  # fmt: skip
