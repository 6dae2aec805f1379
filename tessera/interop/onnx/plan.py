"""How a model runs on inputs of given types: one compiled program, and what data decides after it.

Nodes are traced into one program.  A node that needs data to say what it does (NonZero, a trip count)
stops the trace: it and all that depends on it run eagerly after the program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tessera.interop.onnx import assume
from tessera.interop.onnx.evaluate import Evaluator, OnnxScope, reads
from tessera.interop.onnx.model import DataDependentError, OnnxGraph, OnnxInfo, OnnxNode
from tessera.interop.onnx.rule import tensor
from tessera.ir.graph.ir import Value
from tessera.lang.jit import Jitted

_MOST_TRIES = 32  # nodes that may stop a trace before the model runs eagerly


class OnnxPlan:
    """A model for inputs of given types."""

    def __init__(self, evaluator: Evaluator, graph: OnnxGraph, fixed: Mapping[str, Any]):
        self.evaluator, self.graph = evaluator, graph
        self.fixed = dict(fixed)  # inputs that are no tensors
        self.late: set[int] = set()  # nodes that run after the program
        self.known: dict[str, Any] = {}  # what the trace has settled
        self.program: Jitted | None = None
        self.names: tuple[str, ...] = ()  # of the results of the program
        self.may_assume = True
        self.assumes = False  # whether the last result says that what the trace assumed holds
        self._at: int | None = None  # the node that is being traced

    def run(self, tensors: Mapping[str, Value]) -> list[Any]:
        """The outputs of the graph."""
        if not self.compiled(tensors):
            return self.eager(tensors)
        results = self._results(tensors)
        if results is None:
            return self.run(tensors)
        return self._rest(dict(tensors), dict(zip(self.names, results, strict=True)))

    def gives_all(self, outputs: Sequence[str]) -> bool:
        """Whether there is a program whose results are all of these outputs."""
        return self.program is not None and not self.late and set(outputs) <= set(self.names)

    def named(
        self, tensors: dict[str, Value], outputs: Sequence[OnnxInfo]
    ) -> dict[str, Any] | None:
        """The outputs by name, where the program gives all of them; None where it assumed too much."""
        results = self._results(tensors)
        if results is None:
            return None
        found = dict(zip(self.names, results, strict=True))
        return {o.name: found[o.name] for o in outputs}

    def _results(self, tensors: Mapping[str, Value]) -> list[Any] | None:
        """What the program gives; None, and it is traced anew, where what it assumed does not hold."""
        assert self.program is not None
        results: list[Any] = self.program(dict(tensors))
        if not self.assumes or bool(np.asarray(results.pop())):
            return results
        self.program, self.may_assume, self.late = None, False, set()
        return None

    def eager(self, tensors: Mapping[str, Value]) -> list[Any]:
        """The outputs of the graph, node by node."""
        scope = OnnxScope({**self.graph.initialisers, **self.fixed, **tensors})
        self.evaluator.nodes(self.graph.nodes, scope, [o.name for o in self.graph.outputs])
        return [scope.find(o.name) for o in self.graph.outputs]

    def compiled(self, tensors: Mapping[str, Value]) -> bool:
        """Whether there is a program; traces it at the first call."""
        if self.program is None and len(self.late) < len(self.graph.nodes):
            self._compile(tensors)
        return self.program is not None

    def compiles_whole(self, tensors: Mapping[str, Value]) -> bool:
        """Whether one program holds all nodes."""
        return self.compiled(tensors) and not self.late

    def _compile(self, tensors: Mapping[str, Value]) -> None:
        for _ in range(_MOST_TRIES):
            program = Jitted(self._traced)
            try:
                program.lower(dict(tensors))
            except DataDependentError:
                assert self._at is not None
                self._postpone(self._at)
                if len(self.late) < len(self.graph.nodes):
                    continue
                break
            self.program = program if self.names else None
            break
        if self.program is None:
            self.late = set(range(len(self.graph.nodes)))

    def _postpone(self, at: int) -> None:
        """Leave a node, and what reads its results, for after the program."""
        made: set[str] = set()
        for i, n in enumerate(self.graph.nodes):
            if i == at or i in self.late or reads(n) & made:
                self.late.add(i)
                made |= set(n.outputs) - {""}

    def _traced(self, inputs: dict[str, Any]) -> list[Any]:
        self.assumes = False
        if not self.may_assume:
            return self._program(inputs)
        with assume.assumptions() as held:
            results = self._program(inputs)
            self.assumes = bool(held)
            return [*results, assume.all_hold(held)] if held else results

    def _program(self, inputs: dict[str, Any]) -> list[Any]:
        scope = OnnxScope({**self.graph.initialisers, **self.fixed, **inputs})
        for i, n in enumerate(self.graph.nodes):
            if i not in self.late:
                self._at = i
                self.evaluator.node(n, scope)
        self._at = None
        wanted = self._wanted() & scope.values.keys() - inputs.keys()
        found = {name: scope.values[name] for name in sorted(wanted)}
        results = {k: v for k, v in found.items() if isinstance(v, Value)}
        self.known = {k: v for k, v in found.items() if k not in results}
        for k, v in list(self.known.items()):
            if _holds_tensors(v):
                self._at = self._maker(k)
                raise DataDependentError("a sequence of traced tensors leaves the program")
            self.known[k] = v if isinstance(v, np.ndarray | list) or v is None else tensor(v)
        self.names = tuple(results)
        return [*results.values()]

    def _maker(self, name: str) -> int:
        return next(i for i, n in enumerate(self.graph.nodes) if name in n.outputs)

    def _wanted(self) -> set[str]:
        """What the rest of the nodes and the caller read."""
        found = {o.name for o in self.graph.outputs}
        for i in self.late:
            found |= reads(self.graph.nodes[i])
        return found

    def _rest(self, tensors: dict[str, Any], results: dict[str, Any]) -> list[Any]:
        scope = OnnxScope(
            {**self.graph.initialisers, **self.fixed, **tensors, **self.known, **results}
        )
        for i in sorted(self.late):
            self.evaluator.node(self.graph.nodes[i], scope)
        return [scope.find(o.name) for o in self.graph.outputs]


def _holds_tensors(x: Any) -> bool:
    if isinstance(x, list):
        return any(map(_holds_tensors, x))
    return isinstance(x, Value)


def count(nodes: tuple[OnnxNode, ...]) -> int:
    """How many nodes there are, in nested graphs too."""
    return sum(1 + sum(count(g.nodes) for g in n.graphs()) for n in nodes)
