"""The values inside a program, op by op, as eager code computes them or as compiled parts of it do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tessera.compile import compile_graph
from tessera.core.constraints import solve
from tessera.core.flags import override
from tessera.ir.graph.interp import SlotPlan
from tessera.ir.graph.ir import Graph, Node, Value, eager_kernel, on_host
from tessera.ir.graph.op import forbidden

Array = np.ndarray[Any, np.dtype[Any]]
HOSTS = ("cpu", "numpy")


def is_repeatable(g: Graph) -> bool:
    """Whether a program may run a second time without anyone noticing."""
    return not any(
        forbidden(n.op.effects, "repeat") or not all(map(is_repeatable, n.regions)) for n in g.nodes
    )


def ways_of(target: str) -> Any:
    """How a target computes the values of a program's ops when nothing else is asked for."""
    return op_by_op if target in HOSTS else together


def op_by_op(
    g: Graph, inputs: Sequence[Array], target: str, numerics: str
) -> Iterator[tuple[Node, list[Array]]]:
    """Each node and its results, run one by one as eager code runs them."""
    shapes = [np.shape(x) for x in inputs]
    env = (
        None
        if g.static
        else solve([(str(v), v.shape, s) for v, s in zip(g.inputs, shapes, strict=True)], g.guards)
    )
    with override(target=target, numerics=numerics):
        plan = SlotPlan(g, env, eager_kernel)
        yield from zip(g.nodes, plan.each(inputs), strict=True)


def together(
    g: Graph, inputs: Sequence[Array], target: str, numerics: str
) -> Iterator[tuple[Node, list[Array]]]:
    """Each node and its results, from one compiled program that returns them all."""
    nodes = [n for n in g.nodes if n.results]
    found = iter(outputs_of(g, [v for n in nodes for v in n.results], inputs, target, numerics))
    for n in nodes:
        yield n, [next(found) for _ in n.results]


def outputs_of(
    g: Graph, wanted: Sequence[Value], inputs: Sequence[Array], target: str, numerics: str
) -> list[Array]:
    """Some values of a program, from the compiled program that returns them."""
    part = Graph(g.inputs, g.nodes, wanted, g.name, g.input_names, (), g.guards)
    made = compile_graph(part, target, numerics)
    return [np.asarray(on_host(x)) for x in made.run(inputs)]
