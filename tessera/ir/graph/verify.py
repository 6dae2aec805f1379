"""The Graph verifier: every operand is defined before its use, every type is what the op gives."""

from __future__ import annotations

from tessera.core.errors import VerifyError
from tessera.ir.graph.ir import Graph, Value


def verify(g: Graph) -> None:
    """Raise VerifyError when g breaks an invariant of Graph IR."""
    defined: set[Value] = set(g.inputs)
    for n in g.nodes:
        for i, v in enumerate(n.operands):
            if v not in defined:
                raise VerifyError(
                    f"{n.op.name}: operand {i} {v.type} is not defined before its use"
                )
        for r in n.regions:
            verify(r)
        params = {**n.params, "regions": n.regions} if n.regions else n.params
        types = n.op.result_types(n.types, params)
        if list(types) != [v.type for v in n.results]:
            raise VerifyError(f"{n!r}: expected results {', '.join(map(str, types))}")
        defined.update(n.results)
    for v in g.outputs:
        if v not in defined:
            raise VerifyError(f"an output {v.type} is not defined")
