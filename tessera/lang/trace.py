"""Tracing: running a Python function on symbolic tensors to get its Graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.core import tree
from tessera.core.constraints import Scope, current_scope, scope
from tessera.core.errors import OperandError, TraceError
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Builder, Graph, Value, building, current_builder
from tessera.ops.define import as_value


@dataclass(frozen=True)
class Traced:
    """A graph with the structure of what the function returned."""

    graph: Graph
    outer: tuple[Value, ...]  # what the graph's last inputs stand for
    structure: tree.Structure


def trace(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    types: Sequence[TensorType],
    name: str,
    names: Sequence[str] = (),
) -> Traced:
    """The graph of f; the tensor leaves of args and kwargs have these types, in order."""
    leaves, structure = tree.flatten((args, kwargs))
    parent = current_builder()
    builder = Builder(parent, input_names=names)
    # A nested trace shares the facts of the one around it; an outermost trace opens its own.
    facts = Scope() if parent is None else current_scope()
    with scope(facts), building(builder):
        inputs = iter([builder.input(t) for t in types])
        filled = [next(inputs) if is_tensor(x) else x for x in leaves]
        inner_args, inner_kwargs = tree.unflatten(structure, filled)
        result = f(*inner_args, **inner_kwargs)
        outs, out_structure = tree.flatten(result)
        values = [_output(x, name) for x in outs]
        graph, outer = builder.finish(values, name, facts.guards if parent is None else ())
    return Traced(graph, outer, out_structure)


def is_tensor(x: Any) -> bool:
    """Whether a leaf of the arguments is traced (the rest is static)."""
    return isinstance(x, Value | np.ndarray | np.generic | float | int | complex)


def _output(x: Any, name: str) -> Value:
    if not is_tensor(x):
        raise TraceError(
            f"{name} returned {type(x).__name__} {x!r:.60}, expected tensors in tuples, lists or dicts"
        )
    try:
        return as_value(x)
    except OperandError as e:
        raise TraceError(f"{name} returned a value that is no tensor: {e.message}") from None
