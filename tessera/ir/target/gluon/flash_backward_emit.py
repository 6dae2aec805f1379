"""emit: a double as the source of a Gluon kernel for Hopper.

A block of threads runs neighbours of the grid, each by a warp group of its own; one more warp fetches
factors and numbers for all.  A group begins the first product of a step, then the product of the slopes of
the step before, and computes weights while that runs.  The order of arithmetic is that of the Tile kernel,
and so are the bits.
"""

from __future__ import annotations

from typing import Any

from tessera.ir.target.gluon.text import (
    DOUBLE,
    DOUBLE_CONSUMER,
    DOUBLE_FIRST,
    DOUBLE_FIRST_SUM,
    DOUBLE_LAST,
    DOUBLE_ONE,
    DOUBLE_PRODUCER,
    DOUBLE_TWO,
    HEAD,
)
from tessera.ir.target.gluon.writer import RoleWriter, block, roles_of
from tessera.ir.target.triton.types import VALUES
from tessera.ir.target.triton.writer import plain_name
from tessera.ir.tile.gpu.flash_backward_match import NAMES, BackwardLoop, Double
from tessera.ir.tile.gpu.flash_forward_match import ROWS, memory_of
from tessera.ir.tile.ir import Operation, Tile
from tessera.ir.tile.launch import Threads

_SHARED = ("first", "second", "left", "right", "tile_full", "left_full", "left_empty", "right_full",
    "right_empty")  # fmt: skip


class DoubleWriter(RoleWriter):
    """A whole kernel."""

    def __init__(self, p: Double, style: Threads):
        super().__init__(p.kernel, style)
        self.p, self.groups = p, p.groups
        self.taken |= NAMES
        self.rings = [self.free(f"ring{i}") for i, _ in enumerate(p.passes[0].lines)]
        self.sums = [self.free(f"sum{i}") for i, _ in enumerate(p.outs)]
        self.parts: dict[str, str] = {}  # functions by what they are
        (slopes, *weights) = p.passes[0].places
        self.frame: dict[str, Any] = {
            "name": plain_name(self.k.name), "stages": style.stages or 2, "depth": p.rows,
            "parameters": ", ".join(self.memory[m] for m in self.k.parameters),
            "shared": ", ".join([*_SHARED, *self.rings]),
            "kind": VALUES[memory_of(p.outs[0]).type.dtype.name],
            "columns": p.columns, "rows": ROWS, "groups": p.groups,
            "acc0": self.sums[slopes], "acc1": self.sums[weights[0]] if weights else "",
        }  # fmt: skip
        given = f"{self.frame['parameters']}, {self.frame['shared']}"
        self.frame["roles"] = roles_of(p.groups, given)
        # A group that begins later hands on a place of a ring for each step that it leaves out.
        assert self.frame["stages"] >= p.groups

    def text(self) -> str:
        self._numbers()
        loops = self._loops()
        roles = [DOUBLE_PRODUCER % (self.frame | self._producer())]
        roles.append(DOUBLE_CONSUMER % (self.frame | self._consumer() | {"loops": loops}))
        f = self.frame
        made = f"gl.allocate_shared_memory(gl.float32, [{f['stages']}, {f['depth']}], flat)"
        rings = block([f"{name} = {made}" for name in self.rings])
        parts = [f"\n@gluon.jit\ndef {name}{body}\n" for body, name in self.parts.items()]
        whole = [HEAD, *self.helpers(), *self.functions.values(), *parts, *roles]
        whole.append(DOUBLE % (f | {"rings": rings}))
        return "\n".join(whole).replace("@triton.jit", "@gluon.jit")

    # Roles

    def _producer(self) -> dict[str, Any]:
        s, tiles = self.p.passes[0], []
        for i in range(self.groups):
            tiles += self.grid(str(i))
            for op, name in zip(self.p.tiles, ("first", "second"), strict=True):
                memory = self.memory[memory_of(op)]
                tiles.append(f"load_box({memory}, {self.corner(op)}, tile_full, {name}.index({i}))")
        self.names[s.loop.attributes["variable"]] = "i"
        left = [self._fetch(s.left, "left", self.corner(s.left), "left")]
        for op, ring in zip(s.lines.values(), self.rings, strict=True):
            left.append(self._fetch(op, "left", self._spot(op), ring))
        right = [self._fetch(s.right, "right", self.corner(s.right), "right")]
        stop = self.bounds(self.p.passes[-1].loop)[1]
        size, line = 2 * self.p.columns * self.p.rows, 4 * self.p.rows
        return {
            "tiles": block([*tiles, *self.grid("0")]), "left": block(left), "right": block(right),
            "range": f"{self.bounds(s.loop)[0]}, {stop}, {self.p.rows}",
            "tile_bytes": 4 * self.p.columns * ROWS * self.groups,
            "left_bytes": size + line * len(self.rings), "right_bytes": size,
        }  # fmt: skip

    def _fetch(self, op: Operation, side: str, corner: str, ring: str) -> str:
        memory = self.memory[memory_of(op)]
        return f"    load_box({memory}, {corner}, {side}_full.index(at), {ring}.index(at))"

    def _spot(self, op: Operation) -> str:
        """Where numbers begin in a memory that is one line."""
        at = op.attributes["at"]
        place = at[0]
        for n, i in zip(memory_of(op).type.shape[1:], at[1:], strict=True):
            place = place * n + i
        return f"[{self.size.write(place)}]"

    def _consumer(self) -> dict[str, Any]:
        start = self.bounds(self.p.passes[0].loop)[0]
        grid = [*self.grid("0"), f"begin = {start}", *self.grid("which")]
        self.lines, self.layout = self.lines[:], "rows"
        for op in self.p.starts:
            self._full(op)
        for name, t in zip(self.sums, self.p.passes[0].loop.operands, strict=True):
            self.do(f"{name} = {self.of(t)}")
        before, self.lines = self.lines, []
        self.tiles.update(zip(self.p.passes[-1].loop.results, self.sums, strict=True))
        for op in self.p.after:
            getattr(self, f"_{op.name}")(op)
        return {
            "grid": block(grid), "start": start, "prelude": "\n".join(self.prelude),
            "before": "\n".join(before), "after": "\n".join(self.lines),
        }  # fmt: skip

    def _numbers(self) -> None:
        """One number for each row, in the layout of scores."""
        self.layout = "cols"
        for op in self.p.numbers:
            getattr(self, f"_{op.name}")(op)
        self.layout = "rows"

    def _reshape(self, op: Operation) -> None:
        self.set(op, f"gl.expand_dims({self.tiles[op.operands[0]]}, 1)")

    def write(self, op: Operation, t: Tile, picked: object) -> None:
        """Sums go through shared memory, where tiles were."""
        self.box_store(op, t, ("one", "two")[self.p.outs.index(op)])

    # Steps

    def _loops(self) -> str:
        """The first step, which is one of the first loop that has any; the steps after it; the last sum."""
        f, two = self.frame, len(self.sums) == 2
        start, _, step = self.bounds(self.p.passes[0].loop)
        last = "" if not two else DOUBLE_FIRST_SUM % f
        text = f"    begun = {start} + {step}\n"
        text += DOUBLE_FIRST % (f | {"first": block(self._first()), "sum": last})
        for i, s in enumerate(self.p.passes):
            start, stop, _ = self.bounds(s.loop)
            weigh, slope = self._calls(s, "i", "at")
            begin = "begun" if i == 0 else f"gl.maximum({start}, begun)"
            words = {"weigh": _deeper(weigh), "slope": _deeper(slope[-1:])}
            words["numbers"] = _deeper(slope[:-1])
            words["range"] = f"{begin}, {stop}, {step}"
            text += (DOUBLE_TWO if two else DOUBLE_ONE) % (f | words)
        return text + DOUBLE_LAST % f

    def _first(self) -> list[str]:
        """How the first step's slopes are made."""
        one, *rest = self.p.passes
        start, stop, _ = self.bounds(one.loop)
        lines = [x for part in self._calls(one, start, "turn") for x in part]
        for s in rest:
            other = [x for part in self._calls(s, start, "turn") for x in part]
            lines = [f"if {start} < {stop}:", *_in(lines), "else:", *_in(other)]
        return lines

    def _calls(self, s: BackwardLoop, i: str, at: str) -> tuple[list[str], list[str]]:
        """How weights and slopes are made at a place of a loop; first, numbers come from a place of their
        rings.
        """
        rings = dict(zip(s.lines, self.rings, strict=True))
        loaded: set[Tile] = set()
        out = []
        for made, operations, given, result in (
            ("w", s.weighing, {s.scores: "s"}, s.weights),
            ("x", s.sloping, {s.weights: "w", s.other: "d"}, s.slopes),
        ):
            read = {t for op in operations for t in op.operands}
            lines = []
            for t, ring in rings.items():
                self.tiles[t] = f"n{ring}"
                if t in read and t not in loaded:
                    loaded.add(t)
                    found = f"{ring}.index({at}).load(gl.SliceLayout(0, cols))"
                    lines.append(f"n{ring} = gl.expand_dims({found}, 0)")
            known = dict.fromkeys(
                [*rings, *(op.results[0] for op in self.p.numbers if op.name == "reshape")]
            )
            names = [self.tiles[t] for t in known if t in read]
            call = self._function(s, operations, given, names, result)
            lines.append(
                f"{made} = {call}({', '.join([*given.values(), *names, i, self.grid_numbers()])})"
            )
            out.append(lines)
        return out[0], out[1]

    def _function(
        self, s: BackwardLoop, operations: tuple[Operation, ...], given: dict[Tile, str], names: list[str],
        result: Tile,
    ) -> str:  # fmt: skip
        """The name of the function that makes a tile."""
        self.tiles.update(given)
        self.names[s.loop.attributes["variable"]] = "i"
        count, self.count = self.count, 0
        taken = {*self.taken}
        body = self.function(operations, (result,))
        self.count, self.taken = count, taken
        arguments = ", ".join([*given.values(), *names, "i", self.grid_numbers()])
        first = next(iter(given.values()))
        whole = f"({arguments}):\n    rows: gl.constexpr = {first}.type.layout\n{body}"
        return self.parts.setdefault(whole, f"part{len(self.parts)}")


def _in(lines: list[str]) -> list[str]:
    return [f"    {x}" for x in lines]


def _deeper(lines: list[str]) -> str:
    return block(_in(lines))
