"""emit: a kernel with roles for groups of threads as Gluon for Hopper; here, a pipeline.

A block of threads runs two neighbours of the grid, each by a warp group of its own; one more warp fetches the
factors for both, by the tensor memory accelerator into a ring of shared memory.  A warp group begins the first
product of a step, then the second product of the step before, and computes what lies between the products while
the second one runs.  The order of arithmetic is that of the Tile kernel, and so are the bits.
"""

from __future__ import annotations

from typing import Any

from tessera.ir.target.gluon.double import double
from tessera.ir.target.gluon.doubles import DoubleWriter
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
from tessera.ir.target.gluon.writer import RoleWriter, block
from tessera.ir.target.triton.types import VALUES, pointer
from tessera.ir.target.triton.writer import as_tuple, plain_name
from tessera.ir.tile.ir import Kernel, Memory, Operation, Tile
from tessera.ir.tile.launch import Threads

SWIZZLE = 128  # bytes of a row that lie together in shared memory


def emit(kernel: Kernel, threads: Threads) -> str:
    """The module that defines a kernel, which is a pipeline, a double or a stream, under its name."""
    found = pipeline(kernel)
    if found is not None:
        return _Emitter(found, threads).text()
    twice = double(kernel)
    if twice is not None:
        return DoubleWriter(twice, threads).text()
    other = stream(kernel)
    assert other is not None, f"{kernel.name} is no pipeline, no double and no stream"
    return StreamWriter(other, threads).text()


def boxes_of(kernel: Kernel) -> dict[Memory, Box]:
    """The parameters of a kernel that are boxes."""
    found = pipeline(kernel)
    if found is not None:
        return boxes(found)
    twice = double(kernel)
    if twice is not None:
        return twice.boxes
    other = stream(kernel)
    return {} if other is None else {other.matrix.memory: other.matrix}


def instances(kernel: Kernel) -> int:
    """How many instances of a kernel one block of threads runs."""
    return 1 if pipeline(kernel) is None and double(kernel) is None else GROUPS


def box_type(box: Box) -> str:
    """The type of a parameter that is a box, as signatures write it."""
    kind = pointer(box.memory.type.dtype)[1:]
    if box.is_line:
        flat = "NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=1)"
        return f"tensordesc<{kind}[{box.columns}],{flat}>"
    layout = f"NVMMASharedLayout(swizzle_byte_width={SWIZZLE}, element_bitwidth=16, rank=2)"
    return f"tensordesc<{kind}[{box.rows}, {box.columns}],{layout}>"


class _Emitter(RoleWriter):
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
        parts = [HEAD, *self.helpers(), *self.functions.values(), *steps, *roles, KERNEL % frame]
        return "\n".join(parts).replace("@triton.jit", "@gluon.jit")

    # Roles

    def _producer(self) -> dict[str, str]:
        tiles, loops = [], self.grid("0")
        name, corner = self.memory[memory_of(self.p.tile)], self.corner(self.p.tile)
        for i in range(GROUPS):
            tiles += [
                *self.grid(str(i)),
                f"load_box({name}, {corner}, tile_full, tiles.index({i}))",
            ]
        for s in self.p.steps:
            self.names[s.loop.attributes["variable"]] = "i"
            start, stop, step = self.bounds(s.loop)
            loops.append(f"for i in range({start}, {stop}, {step}):")
            for op, ring in ((s.left, "left"), (s.right, "right")):
                where = f"{self.memory[memory_of(op)]}, {self.corner(op)}"
                loops.append(f"    fetch({where}, {ring}, {ring}_full, {ring}_empty, turn)")
            loops.append("    turn += 1")
        return {"tiles": block(tiles), "loops": block(loops)}

    def _step(self, number: int, s: Step) -> str:
        """What lies between the products, as a function."""
        self.names[s.loop.attributes["variable"]] = "i"
        self.tiles[s.scores] = "s"
        self.tiles.update(zip(s.block.arguments[1:], self._carried(), strict=True))
        body = self.function(s.between, (s.weights, s.again, *s.block.outputs[1:]))
        given = ", ".join(["s", *self._carried(), "i", self.grid_numbers()])
        head = f"@gluon.jit\ndef between{number}({given}):\n    rows: gl.constexpr = s.type.layout"
        return f"\n{head}\n{body}\n"

    def _call(self, number: int, at: str) -> str:
        """A step between its products, at a place of its loop."""
        carried = ", ".join(self._carried())
        return f"w, again, {carried} = between{number}(s, {carried}, {at}, {self.grid_numbers()})"

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
            "grid": block(self.grid("which")), "prelude": "\n".join(self.prelude), "loops": loops,
            "begin": "\n".join(begin), "first": block(first), "after": "\n".join(self.lines),
        }  # fmt: skip

    def _loops(self, frame: dict[str, Any]) -> tuple[list[str], str]:
        """The first step, which is one of the first loop that has any; and the steps after it."""
        (start, stop, step), *rest = (self.bounds(s.loop) for s in self.p.steps)
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
        self.box_store(op, t, "own")
