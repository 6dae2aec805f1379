"""Norms with the `ord` of NumPy, PyTorch and JAX: of vectors along one axis, of matrices along two."""

from __future__ import annotations

from typing import Any

from tessera.core.errors import OperandError, ShapeError
from tessera.ir.graph.ir import Value
from tessera.ops import reduction
from tessera.ops.define import ArrayLike, AxisLike, as_value, axes_of, floating, public
from tessera.ops.linalg import matrix_norm
from tessera.ops.shape import moveaxis, reshape


@public
def norm(x: ArrayLike, ord: Any = None, axis: AxisLike = None, keepdims: bool = False) -> Value:
    """The norm of all elements, or along axes.

    ord is that of a vector along one axis, and that of a matrix along two; a matrix needs no axis.
    """
    v = floating(as_value(x, "norm"))
    if ord is None:
        return reduction.norm(v, 2, axis, keepdims)
    if axis is None and v.ndim > 2:
        raise ShapeError(
            f"norm: ord={ord!r} of {v.type} needs axis=: one for vectors, two for matrices; "
            "op.vector_norm takes all elements"
        )
    axes = axes_of("norm", axis, v.ndim)
    if len(axes) == 2:
        return _of_matrices(v, ord, axes, keepdims)
    if len(axes) > 2:
        raise ShapeError(f"norm: axis is {axis}, expected one axis for vectors or two for matrices")
    if isinstance(ord, str):
        raise OperandError(
            f"norm: ord is {ord!r}, which is for matrices; {v.type} has vectors here"
        )
    return reduction.norm(v, ord, axes, keepdims)


def _of_matrices(v: Value, ord: Any, axes: tuple[int, ...], keepdims: bool) -> Value:
    found = matrix_norm(moveaxis(v, axes, (-2, -1)), ord)
    return (
        reshape(found, tuple(1 if i in axes else n for i, n in enumerate(v.shape)))
        if keepdims
        else found
    )
