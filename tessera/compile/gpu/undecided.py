"""Nodes whose form only the sizes of a call decide: each is a program of its own at these sizes."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.core.primitives import is_open
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Builder, Graph, Node, bind, building, substitute_params
from tessera.ir.schedule.ir import HostCall


def is_undecided(n: Node) -> bool:
    """Whether a node is a primitive at some sizes, and is decomposed at others."""
    return n.op.decompose is not None and is_open(n.op.call, n.types, n.params)


def alone_at(s: HostCall, types: Mapping[str, TensorType], sizes: Mapping[str, int]) -> Graph:
    """The program of one node at known sizes."""
    n, b = s.node, Builder()
    with building(b):
        inputs = [b.input(types[x]) for x in s.operands]
        out = bind(n.op, *inputs, regions=n.regions, **substitute_params(n.params, sizes))
        g, _ = b.finish(out if n.op.multiple else (out,), n.op.name)
    return g
