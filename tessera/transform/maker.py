"""What rewrite rules build with: new nodes in normal form, and what is known of values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.core.constraints import current_scope
from tessera.core.dtype import DType
from tessera.core.errors import TesseraError
from tessera.core.rounding import round_to
from tessera.core.source import Location
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Array, Builder, Node, Value
from tessera.ir.graph.op import REGISTRY, Op
from tessera.ops.creation import full

Found = tuple[Value, ...] | None


class Maker:
    """Makes nodes for one pass over one graph."""

    def __init__(self) -> None:
        self.builder = Builder()
        self.location: Location | None = None  # of the node that is being rewritten
        self.settle: Callable[[Node], tuple[Value, ...]] = lambda n: n.results
        self._splats: dict[Value, Array] = {}

    def make(self, op: Op, operands: tuple[Value, ...], **params: Any) -> Found:
        """The results of an op, or None where it does not fit these operands."""
        facts = current_scope()
        equal, count = facts.equal, len(facts.guards)
        try:
            types = op.result_types([v.type for v in operands], params)
        except TesseraError:
            return None
        if len(facts.guards) > count:  # it would need a guard that the graph does not have
            facts.equal = equal
            del facts.guards[count:]
            return None
        return self.settle(self.builder.node(op, operands, params, (), types, self.location))

    def apply(self, name: str, *operands: Value, **params: Any) -> Found:
        """The results of the op with this name."""
        return self.make(REGISTRY[name], operands, **params)

    def full(self, t: TensorType, value: bool | int | float | complex) -> Found:
        """A tensor of one number."""
        return self.make(full.op, (), shape=t.shape, value=value, dtype=t.dtype)

    def splat(self, v: Value) -> Array | None:
        """The number that every element of v is, as an array of rank 0; None when not known."""
        node = v.node
        if node is None or node.op is not full.op:
            return None
        found = self._splats.get(v)
        if found is None:
            found = round_to(np.asarray(node.params["value"]), v.dtype)
            self._splats[v] = found
        return found

    def number(self, v: Value) -> Any:
        """The number that every element of v is, as a Python number; None when not known."""
        x = self.splat(v)
        return None if x is None else python_number(x, v.dtype)


def python_number(x: Any, dtype: DType) -> bool | int | float | complex:
    """An element as a Python number of the dtype's kind."""
    if dtype.kind == "b":
        return bool(x)
    if dtype.kind in "iu":
        return int(x)
    return float(x) if dtype.kind == "f" else complex(x)
