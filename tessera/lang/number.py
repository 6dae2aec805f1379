"""Number: a Python number or a size inside a trace, with the arithmetic that Python's own has.

Alone it is computed with in 64 bits, as Python does; with a tensor it takes the dtype of the tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.core.dims import SIZE_AS_SCALAR, Dim
from tessera.core.dtype import DType, c128, f64, i64
from tessera.core.errors import ShapeError
from tessera.ir.graph.ir import VALUE_CLASS, WEAK_CLASS, Value, current_builder
from tessera.lang.tensor import Tensor
from tessera.ops import elementwise
from tessera.ops.define import OpFunction, cast_to, full_of, size_value

Op = OpFunction[..., Value]
_WIDE = {"b": i64, "u": i64, "i": i64, "f": f64, "c": c128}
_ORDER = "biufc"


def _is_plain(x: Any) -> bool:
    """Whether an operand of a number is one itself."""
    if isinstance(x, Number | Dim):
        return True
    return isinstance(x, bool | int | float | complex) and not isinstance(x, np.generic)


def _kind(x: Any) -> str:
    if isinstance(x, Value):
        return x.dtype.kind
    kinds = {bool: "b", float: "f", complex: "c"}
    return next((kinds[t] for t in kinds if isinstance(x, t)), "i")


def _strong(x: Any, dtype: DType) -> Value:
    """A number as an operand of this dtype."""
    if isinstance(x, Dim):
        x = size_value(x)
    return cast_to(x, dtype) if isinstance(x, Value) else full_of((), x, dtype)


def _met(a: Any, b: Any, at_least: str = "i") -> DType:
    """The format in which Python computes with two numbers."""
    kinds = (_kind(a), _kind(b), at_least)
    return _WIDE[max(kinds, key=_ORDER.index)]


def _weak(v: Value) -> Any:
    v.__class__ = Number
    return v


def _arithmetic(f: Op, at_least: str = "i") -> tuple[Callable[..., Any], Callable[..., Any]]:
    """An operator of numbers, and the same with its operands swapped."""

    def apply(a: Any, b: Any) -> Any:
        d = _met(a, b, "f" if f is elementwise.pow and _is_fraction(b) else at_least)
        return _weak(f.bind(_strong(a, d), _strong(b, d)))

    def forward(self: Any, other: Any) -> Any:
        return apply(self, other) if _is_plain(other) else _tensors(f, self, other)

    def backward(self: Any, other: Any) -> Any:
        return apply(other, self) if _is_plain(other) else _tensors(f, other, self)

    return forward, backward


def _is_fraction(exponent: Any) -> bool:
    """Whether a power is a fraction of integers: 2 ** -1."""
    return isinstance(exponent, int) and exponent < 0


def _tensors(f: Op, a: Any, b: Any) -> Any:
    """The operator of tensors; what is no operand of them is left to the other side."""
    known = isinstance(a, Value | np.ndarray | np.generic) and isinstance(
        b, Value | np.ndarray | np.generic
    )
    return f(a, b) if known else NotImplemented


def _comparison(f: Op) -> Callable[..., Any]:
    def compare(self: Any, other: Any) -> Any:
        if not _is_plain(other):
            return _tensors(f, self, other)
        d = _met(self, other)
        return f.bind(_strong(self, d), _strong(other, d))

    return compare


def _sign(f: Op) -> Callable[..., Any]:
    def apply(self: Any) -> Any:
        return _weak(f.bind(_strong(self, _met(self, self))))

    return apply


class Number(Tensor):
    """A Python number that was passed to a traced function, or a size in arithmetic."""

    __slots__ = ()
    weak = True

    __add__, __radd__ = _arithmetic(elementwise.add)
    __sub__, __rsub__ = _arithmetic(elementwise.sub)
    __mul__, __rmul__ = _arithmetic(elementwise.mul)
    __truediv__, __rtruediv__ = _arithmetic(elementwise.div, "f")
    __floordiv__, __rfloordiv__ = _arithmetic(elementwise.floor_divide)
    __mod__, __rmod__ = _arithmetic(elementwise.remainder)
    __pow__, __rpow__ = _arithmetic(elementwise.pow)
    __neg__, __abs__ = _sign(elementwise.neg), _sign(elementwise.abs)
    __eq__, __ne__ = _comparison(elementwise.eq), _comparison(elementwise.ne)
    __lt__, __le__ = _comparison(elementwise.lt), _comparison(elementwise.le)
    __gt__, __ge__ = _comparison(elementwise.gt), _comparison(elementwise.ge)
    __hash__ = Tensor.__hash__


def _scalar(size: Dim) -> Any:
    """A size as a number of the trace that is open."""
    if current_builder() is None:
        raise ShapeError(f"size {size} is symbolic and has no number outside of a traced function")
    return _weak(size_value(size))


VALUE_CLASS.provide(Tensor)
WEAK_CLASS.provide(Number)
SIZE_AS_SCALAR.provide(_scalar)
