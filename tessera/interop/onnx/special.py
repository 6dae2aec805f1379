"""Special functions as ONNX nodes: the approximations of the other targets, with ONNX's primitives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tessera.core.approximate import FLOATS, FUNCTIONS
from tessera.core.dtype import DType

_NODES = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "neg": "Neg", "abs": "Abs", "sqrt": "Sqrt",
    "floor": "Floor", "round": "Round", "lt": "Less", "le": "LessOrEqual", "eq": "Equal", "where": "Where",
    "mask_and": "And", "mask_or": "Or", "mask_not": "Not",
}  # fmt: skip


class ScalarNodes(Protocol):
    """What writes nodes over numbers of one dtype."""

    at: DType

    def number(self, value: Any) -> str:
        """A constant of the dtype."""

    def n(self, op: str, *names: str, **attributes: Any) -> str:
        """A node of one output."""

    def signed(self, size: str, sign: str) -> str:
        """The size of one number with the sign of another."""


class OnnxAlgebra:
    """The primitives as nodes.  ONNX has no FMA and does not reach the bits of a float: products round twice,
    which costs the last digits, and log and exp are nodes of their own.
    """

    def __init__(self, scalars: ScalarNodes):
        self.scalars, self.format = scalars, FLOATS[scalars.at.name]

    def real(self, value: float) -> str:
        """A constant."""
        return self.scalars.number(value)

    def integer(self, value: int) -> str:
        """Integers are bit patterns, which are out of reach."""
        raise AssertionError(value)

    def lookup(self, table: tuple[float, ...], index: str) -> str:
        """Tables are read at bit patterns, which are out of reach."""
        raise AssertionError(table)

    def apply(self, operation: str, *operands: str) -> str:
        """One operation."""
        s = self.scalars
        if operation == "fma":
            x, y, z = operands
            return s.n("Add", s.n("Mul", x, y), z)
        if operation == "copysign":
            return s.signed(*operands)
        return s.n(_NODES[operation], *operands)

    def rare(
        self, condition: str, slow: Callable[[], tuple[str, ...]], usual: tuple[str, ...]
    ) -> tuple[str, ...]:
        """slow() where the condition holds, else usual."""
        pairs = zip(slow(), usual, strict=True)
        return tuple(self.scalars.n("Where", condition, a, b) for a, b in pairs)

    def own_log(self, x: str) -> str:
        """The natural logarithm."""
        return self.scalars.n("Log", x)

    def own_exp(self, x: str) -> str:
        """e to the power x."""
        return self.scalars.n("Exp", x)


def approximated(nodes: ScalarNodes, name: str, *operands: str) -> str:
    """A function of FUNCTIONS of named values."""
    return FUNCTIONS[name].build(OnnxAlgebra(nodes), *operands)
