"""fused_cross_entropy: logits to losses in one pass, and no tensor of probabilities."""

from __future__ import annotations

from typing import Any

from tessera.core.dtype import f32, i64
from tessera.core.errors import DTypeError, OperandError
from tessera.lang import op
from tessera.lang.custom_rules import custom_vjp
from tessera.lang.schedule import block
from tessera.ops.define import as_value
from tessera.ops.places import labels_of, nearest
from tessera.stdlib.kernels import loss as kernels
from tessera.stdlib.routine import RoutinePlan, routine
from tessera.stdlib.rows import as_rows, like


@routine(block(2), gpu=block(1).warps(8))
def fused_cross_entropy(
    plan: RoutinePlan, logits: Any, labels: Any, *, label_smoothing: float = 0.0, reduction: str = "mean",
    ignore_index: int | None = -100,
) -> Any:  # fmt: skip
    """The cross entropy of softmax(logits) of (..., classes) with class numbers (...).

    Rows whose label is ignore_index count for nothing.  reduction: mean, sum or none.
    """
    if reduction not in ("mean", "sum", "none"):
        raise OperandError(
            f"fused_cross_entropy: reduction is {reduction!r}, expected mean, sum or none"
        )
    x = as_value(logits, "fused_cross_entropy")
    y = _classes(x, as_value(labels, "fused_cross_entropy"), ignore_index)
    losses: Any = _losses(plan, label_smoothing, as_rows(x), y)
    if reduction == "none":
        return op.reshape(losses, x.shape[:-1])
    if reduction == "sum":
        return op.sum(losses)
    return op.sum(losses) / op.sum(op.cast(op.ge(y, 0), f32))


def _classes(x: Any, labels: Any, ignore: int | None) -> Any:
    """The class of each row, -1 where it is ignored: a label that is no class stands for the nearest."""
    if labels.dtype.kind not in "iu":
        raise DTypeError(f"fused_cross_entropy: labels are {labels.type}, expected class numbers")
    last = x.ndim - 1
    what = f"the classes, axis {last} of {x.type}"
    y = labels_of("fused_cross_entropy", labels, x.shape[-1], ignore, what)
    y = op.reshape(y, (-1,))
    (near,) = nearest([op.cast(y, i64)], x, (last,))
    return near if ignore is None else op.where(op.eq(y, ignore), -1, near)


def _losses_of(plan: RoutinePlan, smoothing: float, x: Any, y: Any) -> Any:
    return plan.of(kernels.cross_entropy)(x, y, smoothing=smoothing)[0]


_losses = custom_vjp(_losses_of, nondiff_argnums=(0, 1))


def _forward(plan: RoutinePlan, smoothing: float, x: Any, y: Any) -> Any:
    losses, sums = plan.of(kernels.cross_entropy)(x, y, smoothing=smoothing)
    return losses, (x, y, sums)


def _backward(plan: RoutinePlan, smoothing: float, held: Any, ct: Any) -> Any:
    x, y, sums = held
    made = plan.of(kernels.cross_entropy_back)(x, y, sums, ct, smoothing=smoothing)
    return like(made, x), None


_losses.defvjp(_forward, _backward)
