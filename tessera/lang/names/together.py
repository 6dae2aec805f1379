"""Operands of functions that compute in floating point."""

from __future__ import annotations

from typing import Any

from tessera.core.dtype import f32
from tessera.core.promotion import promote
from tessera.ir.graph.ir import Value
from tessera.ops.creation import full
from tessera.ops.define import ArrayLike, as_value, cast_to, floating


def as_tensor(x: ArrayLike) -> Any:
    """x as a tensor, to be indexed."""
    return as_value(x)


def floats(x: ArrayLike) -> Any:
    """x as a tensor of floating-point numbers, to be indexed."""
    return floating(as_value(x))


def together(*xs: ArrayLike) -> list[Value]:
    """Operands in one floating-point dtype; Python numbers take that of the others."""
    free = [isinstance(x, int | float) and not isinstance(x, bool) for x in xs]
    held = [None if number else floating(as_value(x)) for x, number in zip(xs, free, strict=True)]
    wide = f32 if all(free) else None
    for v in held:
        if v is not None:
            wide = v.dtype if wide is None else promote(wide, v.dtype)
    assert wide is not None
    return [
        full((), x, wide) if v is None else cast_to(v, wide) for x, v in zip(xs, held, strict=True)
    ]
