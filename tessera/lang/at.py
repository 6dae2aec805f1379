"""x.at[index].set(value) and the like: a tensor with some elements changed."""

from __future__ import annotations

from typing import Any, Generic, NoReturn, TypeVar

from tessera.core.blame import blames_arguments
from tessera.core.errors import OperandError, located
from tessera.ir.graph.ir import Value
from tessera.lang import habits
from tessera.ops import indexing
from tessera.ops.define import ArrayLike

T = TypeVar("T", bound=Value)


class _AtIndex(Generic[T]):
    """x.at[index]: where an update goes."""

    __slots__ = ("key", "x")

    def __init__(self, x: T, key: Any):
        self.x, self.key = x, key

    def __getattr__(self, name: str) -> Any:
        raise habits.absent("x.at[index]", name, dir(type(self)))

    def get(self) -> T:
        """These elements."""
        return self.x[self.key]  # type: ignore[index, no-any-return]

    def _numbers(self, *_: Any) -> NoReturn:
        error = OperandError(
            "x.at[index] is a place, which has no arithmetic; write x.at[index].add(value) for a tensor with "
            "a sum there, or x[index] for its elements"
        )
        raise located(error)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __neg__ = _numbers

    @blames_arguments
    def set(self, value: ArrayLike) -> T:
        """The tensor with these elements replaced."""
        return indexing.update(self.x, self.key, value, "set")  # type: ignore[return-value]

    @blames_arguments
    def add(self, value: ArrayLike) -> T:
        """The tensor with a value added to these elements, repeated indices adding up."""
        return indexing.update(self.x, self.key, value, "add")  # type: ignore[return-value]

    @blames_arguments
    def multiply(self, value: ArrayLike) -> T:
        """The tensor with these elements multiplied by a value, once for each index that repeats."""
        return indexing.update(self.x, self.key, value, "multiply")  # type: ignore[return-value]

    @blames_arguments
    def max(self, value: ArrayLike) -> T:
        """The tensor with these elements raised to at least a value."""
        return indexing.update(self.x, self.key, value, "max")  # type: ignore[return-value]

    @blames_arguments
    def min(self, value: ArrayLike) -> T:
        """The tensor with these elements lowered to at most a value."""
        return indexing.update(self.x, self.key, value, "min")  # type: ignore[return-value]


class At(Generic[T]):
    """x.at: takes an index."""

    __slots__ = ("x",)

    def __init__(self, x: T):
        self.x = x

    def __getitem__(self, key: Any) -> _AtIndex[T]:
        return _AtIndex(self.x, key)

    def __getattr__(self, name: str) -> Any:
        raise habits.absent("x.at", name, ())
