"""Schedule IR as text and back: printing is canonical, and parse(print(p)) prints the same.

    "schedule.stage"() {computes = "t1[_r0<8]: f32 = max over _t1_1<64 of x0[_r0, _t1_1]"} : () -> ()

Buffers are named, not numbered: they are memory.  Locations and captured data are not part of the
text; docs/ir/schedule.md defines the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tessera.core.constraints import Scope, scope
from tessera.core.errors import TesseraError
from tessera.core.operation import Block, Operation, module, parse_module, print_operation
from tessera.core.primitives import PRIMITIVES
from tessera.core.text import Reader, type_text
from tessera.core.types import TensorType
from tessera.ir.graph import text as graph_text
from tessera.ir.schedule.ir import (
    ANY,
    CANONICAL_TEXT,
    LAW,
    Buffer,
    Group,
    HostCall,
    Kernel,
    KRange,
    Primitive,
    Program,
    Stage,
    Step,
)
from tessera.ir.schedule.nests.nest import Nest, parse_nest
from tessera.ir.schedule.terms import parse_stage

LEVEL = "schedule"

# Printing -------------------------------------------------------------------------------------


def print_program(p: Program, locations: bool = False) -> str:
    """The text of a program, canonical without locations."""
    operations = [
        Operation("schedule.buffer", attributes={"name": b.name, "type": b.type})
        for b in p.buffers.values()
    ]
    operations += [_step(s, locations) for s in p.steps]
    attributes = {
        "name": p.name, "inputs": p.inputs, "outputs": p.outputs,
        "guards": tuple(map(graph_text.guard_attribute, p.guards)),
    }  # fmt: skip
    outer = Operation("schedule.program", attributes=attributes, blocks=(Block((), operations),))
    return print_operation(module(LEVEL, outer))


def _step(s: Step, locations: bool) -> Operation:
    if isinstance(s, HostCall):
        return _host(s, locations)
    if isinstance(s, Primitive):
        return _primitive(s, locations)
    return _group(s, locations) if isinstance(s, Group) else _kernel(s, locations)


def _group(g: Group, locations: bool) -> Operation:
    kernels = [_kernel(k, locations) for k in g.kernels]
    attributes = {"name": g.name, "rows": g.rows, "writes": g.outputs}
    return Operation("schedule.group", attributes=attributes, blocks=(Block((), kernels),))


def _primitive(s: Primitive, locations: bool) -> Operation:
    attributes = {
        "name": s.name, "primitive": s.primitive, "params": dict(s.params),
        "reads": s.operands, "writes": s.results,
    }  # fmt: skip
    if s.order != LAW:
        attributes["order"] = s.order
    blocks: tuple[Block, ...] = ()
    if s.epilogue is not None:
        attributes["made"] = s.made
        blocks = (Block((), [_kernel(s.epilogue, locations)]),)
    return Operation(
        "schedule.primitive", attributes=attributes, blocks=blocks,
        location=s.location if locations else None,
    )  # fmt: skip


def _kernel(k: Kernel, locations: bool) -> Operation:
    stages = [
        Operation(
            "schedule.stage",
            attributes={"computes": str(s)},
            location=s.location if locations else None,
        )
        for s in k.stages
    ]
    attributes: dict[str, Any] = {"name": k.name, "rows": k.rows, "writes": k.outputs}
    if k.nest is not None:
        attributes["nest"] = str(k.nest)
    if k.tile is not None:
        attributes["tile"] = k.tile
    if k.asked:
        attributes["asked"] = k.asked
    if k.order != LAW:
        attributes["order"] = k.order
    if k.seen:
        attributes["seen"] = tuple(
            {"side": x.side, "axis": x.axis, "offset": x.offset} for x in k.seen
        )
    return Operation("schedule.kernel", attributes=attributes, blocks=(Block((), stages),))


def _host(s: HostCall, locations: bool) -> Operation:
    attributes = {
        "op": s.node.op.name, "params": dict(s.node.params),
        "reads": s.operands, "writes": s.results,
    }  # fmt: skip
    return Operation(
        "schedule.host", attributes=attributes, blocks=graph_text.region_blocks(s.node, locations),
        location=s.node.location if locations else None,
    )  # fmt: skip


# Parsing --------------------------------------------------------------------------------------


def parse_program(text: str) -> Program:
    """The program that a text describes."""
    return program_of(*parse_module(text))


def program_of(reader: Reader, op: Operation) -> Program:
    """The program in a parsed module."""
    return _Parser(reader).program(op)


class _Parser:
    """Reads steps, each against the buffers and the stages before it."""

    def __init__(self, reader: Reader):
        self.reader = reader
        self.local: dict[str, TensorType] = {}  # what exists in the group being read
        self.grouped = False
        self.buffers: dict[str, Buffer] = {}

    def program(self, op: Operation) -> Program:
        self.expect(op, "schedule.program", {"name", "inputs", "outputs", "guards"}, 1)
        steps: list[Step] = []
        guards = graph_text.guards_of(self.reader, op)
        with scope(Scope.of(guards)):
            for inner in op.blocks[0].operations:
                if inner.name == "schedule.buffer":
                    self.buffer(inner)
                else:
                    steps.append(self.step(inner))
        a = op.attributes
        inputs, outputs = self.names(op, "inputs"), self.names(op, "outputs")
        return Program(str(a["name"]), self.buffers, tuple(steps), inputs, outputs, (), guards)

    def expect(self, op: Operation, name: str, wanted: set[str], blocks: int | None = 0) -> None:
        """An operation of this name with these attributes and so many regions."""
        if op.name != name:
            self.reader.fail(f'expected "{name}", got "{op.name}"', op.at)
        missing = sorted(wanted - op.attributes.keys())
        if missing:
            self.reader.fail(f"{name}: the attribute {missing[0]} is missing", op.at)
        if blocks is not None and len(op.blocks) != blocks:
            self.reader.fail(f"{name}: got {len(op.blocks)} regions, expected {blocks}", op.at)
        if op.operands or op.result_types:
            self.reader.fail(f"{name}: takes and gives no values; it names buffers", op.at)

    def names(self, op: Operation, key: str) -> tuple[str, ...]:
        """The names of buffers in an attribute."""
        found = op.attributes[key]
        if not isinstance(found, tuple):
            self.reader.fail(f"{op.name}: {key} is no list of buffers", op.at)
        for name in found:
            if name not in self.buffers and name not in self.local:
                self.reader.fail(f"{op.name}: {key} has {name!r}, which is no buffer", op.at)
        return found

    def buffer(self, op: Operation) -> None:
        self.expect(op, "schedule.buffer", {"name", "type"})
        name, t = op.attributes["name"], op.attributes["type"]
        if not isinstance(name, str) or not isinstance(t, TensorType):
            self.reader.fail("schedule.buffer: expected the name and the type of a tensor", op.at)
        if name in self.buffers:
            self.reader.fail(f"schedule.buffer: {name!r} is there twice", op.at)
        self.buffers[name] = Buffer(name, t)

    def step(self, op: Operation) -> Step:
        if op.name == "schedule.primitive":
            return self.primitive(op)
        if op.name == "schedule.group":
            return self.group(op)
        return self.host(op) if op.name == "schedule.host" else self.kernel(op)

    def kernel(self, op: Operation) -> Kernel:
        self.expect(op, "schedule.kernel", {"name", "rows", "writes"}, 1)
        if type(op.attributes["rows"]) is not int:
            self.reader.fail("schedule.kernel: rows is no whole number", op.at)
        types = {name: b.type for name, b in self.buffers.items()} | self.local
        stages: list[Stage] = []
        for inner in op.blocks[0].operations:
            stages.append(self.stage(inner, types))
            types[stages[-1].name] = stages[-1].type
        name, rows = str(op.attributes["name"]), op.attributes["rows"]
        if self.grouped:  # what it writes may exist in the group alone
            self.local |= {s.name: s.type for s in stages if s.name not in self.buffers}
        writes, nest, seen = self.names(op, "writes"), self.nest(op), self.seen(op)
        return Kernel(
            name, rows, tuple(stages), writes, nest, seen, self.order(op), self.tile(op),
            str(op.attributes.get("asked", "")),
        )  # fmt: skip

    def tile(self, op: Operation) -> tuple[int, int, int] | None:
        found = op.attributes.get("tile")
        if found is None:
            return None
        if not isinstance(found, tuple | list) or [type(n) for n in found] != [int] * 3:
            self.reader.fail(f"{op.name}: the tile is {found!r}, expected three sizes", op.at)
        m, n, k = found
        return m, n, k

    def order(self, op: Operation) -> str:
        found = op.attributes.get("order", LAW)
        if found not in (LAW, ANY):
            self.reader.fail(f"{op.name}: the order is {found!r}, expected {LAW} or {ANY}", op.at)
        return str(found)

    def seen(self, op: Operation) -> tuple[KRange, ...]:
        try:
            return tuple(
                KRange(x["side"], x["axis"], x["offset"]) for x in op.attributes.get("seen", ())
            )
        except (TypeError, KeyError):
            self.reader.fail("schedule.kernel: seen is no list of side, axis and offset", op.at)

    def group(self, op: Operation) -> Group:
        self.expect(op, "schedule.group", {"name", "rows", "writes"}, 1)
        if type(op.attributes["rows"]) is not int:
            self.reader.fail("schedule.group: rows is no whole number", op.at)
        self.grouped = True
        kernels = tuple(self.kernel(inner) for inner in op.blocks[0].operations)
        self.grouped, self.local = False, {}
        name, rows = str(op.attributes["name"]), op.attributes["rows"]
        return Group(name, rows, kernels, self.names(op, "writes"))

    def nest(self, op: Operation) -> Nest | None:
        text = op.attributes.get("nest")
        try:
            return None if text is None else parse_nest(str(text))
        except TesseraError as e:
            self.reader.fail(e.message, op.at)

    def stage(self, op: Operation, types: Mapping[str, TensorType]) -> Stage:
        self.expect(op, "schedule.stage", {"computes"})
        try:
            return replace(parse_stage(str(op.attributes["computes"]), types), location=op.location)
        except TesseraError as e:
            self.reader.fail(e.message, op.at)

    def primitive(self, op: Operation) -> Primitive:
        a = op.attributes
        wanted = {"name", "primitive", "params", "reads", "writes"}
        self.expect(op, "schedule.primitive", wanted, int("made" in a))
        if not isinstance(a["params"], dict):
            self.reader.fail("schedule.primitive: params is no dictionary", op.at)
        if a["primitive"] not in PRIMITIVES:
            self.reader.fail(f"schedule.primitive: there is no {a['primitive']!r}", op.at)
        reads, writes = self.names(op, "reads"), self.names(op, "writes")
        name, kind = str(a["name"]), str(a["primitive"])
        made = Primitive(name, kind, a["params"], reads, writes, op.location, self.order(op))
        return self.with_epilogue(op, made) if "made" in a else made

    def with_epilogue(self, op: Operation, p: Primitive) -> Primitive:
        """A primitive and the kernel that follows it, which reads what the primitive makes."""
        (inner,) = op.blocks[0].operations or (None,)
        made = str(op.attributes["made"])
        types = [self.buffers[n].type for n in p.operands[: PRIMITIVES[p.primitive].arity]]
        if inner is None or not types:
            self.reader.fail("schedule.primitive: it makes nothing that a kernel follows", op.at)
        self.local, self.grouped = {made: PRIMITIVES[p.primitive].infer(types, p.params)[0]}, True
        kernel = self.kernel(inner)
        self.grouped, self.local = False, {}
        return replace(p, epilogue=kernel, made=made)

    def host(self, op: Operation) -> HostCall:
        self.expect(op, "schedule.host", {"op", "params", "reads", "writes"}, None)
        if not isinstance(op.attributes["params"], dict):
            self.reader.fail("schedule.host: params is no dictionary", op.at)
        reads, writes = self.names(op, "reads"), self.names(op, "writes")
        ins, outs = ([self.buffers[n].type for n in names] for names in (reads, writes))
        node = graph_text.node_of(
            self.reader, op, str(op.attributes["op"]), ins, op.attributes["params"]
        )
        made = [v.type for v in node.results]
        if made != outs:
            got, want = (", ".join(map(type_text, ts)) for ts in (made, outs))
            self.reader.fail(f"{node.op.name}: the result is {got}, but writes is {want}", op.at)
        return HostCall(node, reads, writes)


CANONICAL_TEXT.provide(print_program)
