"""The arguments of a jitted function: what is an input, what is part of the key, and what is neither.

Trees, numbers and arrays of any library are inputs.  Statics that the user declared, keyword-only plain
values, and values that cannot change (text, enums, dtypes, functions) are part of the key.  Anything else
is an error: as a constant it would go stale without a word when it changes, and a fresh one would compile
anew each time.
"""

from __future__ import annotations

import enum
import warnings
from collections.abc import Sequence
from types import BuiltinFunctionType, EllipsisType, FunctionType, MethodType, NotImplementedType
from typing import Any

import numpy as np

from tessera.core import tree
from tessera.core.device import Device
from tessera.core.dtype import DType
from tessera.core.errors import OperandError, located
from tessera.core.source import caller
from tessera.core.statics import static_key
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Value, concrete
from tessera.lang.create import asarray, is_on_gpu
from tessera.lang.trace import is_number, is_tensor
from tessera.ops.define import as_value

PLAIN = (bool, int, float, complex, str, bytes, type(None))
# Leaves that cannot change, so that a program may hold them.
_FIXED = (
    *PLAIN, enum.Enum, DType, np.dtype, Device, TensorType, type, range, frozenset, EllipsisType,
    NotImplementedType, FunctionType, BuiltinFunctionType, np.ufunc,
)  # fmt: skip
_OURS = __name__.partition(".")[0] + "."
_MANY = 8  # variants that differ in Python values alone, from which on a warning is due


class Call:
    """One call, taken apart: static parameters, and the leaves of the others in order."""

    __slots__ = ("key", "leaves", "names", "static", "structure", "tensors")

    def __init__(
        self, name: str, dynamic: dict[str, Any], static: dict[str, Any], method: bool = False
    ):
        self.static, self.names = static, tuple(dynamic)
        if method and self.names:
            dynamic[self.names[0]] = settled(dynamic[self.names[0]])
        self.leaves, self.structure = tree.flatten(tuple(dynamic.values()))
        rest = tuple([_mark(x) for x in self.leaves])
        inputs = [x for x, m in zip(self.leaves, rest, strict=True) if type(m) is not tuple]
        self.tensors = [argument(x) for x in inputs]
        if len(inputs) < len(rest):
            self._check_constants(name)
        chosen = tuple((n, static_key(v)) for n, v in static.items())
        self.key = (self.names, tree.token(self.structure), rest, chosen)

    @property
    def types(self) -> tuple[TensorType, ...]:
        """Types of the tensor leaves."""
        return tuple(v.type for v in self.tensors)

    @property
    def paths(self) -> list[str]:
        """How each leaf is reached: the parameter, and the way through its tree."""
        parts = zip(self.names, self.structure.children, strict=True)
        return [p for n, s in parts for p in tree.structure_paths(s, n)]

    def _check_constants(self, name: str) -> None:
        for path, x in zip(self.paths, self.leaves, strict=True):
            if not is_tensor(x) and not _is_fixed(x):
                raise OperandError(_refusal(name, path, x))

    def unhashable(self, name: str) -> OperandError:
        """The error of a tree whose static parts cannot be hashed."""
        pairs = zip(self.names, self.structure.children, strict=True)
        bad = next((n for n, s in pairs if not _is_hashable(s)), "")
        return OperandError(
            f"{name}: argument '{bad}' is a tree with a static field or a key that cannot be hashed; make "
            "the field a tuple or a frozen value, or leave out metadata static=True"
        )

    def values(self) -> dict[str, Any]:
        """The Python values that this call is compiled for, by where they were given."""
        fixed = zip(self.paths, self.leaves, strict=True)
        return {**{p: x for p, x in fixed if not is_tensor(x)}, **self.static}


def _is_hashable(x: Any) -> bool:
    try:
        hash(x)
    except TypeError:
        return False
    return True


class Fixed:
    """A number among the fields of `self`: it decides what is traced and is part of the key; tensors are
    inputs.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        return hash(repr(self.value))

    def __repr__(self) -> str:
        return repr(self.value)


def settled(instance: Any) -> Any:
    """An instance whose numbers are fixed."""
    leaves, structure = tree.flatten(instance)
    if not any(is_number(x) for x in leaves):
        return instance
    return tree.unflatten(structure, [Fixed(x) if is_number(x) else x for x in leaves])


def unsettled(instance: Any) -> Any:
    """The instance whose numbers were fixed."""
    leaves, structure = tree.flatten(instance)
    if not any(type(x) is Fixed for x in leaves):
        return instance
    return tree.unflatten(structure, [x.value if type(x) is Fixed else x for x in leaves])


class _Marker:
    """Stands for a tensor in a key."""


def _mark(x: Any) -> Any:
    """A leaf in a key: a tensor by its type alone, which is kept apart, anything else whole."""
    if is_number(x):
        return type(x)
    if type(x) is slice:
        return slice, (x.start, x.stop, x.step)  # a slice has no hash of its own in Python 3.11
    return _Marker if is_tensor(x) else (type(x), x)


def fixed_token(x: Any) -> Any:
    """A leaf that stays what it is, such as an object that a method belongs to, in the key of a usual call;
    None of any other leaf.
    """
    if is_number(x) or is_tensor(x) or isinstance(x, slice | MethodType) or not _is_fixed(x):
        return None
    return type(x), x


_HERE = (Value, np.ndarray)


def argument(x: Any) -> Value:
    """A leaf as a value; a Python number keeps all of its digits."""
    if is_number(x):
        return as_value(x, "jit") if type(x) is int and x.bit_length() > 63 else concrete(x)
    if isinstance(x, _HERE):
        return as_value(x, "jit")
    return asarray(x) if is_on_gpu(x) else as_value(x, "jit")


def _is_fixed(x: Any) -> bool:
    """Whether a leaf is a value that stays what it is."""
    if isinstance(x, _FIXED):
        return True
    if isinstance(x, slice):
        return all(n is None or isinstance(n, int) for n in (x.start, x.stop, x.step))
    if isinstance(x, MethodType):
        return _is_fixed(x.__self__)
    return type(x).__module__.startswith(_OURS) and _is_hashable(x)


def _refusal(name: str, path: str, x: Any) -> str:
    cls = type(x).__name__
    if path == "self":
        return (
            f"{name}: 'self' is {cls}, which is no tree, so that its tensors would be constants and changes "
            "to "
            f"them would not show; make {cls} a dataclass, register it with ts.tree.register({cls}, flatten, "
            'unflatten), or declare it static: ts.jit(static_argnames=("self",))'
        )
    first = path.partition("[")[0].partition(".")[0]
    where = f"argument '{first}'" if first == path else f"'{path}' of argument '{first}'"
    return (
        f"{name}: {where} is {cls}, which is no tensor, number, array or tree of them; declare it static: "
        f'ts.jit(static_argnames=("{first}",)), make {cls} a dataclass, or register it with '
        f"ts.tree.register({cls}, flatten, unflatten)"
    )


def check_statics(name: str, static: dict[str, Any]) -> None:
    """Refuse static arguments that cannot be told apart by hash and equality."""
    for n, v in static.items():
        if isinstance(v, Value):
            raise OperandError(
                f"{name}: static argument '{n}' is a tensor {v.type}; leave it out of static_argnames, or "
                "pass "
                "a Python value"
            )
        if not _is_hashable(v):
            raise OperandError(
                f"{name}: static argument '{n}' is {type(v).__name__}, which cannot be "
                "hashed; pass a tuple or a frozen value"
            )


class Variants:
    """Counts the variants of a function that differ in Python values alone, and warns of many once."""

    def __init__(self, name: str):
        self._name, self._seen, self._warned = name, dict[Any, list[dict[str, Any]]](), False

    def add(self, c: Call, rest: Any) -> None:
        """Note a new variant; `rest` is what it was compiled for beside Python values."""
        values = c.values()
        if self._warned or not values:
            return
        seen = self._seen.setdefault((tuple(values), c.structure, rest), [])
        seen.append(values)
        if len(seen) < _MANY:
            return
        self._warned = True
        changed = [n for n in values if len({_shown(v[n]) for v in seen}) > 1] or list(values)
        given = ", ".join(dict.fromkeys(_shown(v[changed[0]]) for v in seen[-3:]))
        where = caller()
        warnings.warn(
            f"{self._name} was compiled {len(seen)} times for the same types, since {_listed(changed)} "
            "changed "
            f"(last: {given}); pass a number that changes as a positional argument, keep one function "
            "instead "
            "of making a new one for each call, or leave the argument out of static_argnames"
            + (f"\n  at {where}" if where else ""),
            RuntimeWarning,
            stacklevel=2,
        )


def _shown(x: Any) -> str:
    return f"{x!r:.40}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(f"'{n}'" for n in names[:3])


def names_in(what: str, given: Any) -> list[str]:
    """The names of parameters that an option of jit lists."""
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, tuple | list | set | frozenset) or not all(
        isinstance(n, str) for n in names
    ):
        raise located(OperandError(f"jit: {what} is {given!r:.40}, expected names of parameters"))
    return list(names)


def numbers_of(name: str, names: Sequence[str], argnums: Any) -> list[str]:
    """The names of the parameters at these positions."""
    given = list(argnums) if isinstance(argnums, tuple | list) else [argnums]
    for i in given:
        if isinstance(i, bool) or not isinstance(i, int) or not -len(names) <= i < len(names):
            raise OperandError(
                f"jit: static_argnums has {i!r:.40}, but {name} has {len(names)} parameters: "
                f"{', '.join(names)}"
            )
    return [names[i] for i in given]


def method_of(f: Any) -> Any:
    """The function of a bound method or of a callable object of the user's, whose self is an argument."""
    if isinstance(f, MethodType):
        return None if isinstance(f.__self__, type) else f.__func__
    cls = type(f)
    method = getattr(cls, "__call__", None)  # noqa: B004
    ours = cls.__module__.startswith(_OURS) and not hasattr(cls, "__tessera_tree__")
    if ours or not isinstance(method, FunctionType):
        return None
    return method


def copied(x: Value) -> Value:
    """A tensor with memory of its own, where it is on the host."""
    return concrete(x.storage.copy(), x.dtype) if isinstance(x.storage, np.ndarray) else x


def leaf_names(parameters: Sequence[str], values: Sequence[Any]) -> list[str]:
    """Names of the tensors in the arguments, in order."""
    names = []
    for name, value in zip(parameters, values, strict=True):
        leaves = tree.leaves(value)
        names += [
            name if len(leaves) == 1 else f"{name}.{i}"
            for i, x in enumerate(leaves)
            if is_tensor(x)
        ]
    return names
