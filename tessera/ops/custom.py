"""Functions with derivatives of their own: one op, whose region is the function itself.

The rule is a Python object that the parameter `rule` refers to.  Differentiation calls it on the
operands at hand; without differentiation the region is all there is, and compiling inlines it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tessera.core.errors import RuleError
from tessera.core.reference import Reference
from tessera.ir.graph.ir import Graph, Node, Value
from tessera.ops.control import call_types
from tessera.ops.define import define

Values = Sequence[Value]
Cotangents = Sequence[Value | None]


@dataclass(frozen=True)
class ForwardRule:
    """(operands, tangents) -> results and their tangents; a tangent for each of the operands."""

    name: str
    count: int  # operands that are arguments; those after them are constants of the function
    push: Callable[[Values, Values], tuple[Values, Values]]


@dataclass(frozen=True)
class ReverseRule:
    """operands -> results and residuals;  (residuals, cotangents) -> cotangents of the operands."""

    name: str
    count: int
    forward: Callable[[Values], tuple[Values, Values]]
    backward: Callable[[Values, Values], Cotangents]


@dataclass(frozen=True)
class LinearRule(ForwardRule):
    """A ForwardRule of a function whose first result is linear in its first operand.

    transposed(operands, cotangent of the first result) -> cotangent of the first operand.
    """

    transposed: Callable[[Values, Value], Value]


Rule = ForwardRule | ReverseRule


@define(
    infer=call_types, multiple=True, call="custom", moves=True,
    numpy=lambda *xs, regions, name, rule: regions[0](*xs),
)  # fmt: skip
def custom(region: Graph, *operands: Value, rule: Rule) -> tuple[Value, ...]:
    """The outputs of a graph that has a derivative of its own."""
    known = Reference(rule.name, rule)
    return custom.bind_many(*operands, regions=(region,), name=rule.name, rule=known)


def rule_of(n: Node) -> Rule:
    """The rule of a custom node."""
    rule = n.params["rule"]
    if not isinstance(rule, Reference):
        raise RuleError(
            f"{n.params['name']}: its derivative was lost when the graph was written as text"
        ).at(n.location)
    found: Rule = rule.target
    return found
