"""Graph IR as text and back: printing is canonical, and parse(print(g)) prints the same.

Names of regions and of their inputs, devices, locations and captured data are not part of the text;
docs/ir/graph.md defines the format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.core.constraints import Guard, Scope, scope
from tessera.core.dims import Dim
from tessera.core.errors import TesseraError
from tessera.core.operation import (
    Block,
    Operation,
    module,
    parse_module,
    print_operation,
    result_names,
)
from tessera.core.text import Reader, type_text
from tessera.core.types import TensorType
from tessera.ir.graph.ir import CANONICAL_TEXT, Builder, Graph, Node, Value
from tessera.ir.graph.op import Op, known
from tessera.ir.graph.scheduled import with_schedules

LEVEL = "graph"
PREFIX = "tessera."
EFFECTS = "effects"  # the attribute that says what a node does beside computing its results

# Printing -------------------------------------------------------------------------------------


def print_graph(g: Graph, locations: bool = False) -> str:
    """The text of a graph, canonical without locations."""
    block = _Printer(locations).block(g)
    attributes: dict[str, Any] = {
        "name": g.name,
        "input_names": g.input_names,
        "guards": tuple(map(guard_attribute, g.guards)),
    }
    if g.schedules:
        attributes["schedules"] = dict(g.schedules)
    return print_operation(
        module(LEVEL, Operation("tessera.graph", attributes=attributes, blocks=(block,)))
    )


def guard_attribute(c: Guard) -> dict[str, Any]:
    """A guard as an attribute."""
    return {"kind": c.kind, "left": c.left, "right": c.right, "reason": c.reason}


def region_blocks(n: Node, locations: bool = False) -> list[Block]:
    """The regions of a node that is printed apart from its graph."""
    printer = _Printer(locations)
    return [printer.block(r) for r in n.regions]


class _Printer:
    """Numbers the values in the order in which the text defines them."""

    def __init__(self, locations: bool):
        self.locations, self.count = locations, 0
        self.names: dict[Value, str] = {}

    def fresh(self) -> str:
        self.count += 1
        return f"%{self.count - 1}"

    def block(self, g: Graph) -> Block:
        arguments = []
        for v in g.inputs:
            self.names[v] = self.fresh()
            arguments.append((self.names[v], v.type))
        operations = [self.operation(n) for n in g.nodes]
        operations.append(
            Operation("tessera.return", self.uses(g.outputs), [v.type for v in g.outputs])
        )
        return Block(arguments, operations)

    def uses(self, values: Sequence[Value]) -> list[str]:
        return [self.names.get(v, "%undefined") for v in values]

    def operation(self, n: Node) -> Operation:
        operands, result = self.uses(n.operands), self.fresh() if n.results else ""
        self.names.update(zip(n.results, result_names(result, len(n.results)), strict=True))
        return Operation(
            PREFIX + n.op.name, operands, n.types, result, [v.type for v in n.results], _said(n),
            [self.block(r) for r in n.regions], n.location if self.locations else None,
        )  # fmt: skip


def _said(n: Node) -> Mapping[str, Any]:
    """The attributes of a node: its parameters, and the effects that its op has."""
    return {**n.params, EFFECTS: tuple(sorted(n.op.effects))} if n.op.effects else n.params


# Parsing --------------------------------------------------------------------------------------


def parse_graph(text: str) -> Graph:
    """The graph that a text describes."""
    return graph_of(*parse_module(text))


def graph_of(reader: Reader, op: Operation) -> Graph:
    """The graph in a parsed module."""
    if op.name != "tessera.graph" or len(op.blocks) != 1:
        reader.fail(f'expected "tessera.graph" with one region, got "{op.name}"', op.at)
    guards = guards_of(reader, op)
    with scope(Scope.of(guards)):
        name = str(op.attributes.get("name", "main"))
        names = tuple(map(str, op.attributes.get("input_names", ())))
        made = _Parser(reader).graph(op.blocks[0], op, {}, name, names, guards)
        given = op.attributes.get("schedules", {})
        return with_schedules(made, [(str(n), str(x)) for n, x in given.items()])


def guards_of(reader: Reader, op: Operation) -> tuple[Guard, ...]:
    """The guards that a program states."""
    return tuple(_guard(reader, op, c) for c in op.attributes.get("guards", ()))


def node_of(
    reader: Reader, op: Operation, name: str, types: Sequence[TensorType], params: dict[str, Any]
) -> Node:
    """A node apart from any graph: an op on operands of these types, with the regions of `op`."""
    record = known(name)
    if record is None:
        reader.fail(f'unknown op "{name}"', op.at)
    builder, parser = Builder(), _Parser(reader)
    operands = tuple(map(builder.input, types))
    regions = tuple(parser.graph(b, op, {}) for b in op.blocks)
    results = parser._inferred(op, record, operands, params, regions)
    return builder.node(record, operands, params, regions, results, op.location)


def _guard(reader: Reader, op: Operation, c: Any) -> Guard:
    fits = isinstance(c, dict) and set(c) == {"kind", "left", "right", "reason"}
    if not fits or c["kind"] not in ("equal", "divisible", "at_least"):
        reader.fail("a guard needs kind, left, right and reason", op.at)
    if not all(isinstance(c[side], int | Dim) for side in ("left", "right")):
        reader.fail("the sides of a guard are sizes", op.at)
    return Guard(**c)


class _Parser:
    """Builds graphs from blocks."""

    def __init__(self, reader: Reader):
        self.reader = reader

    def graph(
        self,
        block: Block,
        parent: Operation,
        outer: dict[str, Value],
        name: str = "main",
        names: Sequence[str] = (),
        guards: Sequence[Guard] = (),
    ) -> Graph:
        builder = Builder(input_names=names)
        env: dict[str, Value] = {}
        for n, t in block.arguments:
            if n in env or n in outer:
                self.reader.fail(f"{n} is defined twice", parent.at)
            env[n] = builder.input(t)
        *body, last = block.operations or [parent]
        if last.name != "tessera.return":
            self.reader.fail(f"{parent.name}: the region does not end in tessera.return", parent.at)
        for op in body:
            self._append(op, builder, env, outer)
        outputs = self._operands(last, env, outer)
        return Graph(builder.inputs, builder.nodes, outputs, name, names, (), guards)

    def _append(
        self, op: Operation, builder: Builder, env: dict[str, Value], outer: dict[str, Value]
    ) -> None:
        record = known(op.name.removeprefix(PREFIX))
        if record is None or not op.name.startswith(PREFIX):
            self.reader.fail(f'unknown op "{op.name}"', op.at)
        operands = self._operands(op, env, outer)
        everything = {**outer, **env} if op.blocks else {}
        regions = tuple(self.graph(b, op, everything) for b in op.blocks)
        params = dict(op.attributes)
        if tuple(params.pop(EFFECTS, ())) != tuple(sorted(record.effects)):
            there = ", ".join(sorted(record.effects)) or "none"
            self.reader.fail(f"{op.name}: its effects are {there}", op.at)
        wanted = self._inferred(op, record, operands, params, regions)
        if list(wanted) != list(op.result_types):
            got, want = (", ".join(map(type_text, ts)) for ts in (op.result_types, wanted))
            self.reader.fail(f"{op.name}: the result is {got}, expected {want}", op.at)
        node = builder.node(record, operands, params, regions, wanted, op.location)
        builder.nodes.append(node)
        for n, v in zip(op.results, node.results, strict=True):
            if n in env or n in outer:
                self.reader.fail(f"{n} is defined twice", op.at)
            env[n] = v

    def _operands(
        self, op: Operation, env: dict[str, Value], outer: dict[str, Value]
    ) -> tuple[Value, ...]:
        found = []
        for i, (n, t) in enumerate(zip(op.operands, op.operand_types, strict=True)):
            v = env.get(n)
            if v is None:
                why = "is of an enclosing graph; regions see only their own inputs"
                missing = why if n in outer else "is not defined before its use"
                self.reader.fail(f"{op.name}: operand {i} {n} {missing}", op.at)
            if v.type is not t:
                self.reader.fail(
                    f"{op.name}: operand {i} {n} is {type_text(v.type)}, but its type is written "
                    f"{type_text(t)}",
                    op.at,
                )
            found.append(v)
        return tuple(found)

    def _inferred(
        self,
        op: Operation,
        record: Op,
        operands: Sequence[Value],
        params: dict[str, Any],
        regions: tuple[Graph, ...],
    ) -> tuple[TensorType, ...]:
        given = {**params, "regions": regions} if regions else params
        try:
            return record.result_types([v.type for v in operands], given)
        except TesseraError as e:
            self.reader.fail(e.message, op.at)
        except KeyError as e:
            self.reader.fail(f"{op.name}: the attribute {e.args[0]} is missing", op.at)
        except (TypeError, ValueError, AttributeError, IndexError) as e:
            # Rules of ops take parameters as their own functions made them; text can say anything.
            self.reader.fail(f"{op.name}: operands and attributes do not fit the op ({e})", op.at)


CANONICAL_TEXT.provide(print_graph)
