"""Products of words in the matrix registers (AMX), where a loop is one product.

    acc = 0; for k: acc = dot_words(load a, load b, acc); store acc
->  tilezero; for k: tileloadd, tdpbssd; tilestored

A register holds 16 rows of 64 bytes; there are eight of them.  A kernel that uses them sets all to that
shape when it begins, on every thread, and gives them back at its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from tessera.core.matrix_units import matrix_units
from tessera.core.processor import assumed
from tessera.ir.target.cpu.instructions import matrix_instruction
from tessera.ir.target.cpu.machine import host_features
from tessera.ir.target.cpu.memory import strides
from tessera.ir.target.cpu.types import align_of, memory_type
from tessera.ir.target.cpu.words import WordWriter
from tessera.ir.tile.ir import Block, Operation, Tile, walk

SIDE = 16  # rows of a register, and words in one
_REGISTERS = 8  # tile registers of AMX
_PALETTE = bytes([1] + [0] * 15 + [64, 0] * _REGISTERS + [0] * 16 + [SIDE] * _REGISTERS + [0] * 8)


def usable_features() -> frozenset[str]:
    """The instruction sets that code may use in this process."""
    other = assumed()
    if other is not None:
        return other.features
    units = matrix_units()
    wanted = {"amx-tile"} if units else set[str]()
    wanted |= {f"amx-{u}" for u in units}
    return frozenset(f for f in host_features() if not f.startswith("amx-") or f in wanted)


class MatrixLoop(NamedTuple):
    """A loop that is one product of matrices, what it begins with, and where its result goes."""

    first: Operation
    loop: Operation
    asks: tuple[Operation, ...]
    left: Operation
    right: Operation
    intrinsic: str
    store: Operation

    @property
    def rows(self) -> int:
        """Registers down the block of sums."""
        return self.left.results[0].shape[0] // SIDE

    @property
    def columns(self) -> int:
        """Registers across it."""
        return self.right.results[0].shape[1] // SIDE


class TileWriter(WordWriter):
    """Writes products of words in matrix registers."""

    steps: MatrixLoop | None = None  # the product whose loop is being written
    configured = False

    @cached_property
    def uses(self) -> Counter[Tile]:
        """How often each tile is used."""
        found: Counter[Tile] = Counter()
        for op in walk(self.kernel.body):
            found.update(op.operands)
            found.update(op.block.outputs if op.block is not None else ())
        return found

    def grouped(self, operations: Sequence[Operation]) -> Iterator[Operation | MatrixLoop]:
        """Operations of a block, in which products for the matrix registers are one."""
        i = 0
        while i < len(operations):
            found = self.found(operations[i : i + 3])
            yield operations[i] if found is None else found
            i += 1 if found is None else 3

    def found(self, ops: Sequence[Operation]) -> MatrixLoop | None:
        """The product that three operations are, if the registers can hold it."""
        if [op.name for op in ops[1:]] != ["for", "store"] or ops[0].name not in ("full", "load"):
            return None
        first, loop, store = ops
        body = loop.block
        assert body is not None
        asks = tuple(op for op in body.operations if op.name == "prefetch")
        rest = [op for op in body.operations if op.name != "prefetch"]
        joins = [op for op in rest if op.name == "words"]  # of rows as they lie
        if [op.name for op in rest if op.name != "words"] != ["load", "load", "dot_words"]:
            return None
        left, right, dot = (op for op in rest if op.name != "words")
        words = joins[0] if len(joins) == 1 and joins[0].attributes["axis"] == 1 else left
        chained = (
            loop.operands == first.results
            and len(joins) == (words is not left)
            and words.operands in ((), left.results)
            and dot.operands == (*words.results, *right.results, *body.arguments)
            and body.outputs == dot.results
            and store.operands == loop.results
        )
        once = all(self.uses[op.results[0]] == 1 for op in (*ops[:2], *rest))
        zero = first.name == "full" and first.attributes["value"] == 0
        moved = [left, right, store] + ([] if zero else [first])
        if not (chained and once and all(_is_matrix(op) for op in moved)):
            return None
        intrinsic = matrix_instruction(self.features, *_kinds(dot))
        p = MatrixLoop(first, loop, asks, left, right, intrinsic or "", store)
        return p if intrinsic is not None and _fits(p, dot) else None

    def product(self, p: MatrixLoop) -> None:
        """A loop that multiplies in the matrix registers."""
        self.configured = True
        places = [(r, c) for r in range(p.rows) for c in range(p.columns)]
        for number, (r, c) in enumerate(places):
            if p.first.name == "full":
                self.tile("tilezero", number)
            else:
                self.move("tileloadd64", number, p.first, r, c)
        before, self.steps = self.steps, p
        step = Block((), (*p.asks, Operation("tile_step", (), {}, ())), ())
        self._for(Operation("for", (), p.loop.attributes, (), None, step))
        self.steps = before
        for number, (r, c) in enumerate(places):
            self.move("tilestored64", number, p.store, r, c)

    def _for(self, op: Operation) -> None:
        raise AssertionError(op)  # of the writer of loops

    def _tile_step(self, op: Operation) -> None:
        """One step of a product: 16 words along k."""
        p = self.steps
        assert p is not None
        sums = p.rows * p.columns
        spare = _REGISTERS - sums - p.rows
        for c in range(p.columns):
            right = sums + p.rows + c % spare
            self.move("tileloadd64", right, p.right, 0, c)
            for r in range(p.rows):
                if c == 0:
                    self.move("tileloadd64", sums + r, p.left, r, 0)
                name = p.intrinsic.removeprefix("llvm.x86.")
                self.tile(name, r * p.columns + c, sums + r, right)

    def tile(self, name: str, *registers: int) -> None:
        """An instruction on registers alone."""
        given = ", ".join(f"i8 {r}" for r in registers)
        self.do(f"call void @llvm.x86.{name}({given})")
        kinds = ", ".join(["i8 immarg"] * len(registers))
        self.declared[f"llvm.x86.{name}"] = f"declare void @llvm.x86.{name}({kinds})"

    def move(self, name: str, register: int, op: Operation, row: int, column: int) -> None:
        """Load or store a register: 16 by 16 words of a box, or rows of as many bytes."""
        m, a = op.memory, op.attributes
        assert m is not None
        steps, (down, across) = strides(m.type.shape), a["axes"]
        at = sum((x * s for x, s in zip(a["at"], steps, strict=True)), start=0)
        at = at + row * SIDE * steps[down] + column * SIDE * steps[across]
        kind, size = memory_type(m.type.dtype), align_of(m.type.dtype)
        pointer = self.put(f"getelementptr {kind}, ptr {self.pointers[m]}, i64 {self.size(at)}")
        far = self.size(steps[down] * size)
        self.do(f"call void @llvm.x86.{name}(i8 {register}, ptr {pointer}, i64 {far})")
        self.declared[f"llvm.x86.{name}"] = f"declare void @llvm.x86.{name}(i8 immarg, ptr, i64)"

    def configure(self) -> None:
        """Shape the registers before the first instruction, and give them back after the last."""
        if not self.configured:
            return
        name = f'"palette.{self.kernel.name}"'
        data = "".join(f"\\{b:02x}" for b in _PALETTE)
        self.declared[name] = f'@{name} = private constant [64 x i8] c"{data}", align 64'
        for intrinsic, kinds in (("ldtilecfg", "ptr"), ("tilerelease", "")):
            self.declared[intrinsic] = f"declare void @llvm.x86.{intrinsic}({kinds})"
        self.lines.insert(0, f"  call void @llvm.x86.ldtilecfg(ptr @{name})")
        self.do("call void @llvm.x86.tilerelease()")


def _kinds(dot: Operation) -> tuple[str, str]:
    return dot.attributes["left"], dot.attributes["right"]


def _is_matrix(op: Operation) -> bool:
    """Whether a box is a matrix whose rows lie together, all of it inside the memory."""
    a, m = op.attributes, op.memory
    assert m is not None
    return len(a["axes"]) == 2 and not a["masked"] and strides(m.type.shape)[a["axes"][1]] == 1


def _fits(p: MatrixLoop, dot: Operation) -> bool:
    """Whether whole registers hold the factors and the sums."""
    (m, k), n = dot.operands[0].shape, dot.operands[1].shape[1]
    whole = k == SIDE and m % SIDE == n % SIDE == 0 and not p.loop.attributes.get("bounded")
    return whole and p.rows * p.columns + p.rows < _REGISTERS
