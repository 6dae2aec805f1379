"""Random operators that shorten vectors and nearly keep their lengths."""

from __future__ import annotations

from typing import Any

from tessera.algebra.combinators.linear import compose, scaled
from tessera.algebra.constructors.basic import dense, diag, float_dtype, size_of
from tessera.algebra.constructors.fourier import dct
from tessera.algebra.constructors.index import indices, select
from tessera.algebra.operator import Operator, function
from tessera.algebra.table import IndexTable
from tessera.core.dtype import f32
from tessera.core.errors import OperandError, ShapeError
from tessera.ops.define import cast_to
from tessera.ops.elementwise import mul, sub
from tessera.ops.indexing import index
from tessera.ops.random import normal, permutation, randint
from tessera.ops.random_bits import split
from tessera.ops.shape import slice_

SKETCHES = ("gaussian", "rademacher", "srft", "count")


@function
def sketch(key: Any, rows: Any, columns: Any, kind: str = "gaussian", dtype: Any = f32) -> Operator:
    """A random operator S with E[S.H @ S] = I.

    `gaussian` and `rademacher` are dense; `srft` is signs, a cosine transform and a choice of rows, in
    n log n; `count` adds every element with a sign to one row.
    """
    m, n = size_of("sketch", rows), size_of("sketch", columns)
    found = float_dtype("sketch", dtype)
    if kind not in SKETCHES:
        raise OperandError(f"sketch: kind is {kind!r}, expected one of {', '.join(SKETCHES)}")
    if kind == "srft" and m > n:
        raise ShapeError(f"sketch: {m} rows cannot be chosen from {n}; use kind 'gaussian'")
    if kind == "gaussian":
        return scaled(dense(cast_to(normal(key, (m, n), dtype=found.real), found)), m**-0.5)
    if kind == "rademacher":
        return scaled(dense(_signs(key, (m, n), found)), m**-0.5)
    return _transformed(key, m, n, found) if kind == "srft" else _counted(key, m, n, found)


def _signs(key: Any, shape: Any, dtype: Any) -> Any:
    return sub(mul(cast_to(randint(key, shape, 0, 2), dtype), 2), 1)


def _transformed(key: Any, m: int, n: int, dtype: Any) -> Operator:
    keys = split(key, 2)
    first, second = index(keys, 0), index(keys, 1)
    chosen = slice_(permutation(second, n), (0,), (m,))
    picked = select(chosen, n, dtype)
    whole = compose(picked, dct(n, norm="ortho", dtype=dtype), diag(_signs(first, (n,), dtype)))
    return scaled(whole, (n / m) ** 0.5)


def _counted(key: Any, m: int, n: int, dtype: Any) -> Operator:
    keys = split(key, 2)
    first, second = index(keys, 0), index(keys, 1)
    rows = indices("sketch", randint(second, (n,), 0, m))
    columns = IndexTable(range(n))
    return Operator(
        "sparse", data=(_signs(first, (n,), dtype),), static=(IndexTable(rows), columns, m, n)
    )
