"""The layer of nn.TransformerEncoder, which PyTorch runs as one op where nothing wants gradients."""

from __future__ import annotations

import math
from typing import Any

from tessera.interop.torch.rule import AtenCall, NoRuleError, rule
from tessera.lang import op


@rule("_transformer_encoder_layer_fwd")
def _encoder_layer(
    n: AtenCall, x: Any, width: int, heads: int, qkv_weight: Any, qkv_bias: Any, out_weight: Any,
    out_bias: Any, gelu: bool, norm_first: bool, eps: float, gain_1: Any, shift_1: Any, gain_2: Any,
    shift_2: Any, up_weight: Any, up_bias: Any, down_weight: Any, down_bias: Any, mask: Any = None,
    mask_type: int | None = None,
) -> Any:  # fmt: skip
    """x (batch, time, width)."""
    if mask is not None:
        raise NoRuleError("a mask")

    def norm_1(x: Any) -> Any:
        return op.add(op.mul(op.layernorm(x, eps=eps), gain_1), shift_1)

    def norm_2(x: Any) -> Any:
        return op.add(op.mul(op.layernorm(x, eps=eps), gain_2), shift_2)

    def attended(x: Any) -> Any:
        batch, time = x.shape[:2]
        both = op.add(op.matmul(x, op.transpose(qkv_weight)), qkv_bias)
        split = op.reshape(both, (batch, time, 3, heads, width // heads))
        q, k, v = op.unstack(op.transpose(split, (2, 0, 3, 1, 4)), axis=0)
        y = op.attention(q, k, v, scale=1 / math.sqrt(width // heads))
        y = op.reshape(op.transpose(y, (0, 2, 1, 3)), (batch, time, width))
        return op.add(op.matmul(y, op.transpose(out_weight)), out_bias)

    def fed(x: Any) -> Any:
        y = op.add(op.matmul(x, op.transpose(up_weight)), up_bias)
        y = op.gelu(y) if gelu else op.relu(y)
        return op.add(op.matmul(y, op.transpose(down_weight)), down_bias)

    if norm_first:
        x = op.add(x, attended(norm_1(x)))
        return op.add(x, fed(norm_2(x)))
    x = norm_1(op.add(x, attended(x)))
    return norm_2(op.add(x, fed(x)))
