"""How an ATen op is translated: the table of rules, and what rules ask of their operands.

A rule is a short function over `tessera.op` of a Call (what PyTorch says of the results) and the op's
arguments by their ATen schema.  Tensors are values of ours, sizes are whole numbers or symbolic sizes, and
dtypes are ours.  Names are those of ATen's schema: "aten.add.Tensor".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.core.dims import Dim, Size
from tessera.core.dtype import DType, bool_, c64, c128, f32, f64, i64
from tessera.core.errors import OperandError
from tessera.core.promotion import promote
from tessera.ir.graph.ir import Value, concrete
from tessera.lang import op
from tessera.lang.transforms import vjp

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}


class NoRuleError(OperandError):
    """What a rule raises on arguments that it leaves to PyTorch."""


@dataclass(frozen=True)
class AtenCall:
    """An op's call as PyTorch describes it: the types of its results."""

    target: str
    dtypes: tuple[DType | None, ...]
    shapes: tuple[tuple[Size, ...] | None, ...]
    memory: tuple[int, ...] | None = (
        None  # of an op on memory, the axes of its operand as they lie there
    )

    @property
    def dtype(self) -> DType:
        """The dtype of the first result."""
        found = self.dtypes[0]
        assert found is not None, self.target
        return found


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Decorator: the rule of these ops; a name without an overload is that of the default one."""

    def enter(f: Rule) -> Rule:
        for name in names:
            RULES[full_name(name)] = f
        return f

    return enter


def full_name(name: str) -> str:
    """An op's name with its namespace and overload."""
    dotted = name if "." in name else f"{name}.default"
    return dotted if dotted.count(".") == 2 else f"aten.{dotted}"


_ORDER = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}


def is_value(x: Any) -> bool:
    """Whether an argument is a tensor."""
    return isinstance(x, Value)


def met(*xs: Any) -> DType:
    """The dtype in which PyTorch computes with these: tensors with axes count before those without, numbers
    last.
    """
    found: DType | None = None
    groups = (
        [x.dtype for x in xs if is_value(x) and x.ndim],
        [x.dtype for x in xs if is_value(x) and not x.ndim],
        [_number_dtype(x) for x in xs if not is_value(x) and x is not None],
    )
    for group in groups:
        for d in group:
            if found is None:
                found = d
            elif group is groups[0]:
                found = promote(found, d)
            elif _ORDER[d.kind] > _ORDER[found.kind]:
                found = _raised(found, d)
            elif group is groups[1] and not groups[0]:
                found = promote(found, d)
    assert found is not None
    return found


def _raised(found: DType, d: DType) -> DType:
    """A dtype of a higher kind; a real one that becomes complex keeps its width."""
    if d.kind != "c" or found.kind != "f":
        return d
    return c128 if found is f64 else c64


def _number_dtype(x: Any) -> DType:
    if isinstance(x, bool):
        return bool_
    if isinstance(x, int | Dim):
        return i64
    return f32 if isinstance(x, float) else c64


def as_dtype(x: Any, dtype: DType) -> Value:
    """A tensor or a number in a dtype."""
    if is_value(x):
        return x if x.dtype is dtype else _cast(x, dtype)
    if isinstance(x, Dim):
        return op.cast(op.dim(x), dtype)
    return number(x, dtype)


def _cast(x: Value, dtype: DType) -> Value:
    if x.dtype.kind == "c" and dtype.kind not in "cb":
        x = op.real(x)
    return op.cast(x, dtype) if x.dtype is not dtype else x


def number(x: Any, dtype: DType) -> Value:
    """A Python number as a tensor without axes; integers wrap around as in C."""
    if dtype.kind in "iu" and isinstance(x, int):
        x = x % (1 << dtype.bits)
        x = x - (1 << dtype.bits) if dtype.kind == "i" and x >> (dtype.bits - 1) else x
    return concrete(np.asarray(x).astype(dtype.np), dtype)


def axes_of(dims: Any, rank: int) -> tuple[int, ...]:
    """Dims counted from the front; none, or an empty list, are all of them."""
    if dims is None or (isinstance(dims, list | tuple) and not dims):
        return tuple(range(rank))
    given = dims if isinstance(dims, list | tuple) else (dims,)
    return tuple(axis_of(d, rank) for d in given)


def axis_of(d: int, rank: int) -> int:
    """A dim counted from the front."""
    return d % rank if rank else 0


def pulled(f: Callable[..., Any], ct: Any, *xs: Any) -> Any:
    """The cotangents of xs for a cotangent of f(*xs)."""
    _, pull = vjp(f, *xs)
    return pull(ct)


def wide(dtype: DType) -> DType:
    """The dtype in which PyTorch accumulates numbers of a narrow float."""
    return f32 if dtype.kind == "f" and dtype.bits < 32 else dtype
