"""emit: a pipeline as the source of a Gluon kernel for Hopper.

A block of threads runs two neighbours of the grid, each by a warp group of its own; one more warp fetches the
factors for both, by the tensor memory accelerator into a ring of shared memory.  A warp group begins the first
product of a step, then the second product of the step before, and computes what lies between the products while
the second one runs.  The order of arithmetic is that of the Tile kernel, and so are the bits.
"""

from __future__ import annotations

from typing import Any

from tessera.core.dims import Size
from tessera.ir.target.gluon.pipeline import (
    COLUMNS,
    GROUPS,
    NAMES,
    ROWS,
    Box,
    Pipeline,
    Step,
    boxes,
    memory_of,
    pipeline,
)
from tessera.ir.target.gluon.stream import stream
from tessera.ir.target.gluon.text import CONSUMER, HEAD, KERNEL, PRODUCER, STEP
from tessera.ir.target.gluon.vectors import StreamWriter
from tessera.ir.target.triton.types import VALUES, pointer
from tessera.ir.target.triton.values import HELPERS, NEEDS, ValueWriter
from tessera.ir.target.triton.writer import as_tuple, plain_name
from tessera.ir.tile.ir import Kernel, Memory, Operation, Tile
from tessera.ir.tile.launch import Threads

SWIZZLE = 128  # bytes of a row that lie together in shared memory


def emit(kernel: Kernel, threads: Threads) -> str:
    """The module that defines a kernel, which is a pipeline or a stream, under its name."""
    found = pipeline(kernel)
    if found is not None:
        return _Emitter(found, threads).text()
    other = stream(kernel)
    assert other is not None, f"{kernel.name} is no pipeline and no stream"
    return StreamWriter(other, threads).text()


def boxes_of(kernel: Kernel) -> dict[Memory, Box]:
    """The parameters of a kernel that are boxes."""
    found = pipeline(kernel)
    if found is not None:
        return boxes(found)
    other = stream(kernel)
    return {} if other is None else {other.matrix.memory: other.matrix}


def instances(kernel: Kernel) -> int:
    """How many instances of a kernel one block of threads runs."""
    return 1 if pipeline(kernel) is None else GROUPS


def box_type(box: Box) -> str:
    """The type of a parameter that is a box, as signatures write it."""
    kind = pointer(box.memory.type.dtype)[1:]
    layout = f"NVMMASharedLayout(swizzle_byte_width={SWIZZLE}, element_bitwidth=16, rank=2)"
    return f"tensordesc<{kind}[{box.rows}, {box.columns}],{layout}>"


class _Emitter(ValueWriter):
    """A whole kernel; all tiles have the layout that products leave."""

    def __init__(self, p: Pipeline, style: Threads):
        super().__init__(p.kernel, style)
        self.p = p
        self.taken |= NAMES

    def text(self) -> str:
        steps = [self._step(i, s) for i, s in enumerate(self.p.steps)]
        frame: dict[str, Any] = {
            "name": plain_name(self.k.name), "stages": self.style.stages or 2,
            "parameters": ", ".join(self.memory[m] for m in self.k.parameters),
            "kind": VALUES[memory_of(self.p.out).type.dtype.name],
            "columns": COLUMNS, "rows": ROWS, "groups": GROUPS,
            "bytes": 2 * COLUMNS * COLUMNS, "tile_bytes": 2 * COLUMNS * ROWS * GROUPS,
        }  # fmt: skip
        roles = [PRODUCER % (frame | self._producer()), CONSUMER % (frame | self._consumer(frame))]
        used = dict.fromkeys(n for h in self.used for n in (*NEEDS.get(h, ()), h))
        helpers = [HELPERS[h] for h in used]
        parts = [HEAD, *helpers, *self.functions.values(), *steps, *roles, KERNEL % frame]
        return "\n".join(parts).replace("@triton.jit", "@gluon.jit")

    # Places

    def _grid(self, which: str) -> list[str]:
        """The numbers of an instance; `which` of those that share a block of threads."""
        names = [(self.names[n], int(count)) for n, count in self.k.grid]
        lines = ["rest = gl.program_id(0)"]
        for i, (name, count) in reversed(list(enumerate(names))):
            last = i == len(names) - 1
            n = count // GROUPS if last else count
            value = f"rest % {n}" if i else "rest"
            lines.append(
                f"{name} = ({value}) * {GROUPS} + {which}" if last else f"{name} = {value}"
            )
            if i:
                lines.append(f"rest = rest // {n}")
        return lines

    def _numbers(self) -> str:
        return ", ".join(self.names[n] for n, _ in self.k.grid)

    def _corner(self, op: Operation) -> str:
        """Row and column of a box in its memory."""
        row: Size = 0
        *lead, column = op.attributes["at"]
        for at, n in zip(lead, memory_of(op).type.shape[:-1], strict=True):
            row = row * n + at
        return f"[{self.size.write(row)}, {self.size.write(column)}]"

    def _range(self, s: Step) -> tuple[str, str, int]:
        start, stop = (self.size.write(s.bound(x)) for x in ("start", "stop"))
        return start, stop, int(s.loop.attributes["step"])

    # Roles

    def _producer(self) -> dict[str, str]:
        tiles, loops = [], self._grid("0")
        name, corner = self.memory[memory_of(self.p.tile)], self._corner(self.p.tile)
        for i in range(GROUPS):
            tiles += [
                *self._grid(str(i)),
                f"load_box({name}, {corner}, tile_full, tiles.index({i}))",
            ]
        for s in self.p.steps:
            self.names[s.loop.attributes["variable"]] = "i"
            start, stop, step = self._range(s)
            loops.append(f"for i in range({start}, {stop}, {step}):")
            for op, ring in ((s.left, "left"), (s.right, "right")):
                where = f"{self.memory[memory_of(op)]}, {self._corner(op)}"
                loops.append(f"    fetch({where}, {ring}, {ring}_full, {ring}_empty, turn)")
            loops.append("    turn += 1")
        return {"tiles": _block(tiles), "loops": _block(loops)}

    def _step(self, number: int, s: Step) -> str:
        """What lies between the products, as a function."""
        outside = self.lines, self.prelude, self.hoisted, self.indent
        self.lines, self.prelude, self.hoisted, self.indent = [], [], {}, 1
        self.names[s.loop.attributes["variable"]] = "i"
        self.tiles[s.scores] = "s"
        self.tiles.update(zip(s.block.arguments[1:], self._carried(), strict=True))
        for op in s.between:
            getattr(self, f"_{op.name}")(op)
        results = [self.of(t) for t in (s.weights, s.again, *s.block.outputs[1:])]
        body = "\n".join([*self.prelude, *self.lines, f"    return {', '.join(results)}"])
        self.lines, self.prelude, self.hoisted, self.indent = outside
        given = ", ".join(["s", *self._carried(), "i", self._numbers()])
        head = f"@gluon.jit\ndef between{number}({given}):\n    rows: gl.constexpr = s.type.layout"
        return f"\n{head}\n{body}\n"

    def _call(self, number: int, at: str) -> str:
        """A step between its products, at a place of its loop."""
        carried = ", ".join(self._carried())
        return f"w, again, {carried} = between{number}(s, {carried}, {at}, {self._numbers()})"

    def _carried(self) -> list[str]:
        """What a step hands on, besides the sums."""
        return [f"c{j}" for j in range(1, len(self.p.steps[0].block.arguments))]

    def _consumer(self, frame: dict[str, Any]) -> dict[str, str]:
        for op in self.p.before:
            if op.name == "full":
                self._full(op)
        state = ["acc", *self._carried()]
        for name, t in zip(state, self.p.steps[0].loop.operands, strict=True):
            self.do(f"{name} = {self.of(t)}")
        begin, self.lines = self.lines, []
        first, loops = self._loops(frame)
        self.tiles.update(zip(self.p.steps[-1].loop.results, state, strict=True))
        for op in self.p.after:
            getattr(self, f"_{op.name}")(op)
        return {
            "grid": _block(self._grid("which")), "prelude": "\n".join(self.prelude), "loops": loops,
            "begin": "\n".join(begin), "first": _block(first), "after": "\n".join(self.lines),
        }  # fmt: skip

    def _loops(self, frame: dict[str, Any]) -> tuple[list[str], str]:
        """The first step, which is one of the first loop that has any; and the steps after it."""
        (start, stop, step), *rest = (self._range(s) for s in self.p.steps)
        first = [self._call(0, start)]
        words = {"range": f"{start} + {step}, {stop}, {step}", "call": self._call(0, "i")}
        loops = STEP % (frame | words)
        for start1, stop1, step1 in rest:
            some = f"{start} < {stop}"
            first = [f"if {some}:", f"    {first[0]}", "else:", f"    {self._call(1, start1)}"]
            begin = f"{start1} + gl.where({some}, 0, {step1})"
            words = {"range": f"{begin}, {stop1}, {step1}", "call": self._call(1, "i")}
            loops += STEP % (frame | words)
        return first, loops

    # Tiles, which have a layout

    def constant(self, text: str, kind: str) -> str:
        return self.hoist(f"gl.full((), {text}, {kind})", "k")

    def line(self, axis: int, shape: tuple[int, ...]) -> str:  # type: ignore[override]
        """The numbers 0, 1, ... along an axis."""
        if len(shape) == 1:
            return self.hoist(f"gl.arange(0, {shape[0]}, gl.SliceLayout(1, rows))", "line")
        places = ":, None" if axis == 0 else "None, :"
        made = f"gl.arange(0, {shape[axis]}, gl.SliceLayout({1 - axis}, rows))[{places}]"
        return self.hoist(made, "line")

    def _full(self, op: Operation) -> None:
        t = op.results[0]
        x = self.number(op.attributes["value"], t.dtype)
        self.set(op, f"gl.full({as_tuple(t.shape)}, {x}, {VALUES[t.dtype.name]}, rows)")

    def _index(self, op: Operation) -> None:
        t, at = op.results[0], self.size.write(op.attributes["at"])
        self.short.add(t)
        self.set(op, f"{self.line(op.attributes['axis'], t.shape)} + ({at})")

    def _fold(self, op: Operation) -> None:
        super()._fold(op)
        t = op.results[0]
        self.tiles[t] = self.put(f"gl.convert_layout({self.tiles[t]}, rows)")

    def _reshape(self, op: Operation) -> None:
        t = op.results[0]
        made = f"gl.reshape({self.tiles[op.operands[0]]}, {as_tuple(t.shape)})"
        self.set(op, f"gl.convert_layout({made}, gl.SliceLayout(1, rows))")

    def write(self, op: Operation, t: Tile, picked: object) -> None:
        """Sums go through shared memory, where their tile was."""
        if op is not self.p.out:
            super().write(op, t, ())
            return
        self.do(f"own.store({self.of(t)})")
        self.do("fence_async_shared()")
        self.do(f"store_box({self.memory[memory_of(op)]}, {self._corner(op)}, own)")

    def settle(self, m: Memory, writes: bool) -> None:
        """Nothing is both written and read."""


def _block(lines: list[str]) -> str:
    return "\n".join(f"    {x}" for x in lines)
