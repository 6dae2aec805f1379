"""Compare trees of tensors: near by the tolerance of their dtype, or equal to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from tessera.core import tree
from tessera.core.blame import blames_arguments
from tessera.core.dtype import DType, as_dtype, tf32
from tessera.ir.graph.ir import Value, on_host

Array = np.ndarray[Any, np.dtype[Any]]


class CheckFailed(AssertionError):
    """A check of tessera.testing does not hold."""


# Relative and absolute tolerance: 16 units in the last place for f32, 4500 for f64, whose sums are long,
# and 4 or fewer for narrow formats, which are rounded once an op.
_TOLERANCES = {
    "f64": 1e-12, "f32": 2e-6, "f16": 4e-3, "bf16": 3e-2, "f8e4m3": 0.125, "f8e5m2": 0.25, "c64": 2e-6,
    "c128": 1e-12,
}  # fmt: skip
_TF32 = 2e-3  # 4 units of a mantissa of 10 bits, at each product
_SHOWN = 4  # elements that a message names


@blames_arguments
def tolerance(dtype: Any) -> float:
    """The relative and absolute tolerance of a dtype; 0 for whole numbers and truth values."""
    d = as_dtype(dtype)
    return _TF32 if d.policy.math == tf32.policy.math else _TOLERANCES.get(d.name, 0.0)


def array_of(x: Any) -> Array:
    """A leaf of a tree as an array on the host."""
    return np.asarray(on_host(x.storage) if isinstance(x, Value) and x.storage is not None else x)


def dtype_of(x: Any, a: Array) -> DType | None:
    """The dtype of a leaf; None where NumPy has one that Tessera has not."""
    if isinstance(x, Value):
        return x.dtype
    return None if a.dtype.kind in "OSUV" and a.dtype not in _NARROW else as_dtype(a.dtype)


_NARROW = {
    np.dtype(getattr(ml_dtypes, n))
    for n in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4")
}  # fmt: skip


def pairs(got: Any, want: Any) -> Iterator[tuple[str, Any, Any]]:
    """The leaves of two trees side by side, with their places."""
    a, b = tree.flatten(got), tree.flatten(want)
    if len(a[0]) != len(b[0]) or (a[1] != b[1] and len(a[0]) != 1):
        raise CheckFailed(f"trees differ: got {a[1]}, expected {b[1]}")
    yield from zip(tree.paths(got), a[0], b[0], strict=True)


@blames_arguments
def assert_close(
    got: Any, want: Any, rtol: float | None = None, atol: float | None = None, *,
    check_dtype: bool = False, equal_nan: bool = True,
) -> None:  # fmt: skip
    """Raise unless two trees of tensors are near each other by the tolerance of their coarser dtype.

    An element is near where |got - want| <= atol + rtol * |want|.  Whole numbers and truth values must be
    equal. `check_dtype` also wants the same dtypes; arrays and numbers may stand for tensors.
    """
    for path, x, y in pairs(got, want):
        _near(f" at {path}" if path else "", x, y, (rtol, atol), check_dtype, equal_nan)


def _near(
    where: str, x: Any, y: Any, given: tuple[float | None, float | None], check_dtype: bool, nan: bool
) -> None:  # fmt: skip
    a, b = array_of(x), array_of(y)
    dx, dy = dtype_of(x, a), dtype_of(y, b)
    if check_dtype and dx is not dy:
        raise CheckFailed(f"dtypes differ{where}: got {dx}, expected {dy}")
    if a.shape != b.shape:
        raise CheckFailed(f"shapes differ{where}: got {a.shape}, expected {b.shape}")
    widest = max((tolerance(d) for d in (dx, dy) if d is not None), default=0.0)
    rtol, atol = (widest if t is None else t for t in given)
    p, q = _wide(a), _wide(b)
    with np.errstate(all="ignore"):
        off = np.abs(p - q)
        fine = (p == q) | (off <= atol + rtol * np.abs(q))
    if nan:
        fine |= np.isnan(p) & np.isnan(q)
    if not fine.all():
        raise CheckFailed(_said(where, a, b, ~fine, off, f"rtol={rtol:.3g}, atol={atol:.3g}"))


def _wide(a: Array) -> Array:
    """The same numbers in a format whose differences are exact enough."""
    if a.dtype.kind in "biu" and a.dtype.itemsize == 8:
        return a.astype(np.longdouble)
    return a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)


def _said(where: str, a: Array, b: Array, bad: Array, off: Array, limits: str) -> str:
    """What differs, in one line: how much, where most, and the first few elements."""
    count = int(np.count_nonzero(bad))
    worst = np.unravel_index(
        int(np.argmax(np.where(bad, np.nan_to_num(off, nan=np.inf), -1.0))), bad.shape
    )
    first = [tuple(map(int, i)) for i in np.argwhere(bad)[:_SHOWN]]
    shown = ", ".join(f"{_place(i)}: {a[i]} for {b[i]}" for i in first)
    return (
        f"{count} of {bad.size} elements differ{where} ({limits}): the most at {_place(worst)}, where "
        f"{a[worst]} stands "
        f"for {b[worst]}, off by {off[worst]:.3g}; first {shown}"
    )


def _place(index: Any) -> str:
    return f"[{', '.join(str(int(i)) for i in index)}]"


@blames_arguments
def assert_same_bits(got: Any, want: Any, what: str = "") -> None:
    """Raise unless two trees of tensors have the same dtypes, shapes and bits; NaNs are equal whatever
    their payload.
    """
    for path, x, y in pairs(got, want):
        found = difference(array_of(x), array_of(y))
        if found:
            said = f"{what}: " if what else ""
            raise CheckFailed(f"{said}bits differ{' at ' + path if path else ''}: {found}")


def difference(a: Array, b: Array) -> str:
    """Where two arrays have other bits, in words; nothing where they are equal."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype}{list(a.shape)} for {b.dtype}{list(b.shape)}"
    bad = _bits(a) != _bits(b)
    if bad.ndim > a.ndim:
        bad = bad.any(axis=-1)
    if a.dtype.kind not in "biu":
        bad &= ~(np.isnan(a) & np.isnan(b))
    if not bad.any():
        return ""
    first = tuple(int(i) for i in np.argwhere(bad)[0])
    return (
        f"{np.count_nonzero(bad)} of {bad.size} elements, the first at {_place(first)}: {a[first]!r} "
        f"({_hex(a[first])}) for {b[first]!r} ({_hex(b[first])})"
    )


def _bits(a: Array) -> Array:
    """The bytes of each element along a last axis."""
    flat = np.ascontiguousarray(a)
    return flat.reshape(*a.shape, 1).view(np.uint8)


def _hex(x: Any) -> str:
    return "0x" + bytes(np.asarray(x).tobytes())[::-1].hex()
