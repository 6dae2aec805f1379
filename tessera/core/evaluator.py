"""Sizes as Python functions of their symbols: what an interpreter evaluates at every instance of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from tessera.core.dims import Atom, Dim, Size, Symbol


@lru_cache(65536)
def evaluator(x: Dim) -> Callable[[Mapping[str, int]], int]:
    """The value of x, compiled once: a function of numbers for all of its symbols."""
    function: Callable[[Mapping[str, int]], int] = eval(
        f"lambda v: {_code(x)}", {"__builtins__": {}, "max": max, "min": min}
    )
    return function


@lru_cache(65536)
def evaluators(sizes: tuple[Size, ...]) -> Callable[[Mapping[str, int]], tuple[int, ...]]:
    """The values of several sizes, compiled once."""
    function: Callable[[Mapping[str, int]], tuple[int, ...]] = eval(
        f"lambda v: ({''.join(f'{_code(x)}, ' for x in sizes)})",
        {"__builtins__": {}, "max": max, "min": min},
    )
    return function


def _code(x: Size) -> str:
    if isinstance(x, int):
        return repr(int(x))
    return " + ".join(
        "*".join([f"({c})", *(_atom(a) for a, p in m for _ in range(p))]) for m, c in x.terms
    )


def _atom(a: Atom) -> str:
    if isinstance(a, Symbol):
        return f"v[{a.name!r}]"
    left, right = _code(a.left), _code(a.right)
    if a.function in ("max", "min"):
        return f"{a.function}({left}, {right})"
    return f"(({left}) {a.function} ({right}))"
