"""flash_attention_2: attention without a matrix of scores in memory, forward and backward."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tessera.core.errors import OperandError, ShapeError
from tessera.lang import op
from tessera.lang.custom_rules import custom_vjp
from tessera.lang.schedule import block
from tessera.ops.define import as_value
from tessera.ops.whole import whole_tensor
from tessera.stdlib.kernels import attention as kernels
from tessera.stdlib.routine import RoutinePlan, routine


@dataclass(frozen=True)
class AttentionSettings:
    """What the kernels of one call are made for."""

    scale: float
    causal: bool
    window: int | None
    sink: int
    dropout: float
    seed: int


@routine(block(128, 128), gpu=block(64, 128).warps(8).stages(1))
def flash_attention_2(
    plan: RoutinePlan, q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None,
    window: int | None = None, sink: int = 0, dropout: float = 0.0, seed: int = 0, lengths: Any = None,
) -> Any:  # fmt: skip
    """softmax(q k^T * scale) v on (..., heads, rows, size); k and v may have fewer heads, which divide q's.

    causal: a row sees no later key, and the last row sees the last key.  window: it sees keys less than so
    far away, and the first `sink` keys.  dropout: weights are dropped by Philox with this seed.  lengths:
    i64 (..., 2), how many rows and keys each sequence has; the other rows of the result are 0.
    """
    q, k, v = (as_value(x, "flash_attention_2") for x in (q, k, v))
    heads, shared = _heads(q, k, v)
    _check(window, sink, dropout)
    size = q.shape[-1]
    factor = 1 / math.sqrt(size) if scale is None else float(scale)
    chosen = AttentionSettings(factor, causal, window, sink, float(dropout), seed)
    if plan.gpu and lengths is None and _is_plain(q, k, chosen):
        return op.attention(q, k, v, causal=causal, scale=factor)
    if lengths is not None:
        found = op.reshape(whole_tensor("flash_attention_2", "lengths", lengths), (-1, 1, 2))
        lengths = op.broadcast_to(found, (found.shape[0], heads, 2))
        lengths = op.reshape(lengths, (-1, heads // shared, 2))
    groups = op.reshape(q, (-1, heads // shared, *q.shape[-2:]))
    y = _attention(plan, chosen, groups, _flat(k), _flat(v), lengths)
    return op.reshape(y, (*q.shape[:-1], v.shape[-1]))


def _is_plain(q: Any, k: Any, s: AttentionSettings) -> bool:
    """Whether it is the attention that the compiler has kernels for on a GPU, in both directions."""
    square = not s.causal or q.shape[-2] is k.shape[-2] or q.shape[-2] == k.shape[-2]
    return bool(q.dtype.bits == 16 and square and s.window is None and not s.dropout)


def _flat(x: Any) -> Any:
    """Heads of all batches as one axis."""
    return x if len(x.shape) == 3 else op.reshape(x, (-1, *x.shape[-2:]))


def _heads(q: Any, k: Any, v: Any) -> tuple[int, int]:
    if not len(q.shape) == len(k.shape) == len(v.shape) or len(q.shape) < 2:
        raise ShapeError(
            f"flash_attention_2: got {q.type}, {k.type} and {v.type}, expected (..., heads, rows, size) of "
            "one rank"
        )
    if len(q.shape) == 2:
        return 1, 1
    heads, shared = q.shape[-3], k.shape[-3]
    if v.shape[-3] != shared or heads % shared:
        raise ShapeError(
            f"flash_attention_2: q has {heads} heads, k {shared} and v {v.shape[-3]}; those of k and v must "
            "be "
            "as many, and divide those of q"
        )
    return heads, shared


def _check(window: int | None, sink: int, dropout: float) -> None:
    if window is not None and window < 1:
        raise OperandError(f"flash_attention_2: window is {window}, expected at least 1")
    if sink < 0 or (sink and window is None):
        raise OperandError(f"flash_attention_2: sink is {sink}, expected 0, or more with a window")
    if not 0 <= dropout < 1:
        raise OperandError(
            f"flash_attention_2: dropout is {dropout}, expected at least 0 and less than 1"
        )


def _attention_of(
    plan: RoutinePlan, s: AttentionSettings, q: Any, k: Any, v: Any, lengths: Any
) -> Any:
    return plan.of(kernels.attention)(q, k, v, lengths, stats=False, **vars(s))


_attention = custom_vjp(_attention_of, nondiff_argnums=(0, 1))


def _forward(plan: RoutinePlan, s: AttentionSettings, q: Any, k: Any, v: Any, lengths: Any) -> Any:
    y, sums = plan.of(kernels.attention)(q, k, v, lengths, stats=True, **vars(s))
    return y, (q, k, v, lengths, sums, y)


def _backward(plan: RoutinePlan, s: AttentionSettings, held: Any, ct: Any) -> Any:
    q, k, v, lengths, sums, y = held
    dq, dk, dv, _ = plan.of(kernels.attention_back)(q, k, v, lengths, sums, y, ct, **vars(s))
    return dq if dq.dtype is q.dtype else op.cast(dq, q.dtype), dk, dv, None


_attention.defvjp(_forward, _backward)


@routine(block(128, 128), gpu=block(64, 128).warps(8).stages(1))
def flash_attention_varlen(
    plan: RoutinePlan, q: Any, k: Any, v: Any, starts: Any, starts_k: Any = None, *,
    most: int, most_k: int | None = None, **settings: Any,
) -> Any:  # fmt: skip
    """flash_attention_2 of sequences that lie one after the other on (heads, rows of all, size).

    Sequence i has the rows from starts[i] up to starts[i + 1], at most `most`; keys likewise.  Its result
    has the bits that it has alone.
    """
    q, k, v = (as_value(x, "flash_attention_varlen") for x in (q, k, v))
    rows: Any = whole_tensor("flash_attention_varlen", "starts", starts)
    keys: Any = rows
    if starts_k is not None:
        keys = whole_tensor("flash_attention_varlen", "starts_k", starts_k)
    lengths = op.stack([rows[1:] - rows[:-1], keys[1:] - keys[:-1]], axis=-1)
    far = most if most_k is None else most_k
    y = flash_attention_2.function(
        plan,
        _apart(q, rows, most),
        _apart(k, keys, far),
        _apart(v, keys, far),
        lengths=lengths,
        **settings,
    )
    return _together(y, rows, q.shape[-2])


def _apart(x: Any, starts: Any, most: int) -> Any:
    """Sequences of one tensor as a batch: (sequences, heads, most, size)."""
    heads, total, size = x.shape
    at = op.minimum(starts[:-1, None] + op.arange(most), total - 1)
    found = op.take(x, op.reshape(at, (-1,)), axis=1)
    return op.transpose(op.reshape(found, (heads, at.shape[0], most, size)), (1, 0, 2, 3))


def _together(y: Any, starts: Any, total: int) -> Any:
    """The inverse: a batch as rows one after the other."""
    count, heads, most, size = y.shape
    row = op.arange(total)
    sequence = op.searchsorted(starts, row, side="right") - 1
    at = sequence * most + row - op.take(starts, sequence, axis=0)
    flat = op.reshape(op.transpose(y, (1, 0, 2, 3)), (heads, count * most, size))
    return op.take(flat, at, axis=1)
