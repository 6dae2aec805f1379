"""Initialisers: tensors of random numbers with the moments that keep signals in scale.

    weight = nn.init.kaiming_normal(key, (128, 64))      (out, in), or (out, in / groups, *window)

Each takes a key, a shape and, by name, its settings and a dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tessera.core.blame import blames_arguments
from tessera.core.errors import OperandError, ShapeError, located
from tessera.ir.graph.ir import Value
from tessera.lang import op
from tessera.ops.arrange import eye as identity

Shape = Sequence[int]
Initialiser = Callable[..., Any]

# The factor that keeps the variance of what passes a nonlinearity (He et al. 2015, and the SELU's
# self-normalising one).
GAINS: dict[str, float] = {
    "linear": 1.0,
    "sigmoid": 1.0,
    "tanh": 5.0 / 3.0,
    "relu": math.sqrt(2.0),
    "selu": 0.75,
}


@blames_arguments
def gain(nonlinearity: str, slope: float = 0.01) -> float:
    """The factor for a nonlinearity: linear, sigmoid, tanh, relu, leaky_relu (with its slope) or selu."""
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1.0 + slope**2))
    if nonlinearity not in GAINS:
        raise located(
            OperandError(
                f"nn.init.gain: got {nonlinearity!r}, expected one of {', '.join(GAINS)}, leaky_relu"
            )
        )
    return GAINS[nonlinearity]


@blames_arguments
def fans(shape: Shape) -> tuple[int, int]:
    """How many inputs an output of these weights sees, and how many outputs an input reaches."""
    if len(shape) < 2:
        raise located(
            ShapeError(
                f"nn.init: got shape {tuple(shape)}, expected at least (out, in), from which the fans come"
            )
        )
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


@blames_arguments
def zeros(key: Any, shape: Shape, *, dtype: Any = "f32") -> Value:
    """Zeros; the key is not used."""
    return op.zeros(tuple(shape), dtype)


@blames_arguments
def ones(key: Any, shape: Shape, *, dtype: Any = "f32") -> Value:
    """Ones; the key is not used."""
    return op.ones(tuple(shape), dtype)


@blames_arguments
def constant(key: Any, shape: Shape, *, value: float, dtype: Any = "f32") -> Value:
    """One value everywhere; the key is not used."""
    return op.full(tuple(shape), value, dtype)


@blames_arguments
def uniform(
    key: Any, shape: Shape, *, low: float = 0.0, high: float = 1.0, dtype: Any = "f32"
) -> Value:
    """Uniform in [low, high)."""
    return op.random.uniform(key, tuple(shape), low, high, dtype)


@blames_arguments
def normal(
    key: Any, shape: Shape, *, mean: float = 0.0, std: float = 1.0, dtype: Any = "f32"
) -> Value:
    """Normal with this mean and standard deviation."""
    return op.random.normal(key, tuple(shape), mean, std, dtype)


@blames_arguments
def truncated_normal(
    key: Any,
    shape: Shape,
    *,
    mean: float = 0.0,
    std: float = 1.0,
    low: float = -2.0,
    high: float = 2.0,
    dtype: Any = "f32",
) -> Value:
    """A normal of this mean and deviation, drawn again where it falls outside [low, high]."""
    if not low < high:
        raise located(
            OperandError(
                f"nn.init.truncated_normal: got low {low} and high {high}, expected low < high"
            )
        )
    a, b = (low - mean) / std, (high - mean) / std
    return mean + std * op.random.truncated_normal(key, a, b, tuple(shape), dtype)


@blames_arguments
def xavier_uniform(key: Any, shape: Shape, *, gain: float = 1.0, dtype: Any = "f32") -> Value:
    """Uniform with variance gain**2 * 2 / (fan_in + fan_out) (Glorot and Bengio 2010)."""
    bound = gain * math.sqrt(6.0 / sum(fans(shape)))
    return uniform(key, shape, low=-bound, high=bound, dtype=dtype)


@blames_arguments
def xavier_normal(key: Any, shape: Shape, *, gain: float = 1.0, dtype: Any = "f32") -> Value:
    """Normal with variance gain**2 * 2 / (fan_in + fan_out) (Glorot and Bengio 2010)."""
    return normal(key, shape, std=gain * math.sqrt(2.0 / sum(fans(shape))), dtype=dtype)


def _scale(shape: Shape, mode: str, nonlinearity: str, slope: float) -> float:
    """The standard deviation of Kaiming's rule."""
    if mode not in ("fan_in", "fan_out"):
        raise located(
            OperandError(f"nn.init.kaiming: mode is {mode!r}, expected 'fan_in' or 'fan_out'")
        )
    fan = fans(shape)[0 if mode == "fan_in" else 1]
    return gain(nonlinearity, slope) / math.sqrt(max(fan, 1))


@blames_arguments
def kaiming_uniform(
    key: Any,
    shape: Shape,
    *,
    slope: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    dtype: Any = "f32",
) -> Value:
    """Uniform with variance gain**2 / fan (He et al. 2015)."""
    bound = math.sqrt(3.0) * _scale(shape, mode, nonlinearity, slope)
    return uniform(key, shape, low=-bound, high=bound, dtype=dtype)


@blames_arguments
def kaiming_normal(
    key: Any,
    shape: Shape,
    *,
    slope: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    dtype: Any = "f32",
) -> Value:
    """Normal with variance gain**2 / fan (He et al. 2015)."""
    return normal(key, shape, std=_scale(shape, mode, nonlinearity, slope), dtype=dtype)


@blames_arguments
def lecun_normal(key: Any, shape: Shape, *, dtype: Any = "f32") -> Value:
    """Normal with variance 1 / fan_in."""
    return normal(key, shape, std=_scale(shape, "fan_in", "linear", 0.0), dtype=dtype)


@blames_arguments
def lecun_uniform(key: Any, shape: Shape, *, dtype: Any = "f32") -> Value:
    """Uniform with variance 1 / fan_in."""
    return kaiming_uniform(key, shape, nonlinearity="linear", dtype=dtype)


@blames_arguments
def orthogonal(key: Any, shape: Shape, *, gain: float = 1.0, dtype: Any = "f32") -> Value:
    """A matrix (out, the rest) with orthonormal rows or columns, uniform among these, times gain."""
    if len(shape) < 2:
        raise located(
            ShapeError(f"nn.init.orthogonal: got shape {tuple(shape)}, expected at least two axes")
        )
    rows, columns = shape[0], math.prod(shape[1:])
    wide = rows < columns
    size = (columns, rows) if wide else (rows, columns)
    q: Any
    q, r = op.qr(op.random.normal(key, size, dtype="f64"))
    q = q * op.sign(op.diagonal(r))  # without it, the distribution is that of the QR algorithm
    return op.cast(gain * op.reshape(q.T if wide else q, tuple(shape)), dtype)


@blames_arguments
def dirac(key: Any, shape: Shape, *, groups: int = 1, dtype: Any = "f32") -> Any:
    """Weights of a convolution (out, in / groups, *window) that pass its channels on; the key is not used."""
    if len(shape) < 3 or shape[0] % groups:
        raise located(
            ShapeError(
                f"nn.init.dirac: got shape {tuple(shape)} and {groups} groups, expected (out, in, *window) "
                "with "
                "out divisible by groups"
            )
        )
    each = shape[0] // groups
    middle = tuple(n // 2 for n in shape[2:])
    w: Any = op.zeros(tuple(shape), dtype)
    for g in range(groups):
        for i in range(min(each, shape[1])):
            w = w.at[(g * each + i, i, *middle)].set(1)
    return w


@blames_arguments
def sparse(
    key: Any, shape: Shape, *, sparsity: float, std: float = 0.01, dtype: Any = "f32"
) -> Value:
    """A normal matrix (out, in) with this share of zeros in each column (Martens 2010)."""
    if len(shape) != 2:
        raise located(ShapeError(f"nn.init.sparse: got shape {tuple(shape)}, expected (out, in)"))
    keys: Any = op.random.split(key)
    a, b = keys
    zero = math.ceil(sparsity * shape[0])
    order = op.argsort(op.argsort(op.random.uniform(a, tuple(shape)), axis=0), axis=0)
    return op.where(order < zero, 0.0, normal(b, shape, std=std, dtype=dtype))


@blames_arguments
def eye(key: Any, shape: Shape, *, dtype: Any = "f32") -> Value:
    """The identity matrix; the key is not used."""
    if len(shape) != 2:
        raise located(ShapeError(f"nn.init.eye: got shape {tuple(shape)}, expected (out, in)"))
    return identity(shape[0], shape[1], dtype=dtype)
