"""refuse_moves: say which moves to the host a program asks for and does not make.

    %1 = state_move(%0) {to = "host"}   ->   the same, and a warning at the user's line

A tensor of a program lies in the memory of its target.  On a CPU that is the host's; from a GPU a result
leaves when the program is over.  What comes back within the program was moved before (make_moves), and so
was what a derivative keeps (ops/offload.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from tessera.ir.graph.ir import Graph, Node
from tessera.ops.state import state_move

_CPU = "on a CPU the memory of the host is that of the device"
_GPU = "it is read or returned before it moves back to the device"


def refuse_moves_on_cpu(g: Graph) -> Graph:
    """g, after warnings where it moves to the host what is there."""
    return _refused(g, _CPU)


def refuse_moves_on_gpu(g: Graph) -> Graph:
    """g, after warnings where it moves to the host what stays."""
    return _refused(g, _GPU)


def _refused(g: Graph, why: str) -> Graph:
    for place, n in {n.location: n for n in reversed(list(_moves(g)))}.items():
        if place is not None:
            message = (
                f"offload: {n.types[0]} is not moved: {why}; offload it outside of the program, or "
                "leave it out"
            )
            warnings.warn_explicit(message, RuntimeWarning, place.file, place.line)
    return g


def _moves(g: Graph) -> Iterator[Node]:
    for n in g.nodes:
        if n.op is state_move.op and n.params["to"] == "host":
            yield n
        for r in n.regions:
            yield from _moves(r)
