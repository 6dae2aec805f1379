"""Random numbers.

A node with a seed draws the same numbers at each call, those of the reference implementation (NumPy's
RandomState).  A node without one draws from the entropy of the process, once for each trace.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.core.dtype import as_dtype, bool_
from tessera.interop.onnx.model import DTYPES
from tessera.interop.onnx.rule import NodeCall, numpy_dtype, one, rule, shape_of
from tessera.lang import op
from tessera.ops.define import as_value


def _draws(n: NodeCall) -> np.random.RandomState:
    seed = n.get("seed")
    return np.random.RandomState(None if seed is None else int(seed) & 0xFFFFFFFF)


def _dtype(n: NodeCall, x: Any = None) -> np.dtype[Any]:
    number = n.get("dtype")
    if number is None:
        return np.dtype(np.float32) if x is None else numpy_dtype(x)
    return DTYPES[number]


def _static(shape: Any) -> tuple[int, ...]:
    return tuple(int(s) for s in shape)


@rule("RandomUniform", fold=False)
def _uniform(n: NodeCall) -> Any:
    low, high = n.get("low", 0.0), n.get("high", 1.0)
    return _draws(n).uniform(low, high, _static(n.need("shape"))).astype(_dtype(n))


@rule("RandomUniformLike", fold=False)
def _uniform_like(n: NodeCall, x: Any) -> Any:
    low, high = n.get("low", 0.0), n.get("high", 1.0)
    return _draws(n).uniform(low, high, _static(shape_of(x))).astype(_dtype(n, x))


@rule("RandomNormal", fold=False)
def _normal(n: NodeCall) -> Any:
    mean, scale = n.get("mean", 0.0), n.get("scale", 1.0)
    return _draws(n).normal(mean, scale, _static(n.need("shape"))).astype(_dtype(n))


@rule("RandomNormalLike", fold=False)
def _normal_like(n: NodeCall, x: Any) -> Any:
    mean, scale = n.get("mean", 0.0), n.get("scale", 1.0)
    return _draws(n).normal(mean, scale, _static(shape_of(x))).astype(_dtype(n, x))


@rule("Bernoulli", fold=False)
def _bernoulli(n: NodeCall, x: Any) -> Any:
    u = _draws(n).uniform(0, 1, _static(shape_of(x))).astype(np.float64)
    return op.cast(op.lt(u, op.cast(x, "f64")), as_dtype(_dtype(n, x)))


@rule("Multinomial", fold=False)
def _multinomial(n: NodeCall, x: Any) -> Any:
    """Samples of classes from unnormalized log-probabilities, by Gumbel noise."""
    x = as_value(x)
    shape = (int(x.shape[0]), n.get("sample_size", 1), int(x.shape[1]))
    noise = _draws(n).gumbel(size=shape).astype(x.dtype.np)
    kind = as_dtype(DTYPES[n.get("dtype", 6)])
    return op.cast(op.argmax(op.add(op.expand_dims(x, 1), noise), -1), kind)


@rule("Dropout", fold=False)
def _dropout(n: NodeCall, x: Any, ratio: Any = None, training: Any = None) -> Any:
    x = as_value(x)
    on = training is not None and bool(one(training, "training_mode"))
    p = n.get("ratio", 0.5) if ratio is None else float(one(ratio, "ratio"))
    if not on or p == 0 or n.version < 12:
        return x, op.full(x.shape, True, bool_)
    mask = _draws(n).uniform(0, 1, _static(x.shape)) >= p
    return op.mul(op.mul(x, op.cast(mask, x.dtype)), 1 / (1 - p)), mask
