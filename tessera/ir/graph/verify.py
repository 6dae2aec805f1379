"""The Graph verifier: what must hold of every graph, between any two passes.

inputs      are distinct, are not results, and have at most one name each
captured    tensors hold data and have the types of the last inputs
operands    are inputs or results of earlier nodes of the same graph; none holds data
results     are defined once, point back to their node, and have the types that the op infers
sizes       use symbols of the inputs only; what the op needs of them is stated by a guard
parameters  are of kinds that the text has
regions     are graphs of this kind without guards and captured tensors of their own
effects     are of the known kinds; what draws has its key as an operand
"""

from __future__ import annotations

from typing import NoReturn

from tessera.core.constraints import Scope, current_scope, scope
from tessera.core.dims import symbols, symbols_within
from tessera.core.errors import TesseraError, VerifyError
from tessera.core.text import has_text
from tessera.ir.graph.ir import Graph, Node, Value
from tessera.ir.graph.op import EFFECTS, known


def verify(g: Graph) -> None:
    """Raise VerifyError when g breaks an invariant of Graph IR."""
    with scope(Scope.of(g.guards, around=current_scope())):
        _Verifier(g, frozenset()).run()


class _Verifier:
    """Checks one graph; `known` are the symbols of the graphs around it."""

    def __init__(self, g: Graph, known: frozenset[str]):
        self.g = g
        self.known = known.union(*(symbols(s) for v in g.inputs for s in v.type.shape))
        self.defined: set[Value] = set()

    def run(self) -> None:
        self._inputs()
        for c in self.g.guards:
            for name in sorted((symbols(c.left) | symbols(c.right)) - self.known):
                self._fail(f"the guard {c} has the size {name}, which is in no input")
        for i, n in enumerate(self.g.nodes):
            self._node(n, f"node {i} {n!r}")
        for i, v in enumerate(self.g.outputs):
            self._use(v, f"output {i}")

    def _fail(self, message: str, n: Node | None = None) -> NoReturn:
        raise VerifyError(f"{self.g.name}: {message}").at(None if n is None else n.location)

    def _inputs(self) -> None:
        g = self.g
        if len(g.input_names) > len(g.inputs):
            self._fail(f"{len(g.input_names)} names for {len(g.inputs)} inputs")
        for i, v in enumerate(g.inputs):
            if v in self.defined:
                self._fail(f"input {i} {v.type} is given twice")
            if v.node is not None or v.storage is not None:
                what = "holds data" if v.node is None else f"is a result of {v.node.op.name}"
                self._fail(f"input {i} {v.type} {what}")
            self.defined.add(v)
        if len(g.captured) > len(g.inputs):
            self._fail(f"{len(g.captured)} captured tensors for {len(g.inputs)} inputs")
        bound = g.inputs[len(g.inputs) - len(g.captured) :]
        for i, (c, v) in enumerate(zip(g.captured, bound, strict=True)):
            if c.type is not v.type:
                self._fail(f"captured tensor {i} is {c.type}, but its input is {v.type}")
            if c.storage is None:
                self._fail(f"captured tensor {i} {c.type} holds no data")

    def _use(self, v: Value, what: str, n: Node | None = None) -> None:
        if v in self.defined:
            return
        if v.storage is not None:
            self._fail(f"{what} {v.type} holds data; inside a graph only constants do", n)
        if any(v is r for m in self.g.nodes for r in m.results):
            self._fail(f"{what} {v.type} is not defined before its use", n)
        self._fail(f"{what} {v.type} is of another graph", n)

    def _node(self, n: Node, name: str) -> None:
        if known(n.op.name) is not n.op:
            self._fail(f"{name}: the op is not registered", n)
        for e in sorted(n.op.effects - EFFECTS.keys()):
            self._fail(f"{name}: the effect '{e}' is none of {', '.join(sorted(EFFECTS))}", n)
        if "random" in n.op.effects and not any(t.dtype.kind == "u" for t in n.types):
            self._fail(f"{name}: it draws, but no operand is a key", n)
        for i, v in enumerate(n.operands):
            self._use(v, f"{name}: operand {i}", n)
        for k, p in n.params.items():
            if not has_text(p):
                self._fail(f"{name}: parameter '{k}' is {p!r:.40}, which has no text", n)
        for i, r in enumerate(n.regions):
            if r.guards or r.captured:
                self._fail(f"{name}: region {i} has guards or captured tensors of its own", n)
            _Verifier(r, self.known).run()
        self._types(n, name)
        self._sizes(n, name)
        for i, v in enumerate(n.results):
            if v in self.defined:
                self._fail(f"{name}: result {i} {v.type} is defined twice", n)
            if v.node is not n or v.index != i:
                self._fail(f"{name}: result {i} {v.type} does not point back to its node", n)
            self.defined.add(v)

    def _types(self, n: Node, name: str) -> None:
        params = {**n.params, "regions": n.regions} if n.regions else n.params
        guards = current_scope().guards
        before = len(guards)
        try:
            types = n.op.result_types(n.types, params)
        except TesseraError as e:
            self._fail(f"{name}: {e.message}", n)
        if list(types) != [v.type for v in n.results]:
            self._fail(f"{name}: expected results {', '.join(map(str, types))}", n)
        for c in guards[before:]:
            self._fail(f"{name}: needs {c}, which no guard states", n)

    def _sizes(self, n: Node, name: str) -> None:
        used = {s for v in n.results if not v.type.static for s in symbols_within(v.type.shape)}
        used.update(symbols_within(n.params.values()))
        for s in sorted(used - self.known):
            self._fail(f"{name}: the size {s} is in no input", n)
