"""Run the nodes of a graph in order, eagerly or under a trace.

Inputs that are known while tracing (shapes, weights that are constants) are NumPy arrays.  A node whose
inputs are all known is computed at once, so that shape arithmetic leaves no trace in the program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tessera.core.errors import TesseraError, TraceError, out_of_memory
from tessera.interop.onnx import carry, sizes
from tessera.interop.onnx.model import (
    DataDependentError,
    Model,
    OnnxError,
    OnnxFunction,
    OnnxGraph,
    OnnxNode,
    OnnxReference,
)
from tessera.interop.onnx.rule import (
    RULES,
    NodeCall,
    NodeRule,
    Quantised,
    Sizes,
    host,
    is_foreign,
    tensor,
)
from tessera.ir.graph.ir import Value, concrete, eagerly

# What a rule raises on inputs or attributes that do not fit.
_MISFITS = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)
_DEEPEST = 50  # calls of functions inside functions
_FLOAT = 1  # TensorProto.FLOAT
_LARGE = 64  # elements of a constant that a program holds rather than reads


class OnnxScope:
    """The values of one graph, inside the scope that it stands in."""

    __slots__ = ("outer", "quantised", "values")

    def __init__(self, values: dict[str, Any], outer: OnnxScope | None = None):
        self.values, self.outer = values, outer
        self.quantised: dict[str, Quantised] = {}  # by the names that DequantizeLinear made

    def find(self, name: str) -> Any:
        """The value of a name; the empty name is an input that is left out."""
        if not name:
            return None
        scope: OnnxScope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        raise OnnxError(f"'{name}' is used before a node makes it")


class Evaluator:
    """A model that can be run, whole or node by node."""

    def __init__(self, model: Model):
        self.model = model
        self._last: dict[int, list[tuple[str, ...]]] = {}
        self._depth = 0
        # Weights as tensors, made once, by which traces know them.
        self._weights: dict[int, Value] = {}
        self._initialisers = {id(a) for a in model.graph.initialisers.values()}

    def graph(self, g: OnnxGraph, args: Sequence[Any], outer: OnnxScope | None = None) -> list[Any]:
        """The outputs of a graph for its inputs in order."""
        values: dict[str, Any] = dict(g.initialisers)
        values.update(zip((i.name for i in g.inputs), args, strict=False))
        scope = OnnxScope(values, outer)
        self.nodes(g.nodes, scope, [o.name for o in g.outputs])
        return [scope.find(o.name) for o in g.outputs]

    def nodes(self, nodes: Sequence[OnnxNode], scope: OnnxScope, keep: Iterable[str]) -> None:
        """Run nodes in order; what none of the rest reads is let go."""
        key = id(nodes)
        if key not in self._last:
            self._last[key] = _last_uses(nodes, set(keep))
        for n, dead in zip(nodes, self._last[key], strict=True):
            self.node(n, scope)
            for name in dead:
                scope.values.pop(name, None)
                scope.quantised.pop(name, None)

    def node(self, n: OnnxNode, scope: OnnxScope) -> None:
        """Run one node and enter its outputs."""
        try:
            found = self._outputs(n, scope)
            for name, x in zip(n.outputs, found, strict=False):
                if name:
                    scope.values[name] = x
        except (OnnxError, DataDependentError) as e:
            raise _blamed(e, n) from None
        except TraceError as e:  # an op asked for the data of a traced value
            raise DataDependentError(_text(n, e.message)) from None
        except TesseraError as e:
            raise type(e)(_text(n, e.message)) from None
        except MemoryError as e:
            raise out_of_memory(f"onnx: {n}", e) from None
        except _MISFITS as e:
            what = f"{type(e).__name__}: {e}".partition("\n")[0]
            raise OnnxError(_text(n, f"cannot take its inputs or attributes ({what})")) from None

    def _outputs(self, n: OnnxNode, scope: OnnxScope) -> Sequence[Any]:
        args = [scope.find(name) for name in n.inputs]
        function = self.model.functions.get((n.domain, n.op))
        if function is not None:
            return self._function(function, n, args)
        rule = RULES.get((n.domain, n.op))
        if rule is None:
            raise OnnxError("there is no rule for this node type")

        def inner(g: OnnxGraph, given: Sequence[Any]) -> list[Any]:
            return self.graph(g, given, scope)

        made = tuple(scope.quantised.get(name) for name in n.inputs) if scope.quantised else ()
        found = _as_outputs(self._apply(rule, NodeCall(n, inner, made), args))
        if n.op == "DequantizeLinear" and n.attributes.get("output_dtype") in (None, 0, _FLOAT):
            scope.quantised[n.outputs[0]] = _quantised(n, args)
        return found

    def _apply(self, rule: NodeRule, call: NodeCall, args: list[Any]) -> Any:
        """The outputs of a rule, by the way that its inputs ask for."""
        if any(isinstance(x, Sizes) for x in args):
            found = sizes.apply(call, args)
            if found is not None:
                return found
            args = args if rule.sizes else [tensor(x) for x in args]
        if rule.moves and any(map(is_foreign, args)):
            return carry.apply(rule.run, call, args)
        if rule.host:
            with eagerly():
                known = [_hosted(x, i) for i, x in enumerate(args)]
                return rule.run(call, *known)
        if not rule.fold:
            return rule.run(call, *args)
        if all(x is None or isinstance(x, np.ndarray) for x in args):
            with eagerly():
                return _known(rule.run(call, *[tensor(x) for x in args]))
        return rule.run(call, *[self._weight(x, rule.sizes) for x in args])

    def _weight(self, x: Any, sizes: bool) -> Any:
        """An operand as a tensor; a large initialiser is always the same one."""
        if not isinstance(x, np.ndarray) or is_foreign(x):
            return x if sizes else tensor(x)
        if x.size <= _LARGE or id(x) not in self._initialisers:
            return tensor(x)
        if id(x) not in self._weights:
            self._weights[id(x)] = concrete(x)
        return self._weights[id(x)]

    def _function(self, f: OnnxFunction, n: OnnxNode, args: Sequence[Any]) -> list[Any]:
        given = {**f.defaults, **n.attributes}
        padded = [*args, *[None] * (len(f.inputs) - len(args))]
        scope = OnnxScope(dict(zip(f.inputs, padded, strict=False)))
        self._depth += 1
        if self._depth > _DEEPEST:
            raise OnnxError(f"functions call each other deeper than {_DEEPEST} levels")
        for inner in f.nodes:
            self.node(_bound(inner, given), scope)
        self._depth -= 1
        return [scope.find(name) for name in f.outputs[: len(n.outputs)]]


def _quantised(n: OnnxNode, args: Sequence[Any]) -> Quantised:
    """What a DequantizeLinear reads, for rules that multiply the quantised numbers."""
    numbers, scale, *zero = args
    axis, blocks = (
        n.attributes.get(name, usual) for name, usual in (("axis", 1), ("block_size", 0))
    )
    return Quantised(numbers, scale, zero[0] if zero else None, axis, blocks)


def _blamed(e: TesseraError, n: OnnxNode) -> TesseraError:
    """The error, naming the innermost node that it belongs to."""
    return e if e.message.startswith("onnx: ") else type(e)(_text(n, e.message))


def _text(n: OnnxNode, message: str) -> str:
    return message if message.startswith("onnx: ") else f"onnx: {n}: {message}"


def _as_outputs(found: Any) -> Sequence[Any]:
    return found if isinstance(found, tuple) else (found,)


def _hosted(x: Any, i: int) -> Any:
    if x is None:
        return None
    if isinstance(x, list):
        return [_hosted(e, i) for e in x]
    return host(x, f"input {i}")


def _known(found: Any) -> Any:
    """Results that were computed at once, as NumPy arrays."""
    if isinstance(found, tuple | list):
        return type(found)(map(_known, found))
    return np.asarray(found) if isinstance(found, Value) else found


def _bound(n: OnnxNode, given: Mapping[str, Any]) -> OnnxNode:
    """A node of a function with the attributes of the call."""
    attributes: dict[str, Any] = {}
    for name, a in n.attributes.items():
        if isinstance(a, OnnxReference):
            if a.name in given:
                attributes[name] = given[a.name]
        else:
            attributes[name] = _bound_graph(a, given) if isinstance(a, OnnxGraph) else a
    return OnnxNode(n.op, n.domain, n.version, n.name, n.inputs, n.outputs, attributes)


def _bound_graph(g: OnnxGraph, given: Mapping[str, Any]) -> OnnxGraph:
    nodes = tuple(_bound(n, given) for n in g.nodes)
    return OnnxGraph(g.name, g.inputs, g.outputs, nodes, g.initialisers)


def _last_uses(nodes: Sequence[OnnxNode], keep: set[str]) -> list[tuple[str, ...]]:
    """For each node the names that no later node reads."""
    seen = set(keep)
    out: list[tuple[str, ...]] = []
    for n in reversed(nodes):
        names = {*reads(n), *n.outputs} - {""}
        out.append(tuple(names - seen))
        seen |= names
    return out[::-1]


def reads(n: OnnxNode) -> set[str]:
    """The names that a node reads, itself or in its graphs."""
    found = set(n.inputs)
    for g in n.graphs():
        for m in g.nodes:
            found |= reads(m)
        found |= {o.name for o in g.outputs}
    return found
