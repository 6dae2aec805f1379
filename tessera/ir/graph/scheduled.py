"""Graphs whose kernels the user has schedules for."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.ir.graph.ir import Graph


def with_schedules(g: Graph, schedules: Sequence[tuple[str, str]]) -> Graph:
    """The graph, whose kernels of these names are to have these schedules, as JSON."""
    if g.schedules == tuple(schedules):
        return g
    given = (g.inputs, g.nodes, g.outputs, g.name, g.input_names, g.captured, g.guards)
    return Graph(*given, schedules)
