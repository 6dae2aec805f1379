"""Habits from other libraries: what Tessera calls the attributes that NumPy's, PyTorch's and JAX's arrays have."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tessera.core.counterparts import METHODS, NAMES, wanted
from tessera.core.errors import NoAttributeError, OperandError, TesseraError, TraceError, located
from tessera.ops.define import FUNCTIONS


def absent(what: str, name: str, there: Iterable[str]) -> AttributeError:
    """The error of an attribute that an object does not have, with what to write instead."""
    if name.startswith("_"):  # protocols ask for such names, and for a plain answer
        return AttributeError(f"{what} has no attribute '{name}'")
    advice = _advice(name, there)
    return located(
        NoAttributeError(f"{what} has no attribute '{name}'" + (f"; {advice}" if advice else ""))
    )  # type: ignore[return-value]


def _advice(name: str, there: Iterable[str]) -> str:
    if name in METHODS:
        return wanted(METHODS[name])
    if name.endswith("_") and not name.startswith("_"):
        return "tensors are values: write x = x + y, or x = x.at[index].set(value)"
    if name in FUNCTIONS or name in _METHODS.split():
        return f"write op.{name}(x)"
    near = difflib.get_close_matches(name, [n for n in there if not n.startswith("_")], 1)
    return f"did you mean '{near[0]}'?" if near else ""


_METHODS = """abs acos all asin atan atan2 ceil concat cos cosh cross cumprod cummax cummin det diag diagonal div eig eigh einsum elu eq erf exp
expm1 expand_dims fft flip floor ge gelu glu gt hypot inv isfinite isinf isnan kron layernorm le leaky_relu lgamma log log10 log1p log2 log_softmax
logical_and logical_not logical_or logsumexp lt maximum minimum moveaxis ne neg norm one_hot outer pad pinv pow prelu qr reciprocal relu remainder
roll rsqrt scatter scatter_add searchsorted sigmoid sign silu sin sinh solve sqrt square stack svd tan tanh topk trace tril triu trunc unique where"""
_IN_PLACE = """add_ sub_ mul_ div_ pow_ neg_ abs_ exp_ log_ sqrt_ zero_ fill_ copy_ clamp_ clip_ relu_ sigmoid_ tanh_ squeeze_ unsqueeze_ t_ transpose_
normal_ uniform_ random_ scatter_ scatter_add_ index_add_ index_copy_ masked_fill_ resize_ set_ detach_"""


class _Absent:
    """Stands for a method of another library's arrays; whoever asks for it is told what to write.

    Descriptors for the usual names leave the attributes that exist as fast as they are, which __getattr__ would not.
    """

    def __init__(self, name: str):
        self._name = name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        raise absent("a tensor", self._name, ())


_NAMES = (*METHODS, *_METHODS.split(), *_IN_PLACE.split())


class Habits:
    """The names that users of other libraries expect of a tensor."""

    __slots__ = ()

    def __dir__(self) -> list[str]:
        return [
            n
            for n in object.__dir__(self)
            if is_shown(n) and not isinstance(vars(Habits).get(n), _Absent)
        ]


_INNER = frozenset(
    ("builder", "data", "index", "node", "weak", "shown_layout")
)  # of a tensor, for the compiler


def is_shown(name: str) -> bool:
    """Whether dir() and tab completion show a name of a tensor."""
    return (name.startswith("__") or not name.startswith("_")) and name not in _INNER


for _name in _NAMES:
    setattr(Habits, _name, _Absent(_name))


# Functions of NumPy on tensors


_OPERATORS = {
    "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div", "power": "pow", "equal": "eq", "not_equal": "ne", "less": "lt",
    "less_equal": "le", "greater": "gt", "greater_equal": "ge", "negative": "neg", "absolute": "abs", "conjugate": "conj", "invert": "bitwise_invert",
    "left_shift": "bitwise_left_shift", "right_shift": "bitwise_right_shift", "arcsin": "asin", "arccos": "acos", "arctan": "atan",
    "arctan2": "atan2", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh", "mod": "remainder", "rint": "round", "fabs": "abs",
}  # fmt: skip


def ufunc(f: Any, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A universal function of NumPy on tensors: the op of that name, or NumPy's own where it writes to an array."""
    name = f.__name__
    found = FUNCTIONS.get(_OPERATORS.get(name, name))
    if method == "__call__" and found is not None and not kwargs:
        return found(*inputs)
    out = kwargs.get("out", ())
    if not all(isinstance(x, np.ndarray) for x in out) or (
        found is None and method == "__call__" and not out
    ):
        ours = f"op.{found.__name__}" if found is not None else "functions of op"
        raise located(
            OperandError(
                f"numpy.{name}: cannot write to a tensor, and has no op of its own; use {ours}, or x.numpy()"
            )
        )
    return function(getattr(f, method), inputs, kwargs)


def function(f: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A function of NumPy on tensors: NumPy's own on their data, with an array as the result."""
    traced = next((x for x in _tensors(args) if x.data is None), None)
    if traced is not None:
        raise located(_on_traced(getattr(f, "__name__", "function"), traced))
    try:
        return f(*_arrays(args), **{k: _arrays(v) for k, v in kwargs.items()})
    except (TypeError, ValueError) as e:
        if isinstance(e, TesseraError):
            raise
        first = str(e).strip().partition("\n")[0]
        error = OperandError(f"numpy.{getattr(f, '__name__', 'function')}: {first}")
    raise located(error)


def _tensors(x: Any) -> Iterator[Any]:
    """The tensors among arguments."""
    if isinstance(x, tuple | list):
        for y in x:
            yield from _tensors(y)
    elif hasattr(type(x), "__array_namespace__") and hasattr(x, "builder"):
        yield x


def _on_traced(name: str, x: Any) -> TraceError:
    """The error of a function of NumPy on a tensor that has no numbers yet, with the op to write for it."""
    ours = _OPERATORS.get(name, name)
    found = f"op.{ours}" if ours in FUNCTIONS else NAMES.get(name, "")
    way = wanted(found) if found else "write it with ops, or call NumPy by ts.callback"
    return TraceError(f"numpy.{name}: {x.type} is traced and has no data, which NumPy needs; {way}")


def _arrays(x: Any) -> Any:
    """A tree of arguments with NumPy arrays for tensors."""
    if isinstance(x, tuple | list):
        return type(x)(map(_arrays, x)) if type(x) in (tuple, list) else x
    return np.asarray(x) if hasattr(type(x), "__array_namespace__") else x
