"""The tools find nothing wrong with the kernels of stdlib: races, bounds, barriers, scratch, banks."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import block
from tessera.stdlib.kernels import attention, loss, products, rows, streams


def data(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


X, GAIN, ONE = data(20, 16), data(16), np.ones((), np.float32)
Q, K, V = data(3, 2, 20, 16), data(3, 30, 16), data(3, 30, 12)
Y, LENGTHS = data(3, 2, 20, 12), np.full((3, 2, 2), 7)
LABELS, GROUPS = np.zeros(20, np.int64), np.zeros(3, np.int64)
MASKS = {"scale": 0.25, "causal": True, "window": 9, "sink": 2, "dropout": 0.1, "seed": 0}
FULL = {"scale": 0.25, "causal": False, "window": None, "sink": 0, "dropout": 0.0, "seed": 0}

CASES = {
    "softmax": (rows.softmax, (X,), {}),
    "softmax back": (rows.softmax_back, (X, X), {}),
    "layernorm": (rows.layernorm, (X, GAIN, GAIN), {"eps": 1e-5, "stats": True}),
    "rmsnorm": (rows.rmsnorm, (X, GAIN), {"eps": 1e-5, "stats": True}),
    "norm back": (rows.norm_back, (X, data(20), data(20), GAIN, X), {"sums": True}),
    "attention": (attention.attention, (Q, K, V, None), {"stats": True, **FULL}),
    "masked attention": (attention.attention, (Q, K, V, None), {"stats": True, **MASKS}),
    "attention of lengths": (attention.attention, (Q, K, V, LENGTHS), {"stats": False, **FULL}),
    "attention back": (attention.attention_back, (Q, K, V, None, Y[..., 0], Y, Y), FULL),
    "masked back": (attention.attention_back, (Q, K, V, LENGTHS, Y[..., 0], Y, Y), MASKS),
    "rope": (streams.rope, (data(2, 20, 2, 8), data(20, 8), data(20, 8)), {"back": True}),
    "adam": (streams.adam, (*[GAIN] * 4, ONE, ONE, ONE), {"b1": 0.9, "b2": 0.99, "eps": 1e-8}),
    "cross entropy": (loss.cross_entropy, (X, LABELS), {"smoothing": 0.1}),
    "cross entropy back": (
        loss.cross_entropy_back, (X, LABELS, data(20), data(20)), {"smoothing": 0.1}
    ),
    "matmul": (
        products.matmul, (X[None], data(1, 16, 9), data(9), data(1, 20, 9)), {"activation": "gelu"}
    ),
    "grouped": (products.grouped, (X, data(32, 8), np.zeros(24, np.int64), GROUPS), {"size": 8}),
    "weights": (products.by_weights, (X, data(16, 8).astype(np.int8), data(2, 8)), {"group": 8}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_no_tool_reports_anything(name):
    f, args, settings = CASES[name]
    report = ts.check(f.with_schedule(block(8, 8).k(8)), *args, **settings)
    assert report.ok, str(report)
    for tool in ("races", "bounds"):
        assert all(v.is_proof for v in report.of(tool)), str(report)
