"""Gradient nodes with the nodes that they differentiate, which the file only names, in a graph of their own.

y = Mul(x, w); dx = Gradient(x, w) {xs=[x], zs=[w], y=y}
->  dx = Gradient(x, w) {xs=[x], zs=[w], body=graph(x, w) { y = Mul(x, w) } -> y}
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tessera.interop.onnx.model import Model, OnnxError, OnnxGraph, OnnxInfo, OnnxNode

DOMAIN = "ai.onnx.preview.training"
BODY = "body"


def with_bodies(model: Model) -> Model:
    """A model whose Gradient nodes hold what they differentiate."""
    return replace(model, graph=_graph(model.graph))


def _graph(g: OnnxGraph) -> OnnxGraph:
    if not any(_is_gradient(n) for n in g.nodes):
        return g
    nodes: list[OnnxNode] = []
    for n in g.nodes:
        nodes.append(_with_body(n, nodes) if _is_gradient(n) else n)
    return replace(g, nodes=tuple(nodes))


def _is_gradient(n: OnnxNode) -> bool:
    return n.op == "Gradient" and n.domain == DOMAIN


def _with_body(n: OnnxNode, before: list[OnnxNode]) -> OnnxNode:
    xs, zs, y = _names(n, "xs"), _names(n, "zs"), n.get("y")
    if not isinstance(y, str) or not xs or len(n.inputs) != len(xs) + len(zs):
        raise OnnxError(
            f"onnx: {n} has {len(n.inputs)} inputs for xs {xs} and zs {zs} and the output y {y!r}, "
            "expected one input for each of xs and zs, and the name of y"
        )
    wanted, kept = {y} - {*xs, *zs}, []
    for m in reversed(before):
        if wanted & set(m.outputs):
            kept.append(m)
            wanted |= {*_reads(m)} - {*xs, *zs, ""}
    body = OnnxGraph(
        f"{n.name} body", tuple(map(OnnxInfo, [*xs, *zs])), (OnnxInfo(y),), tuple(reversed(kept))
    )
    return replace(n, attributes={**n.attributes, BODY: body})


def _names(n: OnnxNode, attribute: str) -> list[str]:
    found: Any = n.get(attribute, [])
    return [x for x in found if isinstance(x, str)] if isinstance(found, list) else []


def _reads(n: OnnxNode) -> set[str]:
    found = set(n.inputs)
    for g in n.graphs():
        for m in g.nodes:
            found |= _reads(m)
        found |= {o.name for o in g.outputs}
    return found
