"""jit: a function traced once per argument types, compiled, and run from a cache."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any

from tessera.compile import Executable, Step, compile_graph
from tessera.core import tree
from tessera.core.errors import AnnotationError, OperandError, TesseraError, located
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Graph, Value, current_builder, data_of, holding
from tessera.lang.annotation import TensorSpec
from tessera.lang.tensor import Tensor
from tessera.lang.trace import Traced, is_tensor, trace
from tessera.ops.control import call
from tessera.ops.define import as_value

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class Lowered:
    """A function at the levels of the compiler, for arguments of given types."""

    def __init__(self, executable: Executable):
        self._executable = executable

    @property
    def graph(self) -> Graph:
        """Graph IR after the last Graph pass."""
        return self._executable.graph

    @property
    def traced(self) -> Graph:
        """Graph IR as it was traced."""
        return self._executable.record[0].graph

    @property
    def record(self) -> tuple[Step, ...]:
        """Every pass with its time and its result."""
        return self._executable.record


class _Entry:
    """A compiled variant."""

    __slots__ = ("executable", "single", "structure", "types")

    def __init__(self, executable: Executable, structure: tree.Structure):
        self.executable, self.structure = executable, structure
        self.single = structure.kind is None
        self.types = [v.type for v in executable.graph.outputs]


class _Call:
    """One call, taken apart: static parameters, tensor leaves, and the rest of the tree."""

    __slots__ = ("dynamic", "key", "kwargs", "leaves", "static", "tensors")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], static: dict[str, Any]):
        self.static = static
        self.leaves, self.dynamic = tree.flatten((args, kwargs))
        self.tensors = [_tensor(x) for x in self.leaves if is_tensor(x)]
        rest = tuple(_Marker if is_tensor(x) else x for x in self.leaves)
        self.key = (
            self.dynamic,
            rest,
            tuple(static.items()),
            tuple([t.type for t in self.tensors]),
        )


class _Marker:
    """Stands for a tensor in a key."""


def _tensor(x: Any) -> Value:
    return x if isinstance(x, Value) else as_value(x, "jit")


class Jitted:
    """A function that compiles itself for the types it is called with."""

    def __init__(
        self,
        f: Callable[..., Any],
        static_argnames: Sequence[str] = (),
        donate: Sequence[str] = (),
        numerics: str | None = None,
    ):
        update_wrapper(self, f)
        self._f, self._name = f, getattr(f, "__name__", "function")
        try:
            self._signature = inspect.signature(f, eval_str=True)
        except NameError:
            self._signature = inspect.signature(f)
        names = tuple(self._signature.parameters)
        given = [static_argnames] if isinstance(static_argnames, str) else list(static_argnames)
        for n in (*given, *donate):
            if n not in names:
                raise located(
                    OperandError(
                        f"jit: {self._name} has no parameter '{n}'; it has {', '.join(names)}"
                    )
                )
        self._static, self._donate, self._numerics = frozenset(given), tuple(donate), numerics
        self._keyword_only = frozenset(
            p.name for p in self._signature.parameters.values() if p.kind is p.KEYWORD_ONLY
        )
        self._specs = {
            p.name: p.annotation
            for p in self._signature.parameters.values()
            if isinstance(p.annotation, TensorSpec)
        }
        self._plain = not self._static and not self._keyword_only
        self._entries: dict[Any, _Entry] = {}  # by actual types
        self._variants: dict[Any, _Entry] = {}  # by the types that are compiled for
        self._traces: dict[Any, Traced] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._plain and not kwargs and current_builder() is None:
            for a in args:
                if type(a) is not Tensor or a.data is None:
                    break
            else:
                entry = self._entries.get(tuple([a.type for a in args]))
                if entry is not None:
                    return _wrap(entry, [a.data for a in args])
        try:
            return self._call(args, kwargs)
        except TesseraError as e:
            error = located(e)
        raise error

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        c = self._take_apart(args, kwargs)
        if current_builder() is not None:
            return self._inline(c)
        entry = self._entry(c)
        return _wrap(entry, [data_of(v, self._name) for v in c.tensors])

    def _take_apart(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as e:
            raise OperandError(f"{self._name}: {e}") from None
        static = {}
        for n, v in bound.arguments.items():
            if n in self._static or (n in self._keyword_only and isinstance(v, _PLAIN)):
                static[n] = v
        for n, v in static.items():
            try:
                hash(v)
            except TypeError:
                raise OperandError(
                    f"{self._name}: static argument '{n}' is {type(v).__name__}, which cannot be "
                    "hashed; pass a tuple or a frozen value"
                ) from None
        return _Call((), {n: v for n, v in bound.arguments.items() if n not in static}, static)

    def _entry(self, c: _Call) -> _Entry:
        entry = self._entries.get(c.key)
        if entry is not None:
            return entry
        types = self._trace_types(c)
        key = (*c.key[:3], types)
        entry = self._variants.get(key)
        if entry is None:
            t = self._trace(c, types)
            entry = self._variants[key] = _Entry(compile_graph(t.graph), t.structure)
        self._entries[c.key] = entry
        if self._plain and all(is_tensor(x) for x in c.leaves) and self._is_flat(c):
            self._entries[c.key[3]] = entry
        return entry

    def _is_flat(self, c: _Call) -> bool:
        """Whether the call was f(tensor, tensor, ...) in the order of the parameters."""
        (_, named) = c.dynamic.children
        order = tuple(n for n in self._signature.parameters if n in named.aux)
        return named.aux == order and all(s.kind is None for s in named.children)

    def _trace_types(self, c: _Call) -> tuple[TensorType, ...]:
        if not self._specs:
            return c.key[3]
        (_, named) = c.dynamic.children
        types, leaves, tensors = [], iter(c.leaves), iter(c.tensors)
        for name, s in zip(named.aux, named.children, strict=True):
            spec = self._specs.get(name)
            mine = [next(leaves) for _ in range(s.count)]
            if spec is not None and (s.kind is not None or not is_tensor(mine[0])):
                raise AnnotationError(
                    f"argument '{name}' of {self._name} is {s if s.kind else type(mine[0]).__name__}, "
                    f"expected {spec}"
                )
            for x in mine:
                if is_tensor(x):
                    t = next(tensors).type
                    types.append(t if spec is None else spec.type_for(name, t))
        return tuple(types)

    def _trace(self, c: _Call, types: Sequence[TensorType]) -> Traced:
        args, kwargs = tree.unflatten(c.dynamic, c.leaves)
        assert args == ()
        return trace(self._bound(c.static), (), kwargs, types, self._name, _leaf_names(kwargs))

    def _bound(self, static: dict[str, Any]) -> Callable[..., Any]:
        def run(**dynamic: Any) -> Any:
            bound = self._signature.bind_partial()
            order = self._signature.parameters
            bound.arguments.update({n: v for n, v in (dynamic | static).items() if n in order})
            named = {n: bound.arguments[n] for n in order if n in bound.arguments}
            bound.arguments.clear()
            bound.arguments.update(named)
            return self._f(*bound.args, **bound.kwargs)

        return run

    def _inline(self, c: _Call) -> Any:
        """Inside another trace: a call node around this function's graph."""
        self._trace_types(c)  # check the annotations
        t = self._trace(c, [v.type for v in c.tensors])
        outs = call(t.graph, *c.tensors, *t.outer, name=self._name)
        return tree.unflatten(t.structure, outs)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """This function at every level of the compiler, for these arguments."""
        try:
            return Lowered(self._entry(self._take_apart(args, kwargs)).executable)
        except TesseraError as e:
            error = located(e)
        raise error

    @property
    def compiled(self) -> int:
        """How many variants have been compiled."""
        return len(self._variants)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else _Method(self, instance)


class _Method:
    """A jitted method bound to its instance, which must be a tree."""

    def __init__(self, f: Jitted, instance: Any):
        self._jitted, self._self = f, instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._jitted(self._self, *args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The method at every level of the compiler."""
        return self._jitted.lower(self._self, *args, **kwargs)


def _leaf_names(kwargs: dict[str, Any]) -> list[str]:
    names = []
    for name in sorted(kwargs):
        leaves = tree.leaves(kwargs[name])
        for i, x in enumerate(leaves):
            if is_tensor(x):
                names.append(name if len(leaves) == 1 else f"{name}.{i}")
    return names


def _wrap(entry: _Entry, data: Sequence[Any]) -> Any:
    outs = entry.executable.run(data)
    values = [
        holding(t if t.static else TensorType(t.dtype, x.shape), x)
        for t, x in zip(entry.types, outs, strict=True)
    ]
    return values[0] if entry.single else tree.unflatten(entry.structure, values)


def jit(
    f: Callable[..., Any] | None = None,
    *,
    static_argnames: Sequence[str] = (),
    donate: Sequence[str] = (),
    numerics: str | None = None,
) -> Any:
    """Compile a function for the types it is called with.

    Arguments are trees of tensors.  Parameters in static_argnames, and keyword-only parameters
    that are given plain Python values, are part of the key instead: a new value compiles anew.
    """
    if f is None:
        return lambda g: Jitted(g, static_argnames, donate, numerics)
    return Jitted(f, static_argnames, donate, numerics)
