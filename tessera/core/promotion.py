"""Which dtype two dtypes meet in, and what a cast between two dtypes does.

Promotion follows the array API standard inside a kind; an integer meets a float in that float; two
policies never meet without a cast.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import ml_dtypes

from tessera.core.dtype import FORMATS, DType, bool_, c64, c128, complex_of, f32, f64
from tessera.core.errors import DTypeError, PolicyError

# Two formats of one kind, neither of which holds the other exactly, and where they meet.
_MEET = {
    frozenset(("bf16", "f16")): "f32",
    frozenset(("i4", "u8")): "i16",
    frozenset(("i8", "u8")): "i16",
    frozenset(("i4", "u16")): "i32",
    frozenset(("i8", "u16")): "i32",
    frozenset(("i16", "u16")): "i32",
    frozenset(("i4", "u32")): "i64",
    frozenset(("i8", "u32")): "i64",
    frozenset(("i16", "u32")): "i64",
    frozenset(("i32", "u32")): "i64",
}
_finfo: Any = ml_dtypes.finfo
_RANK = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}


@cache
def promote(a: DType, b: DType) -> DType:
    """The dtype in which a and b meet."""
    if a is b:
        return a
    if a.policy != b.policy and a.kind in "fiu" and b.kind in "fiu" and a.kind == b.kind:
        raise PolicyError(
            f"{a} and {b} carry different policies; cast one: x.astype({a}) or y.astype({b})"
        )
    if _RANK[a.kind] != _RANK[b.kind]:
        high, low = (a, b) if _RANK[a.kind] > _RANK[b.kind] else (b, a)
        if high.kind == "c" and low is f64:
            return c128
        return high
    return _same_rank(a, b)


def _same_rank(a: DType, b: DType) -> DType:
    met = _MEET.get(frozenset((a.name, b.name)))
    if met is not None:
        return FORMATS[met].with_policy(a.policy)
    if a.bits == b.bits or ({a.name, b.name} & {"u64"} and a.kind != b.kind):
        raise DTypeError(f"{a} and {b} have no common dtype; cast one of them with astype")
    return a if a.bits > b.bits else b


def promote_all(dtypes: Iterable[DType]) -> DType:
    """The dtype in which all of these meet."""
    it = iter(dtypes)
    met = next(it)
    for d in it:
        met = promote(met, d)
    return met


def meet_scalar(dtype: DType, scalar: bool | int | float | complex) -> DType:
    """The dtype a Python scalar takes beside an operand of dtype: the operand's, if the kind allows."""
    if isinstance(scalar, bool) or dtype.kind == "c":
        return dtype
    if isinstance(scalar, int):
        return dtype
    if isinstance(scalar, float):
        return dtype if dtype.kind in "fc" else f32
    return complex_of(dtype) if dtype.kind == "f" else c64


def holds(dtype: DType, scalar: int) -> bool:
    """Whether an integer dtype can hold this integer."""
    if dtype is bool_ or dtype.kind not in "iu":
        return True
    low, high = limits(dtype)
    return low <= scalar <= high


def limits(dtype: DType) -> tuple[int, int]:
    """The least and the largest number of an integer dtype."""
    low = -(1 << dtype.bits - 1) if dtype.kind == "i" else 0
    return low, (1 << dtype.bits - (dtype.kind == "i")) - 1


@cache
def embeds(a: DType, b: DType) -> bool:
    """Whether every value of a, NaN and infinities included, is a value of b."""
    if a.base is b.base or a.kind == "b":
        return True
    if a.kind in "iu":
        if b.kind in "iu":
            return b.bits >= a.bits if a.kind == b.kind else b.kind == "i" and b.bits > a.bits
        return b.kind in "fc" and _finfo(b.real.np).nmant + 1 >= a.bits - (a.kind == "i")
    if a.kind == "c" and b.kind != "c":
        return False
    if b.kind not in "fc":
        return False
    x, y = _finfo(a.real.np), _finfo(b.real.np)
    wide_enough = y.nmant >= x.nmant and y.maxexp >= x.maxexp and y.minexp <= x.minexp
    return bool(wide_enough and b.real.format.infinite)
