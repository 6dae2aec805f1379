"""stable_softmax, efficient_layernorm and rmsnorm: one pass over rows, with derivatives."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from tessera.core.errors import AxisError
from tessera.lang import op
from tessera.lang.custom_rules import custom_vjp
from tessera.lang.schedule import block
from tessera.ops.define import as_value
from tessera.stdlib.kernels import rows
from tessera.stdlib.routine import RoutinePlan, routine


def as_rows(x: Any) -> Any:
    """A tensor as a matrix of its last axis."""
    return x if len(x.shape) == 2 else op.reshape(x, (-1, x.shape[-1]))


def like(y: Any, x: Any) -> Any:
    """A matrix of rows in the shape of the tensor that they are of."""
    return y if len(x.shape) == 2 else op.reshape(y, x.shape)


LONG = 512  # elements from which a row is a block of its own: it then stays in the first cache


def planned(plan: RoutinePlan, x: Any) -> RoutinePlan:
    """The plan for rows of this length, unless a user has chosen."""
    width = x.shape[-1]
    if not plan.fitted or not isinstance(width, int) or width < LONG:
        return plan
    return _row_by_row(plan)


@lru_cache(maxsize=64)
def _row_by_row(plan: RoutinePlan) -> RoutinePlan:
    return RoutinePlan(plan.schedule.with_block(1), gpu=plan.gpu)


@routine(block(4), gpu=block(1).warps(1))
def stable_softmax(plan: RoutinePlan, x: Any, axis: int = -1) -> Any:
    """exp(x) / sum(exp(x)) along an axis, by way of the largest element."""
    x = as_value(x, "stable_softmax")
    rank = len(x.shape)
    if not -rank <= axis < rank:
        raise AxisError(f"stable_softmax: axis {axis} is no axis of {x.type}")
    if axis % rank == rank - 1:
        return _softmax(plan, x)
    return op.moveaxis(_softmax(plan, op.moveaxis(x, axis, -1)), -1, axis)


def _softmax_of(plan: RoutinePlan, x: Any) -> Any:
    return like(planned(plan, x).of(rows.softmax)(as_rows(x)), x)


_softmax = custom_vjp(_softmax_of, nondiff_argnums=(0,))


def _softmax_forward(plan: RoutinePlan, x: Any) -> Any:
    y = _softmax_of(plan, x)
    return y, y


def _softmax_backward(plan: RoutinePlan, y: Any, ct: Any) -> Any:
    dx = planned(plan, y).of(rows.softmax_back)(as_rows(y), as_rows(ct))
    return (like(dx, y),)


_softmax.defvjp(_softmax_forward, _softmax_backward)


@routine(block(4), gpu=block(1).warps(1))
def efficient_layernorm(
    plan: RoutinePlan, x: Any, gain: Any = None, bias: Any = None, *, eps: float = 1e-5
) -> Any:
    """(x - mean) / sqrt(variance + eps) * gain + bias along the last axis."""
    x = as_value(x, "efficient_layernorm")
    return _norm(plan, eps, True, x, gain, bias)


@routine(block(4), gpu=block(1).warps(1))
def rmsnorm(plan: RoutinePlan, x: Any, gain: Any = None, *, eps: float = 1e-6) -> Any:
    """x / sqrt(mean(x * x) + eps) * gain along the last axis."""
    return _norm(plan, eps, False, as_value(x, "rmsnorm"), gain, None)


def _normed(
    plan: RoutinePlan, eps: float, centred: bool, x: Any, gain: Any, bias: Any, stats: bool = False
) -> Any:
    """What a kernel gives: y, or y with the mean, if it is taken away, and the rate of each row."""
    plan = planned(plan, x)
    if centred:
        return plan.of(rows.layernorm)(as_rows(x), gain, bias, eps=eps, stats=stats)
    return plan.of(rows.rmsnorm)(as_rows(x), gain, eps=eps, stats=stats)


def _norm_of(plan: RoutinePlan, eps: float, centred: bool, x: Any, gain: Any, bias: Any) -> Any:
    return like(_normed(plan, eps, centred, x, gain, bias), x)


_norm = custom_vjp(_norm_of, nondiff_argnums=(0, 1, 2))


def _norm_forward(
    plan: RoutinePlan, eps: float, centred: bool, x: Any, gain: Any, bias: Any
) -> Any:
    y, *stats = _normed(plan, eps, centred, x, gain, bias, stats=True)
    return like(y, x), (x, gain, bias, stats)


def _norm_backward(plan: RoutinePlan, eps: float, centred: bool, held: Any, ct: Any) -> Any:
    x, gain, bias, stats = held
    mean, rate = stats if centred else (None, *stats)
    sums = gain is not None or bias is not None
    made = plan.of(rows.norm_back)(as_rows(x), mean, rate, gain, as_rows(ct), sums=sums)
    if not sums:
        return like(made, x), None, None
    dx, parts = made
    dgain, dbias = op.unstack(op.sum(parts, axis=1))
    return (
        like(dx, x),
        None if gain is None else op.cast(dgain, gain.dtype),
        None if bias is None else op.cast(dbias, bias.dtype),
    )


_norm.defvjp(_norm_forward, _norm_backward)
