"""Batch normalisation: running statistics are state that a call takes and returns.

model, state = nn.with_state(model)               every such layer learns its name; state is a dict by name
y, state = model(x, state)                         training: statistics of the batch, and new running ones
y, _ = model(x, state, training=False)             the running ones
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from tessera.core.blame import blames_arguments
from tessera.core.errors import OperandError, located
from tessera.lang import op
from tessera.nn.linear import sized
from tessera.nn.module import Module, replace
from tessera.nn.walk import map_modules, modules

M = TypeVar("M")
State = dict[str, Any]


class BatchNorm(Module):
    """(x - mean) / sqrt(var + eps) * weight + bias over all axes of x but 1: (batch, channels, ...)."""

    _advice: ClassVar[str] = (  # for those who call it as in PyTorch
        "running statistics are values that a call takes and returns: model, state = nn.with_state(model), "
        "then y, state = layer(x, state)"
    )

    weight: Any
    bias: Any
    channels: int
    eps: float
    momentum: float | None  # None: the mean over all batches
    dtype: str
    name: str

    def __init__(
        self,
        channels: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        *,
        dtype: Any = "f32",
    ) -> None:
        sized("BatchNorm", channels=channels)
        self.channels, self.eps, self.momentum = channels, eps, momentum
        self.dtype, self.name = str(dtype), ""
        self.weight = op.ones((channels,), dtype) if affine else None
        self.bias = op.zeros((channels,), dtype) if affine else None

    def initial(self) -> State:
        """The statistics before the first batch."""
        return {
            "running_mean": op.zeros((self.channels,), self.dtype),
            "running_var": op.ones((self.channels,), self.dtype),
            "num_batches_tracked": op.zeros((), "i64"),
        }

    def __call__(self, x: Any, state: Any, *, training: bool = True) -> tuple[Any, State]:
        """The result and the state with this layer's new statistics."""
        mine = self._own(state)
        if not training:
            mean, var = mine["running_mean"], mine["running_var"]
            return op.batchnorm(x, mean, var, self.weight, self.bias, eps=self.eps), state
        y, mean, var = op.batchnorm_train(x, self.weight, self.bias, eps=self.eps)
        count = x.size // x.shape[1]
        fresh = {"running_mean": mean, "running_var": var * (count / max(count - 1, 1))}
        return y, {**state, self.name: self._blended(mine, fresh)}

    def _own(self, state: Any) -> State:
        if not isinstance(state, dict) or self.name not in state:
            raise located(
                OperandError(
                    f"nn.BatchNorm: no statistics named '{self.name}' in the state; write model, state = "
                    "nn.with_state(model) and pass this state through the model"
                )
            )
        found: State = state[self.name]
        return found

    def _blended(self, old: State, fresh: State) -> State:
        seen = old["num_batches_tracked"] + 1
        by = 1 / op.cast(seen, self.dtype) if self.momentum is None else self.momentum
        kept = {
            n: (1 - by) * old[n] + by * op.cast(op.stop_gradient(x), old[n].dtype)
            for n, x in fresh.items()
        }
        return {**kept, "num_batches_tracked": seen}


@blames_arguments
def with_state(model: M) -> tuple[M, State]:
    """The model whose stateful layers know their names, and the state they start from."""
    named: M = map_modules(lambda name, m: _named(m, name), model)
    found = modules(named)
    return named, {m.name: m.initial() for _, m in found if isinstance(m, BatchNorm)}


def _named(module: Any, name: str) -> Any:
    return replace(module, name=name) if isinstance(module, BatchNorm) else module
