"""Habits from other libraries: what Tessera calls the attributes that NumPy's, PyTorch's and JAX's arrays
have.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from tessera.core.counterparts import METHODS, NAMES, wanted
from tessera.core.errors import NoAttributeError, TraceError, located
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


_METHODS = """abs acos all asin atan atan2 ceil concat cos cosh cross cumprod cummax cummin det diag
diagonal div eig eigh einsum elu eq erf exp expm1 expand_dims fft flip floor ge gelu glu gt hypot inv
isfinite isinf isnan kron layernorm le leaky_relu lgamma log log10 log1p log2 log_softmax logical_and
logical_not logical_or logsumexp lt maximum minimum moveaxis ne neg norm one_hot outer pad pinv pow prelu qr
reciprocal relu remainder roll rsqrt scatter scatter_add searchsorted sigmoid sign silu sin sinh solve sqrt
square stack svd tan tanh topk trace tril triu trunc unique where"""
_IN_PLACE = """add_ sub_ mul_ div_ pow_ neg_ abs_ exp_ log_ sqrt_ zero_ fill_ copy_ clamp_ clip_ relu_
sigmoid_ tanh_ squeeze_ unsqueeze_ t_ transpose_ normal_ uniform_ random_ scatter_ scatter_add_ index_add_
index_copy_ masked_fill_ resize_ set_ detach_"""


class _Absent:
    """Stands for a method of another library's arrays; whoever asks for it is told what to write.

    Descriptors for the usual names leave the attributes that exist as fast as they are, which __getattr__
    would not.
    """

    def __init__(self, name: str):
        self._name = name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        raise absent("a tensor", self._name, ())

    def __set__(self, instance: Any, value: Any) -> None:
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
    ("builder", "index", "node", "shown_layout", "storage", "weak")
)  # of a tensor, for the compiler


def is_shown(name: str) -> bool:
    """Whether dir() and tab completion show a name of a tensor."""
    return (name.startswith("__") or not name.startswith("_")) and name not in _INNER


for _name in _NAMES:
    setattr(Habits, _name, _Absent(_name))


def on_traced(name: str, ours: str, x: Any) -> TraceError:
    """The error of a function of NumPy on a tensor that has no numbers yet, with the op to write for it."""
    found = ours or NAMES.get(name, "")
    way = wanted(found) if found else "write it with ops, or call NumPy by ts.callback"
    return TraceError(f"numpy.{name}: {x.type} is traced and has no data, which NumPy needs; {way}")
