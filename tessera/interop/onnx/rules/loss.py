"""Losses over classes."""

from __future__ import annotations

from typing import Any

from tessera.core.dtype import i64
from tessera.interop.onnx.rule import NodeCall, rule
from tessera.lang import op
from tessera.ops.define import as_value


def _negative_log_likelihood(n: NodeCall, logp: Any, target: Any, weight: Any) -> Any:
    """Minus the log-probability of each target, weighted and reduced."""
    logp = as_value(logp)
    target = op.cast(target, i64)
    ignore = n.get("ignore_index")
    index = target if ignore is None else op.where(op.eq(target, ignore), 0, target)
    picked = op.squeeze(op.take_along_axis(logp, op.expand_dims(index, 1), 1), 1)
    loss = op.neg(picked)
    factor = None if weight is None else op.take(weight, index, 0)
    if ignore is not None:
        on = op.cast(op.ne(target, ignore), logp.dtype)
        factor = on if factor is None else op.mul(factor, on)
    if factor is not None:
        loss = op.mul(loss, factor)
    how = n.get("reduction", "mean")
    if how == "none":
        return loss
    if how == "sum":
        return op.sum(loss)
    return op.mean(loss) if factor is None else op.div(op.sum(loss), op.sum(factor))


@rule("NegativeLogLikelihoodLoss")
def _nll(n: NodeCall, x: Any, target: Any, weight: Any = None) -> Any:
    return _negative_log_likelihood(n, x, target, weight)


@rule("SoftmaxCrossEntropyLoss")
def _softmax_cross_entropy(n: NodeCall, x: Any, target: Any, weight: Any = None) -> Any:
    logp = op.log_softmax(x, 1)
    return _negative_log_likelihood(n, logp, target, weight), logp
