"""What kernels with roles for groups of threads have in common: their places, and tiles that have a
layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tessera.core.dims import Size
from tessera.ir.target.triton.types import VALUES
from tessera.ir.target.triton.values import HELPERS, NEEDS, ValueWriter
from tessera.ir.target.triton.writer import as_tuple
from tessera.ir.tile.gpu.flash_forward_match import memory_of
from tessera.ir.tile.ir import Memory, Operation, Tile

REGISTERS = {2: 240, 3: 160}  # of a thread, by groups that share a multiprocessor


class RoleWriter(ValueWriter):
    """Writes tiles in the layout that products leave, which is called `rows`."""

    layout = "rows"
    groups = 1  # instances that one block of threads runs

    def helpers(self) -> list[str]:
        """Functions that scalar ops call."""
        used = dict.fromkeys(n for h in self.used for n in (*NEEDS.get(h, ()), h))
        return [HELPERS[h] for h in used]

    def function(self, operations: Sequence[Operation], results: Sequence[Tile]) -> str:
        """The body of a function that computes tiles from those that have names."""
        outside = self.lines, self.prelude, self.hoisted, self.indent
        self.lines, self.prelude, self.hoisted, self.indent = [], [], {}, 1
        for op in operations:
            getattr(self, f"_{op.name}")(op)
        made = ", ".join(self.of(t) for t in results)
        body = "\n".join([*self.prelude, *self.lines, f"    return {made}"])
        self.lines, self.prelude, self.hoisted, self.indent = outside
        return body

    # Places

    def grid(self, which: str) -> list[str]:
        """The numbers of an instance; `which` of those that share a block of threads."""
        names = [(self.names[n], int(count)) for n, count in self.k.grid]
        lines = ["rest = gl.program_id(0)"]
        for i, (name, count) in reversed(list(enumerate(names))):
            last = i == len(names) - 1
            n = -(-count // self.groups) if last else count
            value = f"rest % {n}" if i else "rest"
            if last:
                value = f"({value}) * {self.groups} + {which}"
                # The last instance fills its block of threads: it is computed more than once.
                value = f"gl.minimum({value}, {count - 1})" if count % self.groups else value
            lines.append(f"{name} = {value}")
            if i:
                lines.append(f"rest = rest // {n}")
        return lines

    def grid_numbers(self) -> str:
        return ", ".join(self.names[n] for n, _ in self.k.grid)

    def corner(self, op: Operation) -> str:
        """Row and column of a box in its memory."""
        row: Size = 0
        *lead, column = op.attributes["at"]
        for at, n in zip(lead, memory_of(op).type.shape[:-1], strict=True):
            row = row * n + at
        return f"[{self.size.write(row)}, {self.size.write(column)}]"

    def bounds(self, loop: Operation) -> tuple[str, str, int]:
        """Where a loop starts and stops, and its step."""
        start, stop = (self.size.write(loop.attributes[x]) for x in ("start", "stop"))
        return start, stop, int(loop.attributes["step"])

    # Tiles, which have a layout

    def constant(self, text: str, kind: str) -> str:
        return self.hoist(f"gl.full((), {text}, {kind})", "k")

    def line(self, axis: int, shape: tuple[int, ...]) -> str:  # type: ignore[override]
        """The numbers 0, 1, ... along an axis."""
        if len(shape) == 1:
            return self.hoist(f"gl.arange(0, {shape[0]}, gl.SliceLayout(1, {self.layout}))", "line")
        places = ":, None" if axis == 0 else "None, :"
        own = f"gl.SliceLayout({1 - axis}, {self.layout})"
        return self.hoist(f"gl.arange(0, {shape[axis]}, {own})[{places}]", "line")

    def _full(self, op: Operation) -> None:
        t = op.results[0]
        x = self.number(op.attributes["value"], t.dtype)
        self.set(op, f"gl.full({as_tuple(t.shape)}, {x}, {VALUES[t.dtype.name]}, {self.layout})")

    def _index(self, op: Operation) -> None:
        t, at = op.results[0], self.size.write(op.attributes["at"])
        self.short.add(t)
        self.set(op, f"{self.line(op.attributes['axis'], t.shape)} + ({at})")

    def box_store(self, op: Operation, t: Tile, own: str) -> None:
        """A tile goes to memory through shared memory of its group."""
        self.do(f"{own}.store({self.of(t)})")
        self.do("fence_async_shared()")
        self.do(f"store_box({self.memory[memory_of(op)]}, {self.corner(op)}, {own})")

    def settle(self, m: Memory, writes: bool) -> None:
        """Nothing is both written and read."""


def block(lines: Iterable[str]) -> str:
    """Lines of a function."""
    return "\n".join(f"    {x}" for x in lines)


def roles_of(groups: int, arguments: str) -> str:
    """Who runs in a block of threads: groups that multiply, with most of the registers, and a warp that
    fetches.
    """
    roles = [f"(consume, ({i}, {arguments}))," for i in range(groups)]
    roles.append(f"(produce, ({arguments})),")
    lines = "\n".join(f"        {x}" for x in roles)
    warps, registers = [4] * (groups - 1) + [1], [REGISTERS[groups]] * (groups - 1) + [24]
    return f"    gl.warp_specialize([\n{lines}\n    ], {warps}, {registers})"
