"""Linear functions closed over their tensors, so that derivatives can be taken by all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tessera.core.types import TensorType
from tessera.ir.graph.ir import Builder, Graph, Value, building, current_builder
from tessera.ops.elementwise import conj
from tessera.transform.differentiate import Tangent, linearize, push_forward, zeros
from tessera.transform.inline import copy_into, inline
from tessera.transform.simplify import simplify

Apply = Callable[[Value], Value]


@dataclass(frozen=True)
class Closed:
    """x -> A x as a graph whose inputs are x and the tensors that A is made of."""

    graph: Graph
    leaves: tuple[Value, ...]

    @property
    def argument(self) -> TensorType:
        """The type of x."""
        return self.graph.inputs[0].type

    def on(self, leaves: Sequence[Value]) -> Apply:
        """The function with these tensors."""
        return lambda x: copy_into(self.graph, (x, *leaves))[0]

    def moved(self, x: Value, leaves: Sequence[Value], tangents: Sequence[Tangent]) -> Tangent:
        """The derivative of A x by the tensors of A, None for zero."""
        if all(t is None for t in tangents):
            return None
        return push_forward(self.graph, [x, *leaves], [None, *tangents])[1][0]

    def transposed(self) -> Closed:
        """y -> A^T y, by transposing the graph."""
        result = self.graph.outputs[0].type

        def body(y: Value, *leaves: Value) -> Value:
            point = [zeros(self.argument), *leaves]
            (found,) = linearize(self.graph, point, [0]).pull_back([y])
            return zeros(self.argument) if found is None else found

        types = [result, *(v.type for v in self.graph.inputs[1:])]
        return Closed(simplify(_graph(body, types)[0]), self.leaves)

    def conjugated(self) -> Closed:
        """x -> conj(A) x."""
        if self.argument.dtype.kind != "c":
            return self
        types = [v.type for v in self.graph.inputs]
        f = lambda x, *leaves: conj(self.on(leaves)(conj(x)))  # noqa: E731
        return Closed(_graph(f, types)[0], self.leaves)


def close(f: Apply, argument: TensorType) -> Closed:
    """f for arguments of this type; the tensors that it uses become leaves."""
    graph, outer = _graph(f, [argument])
    return Closed(inline(graph), outer)


def _graph(f: Callable[..., Value], types: Sequence[TensorType]) -> tuple[Graph, tuple[Value, ...]]:
    b = Builder(current_builder())
    with building(b):
        out = f(*(b.input(t) for t in types))
        g, outer = b.finish([out], "apply")
    return Graph(g.inputs, g.nodes, g.outputs, g.name), outer
