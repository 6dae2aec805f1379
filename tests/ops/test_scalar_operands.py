"""Tensors without axes where an op folds, normalises or contracts axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import f64, op

FOLDS: dict[str, tuple[Callable[..., Any], float]] = {
    "sum": (op.sum, 1.5), "prod": (op.prod, 1.5), "max": (op.max, 1.5), "mean": (op.mean, 1.5),
    "var": (op.var, 0.0), "logsumexp": (op.logsumexp, 1.5), "logsumexp_safe": (op.logsumexp_safe, 1.5),
    "l2norm": (op.l2norm, 1.5), "softmax": (lambda x: op.softmax(x, ()), 1.0),
    "softmax_safe": (lambda x: op.softmax_safe(x, ()), 1.0),
    "log_softmax": (lambda x: op.log_softmax(x, ()), 0.0),
    "layernorm": (lambda x: op.layernorm(x, axis=()), 0.0),
    "layernorm_safe": (lambda x: op.layernorm_safe(x, axis=()), 0.0),
    "rmsnorm": (lambda x: op.rmsnorm(x, axis=(), eps=0.0), 1.0),
    "rmsnorm_safe": (lambda x: op.rmsnorm_safe(x, axis=(), eps=0.0), 1.0),
    "einsum": (lambda x: op.einsum("->", x), 1.5), "contract": (lambda x: op.contract(" -> ", x), 1.5),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDS)
def test_a_fold_of_a_scalar(name: str) -> None:
    """One operand without axes is not no operand: eagerly, jitted, in a batch and differentiated."""
    f, want = FOLDS[name]
    x = ts.tensor(1.5, dtype=f64)
    assert f(x).shape == ()
    for y in (f(x), ts.jit(f)(x), ts.vmap(f)(ts.tensor([1.5, 1.5], dtype=f64))[1]):
        np.testing.assert_allclose(np.asarray(y), want, atol=1e-12)
    assert np.isfinite(np.asarray(ts.grad(f)(x)))
    assert np.isfinite(np.asarray(ts.jit(ts.grad(f))(x)))
