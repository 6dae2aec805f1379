"""shapes: how the shape of every value in a function came to be."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tessera.core import tree
from tessera.core.blame import blames_arguments, demand_function
from tessera.core.constraints import Guard
from tessera.core.errors import OperandError, TesseraError, located
from tessera.core.looking import looking
from tessera.core.source import Location
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Graph
from tessera.lang.annotation import StateSpec, TensorSpec
from tessera.lang.arguments import argument, leaf_names
from tessera.lang.jit import Jitted
from tessera.lang.placeholders import placed
from tessera.lang.trace import is_tensor
from tessera.lang.trace import trace as trace_function
from tessera.ops.region import Traced


@dataclass(frozen=True)
class ShapeRow:
    """One value: what made it, from what, and where in the user's program."""

    what: str
    type: TensorType
    operands: tuple[TensorType, ...]
    location: Location | None

    def cells(self) -> tuple[str, str, str, str]:
        """The row as text."""
        ins = ", ".join(map(str, self.operands))
        return self.what, str(self.type), f"({ins})" if ins else "", str(self.location or "")


@dataclass(frozen=True)
class Shapes:
    """The shapes in a function, and what a call must satisfy.  Prints as a table."""

    rows: tuple[ShapeRow, ...]
    outputs: tuple[TensorType, ...]
    guards: tuple[Guard, ...]

    def __str__(self) -> str:
        table = [r.cells() for r in self.rows]
        widths = [max((len(row[i]) for row in table), default=0) for i in range(3)]
        lines = [
            "  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[3]]).rstrip()
            for row in table
        ]
        lines.append(f"returns {', '.join(map(str, self.outputs))}")
        lines += [
            f"needs {g}: {g.reason}" + (f" at {g.location}" if g.location else "")
            for g in self.guards
        ]
        return "\n".join(lines)

    __repr__ = __str__


@blames_arguments
def trace(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Graph:
    """The traced graph of f; arguments are what a jitted f takes, or annotations that stand for tensors."""
    try:
        return _graph_of(f, args, kwargs)
    except TesseraError as e:
        error = located(e)
    raise error


@blames_arguments
def shapes(f: Callable[..., Any], *types: Any, **kwargs: Any) -> Shapes:
    """How the shape of every value in f came to be, for tensors or annotations as arguments."""
    g = trace(f, *types, **kwargs)
    names = [*g.input_names, *(f"input {i}" for i in range(len(g.input_names), len(g.inputs)))]
    rows = [ShapeRow(n, v.type, (), None) for n, v in zip(names, g.inputs, strict=True)]
    for n in g.nodes:
        rows += [ShapeRow(n.op.name, v.type, n.types, n.location) for v in n.results]
    return Shapes(tuple(rows), tuple(v.type for v in g.outputs), g.guards)


def results_of(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The types of what f returns, in its structure."""
    traced = _traced(f, args, kwargs)
    return tree.unflatten(traced.structure, [v.type for v in traced.graph.outputs])


def _graph_of(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
    demand_function("shapes", f)
    return _traced(f, args, kwargs).graph


def _traced(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced:
    # The body of a jitted function, but not of other wrappers: grad(f) is not f.
    plain = inspect.unwrap(f, stop=lambda g: not isinstance(g, Jitted))
    given = args or _annotated(plain)
    taken, kwargs = placed(tuple(given)), placed(kwargs)
    types = [argument(x).type for x in tree.leaves((taken, kwargs)) if is_tensor(x)]
    names = _names(plain, taken, kwargs)
    name = getattr(plain, "__name__", "function")
    with looking():
        return trace_function(plain, taken, kwargs, types, name, names, weak_numbers=True)


def _annotated(f: Callable[..., Any]) -> list[TensorSpec | StateSpec]:
    parameters = inspect.signature(f, eval_str=True).parameters.values()
    specs = [p.annotation for p in parameters if isinstance(p.annotation, TensorSpec | StateSpec)]
    if parameters and not specs:
        raise OperandError(
            f"shapes: {getattr(f, '__name__', f)} has no annotated tensors; pass a type for each "
            'argument, such as Tensor["B", 64, f32]'
        )
    return specs


def _names(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    try:
        parameters = list(inspect.signature(f).parameters)
    except (TypeError, ValueError):
        parameters = []
    given = [
        (parameters[i] if i < len(parameters) else f"argument {i}", a) for i, a in enumerate(args)
    ]
    every = [*given, *sorted(kwargs.items())]  # in the order of the leaves of a dict
    return leaf_names([n for n, _ in every], [v for _, v in every])
