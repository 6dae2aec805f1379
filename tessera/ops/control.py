"""Ops with regions: calls of graphs and control flow."""

from __future__ import annotations

from typing import Any

from tessera.core.errors import ShapeError
from tessera.ir.graph.ir import Graph, Value
from tessera.ir.graph.op import Params, Types
from tessera.ops.define import define


def _call_types(types: Types, p: Params) -> list[Any]:
    (region,) = p["regions"]
    if [v.type for v in region.inputs] != list(types):
        wanted = ", ".join(str(v.type) for v in region.inputs)
        raise ShapeError(f"call: got ({', '.join(map(str, types))}), expected ({wanted})")
    return [v.type for v in region.outputs]


@define(
    infer=_call_types, multiple=True, call="call", moves=True,
    numpy=lambda *xs, regions, name: regions[0](*xs),
)  # fmt: skip
def call(region: Graph, *operands: Value, name: str) -> tuple[Value, ...]:
    """The outputs of a named graph."""
    return call.bind_many(*operands, regions=(region,), name=name)
