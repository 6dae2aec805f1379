"""Sums of circulants, Toeplitz matrices and multiples of the identity: one circulant or Toeplitz matrix.

    s circulant(c) + t I    ->  circulant(s c + t e),   e = (1, 0, 0, ...)
    s toeplitz(d) + t I     ->  toeplitz(s d + t e),    e = 1 at the diagonal

Systems and determinants of such a sum have the algorithms of the one operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.algebra.combinators.eigenbasis import leaves_of, unscaled
from tessera.algebra.operator import Operator
from tessera.core.dtype import DType
from tessera.ir.graph.ir import Value
from tessera.ops.define import cast_to, full_of
from tessera.ops.elementwise import add, mul
from tessera.ops.shape import concat, pad, slice_

KINDS = {"circulant", "toeplitz", "eye"}


def joined(a: Operator) -> Operator | None:
    """The one operator that a sum is; None when a term is of another kind."""
    terms = [unscaled(t) for t in leaves_of("plus", a)]
    kinds = {t.kind for t, _ in terms}
    n = a.shape[0]
    if not kinds <= KINDS or kinds == {"eye"} or n != a.shape[1] or not isinstance(n, int):
        return None
    wanted = "toeplitz" if "toeplitz" in kinds else "circulant"
    total: Value | None = None
    for t, factors in terms:
        data = _times(_data(t, wanted, n, a.dtype), factors, a.dtype)
        total = data if total is None else add(total, data)
    assert total is not None
    mirrored = all(t.kind == "eye" or (t.kind == "toeplitz" and t.static[2]) for t, _ in terms)
    static = (n, n, mirrored) if wanted == "toeplitz" else ()
    return Operator(wanted, data=(total,), static=static)


def _data(a: Operator, wanted: str, n: int, dtype: DType) -> Value:
    """The first column of a circulant, or all diagonals from the upper right one down."""
    if a.kind == "eye":
        one = full_of((1,), 1, dtype)
        return pad(one, [(0 if wanted == "circulant" else n - 1, n - 1)])
    data = cast_to(a.data[0], dtype)
    if a.kind == wanted:
        return data
    return concat([slice_(data, (1,), (n,)), data], 0)


def _times(x: Value, factors: Sequence[Any], dtype: DType) -> Value:
    for f in factors:
        x = mul(x, cast_to(f, dtype) if isinstance(f, Value) else f)
    return x
