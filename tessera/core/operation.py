"""Programs as text: a tree of operations in MLIR's generic syntax.

    %2 = "tessera.exp"(%0) {name = value} : (tensor<2xf32>) -> tensor<2xf32> loc("f.py":3:0)

Every IR level turns its programs into this tree and back; printing and parsing are here, once.  An
operation with several results names them together, `%3:2 = ...`, and each as %3#0 and %3#1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tessera.core.source import Location
from tessera.core.text import Reader, attribute_text, quote, type_text
from tessera.core.types import TensorType

VERSION = 1  # of the text format of all levels


@dataclass(slots=True)
class Block:
    """A region: named and typed arguments, then operations."""

    arguments: Sequence[tuple[str, TensorType]]
    operations: list[Operation] = field(default_factory=list)


@dataclass(slots=True)
class Operation:
    """One operation with its regions inside."""

    name: str
    operands: Sequence[str] = ()
    operand_types: Sequence[TensorType] = ()
    result: str = ""  # name of the result, or of the group of results
    result_types: Sequence[TensorType] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    blocks: Sequence[Block] = ()
    location: Location | None = None
    at: int = 0  # where it begins in the text that it was read from

    @property
    def results(self) -> list[str]:
        """The name of each result."""
        return result_names(self.result, len(self.result_types))


def result_names(result: str, count: int) -> list[str]:
    """%3 for one result, %3#0 and %3#1 for two."""
    return [result] if count == 1 else [f"{result}#{i}" for i in range(count)]


def module(level: str, operation: Operation) -> Operation:
    """A module that holds one program and states its level and format version."""
    marked = {**operation.attributes, "level": level, "version": VERSION}
    operation.attributes = marked
    return Operation("builtin.module", blocks=(Block((), [operation]),))


# Printing -------------------------------------------------------------------------------------


def print_operation(op: Operation) -> str:
    """The text of an operation, one operation a line."""
    return "\n".join(_lines(op, ""))


def _lines(op: Operation, indent: str) -> Iterator[str]:
    line = f'{indent}{_results(op)}"{op.name}"({", ".join(op.operands)})'
    for i, block in enumerate(op.blocks):
        yield f"{line}{' (' if i == 0 else ', '}{{"
        if block.arguments:
            arguments = ", ".join(f"{n}: {type_text(t)}" for n, t in block.arguments)
            yield f"{indent}^bb0({arguments}):"
        for inner in block.operations:
            yield from _lines(inner, indent + "  ")
        line = f"{indent}}}"
    yield f"{line}{')' if op.blocks else ''}{_ending(op)}"


def _results(op: Operation) -> str:
    count = len(op.result_types)
    if not count:
        return ""
    return f"{op.result} = " if count == 1 else f"{op.result}:{count} = "


def _ending(op: Operation) -> str:
    attributes = f" {attribute_text(dict(op.attributes))}" if op.attributes else ""
    ins = ", ".join([type_text(t) for t in op.operand_types])
    outs = ", ".join([type_text(t) for t in op.result_types])
    outs = outs if len(op.result_types) == 1 else f"({outs})"
    where = f" loc({quote(op.location.file)}:{op.location.line}:0)" if op.location else ""
    return f"{attributes} : ({ins}) -> {outs}{where}"


# Parsing --------------------------------------------------------------------------------------


def parse_operation(reader: Reader) -> Operation:
    """Read one operation with its regions."""
    at = reader.next.at
    result, count = _read_results(reader)
    name = reader.string("an operation's name in quotes")
    reader.expect("(", "before the operands")
    operands = [t.text for t in reader.many(lambda: reader.kind("value", "a value"), ")")]
    blocks = reader.many(lambda: _read_block(reader), ")") if reader.accept("(") else []
    attributes = reader.dictionary() if reader.next.kind == "{" else {}
    reader.expect(":", "before the types")
    reader.expect("(", "before the types of the operands")
    ins = reader.many(reader.tensor_type, ")")
    reader.expect("->")
    outs = reader.many(reader.tensor_type, ")") if reader.accept("(") else [reader.tensor_type()]
    if len(ins) != len(operands):
        reader.fail(f"{name}: {len(operands)} operands but {len(ins)} operand types", at)
    if len(outs) != count:
        reader.fail(f"{name}: {count} results but {len(outs)} result types", at)
    location = _read_location(reader)
    return Operation(name, operands, ins, result, outs, attributes, blocks, location, at)


def _read_results(reader: Reader) -> tuple[str, int]:
    if reader.next.kind != "value":
        return "", 0
    token, count = reader.take(), 1
    if reader.accept(":"):
        at, n = reader.next.at, reader.literal()
        if not isinstance(n, int) or n < 1:
            reader.fail("expected how many results", at)
        count = n
    reader.expect("=", f"after {token.text}")
    return token.text, count


def _read_block(reader: Reader) -> Block:
    reader.expect("{")
    block = Block(())
    if reader.next.kind == "block":
        reader.take()
        block.arguments = (
            reader.many(lambda: _read_argument(reader), ")") if reader.accept("(") else ()
        )
        reader.expect(":", "after the arguments of the block")
    while not reader.accept("}"):
        if reader.next.kind == "block":
            reader.fail("a second block; a region has one")
        block.operations.append(parse_operation(reader))
    return block


def _read_argument(reader: Reader) -> tuple[str, TensorType]:
    name = reader.kind("value", "an argument").text
    reader.expect(":", f"after {name}")
    return name, reader.tensor_type()


def _read_location(reader: Reader) -> Location | None:
    if not reader.accept("loc"):
        return None
    reader.expect("(")
    file = reader.string("a file in quotes")
    reader.expect(":")
    line = reader.literal()
    reader.expect(":")
    reader.literal()
    reader.expect(")")
    return Location(file, int(line))


def parse_module(text: str) -> tuple[Reader, Operation]:
    """The reader, which knows where things are, and the one program of a module."""
    reader = Reader(text)
    outer = parse_operation(reader)
    if reader.next.kind != "end":
        reader.fail(f"expected the end of the text, got {reader.next}")
    if outer.name != "builtin.module" or len(outer.blocks) != 1:
        reader.fail(f'expected "builtin.module", got {quote(outer.name)}', outer.at)
    inner = outer.blocks[0].operations
    if len(inner) != 1:
        reader.fail(f"a module holds one program, got {len(inner)}", outer.at)
    op = inner[0]
    version = op.attributes.get("version")
    if version != VERSION:
        reader.fail(
            f"the text is of format version {version}, but this Tessera reads version {VERSION}",
            op.at,
        )
    return reader, op
