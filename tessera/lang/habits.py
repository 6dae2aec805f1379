"""Habits from other libraries: what Tessera calls the attributes that NumPy's, PyTorch's and JAX's arrays
have.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from inspect import getattr_static
from typing import Any

from tessera.core.counterparts import METHODS, NAMES, wanted
from tessera.core.errors import NoAttributeError, TraceError, located
from tessera.core.library_names import ANSWERS
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
    if name in FUNCTIONS or name in _functions or name in _METHODS.split():
        return f"write op.{name}(x)"
    known = NAMES.get(name) or ANSWERS.get(name)
    if known:
        return wanted(known)
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
    """Stands for an attribute of another library's objects; asking for it raises an error with what to write.

    Descriptors for the usual names leave the attributes that exist as fast as they are, which __getattr__
    would not.
    """

    def __init__(self, name: str, what: str = "a tensor", advice: str = ""):
        self._name, self._what, self._advice = name, what, advice

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        raise self._error()

    def __set__(self, instance: Any, value: Any) -> None:
        raise self._error()

    def _error(self) -> AttributeError:
        if not self._advice:
            return absent(self._what, self._name, ())
        text = f"{self._what} has no attribute '{self._name}'; {wanted(self._advice)}"
        return located(NoAttributeError(text))  # type: ignore[return-value]


# Functions of other libraries that their arrays have as methods, too: x.absolute() is op.abs(x).
_FUNCTIONS = [n for n, to in (ANSWERS | NAMES).items() if n.isidentifier() and to.startswith("op.")]
_KNOWN = dict.fromkeys((*METHODS, *_METHODS.split(), *_FUNCTIONS, *FUNCTIONS))
_NAMES = dict.fromkeys(
    (*_KNOWN, *_IN_PLACE.split(), *(f"{n}_" for n in _KNOWN if not n.endswith("_")))
)


class Habits:
    """The names that users of other libraries expect of a tensor."""

    __slots__ = ()

    def __dir__(self) -> list[str]:
        return [
            n
            for n in object.__dir__(self)
            if is_shown(n) and not isinstance(getattr_static(type(self), n, None), _Absent)
        ]


class ElementCount(int):
    """How many elements a tensor has: a number; a call of it, as in PyTorch, is told what to write."""

    def __call__(self, dim: object = None) -> int:
        ours = "x.shape" if dim is None else f"x.shape[{dim}]"
        raise located(
            NoAttributeError(
                f"x.size is the number of elements, {int(self)}, and no function; write {ours}"
            )
        )


# What people ask of a compiled function in PyTorch and JAX, and what to write here.
_OF_FUNCTIONS = {
    **dict.fromkeys(("eval", "train"), "it as an argument, as in f(params, x, training=False)"),
    **dict.fromkeys(("parameters", "named_parameters", "state_dict"),
                    "ts.tree.leaves(params): parameters are arguments"),
    "load_state_dict": "params = ts.load(path): parameters are arguments",
    **dict.fromkeys(("to", "cuda", "cpu"), "f(x.to(device)): a function runs where its arguments are"),
    "forward": "f(x)", "backward": "ts.grad(f)(x)", "zero_grad": "nothing: gradients are values",
    **dict.fromkeys(("compile", "trace"), "f.lower(*args)"), "graph": "f.lower(*args).graph",
    **dict.fromkeys(("code", "as_text", "compiler_ir", "text"), "f.lower(*args).target"),
    "cost_analysis": "f.inspect(*args), or tessera profile FILE",
    **dict.fromkeys(("clear_cache", "cache_clear"), "ts.cache.clear()"),
    "vmap": "ts.vmap(f)", "grad": "ts.grad(f)", "shape": "ts.shapes(f, *types)",
    "eval_shape": "ts.eval_shape(f, *args)",
}  # fmt: skip


class FunctionHabits:
    """The names that users of other libraries expect of a compiled function."""

    def __dir__(self) -> list[str]:
        return [n for n in object.__dir__(self) if n not in _OF_FUNCTIONS]


for _name, _way in _OF_FUNCTIONS.items():
    setattr(FunctionHabits, _name, _Absent(_name, "a jitted function", _way))


_INNER = frozenset(
    ("builder", "index", "node", "shown_layout", "storage", "type", "weak")
)  # of a tensor, for the compiler


def is_shown(name: str) -> bool:
    """Whether dir() and tab completion show a name of a tensor."""
    return (name.startswith("__") or not name.startswith("_")) and name not in _INNER


for _name in _NAMES:
    setattr(Habits, _name, _Absent(_name))
_functions: set[str] = set()  # of op that are no records


def know_functions(names: Iterable[str]) -> None:
    """Have a tensor answer x.name with op.name(x) for these functions of op."""
    for name in names:
        if name.islower() and not hasattr_static(Habits, name):
            _functions.add(name)
            setattr(Habits, name, _Absent(name))


def hasattr_static(owner: Any, name: str) -> bool:
    """Whether a class has an attribute, which is not computed."""
    return any(name in k.__dict__ for k in owner.__mro__)


def on_traced(name: str, ours: str, x: Any) -> TraceError:
    """The error of a function of NumPy on a tensor that has no numbers yet, with the op to write for it."""
    found = ours or NAMES.get(name, "")
    way = wanted(found) if found else "write it with ops, or call NumPy by ts.callback"
    return TraceError(f"numpy.{name}: {x.type} is traced and has no data, which NumPy needs; {way}")
