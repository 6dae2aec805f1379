"""Connectionist temporal classification (Graves et al. 2006): the likelihood of labels
over all alignments.
"""

from __future__ import annotations

from typing import Any

from tessera.core.constraints import unify
from tessera.core.dtype import i64
from tessera.core.errors import OperandError, ShapeError
from tessera.ir.graph.ir import Value
from tessera.ops.arrange import arange
from tessera.ops.control import scan
from tessera.ops.creation import full, full_like
from tessera.ops.define import ArrayLike, as_value, cast_to, floating, public, wide
from tessera.ops.elementwise import (
    add,
    div,
    eq,
    gt,
    logaddexp,
    logical_and,
    lt,
    maximum,
    mul,
    ne,
    neg,
    sub,
    where,
)
from tessera.ops.gather import take_along_axis
from tessera.ops.loss import reduced
from tessera.ops.shape import broadcast_to, concat, expand_dims, reshape, slice_, stack, transpose
from tessera.ops.whole import whole_tensor

# log 0: far below any likelihood, and finite, so that derivatives stay numbers.
_NEVER = -1e30


@public
def ctc_loss(
    log_probabilities: ArrayLike,
    labels: ArrayLike,
    lengths: ArrayLike = None,
    label_lengths: ArrayLike = None,
    blank: int = 0,
    reduction: str = "mean",
) -> Value:
    """-log of the chance of labels under log_probabilities (batch, time, classes), over all alignments.

    lengths and label_lengths (batch,) say how much of each row counts.  The mean is over the batch of
    losses divided by the lengths of their labels.  Labels that do not fit into their time have an infinite
    loss.
    """
    x, y = floating(as_value(log_probabilities, "ctc_loss")), as_value(labels, "ctc_loss")
    if x.ndim != 3 or y.ndim != 2 or y.dtype.kind not in "iu":
        raise ShapeError(
            f"ctc_loss: got {x.type} and labels {y.type}, expected (batch, time, classes) and numbers "
            "(batch, most)"
        )
    for name, v in (("labels", y), ("lengths", lengths), ("label_lengths", label_lengths)):
        if v is not None and not _fits(x, v, name):
            got = as_value(v, "ctc_loss").type
            raise ShapeError(
                f"ctc_loss: {name} is {got}, expected one row for each of {x.shape[0]} in {x.type} "
                "(batch, time, classes); of (time, batch, classes), as in PyTorch, swap the first two "
                "with swapaxes(0, 1)"
            )
    if not 0 <= blank < x.shape[2]:
        raise OperandError(f"ctc_loss: blank is {blank}, expected a class below {x.shape[2]}")
    (w,) = wide(x)
    batch, time, most = x.shape[0], x.shape[1], y.shape[1]
    times = (
        full((batch,), time, i64)
        if lengths is None
        else whole_tensor("ctc_loss", "lengths", lengths)
    )
    sizes = (
        full((batch,), most, i64)
        if label_lengths is None
        else whole_tensor("ctc_loss", "label_lengths", label_lengths)
    )
    losses = _negative_log(w, cast_to(y, i64), times, sizes, blank)
    if reduction == "mean":
        losses = div(losses, cast_to(maximum(sizes, 1), losses.dtype))
    return cast_to(reduced("ctc_loss", losses, reduction), x.dtype)


def _fits(x: Value, rows: ArrayLike, name: str) -> bool:
    """Whether there is a label, or a length, for each of the batch."""
    v = as_value(rows, "ctc_loss")
    if v.ndim != (2 if name == "labels" else 1):
        return False
    return unify(x.shape[0], v.shape[0], f"ctc_loss: the batch of {name}")


def _negative_log(x: Value, labels: Value, times: Value, sizes: Value, blank: int) -> Value:
    """The forward recursion over labels with blanks between them: (batch, 2 * most + 1) states."""
    batch, time, _ = x.shape
    blanks = full_like(labels, blank)
    pairs = reshape(stack([blanks, labels], axis=-1), (batch, 2 * labels.shape[1]))
    states = concat([pairs, full((batch, 1), blank, i64)], axis=1)
    count = states.shape[1]
    seen = take_along_axis(x, broadcast_to(expand_dims(states, 1), (batch, time, count)), axis=2)
    skips = logical_and(ne(states, blank), ne(states, _shifted(states, 2, blank)))
    place = arange(count)
    here = lt(place, add(mul(expand_dims(sizes, -1), 2), 1))
    never = full((batch, count), _NEVER, x.dtype)
    first = where(
        lt(place, 2), reshape(slice_(seen, (0, 0, 0), (batch, 1, count)), (batch, count)), never
    )
    start = where(here, first, never)

    def step(alpha: Any, at: Any) -> tuple[Any, Any]:
        now, t = at
        one, two = _shifted(alpha, 1, _NEVER), _shifted(alpha, 2, _NEVER)
        total = logaddexp(logaddexp(alpha, one), where(skips, two, never))
        new = where(here, maximum(add(total, now), _NEVER), never)
        return where(expand_dims(lt(t, times), -1), new, alpha), ()

    rest = slice_(transpose(seen, (1, 0, 2)), (1, 0, 0), (time, batch, count))
    last, _ = scan(step, start, (rest, add(arange(time - 1), 1)))
    end = expand_dims(mul(sizes, 2), -1)
    final = take_along_axis(last, end, axis=1)
    before = take_along_axis(last, maximum(sub(end, 1), 0), axis=1)
    before = where(eq(end, 0), full_like(before, _NEVER), before)
    loss = reshape(neg(logaddexp(final, before)), (batch,))
    return where(gt(loss, -0.5 * _NEVER), full_like(loss, float("inf")), loss)


def _shifted(x: Value, by: int, value: Any) -> Value:
    """x (batch, states) moved to later states, with a value before them."""
    batch, count = x.shape
    blank = full((batch, min(by, count)), value, x.dtype)
    return slice_(concat([blank, x], axis=1), (0, 0), (batch, count))
