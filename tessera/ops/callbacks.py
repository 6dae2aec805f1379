"""What a running program tells, and asks the host: conditions that do not hold, how far it has come, and
results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.core.dtype import as_dtype, bool_
from tessera.core.errors import DTypeError, NumericalError, OperandError
from tessera.core.reference import Reference
from tessera.core.types import TensorType
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
            f"watch: '{to}' was a function of the process that wrote this program, and is only its name "
            "here; "
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


def _ask(*values: Any, to: Reference, shapes: Any, dtypes: Any) -> tuple[Any, ...]:
    if not isinstance(to, Reference):
        raise OperandError(
            f"host_call: '{to}' was a function of the process that wrote this program, and is only its name "
            "here; "
            "trace the program again"
        )
    out = to.target(*values)
    made = [np.asarray(x) for x in (out if isinstance(out, tuple | list) else (out,))]
    wanted = [TensorType(d, tuple(s)) for d, s in zip(dtypes, shapes, strict=True)]
    if len(made) != len(wanted):
        raise OperandError(
            f"callback: {_bare(to)} returned {len(made)} arrays, expected {len(wanted)}"
        )
    for x, t in zip(made, wanted, strict=True):
        if x.shape != t.shape or x.dtype != t.dtype.np:
            raise OperandError(
                f"callback: {_bare(to)} returned {x.dtype}{list(x.shape)}, expected {t}; convert it with "
                "x.astype, or "
                "state that type"
            )
    return tuple(made)


def _bare(to: str) -> str:
    return to.rpartition(".")[0]


def _host_batch(n: Node, operands: Sequence[Value], batched: Mask) -> Any:
    """One call of the function for each element of the batch, in order."""
    size = batch_size(operands, batched)
    xs = [in_front(v, True, size) if b else v for v, b in zip(operands, batched, strict=True)]
    f = n.params["to"].target

    def each(*values: Any) -> list[Any]:
        count = next(len(x) for x, b in zip(values, batched, strict=True) if b)
        rows = [
            f(*(x[i] if b else x for x, b in zip(values, batched, strict=True)))
            for i in range(count)
        ]
        several = [r if isinstance(r, tuple | list) else (r,) for r in rows]
        return [np.stack([np.asarray(x) for x in column]) for column in zip(*several, strict=True)]

    shapes = tuple((size, *s) for s in n.params["shapes"])
    to = Reference(_bare(n.params["to"]), each)
    return bind(n.op, *xs, to=to, shapes=shapes, dtypes=n.params["dtypes"])


@define(
    infer=lambda types, p: [TensorType(d, s) for d, s in zip(p["dtypes"], p["shapes"], strict=True)],
    multiple=True, call="host_call", numpy=_ask, batch=_host_batch, effects=frozenset(("io",)),
    samples=(
        Sample((2, 3), to=lambda x: x * 2, shapes=((2, 3),), dtypes=("f64",)),
        Sample((2, 3), np.ones((4, 1)), to=lambda x, y: (x.sum(1), y), shapes=((2,), (4, 1)),
               dtypes=("f64", "f64")),
    ),
)  # fmt: skip
def host_call(*values: ArrayLike, to: Callable[..., Any], shapes: Any, dtypes: Any) -> Any:
    """What to(*values) gives for NumPy arrays, as arrays of these shapes and dtypes."""
    if not callable(to):
        raise OperandError(f"host_call: to is {type(to).__name__}, expected a function")
    name = getattr(to, "__name__", "function")
    operands = [as_value(v, "host_call") for v in values]
    kinds = tuple(as_dtype(d) for d in dtypes)
    return host_call.bind(
        *operands, to=Reference(name, to), shapes=tuple(map(tuple, shapes)), dtypes=kinds
    )
