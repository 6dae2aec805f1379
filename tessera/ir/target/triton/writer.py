"""What every part of the printer needs: names, lines, and the tiles that are variables."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tessera.core.dims import Size
from tessera.ir.target.triton.casts import Casts
from tessera.ir.target.triton.sizes import SizeWriter
from tessera.ir.target.triton.types import physical
from tessera.ir.tile.ir import Kernel, Memory, Operation, Tile, walk
from tessera.ir.tile.launch import Threads


def plain_name(name: str) -> str:
    """A name that Python takes."""
    clean = re.sub(r"\W", "_", name)
    taken = keyword.iskeyword(clean) or clean in ("tl", "triton", "libdevice", "range", "float")
    if not clean or clean[0].isdigit():
        return f"_{clean}"
    return f"{clean}_" if taken else clean


class TritonWriter:
    """A kernel being written."""

    def __init__(self, kernel: Kernel, style: Threads):
        self.k, self.style = kernel, style
        self.language = "ptx"  # of inline assembly
        self.narrow = style.approximate or stores_narrow(kernel)
        self.lines: list[str] = []
        self.prelude: list[str] = []  # constants and lines of numbers
        self.hoisted: dict[str, str] = {}
        self.indent, self.count = 1, 0
        self.tiles: dict[Tile, str] = {}
        self.short: set[Tile] = set()  # i64 tiles that are kept in 32 bits
        self.bytes: dict[Tile, str] = {}  # bool tiles as they lie in memory: 0 is false
        self.used: dict[str, None] = {}
        self.functions: dict[str, str] = {}  # what folds combine with
        self.combining = False  # whether such a function is written, which has no branches
        self.written: bool | None = None  # whether scratch was last written, or read
        self.memory = {m: plain_name(m.name) for m in kernel.parameters}
        self.taken = {*self.memory.values(), "scratch", "own", "rest", "turn", "at"}
        self.names = {n: self.free(plain_name(n)) for n in kernel.sizes}
        self.names |= {n: self.free(plain_name(n.lstrip("_"))) for n, _ in kernel.grid}
        self.size = SizeWriter(self.names, self.used)
        self.casts = Casts(self.used)
        self.scratch: dict[Memory, Size] = {}  # where each begins, in bytes
        self.turned: dict[Operation, Memory] = {}

    def free(self, name: str) -> str:
        """A name that nothing else has."""
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def do(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    def put(self, expression: str) -> str:
        """A new variable."""
        self.count += 1
        name = self.free(f"v{self.count}")
        self.do(f"{name} = {expression}")
        return name

    @contextmanager
    def branch(self, condition: str) -> Iterator[Callable[[str], None]]:
        """What is written inside runs where a number holds."""
        self.do(f"if {condition}:")
        self.indent += 1
        yield self.do
        self.indent -= 1

    def hoist(self, expression: str, stem: str) -> str:
        """A variable that is set once, at the beginning."""
        if expression not in self.hoisted:
            name = self.free(f"{stem}{len(self.hoisted)}")
            self.hoisted[expression] = name
            self.prelude.append(f"    {name} = {expression}")
        return self.hoisted[expression]

    def constant(self, text: str, kind: str) -> str:
        """A number of a type."""
        return self.hoist(f"tl.full((), {text}, {kind})", "k")

    def line(self, axis: int, shape: Sequence[int]) -> str:
        """The numbers 0, 1, ... along an axis of a tile of a (padded) shape."""
        rank, n = len(shape), shape[axis]
        if rank == 1:
            return self.hoist(f"tl.arange(0, {n})", "line")
        places = ", ".join(":" if i == axis else "None" for i in range(rank))
        return self.hoist(f"tl.arange(0, {n})[{places}]", "line")

    def lay_out_scratch(self) -> Size:
        """Say where each memory begins; the bytes of all of them."""
        at: Size = 0
        for m in (*self.k.scratch(), *self._turned()):
            self.scratch[m] = at
            at = at + (m.type.size * max(m.type.dtype.bits // 8, 1) + 15) // 16 * 16
        return at

    def _turned(self) -> Iterator[Memory]:
        """Scratch for tiles that are reshaped where padding lies between their elements."""
        for op in walk(self.k.body):
            if op.name == "reshape" and not keeps_padding(
                op.operands[0].shape, op.results[0].shape
            ):
                self.turned[op] = Memory(f"turned{len(self.turned)}", op.operands[0].type)
                yield self.turned[op]

    def of(self, t: Tile) -> str:
        """The variable of a tile, in the type that the tile has."""
        return f"{self.tiles[t]}.to(tl.int64)" if t in self.short else self.tiles[t]

    def set(self, op: Operation, expression: str) -> None:
        self.tiles[op.results[0]] = self.put(expression)


def stores_narrow(kernel: Kernel) -> bool:
    """Whether a kernel stores floats of 16 bits alone.

    Numbers of 8 bits are often quotients at the middle of two of them, as i8 caches and tests on floats
    have: an error of 2^-16 is a whole step there, so they are computed as in kernels that store f32 beside
    them.
    """
    found = [m.type.dtype.base for m in kernel.parameters if m.writable]
    return bool(found) and all(d.kind == "f" and d.bits == 16 for d in found)


def keeps_padding(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Whether a reshape of padded tiles is a reshape: axes of one element come and go, or none is padded."""
    if _without_ones(before) == _without_ones(after):
        return True
    return physical(before) == before and physical(after) == after


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def as_tuple(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
