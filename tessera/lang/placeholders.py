"""Types in the place of tensors: `f.lower(Tensor["B", 64])`, `shapes`, `eval_shape` and bundles take them."""

from __future__ import annotations

from typing import Any

from tessera.core import tree
from tessera.core.dtype import as_dtype, f32
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Builder
from tessera.lang.annotation import StateSpec, TensorSpec


def placed(x: Any) -> Any:
    """A tree with a tensor without data for each type in it."""
    return tree.map(_placeholder, _states_placed(x))


def _is_struct(x: Any) -> bool:
    """Whether x is JAX's type of an array, which is not imported for this."""
    return type(x).__name__ == "ShapeDtypeStruct" and type(x).__module__.startswith("jax")


def _placeholder(x: Any) -> Any:
    if isinstance(x, TensorSpec):
        return Builder().input(TensorType(x.dtype or f32, x.shape))
    if isinstance(x, TensorType):
        return Builder().input(x)
    if _is_struct(x):
        return Builder().input(TensorType(as_dtype(x.dtype), tuple(x.shape)))
    return x


def _states_placed(x: Any) -> Any:
    """The arguments, with states of placeholders for annotations of states."""
    if isinstance(x, StateSpec):
        return x.stand_in(Builder().input)
    if isinstance(x, dict):
        return {k: _states_placed(v) for k, v in x.items()}
    if type(x) in (list, tuple):
        return type(x)(_states_placed(v) for v in x)
    return x
