"""Names that are both a function of tensors and one of operators: the first argument decides."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from tessera.algebra import apply
from tessera.algebra.combinators import queries
from tessera.algebra.constructors import basic
from tessera.algebra.operator import Operator
from tessera.ops import elementwise, linalg, matrix, shape
from tessera.ops.define import OpFunction

__all__ = ["conj", "diagonal", "eye", "slogdet", "trace", "transpose"]

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)


def _has_operator(args: Sequence[Any]) -> bool:
    return bool(args) and isinstance(args[0], Operator)


def either(
    tensors: F, operators: Function, chosen: Callable[[Sequence[Any]], bool] = _has_operator
) -> F:
    """The function of operators where `chosen` says so of the arguments, else that of tensors."""

    def front(*args: Any, **kwargs: Any) -> Any:
        return (operators if chosen(args) else tensors)(*args, **kwargs)

    front.__name__ = front.__qualname__ = tensors.__name__
    front.__module__ = __name__
    front.__doc__ = f"{tensors.__doc__}\n\nOf operators: {operators.__doc__}"
    front.__wrapped__ = tensors  # type: ignore[attr-defined]
    front.__signature__ = inspect.signature(tensors)  # type: ignore[attr-defined]
    made = OpFunction(tensors.op, front) if isinstance(tensors, OpFunction) else front
    return cast("F", made)


transpose = either(shape.transpose, apply.transpose)
conj = either(elementwise.conj, apply.conj)
trace = either(matrix.trace, queries.trace)
diagonal = either(matrix.diagonal, queries.diagonal)
slogdet = either(linalg.slogdet, queries.slogdet)

# A tensor is ts.eye(n).
eye = basic.eye
