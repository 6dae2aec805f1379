"""Which tensors are equal: the same numbers, or results of the same op on equal tensors.

An operator that is built twice from one tensor computes its own tensors twice, as projectors do by
orthogonalisation; laws are to see that both are one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.ir.graph.ir import Value


class EqualTensors:
    """The tensors that were met, one of each."""

    def __init__(self) -> None:
        self._found: dict[int, Any] = {}  # by identity
        self._numbers: dict[Any, list[Value]] = {}  # by type
        self._results: dict[Any, Value] = {}  # by what computes them
        self._kept: list[Any] = []  # so that identities stay those of one object

    def first(self, v: Any) -> Any:
        """The tensor that was met first of those that are equal to this one."""
        if not isinstance(v, Value):
            return v
        if id(v) not in self._found:
            self._kept.append(v)
            self._found[id(v)] = self._by_numbers(v) if v.storage is not None else self._by_node(v)
        return self._found[id(v)]

    def _by_numbers(self, v: Value) -> Value:
        if not isinstance(v.storage, np.ndarray):
            return v
        met = self._numbers.setdefault(v.type, [])
        for w in met:
            if _same_bytes(v.storage, w.storage):
                return w
        met.append(v)
        return v

    def _by_node(self, v: Value) -> Value:
        n = v.node
        if n is None or n.regions or n.op.effects:
            return v
        operands = tuple(id(self.first(x)) for x in n.operands)
        place = next(i for i, r in enumerate(n.results) if r is v)
        params = tuple(sorted((k, repr(x)) for k, x in n.params.items()))
        return self._results.setdefault((n.op.name, operands, params, place), v)


def _same_bytes(x: Any, y: Any) -> bool:
    """Whether two arrays hold the same bits; a glance at a few of them decides most often."""
    few = np.array_equal(x.reshape(-1)[:8], y.reshape(-1)[:8])
    return bool(few and x.tobytes() == y.tobytes())
