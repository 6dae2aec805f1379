"""emit: a kernel with roles for groups of threads as Gluon for Hopper; here, a pipeline.

A block of threads runs neighbours of the grid, each by a warp group of its own; one more warp fetches the
factors for all, by the tensor memory accelerator into a ring of shared memory.  A warp group begins the
first product of a step, then the second product of the step before, and computes what is between the
products while the second one runs.  The order of arithmetic is that of the Tile kernel, and so are the
bits.
"""

from __future__ import annotations

from typing import Any

from tessera.ir.target.gluon.flash_backward_emit import DoubleWriter
from tessera.ir.target.gluon.gemv_emit import StreamWriter
from tessera.ir.target.gluon.text import CONSUMER, HEAD, KERNEL, PRODUCER, STEP
from tessera.ir.target.gluon.writer import RoleWriter, block, roles_of
from tessera.ir.target.triton.types import VALUES, pointer
from tessera.ir.target.triton.writer import as_tuple, plain_name
from tessera.ir.tile.gpu.flash_backward_match import double
from tessera.ir.tile.gpu.flash_forward_match import (
    DEPTH,
    NAMES,
    ROWS,
    Pipeline,
    PipelineLoop,
    TmaBox,
    boxes,
    memory_of,
    pipeline,
)
from tessera.ir.tile.gpu.gemv_match import stream
from tessera.ir.tile.ir import Kernel, Memory, Operation, Tile
from tessera.ir.tile.launch import Threads

_SHARED = "tiles, left, right, tile_full, left_full, left_empty, right_full, right_empty"
SWIZZLE = 128  # bytes of a row that lie together in shared memory


def emit(kernel: Kernel, threads: Threads) -> str:
    """The module that defines a kernel, which is a pipeline, a double or a stream, under its name."""
    found = pipeline(kernel)
    if found is not None:
        return _PipelineEmitter(found, threads).text()
    twice = double(kernel)
    if twice is not None:
        return DoubleWriter(twice, threads).text()
    other = stream(kernel)
    assert other is not None, f"{kernel.name} is no pipeline, no double and no stream"
    return StreamWriter(other, threads).text()


def boxes_of(kernel: Kernel) -> dict[Memory, TmaBox]:
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
    found = pipeline(kernel) or double(kernel)
    return 1 if found is None else found.groups


def box_type(box: TmaBox) -> str:
    """The type of a parameter that is a box, as signatures write it."""
    kind = pointer(box.memory.type.dtype)[1:]
    if box.is_line:
        flat = "NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=1)"
        return f"tensordesc<{kind}[{box.columns}],{flat}>"
    layout = f"NVMMASharedLayout(swizzle_byte_width={SWIZZLE}, element_bitwidth=16, rank=2)"
    return f"tensordesc<{kind}[{box.rows}, {box.columns}],{layout}>"


class _PipelineEmitter(RoleWriter):
    """A whole kernel; tiles have the layout that products leave: scores are `rows`, sums are `sums`."""

    def __init__(self, p: Pipeline, style: Threads):
        super().__init__(p.kernel, style)
        self.p, self.groups = p, p.groups
        self.taken |= NAMES

    def text(self) -> str:
        steps = [self._step(i, s) for i, s in enumerate(self.p.steps)]
        frame: dict[str, Any] = {
            "name": plain_name(self.k.name), "stages": self.style.stages or 2,
            "parameters": ", ".join(self.memory[m] for m in self.k.parameters),
            "kind": VALUES[memory_of(self.p.out).type.dtype.name],
            "columns": self.p.columns, "depth": DEPTH, "rows": ROWS, "groups": self.groups,
            "bytes": 2 * DEPTH * self.p.columns, "tile_bytes": 2 * ROWS * self.p.columns * self.groups,
        }  # fmt: skip
        frame["roles"] = roles_of(self.groups, f"{frame['parameters']}, {_SHARED}")
        frame["shared"] = _SHARED
        roles = [PRODUCER % (frame | self._producer()), CONSUMER % (frame | self._consumer(frame))]
        parts = [HEAD, *self.helpers(), *self.functions.values(), *steps, *roles, KERNEL % frame]
        return "\n".join(parts).replace("@triton.jit", "@gluon.jit")

    # Roles

    def _producer(self) -> dict[str, str]:
        tiles, loops = [], self.grid("0")
        name, corner = self.memory[memory_of(self.p.tile)], self.corner(self.p.tile)
        for i in range(self.groups):
            tiles += [
                *self.grid(str(i)),
                f"load_box({name}, {corner}, tile_full, tiles.index({i}))",
            ]
        s = self.p.steps[-1]
        self.names[s.loop.attributes["variable"]] = "i"
        loops.append(f"for i in range({self.bounds(s.loop)[1]}):")
        for op, ring in ((s.left, "left"), (s.right, "right")):
            where = f"{self.memory[memory_of(op)]}, {self.corner(op)}"
            loops.append(f"    fetch({where}, {ring}, {ring}_full, {ring}_empty, i)")
        return {"tiles": block(tiles), "loops": block(loops)}

    def _step(self, number: int, s: PipelineLoop) -> str:
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
                self.layout = "rows" if op.results[0].shape[1] == 1 else "sums"
                self._full(op)
        self.layout = "sums"
        state = ["acc", *self._carried()]
        for name, t in zip(state, self.p.steps[0].loop.operands, strict=True):
            self.do(f"{name} = {self.of(t)}")
        begin, self.lines = self.lines, []
        first, loops = self._loops(frame)
        self.tiles.update(zip(self.p.steps[-1].loop.results, state, strict=True))
        for name in self._carried():
            self.do(f"{name} = gl.convert_layout({name}, sums)")
        for op in self.p.after:
            getattr(self, f"_{op.name}")(op)
        count = self.bounds(self.p.steps[-1].loop)[1]
        grid = [*self.grid("0"), f"turn = {count}", *self.grid("which"), f"turn -= {count}"]
        return {
            "grid": block(grid), "prelude": "\n".join(self.prelude), "loops": loops,
            "begin": "\n".join(begin), "first": first, "after": "\n".join(self.lines),
        }  # fmt: skip

    def _loops(self, frame: dict[str, Any]) -> tuple[str, str]:
        """The first step, which may have a loop of its own, and the steps after it."""
        last = len(self.p.steps) - 1
        words = {
            "range": f"1, {self.bounds(self.p.steps[last].loop)[1]}",
            "call": self._call(last, "i"),
        }
        return self._call(0, "0"), STEP % (frame | words)

    def _fold(self, op: Operation) -> None:
        super()._fold(op)
        t = op.results[0]
        self.tiles[t] = self.put(f"gl.convert_layout({self.tiles[t]}, {self.layout})")

    def _reshape(self, op: Operation) -> None:
        t = op.results[0]
        made = f"gl.reshape({self.tiles[op.operands[0]]}, {as_tuple(t.shape)})"
        self.set(op, f"gl.convert_layout({made}, gl.SliceLayout(1, {self.layout}))")

    def write(self, op: Operation, t: Tile, picked: object) -> None:
        """Sums go through shared memory, where their tile was."""
        if op is not self.p.out:
            super().write(op, t, ())
            return
        self.box_store(op, t, "own")
