"""rotary_embedding: positions as rotations of pairs."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from tessera.core.blame import blames_arguments
from tessera.core.errors import ShapeError
from tessera.lang import op
from tessera.lang.custom_rules import custom_vjp
from tessera.lang.schedule import block
from tessera.ops.define import as_value
from tessera.stdlib.kernels import streams
from tessera.stdlib.routine import RoutinePlan, routine


@routine(block(32), gpu=block(8).warps(4))
def rotary_embedding(
    plan: RoutinePlan, x: Any, positions: Any = None, *, base: float = 10000.0, tables: Any = None
) -> Any:
    """op.rope in one pass: (x[i], x[i + size/2]) of (..., rows, size) turned by position * base**(-2i/size).

    positions count 0, 1, ... along the rows unless given.  tables: cosines and sines of (rows, size / 2),
    instead.
    """
    x = as_value(x, "rotary_embedding")
    if len(x.shape) < 2 or not isinstance(x.shape[-1], int) or x.shape[-1] % 2:
        raise ShapeError(f"rotary_embedding: {x.type} is not (..., rows, size) with an even size")
    if tables is None and positions is None and isinstance(x.shape[-2], int):
        tables = rotary_tables(x.shape[-2], x.shape[-1], base)
    elif tables is None:
        at: Any = op.arange(x.shape[-2]) if positions is None else as_value(positions, "positions")
        whole: Any = op.cast(at, np.float32)
        angles = whole[:, None] * _rates(x.shape[-1], base).astype(np.float32)
        tables = op.cos(angles), op.sin(angles)
    cos, sin = (as_value(t, "tables") for t in tables)
    pairs = op.reshape(x, (-1, x.shape[-2], 2, x.shape[-1] // 2))
    return op.reshape(_turned(plan, pairs, cos, sin), x.shape)


def _rates(size: int, base: float) -> Any:
    return base ** (-np.arange(0, size, 2, dtype=np.float64) / size)


@blames_arguments
@lru_cache(maxsize=64)
def rotary_tables(rows: int, size: int, base: float = 10000.0) -> tuple[Any, Any]:
    """Cosines and sines of the angles of positions 0, 1, ..., rounded once from float64."""
    angles = np.arange(rows, dtype=np.float64)[:, None] * _rates(size, base)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _turned_of(plan: RoutinePlan, x: Any, cos: Any, sin: Any) -> Any:
    return plan.of(streams.rope)(x, cos, sin, back=False)


_turned = custom_vjp(_turned_of, nondiff_argnums=(0,))


def _forward(plan: RoutinePlan, x: Any, cos: Any, sin: Any) -> Any:
    return _turned_of(plan, x, cos, sin), (cos, sin)


def _backward(plan: RoutinePlan, held: Any, ct: Any) -> Any:
    return plan.of(streams.rope)(ct, *held, back=True), None, None


_turned.defvjp(_forward, _backward)
