"""Arguments of a kernel: what annotations say of them, and what they are to the parser.

KTile["B*H", "S", "D_h", bf16 @ accum(f32)] is a tensor in memory; Tile["M", "D"], or Tile alone, is one
whose block is loaded before the kernel begins.  Keyword-only arguments are static; other numbers are given
when it runs.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tessera.algebra.operator import Operator
from tessera.core import tree
from tessera.core.dims import Dim, Shape, Size, substitute, symbol, symbols
from tessera.core.dtype import as_dtype, bool_, f32, i64
from tessera.core.errors import OperandError
from tessera.core.statics import static_key
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Value
from tessera.lang.annotation import TensorSpec, spec_of
from tessera.lang.state import KVCache
from tessera.ops.define import as_value


class KTile:
    """Annotation: a tensor in memory that a kernel loads tiles of."""

    def __class_getitem__(cls, items: Any) -> TensorSpec:
        return spec_of(items if isinstance(items, tuple) else (items,))


@dataclass(frozen=True)
class TileSpec:
    """Annotation: a tensor of which a kernel gets its block."""

    spec: TensorSpec | None = None


class Tile:
    """Annotation: a tensor of which a kernel gets its block, already loaded."""

    def __class_getitem__(cls, items: Any) -> TileSpec:
        return TileSpec(spec_of(items if isinstance(items, tuple) else (items,)))


@dataclass(frozen=True)
class KernelParameter:
    """A tensor that the compiled kernel takes."""

    name: str  # of the argument, or argument_field
    type: TensorType  # sizes as the annotation or the argument has them
    path: tuple[str, ...] = ()  # field of an argument that holds several
    loaded: bool = False  # whether the parser sees a tile
    number: bool = False  # whether the argument is a Python number


@dataclass(frozen=True)
class BoundArguments:
    """The arguments of a call."""

    parameters: tuple[KernelParameter, ...]
    arrays: tuple[Any, ...]  # NumPy arrays or traced values, one for each parameter
    static: Mapping[str, Any]
    names: tuple[str, ...]  # all arguments, in order
    holders: Mapping[str, Any] = field(default_factory=dict)  # arguments that hold several tensors

    @property
    def key(self) -> Any:
        """What a compiled kernel may serve: all but the numbers of symbolic sizes."""
        chosen = tuple((n, static_key(v)) for n, v in self.static.items())
        return self.parameters, chosen, tuple((n, type(x)) for n, x in self.holders.items())

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Sizes of the arrays."""
        return tuple(a.shape for a in self.arrays)

    @property
    def unnamed(self) -> frozenset[str]:
        """The symbols that no annotation names."""
        return frozenset(s for p in self.parameters for s in _unnamed(p))


def _unnamed(p: KernelParameter) -> list[str]:
    return [str(s) for i, s in enumerate(p.type.shape) if str(s) == own_name(p.name, i)]


def own_name(name: str, axis: int) -> str:
    """The symbol of an axis that no annotation names."""
    return f"{name.lstrip('_')}_axis{axis}"


class KernelSignature:
    """The parameters of a function that is a kernel."""

    def __init__(self, f: Callable[..., Any]):
        self.name: str = getattr(f, "__name__", "kernel")
        try:
            self.signature = inspect.signature(f, eval_str=True)
        except (NameError, SyntaxError, TypeError):
            self.signature = inspect.signature(f)
        self.annotations = {n: p.annotation for n, p in self.signature.parameters.items()}
        keyword = inspect.Parameter.KEYWORD_ONLY
        self.keyword_only = frozenset(
            n for n, p in self.signature.parameters.items() if p.kind is keyword
        )

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> BoundArguments:
        """The arguments of a call, sorted into tensors, numbers and static values."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as e:
            raise OperandError(f"{self.name}: {e}") from None
        bound.apply_defaults()
        parameters: list[KernelParameter] = []
        arrays: list[Any] = []
        static: dict[str, Any] = {}
        for name, x in bound.arguments.items():
            found = self._tensors(name, x)
            if found is None:
                static[name] = self._static(name, x)
                continue
            for p, a in found:
                parameters.append(p)
                arrays.append(a)
        held = {p.path[0]: bound.arguments[p.path[0]] for p in parameters if p.path}
        return BoundArguments(
            _named(parameters), tuple(arrays), static, tuple(bound.arguments), held
        )

    def _tensors(self, name: str, x: Any) -> list[tuple[KernelParameter, Any]] | None:
        if isinstance(x, KVCache):
            return [self._one(f"{name}_{k}", a, (name, k)) for k, a in _filled(x)]
        if (
            isinstance(x, Value)
            and x.weak
            and self.annotations.get(name) is inspect.Parameter.empty
        ):
            number = as_value(x, self.name)  # a Python number of a traced call
            return [(KernelParameter(name, number.type, number=True), number)]
        if isinstance(x, Value | np.ndarray):
            return [self._one(name, x)]
        if name not in self.keyword_only and (held := _held(x)) is not None:
            every = [self._one(f"{name}_{k}", a, (name, str(k))) for k, a in held]
            return every if every else None
        plain = isinstance(x, bool | int | float | np.generic) and not isinstance(x, str)
        if not plain or name in self.keyword_only:
            return None
        dtype = bool_ if isinstance(x, bool) else i64 if isinstance(x, int) else f32
        dtype = as_dtype(x.dtype) if isinstance(x, np.generic) else dtype
        a = np.asarray(x, dtype.np)
        return [(KernelParameter(name, TensorType(dtype, ()), number=True), a)]

    def _one(self, name: str, x: Any, path: tuple[str, ...] = ()) -> tuple[KernelParameter, Any]:
        annotation = None if path else self.annotations.get(name)
        actual = x.type if isinstance(x, Value) else TensorType(as_dtype(x.dtype), x.shape)
        loaded = annotation is Tile or isinstance(annotation, TileSpec)
        spec = annotation.spec if isinstance(annotation, TileSpec) else annotation
        if isinstance(spec, TensorSpec):
            t = spec.type_for(name, actual)
        else:
            fresh = tuple(symbol(own_name(name, i)) for i in range(actual.rank))
            t = TensorType(actual.dtype, fresh)
        # A symbolic size is at least 1: an empty axis has a kernel of its own.
        shape = tuple(0 if n == 0 else s for s, n in zip(t.shape, actual.shape, strict=True))
        here = isinstance(x, Value) and x.storage is not None and x.device.kind == "cpu"
        data = x.storage if here else x
        return KernelParameter(name, TensorType(t.dtype, shape), path, loaded), data

    def _static(self, name: str, x: Any) -> Any:
        try:
            hash(x)
        except TypeError:
            raise OperandError(
                f"{self.name}: static argument '{name}' is {type(x).__name__}, which cannot be hashed; pass "
                "a tuple or a tensor"
            ) from None
        return x


def _held(x: Any) -> list[tuple[Any, Any]] | None:
    """The tensors that an argument holds: a tuple, a list, a dictionary or a dataclass of tensors, an
    operator, and no other.
    """
    if isinstance(x, tuple | list):
        names = x._fields if hasattr(x, "_fields") else range(len(x))
        found = list(zip(names, x, strict=True))
    elif isinstance(x, dict):
        found = list(x.items())
    elif isinstance(x, Operator):
        found = list(enumerate(tree.flatten(x)[0]))
    elif dataclasses.is_dataclass(x) and not isinstance(x, type):
        found = [(f.name, getattr(x, f.name)) for f in dataclasses.fields(x)]
    else:
        return None
    return found if found and all(isinstance(a, Value | np.ndarray) for _, a in found) else None


def _filled(cache: KVCache) -> list[tuple[str, Any]]:
    """Keys and values of the positions that are filled."""
    n = cache.length.storage if isinstance(cache.length, Value) else cache.length
    if n is None:
        raise OperandError(
            "a kernel in a traced function takes the tensors of a KVCache, not the cache"
        )
    return [(k, getattr(cache, k).numpy()[..., : int(n), :]) for k in ("K", "V")]


def _named(parameters: list[KernelParameter]) -> tuple[KernelParameter, ...]:
    """Parameters whose sizes a call determines: a product of unknown names is a name of its own."""
    lone = {str(s) for p in parameters for s in p.type.shape if _is_symbol(s)}
    out = []
    for p in parameters:
        shape = tuple(
            s if isinstance(s, int) or symbols(s) <= lone else symbol(_joined(str(s)))
            for s in p.type.shape
        )
        out.append(
            KernelParameter(p.name, TensorType(p.type.dtype, shape), p.path, p.loaded, p.number)
        )
    return tuple(out)


def _is_symbol(s: Size) -> bool:
    return isinstance(s, Dim) and symbols(s) == {str(s)}


def _joined(text: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in text)


def at_sizes(shape: Shape, known: Mapping[str, Size]) -> Shape:
    """Sizes in which what is known replaces symbols."""
    return tuple(substitute(s, known) for s in shape)
