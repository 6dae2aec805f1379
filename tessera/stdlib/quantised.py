"""Products with weights of few bits: i8 with i8, and floats with i8 or i4 that have a
scale for each group.
"""

from __future__ import annotations

from typing import Any

from tessera.core.blame import blames_arguments
from tessera.core.dtype import as_dtype, f32, i8, i32
from tessera.core.errors import DTypeError, OperandError, ShapeError
from tessera.lang import op
from tessera.lang.jit import jit
from tessera.lang.schedule import block
from tessera.ops.define import as_value
from tessera.stdlib.kernels import products
from tessera.stdlib.routine import RoutinePlan, routine


@blames_arguments
def quantise(x: Any, dtype: Any = i8, group: int | None = None, axis: int = 0) -> tuple[Any, Any]:
    """A matrix in few bits, and the scale of each group of elements along an axis, or of all of them.

    x is about q * scale, with scales of the sizes of x but one for each group.
    """
    d, x = as_dtype(dtype), as_value(x, "quantise")
    if d.name not in ("i8", "i4") or len(x.shape) != 2:
        raise OperandError(f"quantise: got {x.type} to {d}, expected a matrix to i8 or i4")
    if axis not in (0, 1):
        raise OperandError(f"quantise: axis is {axis}, expected 0 or 1")
    if axis == 1:
        q, scale = quantise(op.swapaxes(x, 0, 1), d, group)
        return op.swapaxes(q, 0, 1), op.swapaxes(scale, 0, 1)
    rows, columns = x.shape
    size = rows if group is None else group
    if rows % size:
        raise ShapeError(f"quantise: groups of {size} do not divide the {rows} elements of an axis")
    parts: Any = op.reshape(op.cast(x, f32), (rows // size, size, columns))
    scale = op.max(op.abs(parts), axis=1) / float(2 ** (d.bits - 1) - 1)
    scale = op.where(op.eq(scale, 0), 1.0, scale)
    whole = op.round(parts / op.expand_dims(scale, 1))
    return op.cast(op.reshape(whole, (rows, columns)), d), scale


@routine(block(64, 128), gpu=block(64, 64).warps(8).stages(4))
def quantised_matmul(plan: RoutinePlan, x: Any, w: Any, scale: Any, x_scale: Any = None) -> Any:
    """x (m, k) times w (k, n) of i8 or i4 with scales (groups, n): one for each group of k / groups rows.

    x of i8 with scales (m, 1): the product is exact in i32, and scaled once; the scales of w are then (1, n).
    """
    x, w, scale = (as_value(t, "quantised_matmul") for t in (x, w, scale))
    if w.dtype.name not in ("i8", "i4"):
        raise DTypeError(f"quantised_matmul: the weights are {w.type}, expected i8 or i4")
    if len(x.shape) != 2 or len(w.shape) != 2 or len(scale.shape) != 2:
        raise ShapeError(
            f"quantised_matmul: got {x.type}, {w.type} and {scale.type}, expected matrices"
        )
    if x.dtype.kind == "i":
        if x_scale is None or scale.shape[0] != 1:
            raise OperandError(
                "quantised_matmul: an integer x needs x_scale, and one scale for each column of w"
            )
        return _whole(x, w, op.reshape(as_value(x_scale, "x_scale"), (-1, 1)), scale)
    depth, groups = w.shape[0], scale.shape[0]
    if depth % groups:
        raise ShapeError(f"quantised_matmul: {groups} groups do not divide {depth} rows of weights")
    return plan.of(products.by_weights)(x, w, scale, group=depth // groups)


@jit
def _whole(x: Any, w: Any, x_scale: Any, scale: Any) -> Any:
    """By the compiler, whose products of bytes use the instructions that a machine has for them."""
    whole = op.matmul(op.cast(x, i32), op.cast(w, i32))
    return op.cast(whole, f32) * (x_scale * scale)
