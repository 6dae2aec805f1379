"""Sequential: layers one after the other."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any

from tessera.core.blame import brief
from tessera.core.errors import AxisError, OperandError, located
from tessera.nn.linear import as_layer
from tessera.nn.module import Module
from tessera.ops.random_bits import split


@functools.cache
def takes(cls: Any) -> frozenset[str]:
    """Which of key, state and training the call of a module takes."""
    return frozenset({"key", "state", "training"} & set(inspect.signature(cls.__call__).parameters))


class Sequential(Module):
    """Layers and functions, each on the result of the one before.

    With a key, layers that take one get a part of it.  With a state, it goes through the layers that take
    one, and the call returns the result and the state.
    """

    __tessera_inline__ = "layers"
    layers: list[Any]

    def __init__(self, *layers: Any) -> None:
        self.layers = [as_layer(f) for f in layers]

    def __call__(self, x: Any, state: Any = None, *, key: Any = None, training: bool = True) -> Any:
        kinds: list[Any] = [type(layer) for layer in self.layers]
        wanting = [takes(k) for k in kinds]
        count = sum("key" in w for w in wanting)
        parts: Any = split(key, count) if key is not None and count else ()
        keys = iter(parts)
        held = state
        for layer, wants in zip(self.layers, wanting, strict=True):
            given: dict[str, Any] = {}
            if "key" in wants and key is not None:
                given["key"] = next(keys)
            if "training" in wants:
                given["training"] = training
            if "state" not in wants:
                x = layer(x, **given)
            elif held is None:
                x = _stateless(layer, x, given)
            else:
                x, held = layer(x, held, **given)
        return x if state is None else (x, held)

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.layers)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return Sequential(*self.layers[i])
        try:
            return self.layers[i]
        except (TypeError, IndexError):
            raise located(
                AxisError(
                    f"nn.Sequential: index {brief(i)} does not name one of {len(self.layers)} layers"
                )
            ) from None


def _stateless(layer: Any, x: Any, given: dict[str, Any]) -> Any:
    """Call a layer that may have state without one: a Sequential of plain layers can do so."""
    if isinstance(layer, Sequential):
        return layer(x, **given)
    raise located(
        OperandError(
            f"nn.Sequential: {type(layer).__name__} has state; write model, state = nn.with_state(model) "
            "and call "
            "model(x, state)"
        )
    )
