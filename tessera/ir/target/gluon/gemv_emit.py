"""emit: a stream as the source of a Gluon kernel for Hopper.

The copy engine fetches the first rows of the matrix into a ring of shared memory before all else, while the
vector is computed.  Few rows at once are columns of a warp group's instructions, which take the vector as
64 equal rows; many are rows of the instructions of single warps, whose 8 columns are equal: a wide block
takes a quarter of the instructions.  A tile is printed without its axes of one element.
"""

from __future__ import annotations

from typing import Any

from tessera.core.dims import Size, product
from tessera.ir.target.gluon.text import FETCH, HEAD, NARROW, STREAM, WIDE
from tessera.ir.target.triton import waits
from tessera.ir.target.triton.types import VALUES
from tessera.ir.target.triton.values import HELPERS, NEEDS, ValueWriter
from tessera.ir.target.triton.writer import as_tuple, plain_name
from tessera.ir.tile.gpu.gemv_match import GemvParts
from tessera.ir.tile.ir import Memory, Operation, Tile
from tessera.ir.tile.launch import Threads

_NAMES = ("ring", "full", "vector", "vectors", "flat", "rows", "factor", "line", "zero", "acc", "box",
    "bar", "part", "block", "turn", "count", "named", "parts_of", "wait_for_all", "fetch")  # fmt: skip


class StreamWriter(ValueWriter):
    """A whole kernel."""

    def __init__(self, s: GemvParts, style: Threads):
        super().__init__(s.kernel, style)
        self.s, self.layout = s, "flat"
        self.taken |= {*_NAMES, "i", "j", "at", "newer"}

    def text(self) -> str:
        box, stages = self.s.matrix, self.style.stages or 4
        ((number, _),) = self.k.grid
        kind, form = VALUES[box.memory.type.dtype.name], WIDE if self.s.is_wide else NARROW
        self.layout = "flat"
        self._all(self.s.before)
        before, self.lines, prelude = self.lines, [], [*self.prelude]
        self.prelude, self.hoisted, self.layout = [], {}, f"gl.SliceLayout({form['equal']}, rows)"
        self.names[self.s.blocks.attributes["variable"]] = "block"
        self.indent = 2
        one = self.combine("max", self.s.loop.results[0].dtype)
        for p, t in enumerate(self.s.loop.results):
            self.tiles[t] = self.put(f"tl.reduce(acc{p}, {form['equal']}, {one})")
        self._all(self.s.after)
        frame: dict[str, Any] = {
            "name": plain_name(self.k.name), "number": self.names[number],
            "parameters": ", ".join(self.memory[m] for m in self.k.parameters),
            "kind": kind, "matrix": self.memory[box.memory], "parts": len(self.s.rows),
            "places": stages * len(self.s.rows),
            "blocks": int(self.s.blocks.attributes["stop"]), "length": self.s.length,
            "instances": int(self.k.grid[0][1]),
            "columns": box.rows, "depth": box.columns, "steps": self.s.length // box.columns,
            "stages": stages, "bytes": 2 * box.rows * box.columns * len(self.s.rows),
            "before": "\n".join([*prelude, *before]), "after": "\n".join(self.lines),
        }  # fmt: skip
        frame |= {name: self._filled(text, frame) for name, text in form.items()}
        frame["fetch"] = self._filled(FETCH, frame)
        frame["fixed"] = "\n".join([frame["zero"], *self.prelude])
        frame["first"], frame["then"] = self._waits()
        used = dict.fromkeys(n for h in self.used for n in (*NEEDS.get(h, ()), h))
        parts = [
            (waits.HEAD if self.style.early else "") + HEAD,
            *(HELPERS[h] for h in used),
            *self.functions.values(),
            STREAM % frame,
        ]
        return "\n".join(parts).replace("@triton.jit", "@gluon.jit")

    def _waits(self) -> tuple[str, str]:
        """What a kernel that begins early does before the first rows are fetched, and after that."""
        if not self.style.early:
            return "", ""
        return (waits.NEXT, waits.WAIT) if self.style.ahead else (f"{waits.NEXT}\n{waits.WAIT}", "")

    def _filled(self, text: str, frame: dict[str, Any]) -> str:
        """A piece of the frame; lines that name a part stand there once for each."""
        if "%(p)d" not in text:
            return text % frame
        parts = enumerate(self.s.offsets)
        return "\n".join(text % (frame | {"p": p, "offset": n}) for p, n in parts)

    def _all(self, operations: tuple[Operation, ...]) -> None:
        for op in operations:
            getattr(self, f"_{op.name}")(op)

    def _for(self, op: Operation) -> None:
        """What the first instance alone does."""
        assert op.block is not None
        start, stop = (self.size.write(op.attributes[x]) for x in ("start", "stop"))
        self.do(f"if {start} < {stop}:")
        self.indent += 1
        self._all(op.block.operations)
        self.indent -= 1

    # Tiles without their axes of one element

    def constant(self, text: str, kind: str) -> str:
        return self.hoist(f"gl.full((), {text}, {kind})", "k")

    def numbers(self, n: int) -> str:
        """0, 1, ..."""
        return self.hoist(f"gl.arange(0, {n}, {self.layout})", "line")

    def _full(self, op: Operation) -> None:
        """One number is as good as a tile of it."""
        t = op.results[0]
        self.set(
            op, self.constant(self.number(op.attributes["value"], t.dtype), VALUES[t.dtype.name])
        )

    def _index(self, op: Operation) -> None:
        t, at = op.results[0], self.size.write(op.attributes["at"])
        self.short.add(t)
        long = [n for n in t.shape if n > 1]
        if op.attributes["axis"] is None or not long:
            self.set(op, f"gl.full((), 0, gl.int32) + {at}")
        else:
            self.set(op, f"{self.numbers(long[0])} + ({at})")

    def _broadcast(self, op: Operation) -> None:
        """A number that becomes a line is one everywhere; other tiles stay as they are."""
        (x,), t = op.operands, op.results[0]
        long = _long(t.shape)
        self._same(op)
        if long and not _long(x.shape):
            self.set(
                op, f"tl.where({self.numbers(long[0])} >= 0, {self.tiles[x]}, {self.tiles[x]})"
            )

    def _reshape(self, op: Operation) -> None:
        shapes = [_long(t.shape) for t in (op.operands[0], op.results[0])]
        if shapes[0] == shapes[1] or not shapes[0]:
            self._same(op)
        else:
            self.set(op, f"tl.reshape({self.tiles[op.operands[0]]}, {as_tuple(shapes[1])})")

    def _same(self, op: Operation) -> None:
        (x,), t = op.operands, op.results[0]
        if x in self.short:
            self.short.add(t)
        self.tiles[t] = self.tiles[x]

    def _fold(self, op: Operation) -> None:
        (t,), axis = op.operands, op.attributes["axis"]
        f = self.combine(op.attributes["scalar"], t.dtype)
        own = [i for i, n in enumerate(t.shape) if n > 1]
        if axis not in own:
            self._same(op)
            return
        assert t.shape[axis] == 2 or self._any_order(op), op
        self.set(op, f"tl.reduce({self.of(t)}, {own.index(axis)}, {f})")

    @staticmethod
    def _any_order(op: Operation) -> bool:
        return op.attributes["scalar"] != "add" or op.operands[0].dtype.kind != "f"

    # Memory

    def _alloc(self, op: Operation) -> None:
        self.memory[self.s.shared] = "vector"

    def _barrier(self, op: Operation) -> None:
        """The frame has it."""

    def address(self, op: Operation) -> str:
        m, a = op.memory, op.attributes
        assert m is not None
        strides = [product(m.type.shape[i + 1 :]) for i in range(m.type.rank)]
        base: Size = 0
        for at, stride in zip(a["at"], strides, strict=True):
            base = base + at * stride
        parts = [self.memory[m]] + ([] if base == 0 else [self.size.write(base)])
        for n, stride in zip(a["extent"], strides, strict=True):
            if n > 1:
                parts.append(self.scaled(self.numbers(n), stride, False))
        return " + ".join(parts)

    def read(self, op: Operation, picked: object) -> None:
        self.set(op, f"gl.load({self.address(op)})")

    def write(self, op: Operation, t: Tile, picked: object) -> None:
        if op.memory is self.s.shared:
            self.do(f"vector.store({self.of(t)})")
        else:
            self.do(f"gl.store({self.address(op)}, {self.of(t)})")

    def settle(self, m: Memory, writes: bool) -> None:
        """The frame waits where threads share."""


def _long(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n > 1)
