"""Products of matrices with an epilogue, and of groups of rows with a matrix each."""

from __future__ import annotations

from typing import Any

from tessera.core.blame import blames_arguments
from tessera.core.dtype import i64
from tessera.core.errors import OperandError, ShapeError
from tessera.lang import op
from tessera.lang.custom_rules import custom_vjp
from tessera.lang.schedule import block
from tessera.lang.transforms import vjp
from tessera.ops.define import as_value
from tessera.ops.whole import whole_tensor
from tessera.stdlib.kernels import products
from tessera.stdlib.routine import RoutinePlan, routine

# Matrix units do not multiply wide floats as they are: their products are made in registers, in smaller
# blocks.
_WIDE_ON_GPU = RoutinePlan(block(64, 128).k(64).warps(8).stages(3).schedule, gpu=True)


def _planned(plan: RoutinePlan, x: Any) -> RoutinePlan:
    return _WIDE_ON_GPU if plan.gpu and x.dtype.bits >= 32 else plan


@routine(block(256, 128).k(128), gpu=block(128, 128).k(64).warps(8).stages(3))
def matmul(
    plan: RoutinePlan,
    a: Any,
    b: Any,
    bias: Any = None,
    residual: Any = None,
    *,
    activation: str = "none",
) -> Any:
    """activation(a b + bias) + residual, on (..., m, k) and (..., k, n), in one kernel."""
    if activation not in products.ACTIVATIONS:
        raise OperandError(
            f"matmul: activation is {activation!r}, expected one of {', '.join(products.ACTIVATIONS)}"
        )
    a, b = as_value(a, "matmul"), as_value(b, "matmul")
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise ShapeError(f"matmul: got {a.type} and {b.type}, expected matrices")
    lead, rows = a.shape[:-2], a.shape[-2]
    if len(b.shape) == 2:  # one matrix for all: their rows are those of one product
        a = op.reshape(a, (1, -1, a.shape[-1]))
        b = op.reshape(b, (1, *b.shape))
    elif b.shape[:-2] != lead:
        raise ShapeError(f"matmul: {a.type} and {b.type} have other axes before the last two")
    a, b = (x if len(x.shape) == 3 else op.reshape(x, (-1, *x.shape[-2:])) for x in (a, b))
    out = (a.shape[0], a.shape[1], b.shape[2])
    extra = None if residual is None else op.reshape(as_value(residual, "matmul"), out)
    y = _product(_planned(plan, a), activation, a, b, bias, extra)
    return op.reshape(y, (*lead, rows, b.shape[2]))


@blames_arguments
def matmul_bias(a: Any, b: Any, bias: Any) -> Any:
    """a b + bias."""
    return matmul(a, b, bias)


@blames_arguments
def matmul_gelu(a: Any, b: Any, bias: Any = None) -> Any:
    """gelu(a b + bias)."""
    return matmul(a, b, bias, activation="gelu")


@blames_arguments
def matmul_relu(a: Any, b: Any, bias: Any = None) -> Any:
    """max(a b + bias, 0)."""
    return matmul(a, b, bias, activation="relu")


@blames_arguments
def matmul_residual(a: Any, b: Any, residual: Any, bias: Any = None) -> Any:
    """a b + bias + residual."""
    return matmul(a, b, bias, residual)


_OPS: dict[str, Any] = {
    "none": lambda x: x,
    "relu": op.relu,
    "gelu": op.gelu,
    "silu": op.silu,
    "tanh": op.tanh,
}


def _product_of(
    plan: RoutinePlan, activation: str, a: Any, b: Any, bias: Any, residual: Any
) -> Any:
    return plan.of(products.matmul)(a, b, bias, residual, activation=activation)


_product = custom_vjp(_product_of, nondiff_argnums=(0, 1))


def _forward(plan: RoutinePlan, activation: str, a: Any, b: Any, bias: Any, residual: Any) -> Any:
    return _product_of(plan, activation, a, b, bias, residual), (a, b, bias, residual)


def _backward(plan: RoutinePlan, activation: str, held: Any, ct: Any) -> Any:
    """By the products of the compiler: of what the activation was applied to, then of a and b."""
    a, b, bias, residual = held
    d = ct
    if activation != "none":
        (d,) = vjp(_OPS[activation], _product_of(plan, "none", a, b, bias, None))[1](ct)
    return (
        op.matmul(d, op.swapaxes(b, -1, -2)),
        op.matmul(op.swapaxes(a, -1, -2), d),
        None if bias is None else op.cast(op.sum(d, axis=(0, 1)), bias.dtype),
        None if residual is None else ct,
    )


_product.defvjp(_forward, _backward)


@routine(block(32, 512).k(64), gpu=block(128, 128).k(64).warps(4).stages(3))
def grouped_matmul(plan: RoutinePlan, x: Any, w: Any, sizes: Any) -> Any:
    """Rows of x (rows, k), sorted by group, each times the matrix of its group in w (groups, k, n).

    sizes (groups,) says how many rows each group has; together they are all rows.
    """
    x, w = as_value(x, "grouped_matmul"), as_value(w, "grouped_matmul")
    if len(x.shape) != 2 or len(w.shape) != 3 or x.shape[1] != w.shape[1]:
        raise ShapeError(
            f"grouped_matmul: got {x.type} and {w.type}, expected (rows, k) and (groups, k, n)"
        )
    return _grouped(_planned(plan, x), x, w, whole_tensor("grouped_matmul", "sizes", sizes))


def _grouped_of(plan: RoutinePlan, x: Any, w: Any, sizes: Any) -> Any:
    """Groups are cut into blocks of rows, the last of a group with rows that nobody asks for."""
    (rows, depth), (groups, _, width), size = x.shape, w.shape, plan.schedule.m
    starts = op.concat([op.zeros((1,), i64), op.cumsum(sizes, axis=0)], axis=0)
    before = op.concat([op.zeros((1,), i64), op.cumsum((sizes + size - 1) // size, axis=0)], axis=0)
    block_of = op.arange(rows // size + groups)
    group = op.minimum(op.searchsorted(before, block_of, side="right") - 1, groups - 1)
    first: Any = op.take(starts, group, axis=0) + (block_of - op.take(before, group, axis=0)) * size
    ids = op.reshape(first[:, None] + op.arange(size), (-1,))
    ids = op.maximum(op.minimum(ids, rows - 1), 0)
    flat = op.reshape(w, (groups * depth, width))
    y = plan.of(products.grouped)(x, flat, ids, group, size=size)
    row = op.arange(rows)
    mine = op.searchsorted(starts, row, side="right") - 1
    at = op.take(before, mine, axis=0) * size + row - op.take(starts, mine, axis=0)
    return op.take(y, at, axis=0)


_grouped = custom_vjp(_grouped_of, nondiff_argnums=(0,))


def _grouped_forward(plan: RoutinePlan, x: Any, w: Any, sizes: Any) -> Any:
    return _grouped_of(plan, x, w, sizes), (x, w, sizes)


def _grouped_backward(plan: RoutinePlan, held: Any, ct: Any) -> Any:
    x, w, sizes = held
    ends: Any = op.cumsum(sizes, axis=0)
    row = op.arange(x.shape[0])
    mine: Any = op.logical_and(op.lt(row, ends[:, None]), op.ge(row, (ends - sizes)[:, None]))
    own = op.where(mine[:, :, None], x[None], op.zeros((), x.dtype))
    dw = op.matmul(op.swapaxes(own, -1, -2), op.broadcast_to(ct, (w.shape[0], *ct.shape)))
    return _grouped_of(plan, ct, op.swapaxes(w, -1, -2), sizes), dw, None


_grouped.defvjp(_grouped_forward, _grouped_backward)
