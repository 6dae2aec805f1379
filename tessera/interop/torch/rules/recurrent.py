"""Recurrent layers that PyTorch keeps whole, as scans over time."""

from __future__ import annotations

from typing import Any

from tessera.core.dtype import u8
from tessera.interop.torch.rule import AtenCall, NoRuleError, rule
from tessera.lang import op

_LSTM = 2  # the kind of network, as oneDNN counts them


@rule("mkldnn_rnn_layer")
def _lstm(
    n: AtenCall, x: Any, into: Any, again: Any, bias: Any, bias_again: Any, h: Any, c: Any, reverse: bool,
    batch_sizes: Any, mode: int, hidden: int, layers: int, has_biases: bool, bidirectional: bool,
    batch_first: bool, train: bool,
) -> Any:  # fmt: skip
    """One direction of one layer of an LSTM over x (time, batch, features)."""
    if mode != _LSTM or layers != 1 or bidirectional or batch_first or batch_sizes:
        raise NoRuleError("a recurrent layer other than one direction of an LSTM")
    time, batch, features = x.shape
    given = op.matmul(op.reshape(x, (time * batch, features)), op.transpose(into))
    rows = op.reshape(op.add(given, op.add(bias, bias_again)), (time, batch, 4 * hidden))
    weights = op.transpose(again)

    def step(carry: Any, row: Any) -> Any:
        h, c = carry
        i, f, g, o = op.split(op.add(row, op.matmul(h, weights)), 4, -1)
        c = op.add(op.mul(op.sigmoid(f), c), op.mul(op.sigmoid(i), op.tanh(g)))
        h = op.mul(op.sigmoid(o), op.tanh(c))
        return (h, c), h

    start = tuple(op.reshape(s, (batch, hidden)) for s in (h, c))
    last, y = op.scan(step, start, rows, reverse=reverse)
    return y, *(op.reshape(s, (1, batch, hidden)) for s in last), op.zeros((0,), u8)
