"""Functions that a kernel makes: lambda, and def within it.

They see the names of the function around them as these are when they are called, as in Python.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any

from tessera.lang.kernel.source import FunctionSource
from tessera.lang.kernel.values import KernelError


class Closure:
    """A function that is made while a kernel is parsed."""

    def __init__(
        self, source: FunctionSource, frame: Any, signature: Signature, parse: Callable[..., Any]
    ):
        self.source, self.frame, self.signature = source, frame, signature
        self.parse = parse  # (source, variables, frame) -> what the function returns
        self.__name__ = source.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.parse(self.source, self.bound(args, kwargs), self.frame)

    def __repr__(self) -> str:
        return f"function {self.__name__}"

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The variables of a call."""
        try:
            found = self.signature.bind(*args, **kwargs)
        except TypeError as e:
            raise KernelError(f"{self.__name__}{self.signature}: {e}") from None
        found.apply_defaults()
        return dict(found.arguments)


def signature_of(a: ast.arguments, value: Callable[[ast.expr], Any]) -> Signature:
    """The parameters of a function, with the values that their defaults have now."""
    positional = [*a.posonlyargs, *a.args]
    defaults = [Parameter.empty] * (len(positional) - len(a.defaults)) + [
        value(x) for x in a.defaults
    ]
    found = [
        Parameter(
            p.arg,
            Parameter.POSITIONAL_ONLY if p in a.posonlyargs else Parameter.POSITIONAL_OR_KEYWORD,
            default=d,
        )
        for p, d in zip(positional, defaults, strict=True)
    ]
    if a.vararg is not None:
        found.append(Parameter(a.vararg.arg, Parameter.VAR_POSITIONAL))
    for p, d in zip(a.kwonlyargs, a.kw_defaults, strict=True):
        default = Parameter.empty if d is None else value(d)
        found.append(Parameter(p.arg, Parameter.KEYWORD_ONLY, default=default))
    if a.kwarg is not None:
        found.append(Parameter(a.kwarg.arg, Parameter.VAR_KEYWORD))
    return Signature(found)
