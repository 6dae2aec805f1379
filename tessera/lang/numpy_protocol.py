"""Functions of NumPy on tensors: np.sin(t), np.mean(t), np.concatenate([t, u]) give tensors.

A function that op has is op's, in traced functions too; another is NumPy's own on the data, and its arrays
become tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np

from tessera.core.dtype import c128, f32, f64
from tessera.core.errors import OperandError, TesseraError, located
from tessera.core.provided import Provided
from tessera.ir.graph.ir import Value, concrete
from tessera.lang import habits

# What NumPy's functions are called in op, where that is another name.
NAMES = {
    "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div", "power": "pow",
    "equal": "eq", "not_equal": "ne", "less": "lt",
    "less_equal": "le", "greater": "gt", "greater_equal": "ge", "negative": "neg", "absolute": "abs",
    "conjugate": "conj", "invert": "bitwise_invert",
    "left_shift": "bitwise_left_shift", "right_shift": "bitwise_right_shift", "arcsin": "asin",
    "arccos": "acos", "arctan": "atan",
    "arctan2": "atan2", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh", "mod": "remainder",
    "rint": "round", "fabs": "abs",
    "concatenate": "concat", "amax": "max", "amin": "min", "ravel": "flatten", "around": "round",
}  # fmt: skip
# The functions whose arguments op takes in the same order, and how many of them; a name after it is NumPy's
# own.
_SAME = """sum:2 mean:2 max:2 min:2 amax:2 amin:2 prod:2 all:2 any:2 argmax:2 argmin:2 std:2 var:2 cumsum:2
cumprod:2 concatenate:2 stack:2 where:3 reshape:2 transpose:2 swapaxes:3 moveaxis:3 expand_dims:2 squeeze:2
broadcast_to:2 tile:2 flip:2 roll:3 clip:3 tensordot:3 outer:2 trace:4 diagonal:4 sort:2 argsort:2
searchsorted:3 take:3 take_along_axis:3 tril:2 triu:2 zeros_like:1 ones_like:1 full_like:2 kron:2 cross:2
ravel:1 round:2 around:2 real:1 imag:1 einsum:99 isin:2 repeat:3 matrix_transpose:1 vecdot:2
unique_values:1"""
_COUNTS = {n: int(k) for n, k in (entry.split(":") for entry in _SAME.split())}
# Arguments that both have under the same name.
_NAMED = frozenset(
    ("axis", "keepdims", "axes", "side", "shape", "shift", "decimals", "offset", "axis1", "axis2")
)

# Where axis=None means all elements in a row and is not the default: which argument the axis is.
_FLAT = {"concatenate": 1, "sort": 1, "argsort": 1, "take_along_axis": 2}

OPS: Provided[Mapping[str, Any]] = Provided(
    "functions of op", "every public function of op, by name"
)


def _diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    return OPS.get()["diagonal"](x, offset, axis1, axis2)


def _trace(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    return OPS.get()["sum"](_diagonal(x, offset, axis1, axis2), -1)


def _outer(a: Any, b: Any) -> Any:
    ops = OPS.get()
    return ops["outer"](ops["ravel"](a), ops["ravel"](b))


def _where(condition: Any, x: Any, y: Any) -> Any:
    ops = OPS.get()
    return ops["where"](ops["ne"](condition, 0), x, y)


def _imag(x: Any) -> Any:
    ops = OPS.get()
    return ops["imag"](x) if np.dtype(x.dtype.np).kind == "c" else ops["zeros_like"](x)


# What means something else in op, as in the array API: NumPy takes diagonals of the first two axes, flattens
# what `outer` gets, takes numbers for conditions, and has imaginary parts of real numbers.
_AS_NUMPY: dict[str, Callable[..., Any]] = {
    "diagonal": _diagonal, "trace": _trace, "outer": _outer, "where": _where, "imag": _imag,
}  # fmt: skip


def _nonzero(x: Any) -> Any:
    return OPS.get()["ne"](x, 0)


def _floating(x: Any) -> Any:
    return OPS.get()["cast"](x, f32) if x.dtype.kind in "biu" else x


def _wide(x: Any) -> Any:
    dtype = np.result_type(x.dtype.np if isinstance(x, Value) else x, np.float64)
    if isinstance(x, Value):
        return OPS.get()["cast"](x, c128 if dtype.kind == "c" else f64)
    return np.asarray(x, dtype)


# What NumPy's universal functions make of operands that the op takes otherwise: any number is a condition,
# `float_power` has 64 bits, and `fabs` and `rint` of whole numbers are floats.
_OPERANDS: dict[str, Callable[[Any], Any]] = {
    "logical_and": _nonzero, "logical_or": _nonzero, "logical_xor": _nonzero, "logical_not": _nonzero,
    "float_power": _wide, "fabs": _floating, "rint": _floating,
}  # fmt: skip


def ufunc(f: Any, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A universal function of NumPy on tensors: the op of that name, or NumPy's own on the data."""
    name = f.__name__
    found = OPS.get().get(NAMES.get(name, name))
    if method == "at" and isinstance(
        inputs[0], Value
    ):  # NumPy writes to arrays that it may not write to
        raise located(
            OperandError(
                f"numpy.{name}.at: a tensor does not change; write x = x.at[i].add(v), or another method of "
                "x.at[i], or take an array: x.numpy().copy()"
            )
        )
    if method == "__call__" and found is not None and not kwargs:
        prepared = _OPERANDS.get(name)
        return found(*inputs) if prepared is None else found(*map(prepared, inputs))
    if not all(isinstance(x, np.ndarray) for x in kwargs.get("out", ())):
        ours = f"op.{found.__name__}" if found is not None else "functions of op"
        raise located(
            OperandError(
                f"numpy.{name}: cannot write to a tensor, and has no op of its own; use {ours}, or x.numpy()"
            )
        )
    return _on_data(getattr(f, method), inputs, kwargs)


def function(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of NumPy on tensors: the one of op, or NumPy's own on the data."""
    name = f.__name__
    args, kwargs = _along(name, args, kwargs)
    given = _given(kwargs)
    count = _COUNTS.get(name) if getattr(f, "__module__", "numpy") == "numpy" else None
    if count is not None and len(args) <= count and _NAMED.issuperset(given):
        ours = _AS_NUMPY.get(name) or OPS.get().get(NAMES.get(name, name))
        if ours is not None and _takes(ours, given) and not (name == "where" and len(args) == 1):
            return ours(*args, **given)
    return _on_data(f, args, kwargs)


def _along(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with an axis, where None stands for all elements in a row."""
    at = _FLAT.get(name, 0)
    if not at or not args:
        return args, kwargs
    if len(args) > at and args[at] is None:
        return (_flat(args[0]), *args[1:at], 0, *args[at + 1 :]), kwargs
    if kwargs.get("axis", 0) is None:
        return (_flat(args[0]), *args[1:]), {**kwargs, "axis": 0}
    return args, kwargs


def _flat(x: Any) -> Any:
    """The elements in a row, of each of several tensors."""
    return [_flat(y) for y in x] if isinstance(x, tuple | list) else np.ravel(x)


def _given(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments that say something."""
    return {k: v for k, v in kwargs.items() if v is not None and v is not np._NoValue}


def _takes(f: Callable[..., Any], given: dict[str, Any]) -> bool:
    return not given or _parameters(f).issuperset(given)


@cache
def _parameters(f: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(inspect.unwrap(f)).parameters)


def _on_data(f: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    traced = next((x for x in _values((args, tuple(kwargs.values()))) if x.storage is None), None)
    if traced is not None:
        name = getattr(f, "__name__", "function")
        ours = NAMES.get(name, name)
        raise located(habits.on_traced(name, f"op.{ours}" if ours in OPS.get() else "", traced))
    try:
        found = f(*_arrays(args), **{k: _arrays(v) for k, v in kwargs.items()})
        return found if kwargs.get("out") is not None else _tensors(found)
    except (TypeError, ValueError) as e:
        if isinstance(e, TesseraError):
            raise
        first = str(e).strip().partition("\n")[0]
        error = OperandError(f"numpy.{getattr(f, '__name__', 'function')}: {first}")
    raise located(error)


def _values(x: Any) -> Iterator[Value]:
    """The tensors among arguments."""
    if isinstance(x, tuple | list):
        for y in x:
            yield from _values(y)
    elif isinstance(x, Value):
        yield x


def _arrays(x: Any) -> Any:
    """A tree of arguments with NumPy arrays for tensors."""
    if isinstance(x, tuple | list):
        return type(x)(map(_arrays, x)) if type(x) in (tuple, list) else x
    return np.asarray(x) if isinstance(x, Value) else x


def _tensors(x: Any) -> Any:
    """A tree of results with tensors for arrays of numbers."""
    if isinstance(x, tuple | list):
        return type(x)(map(_tensors, x)) if type(x) in (tuple, list) else x
    if isinstance(x, np.ndarray) and x.dtype.kind in "biufc":
        return concrete(np.array(x))
    return x
