"""Activations as layers: op.relu and the others, with their settings as static fields."""

from __future__ import annotations

from typing import Any

from tessera.lang import op
from tessera.nn.module import Module


class ReLU(Module):
    """op.relu as a layer."""

    def __call__(self, x: Any) -> Any:
        return op.relu(x)


class ReLU6(Module):
    """op.relu6 as a layer."""

    def __call__(self, x: Any) -> Any:
        return op.relu6(x)


class GELU(Module):
    """op.gelu as a layer."""

    approximate: str = "none"

    def __call__(self, x: Any) -> Any:
        return op.gelu(x, self.approximate)


class SiLU(Module):
    """op.silu as a layer."""

    def __call__(self, x: Any) -> Any:
        return op.silu(x)


class Mish(Module):
    """op.mish as a layer."""

    def __call__(self, x: Any) -> Any:
        return op.mish(x)


class Sigmoid(Module):
    """op.sigmoid as a layer."""

    def __call__(self, x: Any) -> Any:
        return op.sigmoid(x)


class Tanh(Module):
    """op.tanh as a layer."""

    def __call__(self, x: Any) -> Any:
        return op.tanh(x)


class Softplus(Module):
    """op.softplus as a layer."""

    beta: float = 1.0

    def __call__(self, x: Any) -> Any:
        return op.softplus(x, self.beta)


class Softsign(Module):
    """op.softsign as a layer."""

    def __call__(self, x: Any) -> Any:
        return op.softsign(x)


class ELU(Module):
    """op.elu as a layer."""

    alpha: float = 1.0

    def __call__(self, x: Any) -> Any:
        return op.elu(x, self.alpha)


class CELU(Module):
    """op.celu as a layer."""

    alpha: float = 1.0

    def __call__(self, x: Any) -> Any:
        return op.celu(x, self.alpha)


class SELU(Module):
    """op.selu as a layer."""

    def __call__(self, x: Any) -> Any:
        return op.selu(x)


class LeakyReLU(Module):
    """op.leaky_relu as a layer."""

    slope: float = 0.01

    def __call__(self, x: Any) -> Any:
        return op.leaky_relu(x, self.slope)


class Hardtanh(Module):
    """op.hardtanh as a layer."""

    low: float = -1.0
    high: float = 1.0

    def __call__(self, x: Any) -> Any:
        return op.hardtanh(x, self.low, self.high)


class Hardsigmoid(Module):
    """op.hardsigmoid as a layer."""

    def __call__(self, x: Any) -> Any:
        return op.hardsigmoid(x)


class Hardswish(Module):
    """op.hardswish as a layer."""

    def __call__(self, x: Any) -> Any:
        return op.hardswish(x)


class LogSigmoid(Module):
    """op.log_sigmoid as a layer."""

    def __call__(self, x: Any) -> Any:
        return op.log_sigmoid(x)


class Tanhshrink(Module):
    """op.tanhshrink as a layer."""

    def __call__(self, x: Any) -> Any:
        return op.tanhshrink(x)


class Softshrink(Module):
    """op.softshrink as a layer."""

    width: float = 0.5

    def __call__(self, x: Any) -> Any:
        return op.softshrink(x, self.width)


class Hardshrink(Module):
    """op.hardshrink as a layer."""

    width: float = 0.5

    def __call__(self, x: Any) -> Any:
        return op.hardshrink(x, self.width)


class Threshold(Module):
    """op.threshold as a layer."""

    level: float
    value: float

    def __call__(self, x: Any) -> Any:
        return op.threshold(x, self.level, self.value)


class Softmax(Module):
    """op.softmax as a layer."""

    axis: int = -1

    def __call__(self, x: Any) -> Any:
        return op.softmax(x, self.axis)


class LogSoftmax(Module):
    """op.log_softmax as a layer."""

    axis: int = -1

    def __call__(self, x: Any) -> Any:
        return op.log_softmax(x, self.axis)


class GLU(Module):
    """op.glu as a layer."""

    axis: int = -1

    def __call__(self, x: Any) -> Any:
        return op.glu(x, self.axis)


class PReLU(Module):
    """x where it is positive, a learnt slope times x elsewhere; one slope, or one for each channel (axis
    1).
    """

    weight: Any

    def __init__(self, channels: int = 1, start: float = 0.25, *, dtype: Any = "f32") -> None:
        self.weight = op.full((channels,), start, dtype)

    def __call__(self, x: Any) -> Any:
        slope = self.weight
        if slope.shape[0] > 1 and x.ndim > 2:
            slope = op.reshape(slope, (-1, *(1,) * (x.ndim - 2)))
        return op.prelu(x, slope)
