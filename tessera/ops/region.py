"""Tracing: running a Python function on symbolic tensors to get its Graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.core import tree
from tessera.core.arrays import is_foreign
from tessera.core.blame import applied
from tessera.core.constraints import Scope, current_scope, scope
from tessera.core.device import ANYWHERE, Device
from tessera.core.dims import Dim
from tessera.core.errors import OperandError, TraceError, nested_too_deep
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Builder, Graph, Value, building, current_builder
from tessera.ops.define import as_value

# Functions, branches and loops inside each other.  Tracing takes some eight Python frames a level and
# derivatives no more, so that this many fit in Python's default limit of 1,000 with room for the user's
# own.
DEEPEST = 64


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
    weak_numbers: bool = False,
    place: Device | None = None,
    given: Sequence[Value] = (),
    bakes: bool = True,
) -> Traced:
    """The graph of f; the tensor leaves of args and kwargs have these types, in order.

    With weak_numbers, a Python number takes the dtype of what it meets inside f too.  What the host holds
    goes to `place`. Where the graph is of one call alone, `given` are the values of that call, which f may
    decide on.  Unless the graph bakes small tensors from outside, they are inputs as large ones are.
    """
    leaves, structure = tree.flatten((args, kwargs))
    parent = current_builder()
    builder = Builder(parent, input_names=names, place=place, given=given, bakes=bakes)
    if builder.depth > DEEPEST:
        raise nested_too_deep(name, DEEPEST)
    # A nested trace shares the facts of the one around it; an outermost trace opens its own.
    facts = Scope() if parent is None else current_scope()
    with scope(facts), building(builder):
        left = iter(types)
        filled = [
            builder.input(next(left), _place(x), weak_numbers and _is_plain(x))
            if is_tensor(x)
            else x
            for x in leaves
        ]
        inner_args, inner_kwargs = tree.unflatten(structure, filled)
        result = applied(name, f, inner_args, inner_kwargs)
        outs, out_structure = tree.flatten(result)
        values = [_output(x, name) for x in outs]
        graph, outer = builder.finish(values, name, facts.guards if parent is None else ())
    return Traced(graph, outer, out_structure)


def _place(x: Any) -> Device:
    """The device of an argument; data that is no tensor yet goes where the others are."""
    return x.device if isinstance(x, Value) else ANYWHERE


def is_tensor(x: Any) -> bool:
    """Whether a leaf of the arguments is traced (the rest is static)."""
    return isinstance(x, _TENSORS) or is_foreign(x)


_TENSORS = (Value, np.ndarray, np.generic, float, int, complex, Dim)
_NUMBERS = (int, float, complex)


def _is_plain(x: Any) -> bool:
    return is_number(x) or isinstance(x, Dim)


def is_number(x: Any) -> bool:
    """Whether x is a Python number."""
    return isinstance(x, _NUMBERS) and not isinstance(x, np.generic)


def _output(x: Any, name: str) -> Value:
    if not is_tensor(x):
        raise TraceError(
            f"{name} returned {type(x).__name__} {x!r:.60}, expected tensors in tuples, lists or dicts"
        )
    try:
        return as_value(x)
    except OperandError as e:
        raise TraceError(f"{name} returned a value that is no tensor: {e.message}") from None


def over_same_inputs(
    regions: Sequence[Graph], outers: Sequence[Sequence[Value]]
) -> tuple[tuple[Graph, ...], tuple[Value, ...]]:
    """Regions over the same inputs: what any of them uses from outside is an input of all.

    The last inputs of regions[i] stand for outers[i]; those before them already agree.
    """
    union = {id(v): v for outer in outers for v in outer}
    out = []
    for g, outer in zip(regions, outers, strict=True):
        own = len(g.inputs) - len(outer)
        have = {id(v): inner for v, inner in zip(outer, g.inputs[own:], strict=True)}
        new = Builder()
        extra = [have[k] if k in have else new.input(v.type, v.device) for k, v in union.items()]
        out.append(with_inputs(g, [*g.inputs[:own], *extra]))
    return tuple(out), tuple(union.values())


def with_inputs(g: Graph, inputs: Sequence[Value]) -> Graph:
    """g as a region with these inputs, which must hold its own."""
    for i, v in enumerate(inputs):
        v.index = i
    return Graph(inputs, g.nodes, g.outputs, g.name)
