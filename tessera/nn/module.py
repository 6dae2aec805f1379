"""Modules: frozen dataclasses that are trees of their parameters.

    class Block(nn.Module):
        norm: nn.RMSNorm                      a child: parameters inside
        scale: ts.Tensor                      a child: a parameter
        heads: int                            static: numbers, text, functions and dtypes are no parameters
        activation: Callable = op.gelu        static

A subclass is made a dataclass.  Its annotations say which fields are static: those of plain Python types.  An
`__init__` of its own may set fields; afterwards they do not change.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import sys
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar, dataclass_transform

import numpy as np

from tessera.core import tree
from tessera.core.blame import MISFITS, blamed, blames_arguments, misfit
from tessera.core.counterparts import MODULES, wanted
from tessera.core.dtype import DType
from tessera.core.errors import (
    NoAttributeError,
    OperandError,
    TesseraError,
    TreeError,
    located,
)
from tessera.core.source import inside
from tessera.ir.graph.ir import Value, current_builder
from tessera.lang.trace import is_tensor

M = TypeVar("M", bound="Module")
_PLAIN = (int, float, complex, bool, str, bytes, type(None), DType, np.dtype, enum.Enum, type)


@dataclass_transform(eq_default=False)
class Module:
    """Base of layers and models: a dataclass, a tree, frozen after __init__."""

    __tessera_tree__ = True

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is Module:
            raise located(
                OperandError(
                    "nn.Module: make a class of it, as in class Model(nn.Module): linear: nn.Linear; "
                    "layers in a row are nn.Sequential"
                )
            )
        return super().__new__(cls)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = "__init__" in vars(cls)
        given = cls.__init__ if own else _inherited(cls)
        shown = "__repr__" in vars(cls)
        dataclasses.dataclass(init=given is None, eq=False, repr=False)(cls)
        for f in dataclasses.fields(cls):  # type: ignore[arg-type]
            if "static" not in f.metadata and is_static(_annotation(cls, f)):
                f.metadata = types.MappingProxyType({**f.metadata, "static": True})
        if isinstance(vars(cls).get("__call__"), types.FunctionType):
            explained = _called if cls.__module__.startswith(_OWN) else _traced
            cls.__call__ = explained(cls, cls.__call__)  # type: ignore[method-assign]
        build = given or cls.__init__
        cls.__init__ = _sealed(cls, build, by_hand=given is not None)  # type: ignore[method-assign]
        if not shown:
            cls.__repr__ = _shown  # type: ignore[method-assign]

    def __setattr__(self, name: str, value: Any) -> None:
        if "_open" not in self.__dict__:
            raise located(
                TreeError(
                    f"{type(self).__name__}.{name}: a module is a value and does not change after __init__; "
                    "make "
                    f"another one: nn.replace(module, {name}=...)"
                )
            )
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        raise _absent(self, name)

    def __delattr__(self, name: str) -> None:
        raise located(
            TreeError(f"{type(self).__name__}.{name}: a module is a value and keeps its fields")
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; subclasses define it."""
        named = next((n for n in ("forward", "call", "apply") if n in vars(type(self))), "")
        way = f"name its method {named} so" if named else "define one, or call its parts by name"
        raise located(OperandError(f"{type(self).__name__} has no __call__; {way}"))


_OWN = "tessera."  # layers whose arguments we explain; those of the user raise what Python raises


def _absent(module: Any, name: str) -> AttributeError:
    """The error of an attribute that a module does not have, with what to write instead."""
    what, fields = type(module).__name__, [f.name for f in dataclasses.fields(module)]
    if name.startswith("_"):  # protocols ask for such names, and for a plain answer
        return AttributeError(f"{what} has no attribute '{name}'")
    near = difflib.get_close_matches(name, fields, 1)
    advice = (
        wanted(MODULES[name]) if name in MODULES else f"did you mean '{near[0]}'?" if near else ""
    )
    text = f"{what} has no attribute '{name}'"
    error: Any = located(NoAttributeError(f"{text}; {advice}" if advice else text))
    return error  # type: ignore[no-any-return]


def _called(cls: type, call: Callable[..., Any]) -> Callable[..., Any]:
    """What one of our own layers computes; a call that does not fit it is explained."""

    @functools.wraps(call)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        try:
            if current_builder() is None:
                return call(self, *args, **kwargs)
            with inside(self):
                return call(self, *args, **kwargs)
        except TypeError as e:
            if isinstance(e, TesseraError):
                raise
            error = blamed(f"nn.{cls.__name__}", call, (self, *args), kwargs, e)
        advice = getattr(cls, "_advice", "")
        if advice and isinstance(error, TesseraError):
            error = located(OperandError(f"{error.message}; {advice}"))
        raise error

    return __call__


def _traced(cls: type, call: Callable[..., Any]) -> Callable[..., Any]:
    """What a layer of the user's computes; while it is traced, ops know that they are part of it."""

    @functools.wraps(call)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if current_builder() is None:
            return call(self, *args, **kwargs)
        with inside(self):
            return call(self, *args, **kwargs)

    return __call__


@blames_arguments
def static(**kwargs: Any) -> Any:
    """A field that is part of the structure and not a parameter, whatever its annotation says."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


@blames_arguments
def replace(module: M, **fields: Any) -> M:
    """The module with other values in some fields."""
    names = [f.name for f in dataclasses.fields(module)]  # type: ignore[arg-type]
    for n in fields:
        if n not in names:
            raise located(
                TreeError(
                    f"nn.replace: {type(module).__name__} has no field '{n}'; it has "
                    f"{', '.join(names) or 'none'}"
                )
            )
    made: M = object.__new__(type(module))
    for n in names:
        object.__setattr__(made, n, fields.get(n, getattr(module, n)))
    return made


def is_static(annotation: Any) -> bool:
    """Whether an annotation names values that are no parameters."""
    if annotation is None or annotation is Callable or annotation is typing.Callable:
        return True
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal or origin is Callable or origin is type:
        return True
    if origin is typing.Annotated:
        return is_static(inside[0])
    if origin in (typing.Union, types.UnionType, tuple, frozenset):
        return all(a is Ellipsis or is_static(a) for a in inside)
    return isinstance(annotation, type) and issubclass(annotation, _PLAIN)


def _annotation(cls: type, field: dataclasses.Field[Any]) -> Any:
    """The annotation of a field; None of its names may be unknown yet, which a parameter's class can be."""
    if not isinstance(field.type, str):
        return field.type
    home = next((c for c in cls.__mro__ if field.name in vars(c).get("__annotations__", {})), cls)
    names = vars(sys.modules[home.__module__]) if home.__module__ in sys.modules else {}
    try:
        return eval(field.type, {**vars(typing), **names}, dict(vars(home)))
    except (NameError, TypeError, AttributeError, SyntaxError):
        return Any


def _inherited(cls: type) -> Callable[..., None] | None:
    """The __init__ that a base class wrote by hand."""
    for base in cls.__mro__[1:]:
        built = vars(base).get("__init__")
        if built is not None:
            return built if getattr(built, "by_hand", False) else None
    return None


def _built(
    cls: type, build: Callable[..., None], module: Any, args: Any, kwargs: Any
) -> Exception | None:
    """Run an __init__; the error that names an argument which one of our own layers cannot take."""
    own = cls.__module__.startswith(_OWN)
    error = misfit(f"nn.{cls.__name__}", build, (module, *args), kwargs) if own else None
    if error is not None:
        return located(error)
    try:
        build(module, *args, **kwargs)
    except MISFITS as e:
        if isinstance(e, TesseraError) or not own:
            raise
        return blamed(f"nn.{cls.__name__}", build, (module, *args), kwargs, e)
    return None


def _sealed(cls: type, build: Callable[..., None], by_hand: bool) -> Callable[..., None]:
    """An __init__ after which the fields are checked and do not change."""

    @functools.wraps(build)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if type(self) is not cls:  # the __init__ of a subclass calls this one
            build(self, *args, **kwargs)
            return
        self.__dict__["_open"] = True
        try:
            error = _built(cls, build, self, args, kwargs)
        finally:
            del self.__dict__["_open"]
        if error is not None:
            raise error
        _check(self)

    __init__.by_hand = by_hand  # type: ignore[attr-defined]
    return __init__


def _check(module: Any) -> None:
    """Each field is set, and nothing else is; static ones can be compared, and the others hold parameters."""
    name = type(module).__name__
    known = {f.name for f in dataclasses.fields(module)}
    unknown = {n: x for n, x in vars(module).items() if n not in known and not _is_cache(module, n)}
    if unknown:
        names = ", ".join(f"'{n}'" for n in unknown)
        wants = "; ".join(f"{n}: {_annotation_for(x)}" for n, x in unknown.items())
        raise located(
            TreeError(
                f"{name}: __init__ sets {names}, but the class has no such field, so grad, jit and save "
                f"would lose {'it' if len(unknown) == 1 else 'them'}; write in the class: {wants}"
            )
        )
    for f in dataclasses.fields(module):
        if not hasattr(module, f.name):
            raise located(TreeError(f"{name}: __init__ did not set field '{f.name}'"))
        value = getattr(module, f.name)
        if f.metadata.get("static"):
            _check_static(name, f.name, value)
        else:
            _check_child(name, f.name, value)


def _is_cache(module: Any, name: str) -> bool:
    """Whether the class computes this from its fields at the first access."""
    return isinstance(getattr(type(module), name, None), functools.cached_property)


def _annotation_for(x: Any) -> str:
    """What to write for a field that holds this."""
    cls = type(x)
    if x is None:
        return "Any"
    if isinstance(x, Value):
        return "ts.Tensor"
    if isinstance(x, Module):
        return f"nn.{cls.__name__}" if cls.__module__.startswith(_OWN) else cls.__name__
    if isinstance(x, list | tuple) and x and all(type(i) is type(x[0]) for i in x):
        inner = _annotation_for(x[0])
        return f"list[{inner}]" if isinstance(x, list) else f"tuple[{inner}, ...]"
    if isinstance(x, dict | np.ndarray):
        return "dict" if isinstance(x, dict) else "ts.Tensor"
    return cls.__name__ if isinstance(x, _PLAIN) else "Callable" if callable(x) else "Any"


def _check_static(name: str, field: str, value: Any) -> None:
    if any(isinstance(x, Value | np.ndarray) for x in tree.leaves(value)):
        raise located(
            TreeError(
                f"{name}.{field} is a static field by its annotation, but holds parameters in "
                f"{type(value).__name__}; annotate it as ts.Tensor, nn.Module or Any"
            )
        )
    if not isinstance(value, Hashable):
        raise located(
            TreeError(
                f"{name}.{field} is a static field and holds {type(value).__name__}, which has no hash; "
                "use a tuple or another frozen value"
            )
        )


def _check_child(name: str, field: str, value: Any) -> None:
    for x in tree.leaves(value):
        if not is_tensor(x) and not hasattr(x, "shape"):
            raise located(
                TreeError(
                    f"{name}.{field} holds {type(x).__name__} {x!r:.40}, which is no parameter; annotate "
                    "the field "
                    "by a plain type (int, str, Callable), or write `= nn.static()` beside it"
                )
            )


def _shown(self: Any) -> str:
    """The fields that are neither None nor their default."""
    usual = {f.name: f.default for f in dataclasses.fields(self)}
    told = {n: v for n, v in vars_of(self).items() if v is not None and v is not usual[n]}
    return _lines(type(self).__name__, told)


def vars_of(module: Any) -> dict[str, Any]:
    """The fields of a module and what they hold."""
    return {f.name: getattr(module, f.name, None) for f in dataclasses.fields(module)}


def _lines(name: str, fields: Mapping[str, Any]) -> str:
    parts = [f"{k}={_text(v)}" for k, v in fields.items()]
    if sum(map(len, parts)) + len(name) < 90 and not any("\n" in p for p in parts):
        return f"{name}({', '.join(parts)})"
    inner = ",\n".join(parts).replace("\n", "\n  ")
    return f"{name}(\n  {inner},\n)"


def _text(x: Any) -> str:
    if isinstance(x, Value):
        return str(x.type)
    if isinstance(x, list | tuple):
        inner = [_text(v) for v in x]
        left, right = "[]" if isinstance(x, list) else "()"
        if any("\n" in t for t in inner) or sum(map(len, inner)) > 80:
            return left + "\n  " + ",\n".join(inner).replace("\n", "\n  ") + ",\n" + right
        return f"{left}{', '.join(inner)}{',' if left == '(' and len(inner) == 1 else ''}{right}"
    if isinstance(x, dict):
        return "{" + ", ".join(f"{k!r}: {_text(v)}" for k, v in x.items()) + "}"
    return getattr(x, "__name__", None) or repr(x)
