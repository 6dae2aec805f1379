"""Linear layers, embeddings, and layers that are plain functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tessera.core.errors import OperandError, located
from tessera.lang import op
from tessera.nn import init
from tessera.nn.module import Module
from tessera.ops.define import axis_of
from tessera.ops.random_bits import split


def natural(key: Any, shape: tuple[int, ...], fan: int, dtype: Any) -> Any:
    """Uniform within 1 / sqrt(fan), PyTorch's start of linear and convolutional layers."""
    bound = 1 / math.sqrt(fan) if fan else 0.0
    return init.uniform(key, shape, low=-bound, high=bound, dtype=dtype)


def sized(layer: str, **sizes: Any) -> None:
    """Refuse sizes that are no positive integers."""
    for name, n in sizes.items():
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise located(
                OperandError(f"nn.{layer}: {name} is {n!r:.40}, expected a positive integer")
            )


def keys_of(layer: str, key: Any, count: int = 2) -> Any:
    """The keys of a layer with random weights."""
    if key is None:
        raise located(
            OperandError(
                f"nn.{layer}: needs a key for its weights; write key=ts.key(0), or a part of one"
            )
        )
    return split(key, count)


class Linear(Module):
    """x (..., in) times weight (out, in) transposed, plus bias."""

    weight: Any
    bias: Any

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        key: Any = None,
        dtype: Any = "f32",
        weight_init: init.Initialiser | None = None,
    ) -> None:
        sized("Linear", in_features=in_features, out_features=out_features)
        a, b = keys_of("Linear", key)
        shape = (out_features, in_features)
        self.weight = (
            weight_init(a, shape, dtype=dtype)
            if weight_init
            else natural(a, shape, in_features, dtype)
        )
        self.bias = natural(b, (out_features,), in_features, dtype) if bias else None

    def __call__(self, x: Any) -> Any:
        y = x @ self.weight.T
        return y if self.bias is None else y + self.bias


class Bilinear(Module):
    """x weight[o] y + bias[o] for each output o."""

    weight: Any
    bias: Any

    def __init__(
        self,
        in1: int,
        in2: int,
        out_features: int,
        bias: bool = True,
        *,
        key: Any = None,
        dtype: Any = "f32",
    ) -> None:
        sized("Bilinear", in1=in1, in2=in2, out_features=out_features)
        a, b = keys_of("Bilinear", key)
        self.weight = natural(a, (out_features, in1, in2), in1, dtype)
        self.bias = natural(b, (out_features,), in1, dtype) if bias else None

    def __call__(self, x: Any, y: Any) -> Any:
        z = op.einsum("...i,oij,...j->...o", x, self.weight, y)
        return z if self.bias is None else z + self.bias


class Embedding(Module):
    """Rows of a table (rows, width) by their numbers."""

    weight: Any
    padding: int | None

    def __init__(
        self,
        rows: int,
        width: int,
        padding: int | None = None,
        *,
        key: Any = None,
        dtype: Any = "f32",
        weight_init: init.Initialiser = init.normal,
    ) -> None:
        sized("Embedding", rows=rows, width=width)
        if padding is not None and not -rows <= padding < rows:
            raise located(
                OperandError(
                    f"nn.Embedding: padding is {padding}, expected a row number below {rows}"
                )
            )
        table = weight_init(keys_of("Embedding", key, 1)[0], (rows, width), dtype=dtype)
        self.padding = None if padding is None else padding % rows
        self.weight = table if padding is None else table.at[padding].set(0)

    def __call__(self, ids: Any) -> Any:
        rows = op.embedding(self.weight, ids)
        if self.padding is None:
            return rows
        # The row of padding gets no gradient, as in PyTorch.
        return op.where(op.expand_dims(ids == self.padding, -1), op.stop_gradient(rows), rows)

    def attend(self, x: Any) -> Any:
        """Scores of every row: x (..., width) times the table transposed, for tied embeddings."""
        return x @ self.weight.T


class Identity(Module):
    """x itself."""

    def __call__(self, x: Any) -> Any:
        return x


class Activation(Module):
    """A function without parameters as a layer."""

    function: Callable[..., Any]

    def __call__(self, x: Any) -> Any:
        return self.function(x)


def as_layer(f: Any) -> Any:
    """A module as it is, a function as a layer."""
    if isinstance(f, Module):
        return f
    if not callable(f):
        raise located(
            OperandError(
                f"nn: got {type(f).__name__} {f!r:.40}, expected a module or a function"
                + (
                    "; give the parts one by one, nn.Sequential(*parts)"
                    if isinstance(f, list | tuple)
                    else ""
                )
            )
        )
    return Activation(f)


class Flatten(Module):
    """The axes from `start` to `stop` as one."""

    start: int = 1
    stop: int = -1

    def __call__(self, x: Any) -> Any:
        first, last = (axis_of("nn.Flatten", a, x.ndim) for a in (self.start, self.stop))
        return op.reshape(x, (*x.shape[:first], -1, *x.shape[last + 1 :]))


class Dropout(Module):
    """Zeros with probability p, the others divided by 1 - p; without a key, x itself."""

    p: float = 0.5
    whole_channels: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise located(OperandError(f"nn.Dropout: p is {self.p}, expected 0 to 1"))

    def __call__(self, x: Any, *, key: Any = None) -> Any:
        if key is None or self.p == 0:
            return x
        if not self.whole_channels:
            return op.random.dropout(key, x, self.p)
        kept = op.random.dropout(key, op.ones(x.shape[:2], x.dtype), self.p)
        return x * op.reshape(kept, (*x.shape[:2], *(1,) * (x.ndim - 2)))
