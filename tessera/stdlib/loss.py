"""fused_cross_entropy: logits to losses in one pass, and no tensor of probabilities."""

from __future__ import annotations

from typing import Any

from tessera.core.dtype import f32, i64
from tessera.core.errors import OperandError
from tessera.lang import op
from tessera.lang.custom_rules import custom_vjp
from tessera.lang.schedule import block
from tessera.ops.define import as_value
from tessera.stdlib.kernels import loss as kernels
from tessera.stdlib.routine import Plan, routine
from tessera.stdlib.rows import as_rows, like


@routine(block(2), gpu=block(1).warps(8))
def fused_cross_entropy(
    plan: Plan, logits: Any, labels: Any, *, label_smoothing: float = 0.0, reduction: str = "mean"
) -> Any:
    """The cross entropy of softmax(logits) of (..., classes) with class numbers (...).

    Rows whose label is no class, such as -100, count for nothing.  reduction: mean, sum or none.
    """
    if reduction not in ("mean", "sum", "none"):
        raise OperandError(
            f"fused_cross_entropy: reduction is {reduction!r}, expected mean, sum or none"
        )
    x = as_value(logits, "fused_cross_entropy")
    y = op.cast(op.reshape(as_value(labels, "fused_cross_entropy"), (-1,)), i64)
    losses: Any = _losses(plan, label_smoothing, as_rows(x), y)
    if reduction == "none":
        return op.reshape(losses, x.shape[:-1])
    if reduction == "sum":
        return op.sum(losses)
    known = op.logical_and(op.ge(y, 0), op.lt(y, x.shape[-1]))
    return op.sum(losses) / op.sum(op.cast(known, f32))


def _losses_of(plan: Plan, smoothing: float, x: Any, y: Any) -> Any:
    return plan.of(kernels.cross_entropy)(x, y, smoothing=smoothing)[0]


_losses = custom_vjp(_losses_of, nondiff_argnums=(0, 1))


def _forward(plan: Plan, smoothing: float, x: Any, y: Any) -> Any:
    losses, sums = plan.of(kernels.cross_entropy)(x, y, smoothing=smoothing)
    return losses, (x, y, sums)


def _backward(plan: Plan, smoothing: float, held: Any, ct: Any) -> Any:
    x, y, sums = held
    made = plan.of(kernels.cross_entropy_back)(x, y, sums, ct, smoothing=smoothing)
    return like(made, x), None


_losses.defvjp(_forward, _backward)
