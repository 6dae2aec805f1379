"""fused_adam: the step of an optimizer in one pass over parameters, gradients and moments."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.core import tree
from tessera.core.dtype import f32, f64
from tessera.lang import op
from tessera.lang.schedule import block
from tessera.ops.define import as_value
from tessera.stdlib.kernels import streams
from tessera.stdlib.routine import RoutinePlan, routine


@routine(block(4096), gpu=block(1024).warps(4))
def fused_adam(
    plan: RoutinePlan, params: Any, grads: Any, m: Any, v: Any, step: Any, *,
    lr: float = 1e-3, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, decay: float = 0.0,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Parameters and both moments after step 1, 2, ... of Adam; with decay, of AdamW.

    Each of them is a tensor or a tree of tensors; moments are f32 and begin as zeros.
    """
    scales = _scales(step, lr, b1, b2, decay)
    settings = {"b1": b1, "b2": b2, "eps": eps}

    def one(*xs: Any) -> list[Any]:
        values = [as_value(x, "fused_adam") for x in xs]
        flat = [x if len(x.shape) == 1 else op.reshape(x, (-1,)) for x in values]
        made = plan.of(streams.adam)(*flat, *scales, **settings)
        return [
            y if len(x.shape) == 1 else op.reshape(y, x.shape)
            for y, x in zip(made, (values[0], values[2], values[3]), strict=True)
        ]

    leaves, shape = tree.flatten(params)
    others = [tree.flatten(t)[0] for t in (grads, m, v)]
    new = [one(*xs) for xs in zip(leaves, *others, strict=True)]
    first, second, third = (tree.unflatten(shape, list(xs)) for xs in zip(*new, strict=True))
    return first, second, third


def _scales(step: Any, lr: float, b1: float, b2: float, decay: float) -> list[Any]:
    """The size of the step, what sqrt(v) is multiplied by, and what is kept of a parameter: from float64."""
    kept = np.asarray(1 - lr * decay, np.float32)
    if isinstance(step, int):
        plain = lr / (1 - b1**step), (1 - b2**step) ** -0.5
        return [*(np.asarray(x, np.float32) for x in plain), kept]
    count = op.cast(as_value(step, "fused_adam"), f64)
    made = lr / (1 - op.pow(b1, count)), op.rsqrt(1 - op.pow(b2, count))
    return [*(op.cast(x, f32) for x in made), kept]
