"""The Tile verifier: what must hold of every kernel, between any two passes.

operands    are defined before their use, in the same block or one around it
results     are defined once and have the types that the rules of rules.py infer
memories    are parameters or allocated before; only writable ones are stored to
variables   of grid and loops are counters and new where they are declared
sizes       mention sizes, grid variables and the variables of loops around them; those of the grid
            and of scratch mention sizes alone (a name that begins with _ is no size but a counter)
loops       carry tiles of the same types in, around and out; they step by at least 1
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from tessera.core.dims import symbols_within
from tessera.core.dtype import bool_, i64
from tessera.core.errors import VerifyError
from tessera.core.types import TensorType
from tessera.ir.tile.ir import Block, Kernel, Memory, Operation, Tile
from tessera.ir.tile.rules import ATTRIBUTES, WITH_MEMORY, check_attributes, check_format, infer


def verify(kernel: Kernel) -> None:
    """Raise VerifyError when a kernel breaks an invariant of Tile IR."""
    _Verifier(kernel).run()


class _Verifier:
    """What is in scope while the operations are read in order."""

    def __init__(self, kernel: Kernel):
        self.kernel, self.count = kernel, 0
        self.sizes = set(kernel.sizes)
        self.variables: set[str] = set()
        self.tiles: set[Tile] = set()
        self.memories: set[Memory] = set()
        self.ever: set[Memory | Tile] = set()  # also what is out of scope by now

    def run(self) -> None:
        k = self.kernel
        names = [m.name for m in k.parameters]
        for i, m in enumerate(k.parameters):
            if names.index(m.name) != i:
                self.fail(f"two parameters are called {m.name}")
            if m.space != "global":
                self.fail(f"parameter {m.name} is in {m.space} memory, not global")
            self.checked(f"parameter {m.name}", lambda m=m: check_format("memory", m.type.dtype))
            self.memories.add(m)
        self.ever |= self.memories
        for name, n in k.grid:
            self.declare(name, f"grid variable {name}")
            self.known((n,), self.sizes, f"grid variable {name}")
        if k.body.arguments or k.body.outputs:
            self.fail("the body of a kernel carries nothing")
        self.block(k.body)

    def fail(self, message: str, op: Operation | None = None) -> NoReturn:
        raise VerifyError(f"{self.kernel.name}: {message}").at(None if op is None else op.location)

    def checked(self, where: str, check: Any, op: Operation | None = None) -> Any:
        try:
            return check()
        except VerifyError as e:
            self.fail(f"{where}: {e.message}", op)

    def declare(self, name: str, where: str, op: Operation | None = None) -> None:
        if not name.startswith("_"):
            self.fail(f"{where}: {name} is the name of a size; a counter begins with _", op)
        if name in self.variables:
            self.fail(f"{where}: {name} is a variable already", op)
        self.variables.add(name)

    def known(
        self, values: Iterable[Any], names: set[str], where: str, op: Operation | None = None
    ) -> None:
        for name in sorted(symbols_within(values) - names):
            what = "may not depend on" if name in self.variables else "mentions the unknown"
            self.fail(f"{where} {what} {name}", op)

    def block(self, b: Block) -> None:
        """Check a block; what it defines is out of scope afterwards."""
        tiles, memories = set(self.tiles), set(self.memories)
        for t in b.arguments:
            self.define(t, "an argument of the block")
        for op in b.operations:
            self.operation(op)
        for i, t in enumerate(b.outputs):
            self.use(t, f"output {i} of the block")
        self.tiles, self.memories = tiles, memories

    def define(
        self, v: Memory | Tile, where: str, op: Operation | None = None, result: int | None = None
    ) -> None:
        if v in self.ever:
            what = where if result is None else f"{where}: result {result} {v.type}"
            self.fail(f"{what} is defined twice", op)
        self.ever.add(v)
        if isinstance(v, Tile):
            self.tiles.add(v)
        else:
            self.memories.add(v)

    def use(self, v: Memory | Tile, where: str, op: Operation | None = None) -> None:
        if v in self.tiles or v in self.memories:
            return
        why = "is of a loop that has ended" if v in self.ever else "is not defined before its use"
        self.fail(f"{where} {why}", op)

    def operation(self, op: Operation) -> None:
        where = f"operation {self.count} {op.name}"
        self.count += 1
        if op.name not in ATTRIBUTES:
            self.fail(f"{where}: there is no such operation", op)
        for i, t in enumerate(op.operands):
            if t not in self.tiles:  # asked here: texts for all would take half of the time
                self.use(t, f"{where}: operand {i} {t.type}", op)
        self.memory(op, where)
        check = self.loop if op.name == "for" else self.plain
        check(op, where)
        for i, t in enumerate(op.results):
            self.define(t, where, op, i)

    def memory(self, op: Operation, where: str) -> None:
        m = op.memory
        if m is None:
            if op.name in WITH_MEMORY:
                self.fail(f"{where}: needs a memory", op)
            return
        if op.name == "alloc":
            self.known(m.type.shape, self.sizes, f"{where}: the shape {m.type}", op)
            self.define(m, f"{where}: memory {m.name}", op)
            return
        self.use(m, f"{where}: memory {m.name}", op)
        if op.traits.writes and not m.writable:
            self.fail(f"{where}: {m} is not writable", op)

    def plain(self, op: Operation, where: str) -> None:
        """An operation without a region."""
        if op.block is not None:
            self.fail(f"{where}: has a block", op)
        stated = op.results[0].type if len(op.results) == 1 else None
        place = None if op.memory is None else op.memory.type
        types = [t.type for t in op.operands]
        want = self.checked(where, lambda: infer(op.name, types, op.attributes, place, stated), op)
        got = [t.type for t in op.results]
        if list(want) != got:
            self.fail(f"{where}: the result is {_list(got)}, expected {_list(want)}", op)
        if symbols_within(op.attributes.values()):
            scope = self.sizes | self.variables
            self.known(op.attributes.values(), scope, f"{where}: a position", op)

    def loop(self, op: Operation, where: str) -> None:
        self.checked(where, lambda: check_attributes("for", op.attributes), op)
        a, block = op.attributes, op.block
        if block is None:
            self.fail(f"{where}: has no block", op)
        if a["step"] < 1:
            self.fail(f"{where}: the step is {a['step']}, expected at least 1", op)
        self.known((a["start"], a["stop"]), self.sizes | self.variables, f"{where}: a bound", op)
        carried = [t.type for t in op.operands]
        for what, tiles in (
            ("the block takes", block.arguments), ("the block gives", block.outputs),
            ("the loop gives", op.results),
        ):  # fmt: skip
            types = [t.type for t in tiles]
            if types != carried:
                self.fail(f"{where}: {what} {_list(types)}, expected {_list(carried)}", op)
        if a.get("bounded"):
            self.bound(op, block, where)
        if a.get("going"):
            self.going(op, where)
        self.declare(a["variable"], where, op)
        self.block(block)
        self.variables.remove(a["variable"])

    def going(self, op: Operation, where: str) -> None:
        """A loop that goes on while a bool holds carries that first, and has no bound beside it."""
        first = op.operands[0].type if op.operands else None
        if first != TensorType(bool_, ()):
            self.fail(f"{where}: what it goes on by is {first}, expected bool[]", op)
        if op.attributes.get("bounded"):
            self.fail(f"{where}: is bounded and going, expected one of them", op)

    def bound(self, op: Operation, block: Block, where: str) -> None:
        """A bounded loop carries its bound first and passes it on."""
        first = op.operands[0].type if op.operands else None
        if first != TensorType(i64, ()):
            self.fail(f"{where}: the bound is {first}, expected i64[]", op)
        if block.outputs[0] is not block.arguments[0]:
            self.fail(f"{where}: the block changes the bound", op)


def _list(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types)) or "nothing"
