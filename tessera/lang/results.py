"""Return annotations: what a function says that it returns is checked when it is traced."""

from __future__ import annotations

import inspect
import linecache
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tessera.algebra.annotation import OperatorSpec
from tessera.core.constraints import lone_symbol, same
from tessera.core.dims import Size, substitute, symbols
from tessera.core.errors import AnnotationError
from tessera.core.source import Location
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Value, origin
from tessera.lang.annotation import TensorSpec
from tessera.ops.define import as_value
from tessera.ops.region import is_tensor


class Returns:
    """The return annotation of a function, with the annotations of its parameters."""

    def __init__(self, f: Callable[..., Any], name: str, signature: inspect.Signature):
        self._name, self._f = name, f
        given = signature.return_annotation
        self._want = given if _says_something(given) else None
        self._specs = {
            p.name: p.annotation
            for p in signature.parameters.values()
            if isinstance(p.annotation, TensorSpec)
        }

    @property
    def checks(self) -> bool:
        """Whether there is anything to check."""
        return self._want is not None

    def check(self, result: Any, arguments: Mapping[str, Any]) -> None:
        """Refuse a result that the annotation does not allow."""
        env: dict[str, Size] = {}
        for n, spec in self._specs.items():
            if isinstance(arguments.get(n), Value):
                _bind(env, spec.shape, arguments[n].shape)
        self._compare(result, self._want, env, "")

    def _compare(self, got: Any, want: Any, env: dict[str, Size], path: str) -> None:
        if isinstance(want, TensorSpec):
            self._compare_tensor(got, want, env, path)
        elif isinstance(want, OperatorSpec):
            self._compare_operator(got, want, env, path)
        elif (parts := _parts(want, got)) is not None:
            if not isinstance(got, tuple | list) or len(got) != len(parts):
                count = (
                    f"{len(got)} values" if isinstance(got, tuple | list) else type(got).__name__
                )
                raise self._error(got, path, f"{count}, expected {len(parts)} as in {_shown(want)}")
            for i, (x, w) in enumerate(zip(got, parts, strict=True)):
                self._compare(x, w, env, f"{path}[{i}]")

    def _compare_tensor(self, got: Any, want: TensorSpec, env: dict[str, Size], path: str) -> None:
        if not is_tensor(got):
            raise self._error(got, path, f"{type(got).__name__}, expected {want}")
        t = as_value(got).type
        if t.rank != len(want.shape):
            raise self._error(got, path, f"{t} of rank {t.rank}, expected {want}")
        if want.dtype is not None and t.dtype is not want.dtype:
            raise self._error(
                got, path, f"{t}, expected dtype {want.dtype} as in {want}; cast it with astype"
            )
        self._compare_sizes(got, t, want.shape, t.shape, want, env, path)

    def _compare_operator(
        self, got: Any, want: OperatorSpec, env: dict[str, Size], path: str
    ) -> None:
        if not (hasattr(got, "shape") and hasattr(got, "kind") and hasattr(got, "parts")):
            raise self._error(got, path, f"{type(got).__name__}, expected {want}")
        if want.dtype is not None and got.dtype is not want.dtype:
            raise self._error(got, path, f"{got}, expected dtype {want.dtype} as in {want}")
        self._compare_sizes(got, got, (want.rows, want.columns), got.shape, want, env, path)

    def _compare_sizes(
        self, got: Any, shown: TensorType | Any, want: Sequence[Size], sizes: Sequence[Size], spec: Any,
        env: dict[str, Size], path: str,
    ) -> None:  # fmt: skip
        _bind(env, want, sizes)
        for i, (w, n) in enumerate(zip(want, sizes, strict=True)):
            expected = substitute(w, env)
            if symbols(w) <= env.keys() and same(expected, n) is not True:
                named = f"{w} = {expected}" if str(w) != str(expected) else str(w)
                raise self._error(
                    got, path, f"{shown}: axis {i} is {n}, expected {named} as in {spec}"
                )

    def _error(self, got: Any, path: str, text: str) -> AnnotationError:
        error = AnnotationError(f"{self._name}: the result{path} is {text}")
        node = got.node if isinstance(got, Value) else None
        where = node.location if node is not None and node.location else _definition(self._f)
        if isinstance(got, Value) and node is None and (came := origin(got)):
            error.origins = (f"it is {came}",)
        return error.at(where)


def _says_something(want: Any) -> bool:
    if isinstance(want, TensorSpec | OperatorSpec):
        return True
    if isinstance(want, tuple | list):
        return any(map(_says_something, want))
    return any(map(_says_something, typing.get_args(want)))


def _parts(want: Any, got: Any) -> list[Any] | None:
    """The annotations of the parts of a tuple or a list; None for what is not looked into."""
    if isinstance(want, tuple | list):
        return list(want)
    if not isinstance(want, types.GenericAlias) or typing.get_origin(want) not in (tuple, list):
        return None
    parts = list(typing.get_args(want))
    repeats = typing.get_origin(want) is list or (len(parts) == 2 and parts[1] is Ellipsis)
    return parts[:1] * len(got) if repeats and isinstance(got, tuple | list) else parts


def _shown(want: Any) -> str:
    return str(want) if isinstance(want, types.GenericAlias) else f"({', '.join(map(str, want))})"


def _bind(env: dict[str, Size], want: Sequence[Size], sizes: Sequence[Size]) -> None:
    """Give names that stand alone the size of their axis, where they have none."""
    for w, n in zip(want, sizes, strict=False):
        name = lone_symbol(w)
        if name is not None and name not in env:
            env[name] = n


def _definition(f: Callable[..., Any]) -> Location | None:
    """The line that begins the definition of a function, after its decorators."""
    code = getattr(inspect.unwrap(f), "__code__", None)
    if code is None:
        return None
    for line in range(code.co_firstlineno, code.co_firstlineno + 20):
        if linecache.getline(code.co_filename, line).lstrip().startswith(("def ", "async def ")):
            return Location(code.co_filename, line)
    return Location(code.co_filename, code.co_firstlineno)
