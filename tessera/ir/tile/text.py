"""Tile IR as text and back: printing is canonical, and parse(print(k)) prints the same.

A kernel is a "tile.kernel" whose block arguments are its parameters.  Memories are values like tiles:
the first operand of a load or a store, and the result of an alloc.  Names of scratch and locations are
not part of the text; docs/ir/tile.md defines the format.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.core.dims import Dim, Size
from tessera.core.errors import VerifyError
from tessera.core.operation import Block as TextBlock
from tessera.core.operation import Operation as TextOperation
from tessera.core.operation import module, parse_module, print_operation, result_names
from tessera.core.text import Reader, type_text
from tessera.core.types import TensorType
from tessera.ir.tile.ir import CANONICAL_TEXT, Block, Kernel, Memory, Operation, Tile
from tessera.ir.tile.rules import ATTRIBUTES, WITH_MEMORY, check_attributes, infer

LEVEL = "tile"
PREFIX = "tile."
YIELD, RETURN = "tile.yield", "tile.return"

# Printing -------------------------------------------------------------------------------------


def print_kernel(k: Kernel, locations: bool = False) -> str:
    """The text of a kernel, canonical without locations."""
    attributes = {
        "name": k.name,
        "parameters": tuple(m.name for m in k.parameters),
        "writable": tuple(i for i, m in enumerate(k.parameters) if m.writable),
        "grid": tuple({"variable": name, "count": n} for name, n in k.grid),
    }
    block = _Printer(locations).block(k.body, k.parameters, RETURN)
    return print_operation(
        module(LEVEL, TextOperation("tile.kernel", attributes=attributes, blocks=(block,)))
    )


class _Printer:
    """Numbers the values in the order in which the text defines them."""

    def __init__(self, locations: bool):
        self.locations, self.count = locations, 0
        self.names: dict[Memory | Tile, str] = {}

    def fresh(self) -> str:
        self.count += 1
        return f"%{self.count - 1}"

    def block(self, b: Block, arguments: Sequence[Memory | Tile], end: str) -> TextBlock:
        named = []
        for v in arguments:
            self.names[v] = self.fresh()
            named.append((self.names[v], v.type))
        operations = [self.operation(op) for op in b.operations]
        operations.append(TextOperation(end, self.uses(b.outputs), [t.type for t in b.outputs]))
        return TextBlock(named, operations)

    def uses(self, values: Sequence[Memory | Tile]) -> list[str]:
        return [self.names.get(v, "%undefined") for v in values]

    def operation(self, op: Operation) -> TextOperation:
        memory = () if op.memory is None else (op.memory,)
        made: Sequence[Memory | Tile] = memory if op.name == "alloc" else op.results
        used = op.operands if op.name == "alloc" else (*memory, *op.operands)
        operands, result = self.uses(used), self.fresh() if made else ""
        self.names.update(zip(made, result_names(result, len(made)), strict=True))
        blocks = [] if op.block is None else [self.block(op.block, op.block.arguments, YIELD)]
        return TextOperation(
            PREFIX + op.name, operands, [v.type for v in used], result, [v.type for v in made],
            op.attributes, blocks, op.location if self.locations else None,
        )  # fmt: skip


# Parsing --------------------------------------------------------------------------------------


def parse_kernel(text: str) -> Kernel:
    """The kernel that a text describes."""
    return kernel_of(*parse_module(text))


def kernel_of(reader: Reader, op: TextOperation) -> Kernel:
    """The kernel in a parsed module."""
    if op.name != "tile.kernel" or len(op.blocks) != 1:
        reader.fail(f'expected "tile.kernel" with one region, got "{op.name}"', op.at)
    parser = _Parser(reader)
    parameters = parser.parameters(op)
    grid = tuple(parser.axis(op, a) for a in parser.listed(op, "grid"))
    body = parser.block(op, op.blocks[0], {}, RETURN)
    return Kernel(str(op.attributes.get("name", "kernel")), parameters, grid, body)


Names = dict[str, Memory | Tile]


class _Parser:
    """Builds blocks of operations from blocks of text."""

    def __init__(self, reader: Reader):
        self.reader = reader
        self.defined: set[str] = set()
        self.outermost: Names = {}
        self.count = 0

    def parameters(self, op: TextOperation) -> tuple[Memory, ...]:
        arguments = op.blocks[0].arguments
        names, writable = self.listed(op, "parameters"), self.listed(op, "writable")
        if len(names) != len(arguments):
            self.reader.fail(f"{len(names)} names for {len(arguments)} parameters", op.at)
        for i in writable:
            if i not in range(len(arguments)):
                self.reader.fail(f"parameter {i} is writable, but there is none", op.at)
        for i, (n, t) in enumerate(arguments):
            self.define(op, self.outermost, n, Memory(str(names[i]), t, "global", i in writable))
        return tuple(m for m in self.outermost.values() if isinstance(m, Memory))

    def listed(self, op: TextOperation, key: str) -> tuple[Any, ...]:
        value = op.attributes.get(key, ())
        if not isinstance(value, tuple):
            self.reader.fail(f"{op.name}: {key} must be a list", op.at)
        return value

    def axis(self, op: TextOperation, a: Any) -> tuple[str, Size]:
        fits = isinstance(a, dict) and set(a) == {"variable", "count"}
        if not fits or not isinstance(a["variable"], str) or not isinstance(a["count"], int | Dim):
            self.reader.fail("an axis of the grid needs a variable and a count", op.at)
        return a["variable"], a["count"]

    def define(self, op: TextOperation, names: Names, name: str, value: Memory | Tile) -> None:
        if name in self.defined:
            self.reader.fail(f"{name} is defined twice", op.at)
        self.defined.add(name)
        names[name] = value

    def block(self, parent: TextOperation, b: TextBlock, outer: Names, end: str) -> Block:
        names = dict(outer or self.outermost)
        arguments = []
        if end == YIELD:
            for n, t in b.arguments:
                arguments.append(Tile(t))
                self.define(parent, names, n, arguments[-1])
        *body, last = b.operations or [parent]
        if last.name != end:
            self.reader.fail(f"{parent.name}: the region does not end in {end}", parent.at)
        operations = [self.operation(op, names) for op in body]
        return Block(tuple(arguments), tuple(operations), tuple(self.tiles(last, names)))

    def operation(self, op: TextOperation, names: Names) -> Operation:
        name = op.name.removeprefix(PREFIX)
        if name not in ATTRIBUTES or not op.name.startswith(PREFIX):
            self.reader.fail(f'unknown operation "{op.name}"', op.at)
        if len(op.blocks) != (name == "for"):
            self.reader.fail(f"{op.name}: has {len(op.blocks)} regions", op.at)
        values = self.values(op, names)
        memory = self.memory(op, name, values)
        rest = values[1:] if name in WITH_MEMORY and name != "alloc" else values
        tiles = [self.tile(op, v) for v in rest]
        block = self.block(op, op.blocks[0], names, YIELD) if op.blocks else None
        types = self.checked(op, name, tiles, memory)
        results = tuple(map(Tile, types))
        made: Sequence[Memory | Tile] = results
        if name == "alloc" and memory is not None:
            made = (memory,)
        for n, v in zip(op.results, made, strict=True):
            self.define(op, names, n, v)
        return Operation(name, tiles, op.attributes, results, memory, block, op.location)

    def memory(
        self, op: TextOperation, name: str, values: Sequence[Memory | Tile]
    ) -> Memory | None:
        if name not in WITH_MEMORY:
            return None
        if name == "alloc":
            if len(op.result_types) != 1:
                self.reader.fail(f"{op.name}: gives one memory", op.at)
            self.count += 1
            space = str(op.attributes.get("space"))
            return Memory(f"s{self.count}", op.result_types[0], space, True)
        if not values or not isinstance(values[0], Memory):
            self.reader.fail(f"{op.name}: operand 0 must be a memory", op.at)
        return values[0]

    def checked(
        self, op: TextOperation, name: str, tiles: Sequence[Tile], memory: Memory | None
    ) -> Sequence[TensorType]:
        stated = op.result_types[0] if len(op.result_types) == 1 else None
        try:
            if name == "for":
                check_attributes(name, op.attributes)
                return op.result_types
            place = None if memory is None else memory.type
            types = infer(name, [t.type for t in tiles], op.attributes, place, stated)
        except VerifyError as e:
            self.reader.fail(e.message, op.at)
        if name != "alloc" and list(types) != list(op.result_types):
            got, want = (", ".join(map(type_text, ts)) or "none" for ts in (op.result_types, types))
            self.reader.fail(f"{op.name}: the result is {got}, expected {want}", op.at)
        return types

    def tile(self, op: TextOperation, v: Memory | Tile) -> Tile:
        if not isinstance(v, Tile):
            self.reader.fail(f"{op.name}: memory {v.name} stands where a tile must", op.at)
        return v

    def tiles(self, op: TextOperation, names: Names) -> list[Tile]:
        return [self.tile(op, v) for v in self.values(op, names)]

    def values(self, op: TextOperation, names: Names) -> list[Memory | Tile]:
        found = []
        for i, (n, t) in enumerate(zip(op.operands, op.operand_types, strict=True)):
            v = names.get(n)
            if v is None:
                why = "is of a loop that has ended" if n in self.defined else "is not defined"
                self.reader.fail(f"{op.name}: operand {i} {n} {why}", op.at)
            if v.type is not t:
                self.reader.fail(
                    f"{op.name}: operand {i} {n} is {type_text(v.type)}, but its type is written "
                    f"{type_text(t)}",
                    op.at,
                )
            found.append(v)
        return found


CANONICAL_TEXT.provide(print_kernel)
