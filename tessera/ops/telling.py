"""What a running program tells: that a condition does not hold, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.core.dtype import bool_
from tessera.core.errors import DTypeError, NumericalError, OperandError
from tessera.core.reference import Reference
from tessera.ir.graph.ir import Node, Value, bind
from tessera.ir.graph.op import Sample
from tessera.ops.batching import Mask, batch_size, in_front
from tessera.ops.define import ArrayLike, as_value, define


def _first_in_front(n: Node, operands: Sequence[Value], batched: Mask) -> Value:
    """The batch of the first operand; the others are looked at as they are."""
    x = in_front(operands[0], batched[0], batch_size(operands, batched))
    return bind(n.op, x, *operands[1:], **n.params)  # type: ignore[no-any-return]


def _ensure(x: Any, ok: Any, *values: Any, message: str) -> Any:
    if np.all(ok):
        return x
    raise NumericalError(message.format(*(_shown(v, ok) for v in values)))


def _shown(v: Any, ok: Any) -> Any:
    """A number, or of several the one for the first condition that fails."""
    v, ok = np.asarray(v), np.asarray(ok)
    if v.ndim == 0:
        return v[()]
    at = np.unravel_index(np.argmin(ok), ok.shape) if ok.shape == v.shape else (0,) * v.ndim
    return v[at]


@define(
    infer=lambda types, p: types[:1], call="ensure", numpy=_ensure, moves=True, linear=(0,),
    jvp=lambda n, ts: ts[0], transpose=lambda n, ct, k: ct, batch=_first_in_front,
    samples=(
        Sample((2, 3), np.array(True), message="no"), Sample((2,), np.array([True, True]), message="no"),
        Sample((), np.array(True), 2.0, message="{} is too much"),
    ),
)  # fmt: skip
def ensure(x: ArrayLike, ok: ArrayLike, *values: ArrayLike, message: str) -> Value:
    """x, if ok holds everywhere; else NumericalError with the message, in which {} stands for values."""
    condition = as_value(ok, "ensure")
    if condition.dtype is not bool_:
        raise DTypeError(
            f"ensure: the condition is {condition.type}, expected bool; compare, as in x > 0"
        )
    if not isinstance(message, str):
        raise OperandError(f"ensure: message is {type(message).__name__}, expected a string")
    operands = (as_value(x, "ensure"), condition, *(as_value(v, "ensure") for v in values))
    return ensure.bind(*operands, message=message)


def _watch(x: Any, *values: Any, to: Reference) -> Any:
    if not isinstance(to, Reference):
        raise OperandError(
            f"watch: '{to}' was a function of the process that wrote this program, and is only its name here; "
            "trace the program again"
        )
    to.target(*values)
    return x


@define(
    infer=lambda types, p: types[:1], call="watch", numpy=_watch, moves=True, linear=(0,),
    jvp=lambda n, ts: ts[0], transpose=lambda n, ct, k: ct, batch=_first_in_front,
    effects=frozenset(("io",)), samples=(Sample((2, 3), (2,), to=id), Sample((), 1.0, to=id)),
)  # fmt: skip
def watch(x: ArrayLike, *values: ArrayLike, to: Callable[..., Any]) -> Value:
    """x, after calling to(*values) with NumPy arrays, also in compiled programs and their loops."""
    if not callable(to):
        raise OperandError(f"watch: to is {type(to).__name__}, expected a function")
    name = getattr(to, "__name__", "function")
    operands = (as_value(x, "watch"), *(as_value(v, "watch") for v in values))
    return watch.bind(*operands, to=Reference(name, to))
