"""Sentinels: while a check is open, the first op that makes a NaN or an infinity is an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from tessera.core import call_guard
from tessera.core.errors import NumericalError
from tessera.core.open_blocks import OpenBlocks
from tessera.core.source import Location
from tessera.core.types import TensorType

Array = np.ndarray[Any, np.dtype[Any]]


class _Check(NamedTuple):
    who: str  # asked to check results
    infinities: bool  # whether they matter too
    tell: Callable[[NumericalError], None] | None  # of an op that makes one; None: it is an error


_CHECKS: OpenBlocks[_Check] = OpenBlocks("tessera checks")
_NONE = _Check("", False, None)


def _check() -> _Check:
    return _CHECKS.innermost() or _NONE


def checking() -> bool:
    """Whether results are checked in this thread or task."""
    return _check().who != ""


@contextmanager
def check_numbers(
    infinities: bool,
    who: str = "debug_nans",
    tell: Callable[[NumericalError], None] | None = None,
) -> Iterator[None]:
    """Check results while the block runs: for NaN, and for infinities if they matter; raise, or tell of
    it and go on.
    """
    block = _CHECKS.open(_Check(who, infinities, tell))
    call_guard.begin()
    try:
        yield
    finally:
        call_guard.end()
        _CHECKS.close(block)


def check(
    op: str,
    operands: Sequence[Array],
    results: Sequence[Array],
    outs: Sequence[TensorType],
    types: Sequence[TensorType],
    location: Location | None,
) -> None:
    """Raise when a result has NaN but no operand has, or an infinity but all operands are finite."""
    if not operands:  # a constant is what the user wrote
        return
    for y, t in zip(results, outs, strict=True):
        bad = _first(y, operands)
        if bad is None:
            continue
        given = ", ".join(map(str, types))
        who = _check().who or "checked"
        error = NumericalError(
            f"{who}: {op} made {_wide(y)[bad]} at {list(map(int, bad))} of {t} from operands "
            f"{given} that have none"
        )
        tell = _check().tell
        if tell is None:
            raise error.at(location)
        tell(error.at(location))


def has_nan(x: Array) -> bool:
    """Whether floats or complex numbers have a NaN: a square that is none comes from no NaN."""
    if x.dtype.kind == "c":
        x = np.ascontiguousarray(x).view(x.real.dtype)
    if x.dtype in (np.float32, np.float64) and x.flags.c_contiguous:
        flat = x.reshape(-1)
        return bool(np.isnan(np.dot(flat, flat)))  # one pass, at the speed of memory
    return bool(np.isnan(_wide(x)).any())


def _wide(x: Array) -> Array:
    """x in a format that NumPy has tests for."""
    return x if x.dtype.kind in "biufc" else x.astype(np.float32)


def _first(y: Array, operands: Sequence[Array]) -> Any:
    """Where y first has what no operand has."""
    w = _wide(np.asarray(y))
    if w.dtype.kind not in "fc":
        return None
    tests = (np.isnan, lambda x: ~np.isfinite(x)) if _check().infinities else (np.isnan,)
    for test in tests:
        found = test(w)
        if found.any() and not any(_has(test, x) for x in operands):
            return tuple(np.argwhere(found)[0])
    return None


def _has(test: Any, x: Array) -> bool:
    w = _wide(np.asarray(x))
    return w.dtype.kind in "fc" and bool(test(w).any())
