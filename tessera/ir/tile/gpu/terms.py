"""Terms of the Schedule IR on tiles of two axes.

An axis of a kernel is a scalar of the instance, or runs along an axis of the tile.  A read whose
index moves with a tile axis one by one is a load of a box; any other index is a tile of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tessera.core.dims import Size, Symbol, substitute, symbol, symbols
from tessera.core.dims import SizeFunction as SizeApply
from tessera.core.evaluate import neutral
from tessera.core.types import TensorType
from tessera.ir.schedule import ir as schedule
from tessera.ir.tile.ir import Builder, Memory, Tile


@dataclass(frozen=True)
class AxisLine:
    """An axis of a kernel that runs along an axis of the tile: n points from `at` on, of `size`."""

    axis: int
    at: Size
    n: int
    size: Size
    past: bool = False  # whether it may begin behind the last point

    @property
    def tail(self) -> bool:
        """Whether some points may lie behind the last one."""
        whole = isinstance(self.size, int) and self.size and self.size % self.n == 0
        return self.past or not whole


class Terms:
    """Computes terms at the points that `env` (scalars) and `lines` (tile axes) say."""

    def __init__(
        self, builder: Builder, memory: Mapping[str, Memory], value: Callable[[str], Tile | None]
    ):
        self.b, self.memory, self.stage = builder, memory, value
        self.env: dict[str, Size] = {}
        self.lines: dict[str, AxisLine] = {}

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the tile."""
        sizes = {x.axis: x.n for x in self.lines.values()}
        return sizes.get(0, 1), sizes.get(1, 1)

    def term(self, t: schedule.Term) -> Tile:
        """The tile of a term, whose axes may have size 1."""
        match t:
            case schedule.Literal():
                return self.b.full(t.dtype, (1, 1), t.value)
            case schedule.Position():
                return self.numbers(t.value)
            case schedule.Cast():
                return self.b.cast(self.term(t.operand), t.dtype)
            case schedule.Apply():
                return self.b.apply(t.scalar, *(self.term(o) for o in t.operands))
            case schedule.Read():
                found = self.stage(t.source)
                return self.load(t) if found is None else found
        raise AssertionError(t)

    def spread(self, t: Tile) -> Tile:
        """A tile of the whole shape."""
        return self.b.broadcast(t, self.shape)

    # Places

    def place(self, x: Size) -> Size:
        """A position where every line is at its beginning."""
        return substitute(x, {**self.env, **{n: line.at for n, line in self.lines.items()}})

    def moving(self, x: Size) -> list[str]:
        """The lines that a position moves with."""
        return [n for n in symbols(x) if n in self.lines]

    def steps(self, x: Size) -> AxisLine | None:
        """The line that a position moves with one by one, if it is the only one."""
        names = self.moving(x)
        if len(names) != 1 or names[0] in symbols(x - symbol(names[0])):
            return None
        return self.lines[names[0]]

    def numbers(self, x: Size) -> Tile:
        """A position as a tile of numbers."""
        if not self.moving(x):
            return self.b.index(self.place(x), (1, 1))
        line = self.steps(x)
        if line is not None:
            return self.b.index(self.place(x), self.along(line), line.axis)
        assert not isinstance(x, int)
        total: Tile | None = None
        for monomial, factor in x.terms:
            term = self.b.index(factor, (1, 1))
            for atom, power in monomial:
                for _ in range(power):
                    term = self.b.apply("mul", term, self.atom(atom))
            total = term if total is None else self.b.apply("add", total, term)
        assert total is not None
        return total

    def atom(self, atom: Symbol | SizeApply) -> Tile:
        if isinstance(atom, Symbol):
            return self.numbers(symbol(atom.name))
        name = {"//": "floor_div", "%": "mod"}.get(atom.function, atom.function)
        return self.b.apply(name, self.numbers(atom.left), self.numbers(atom.right))

    def along(self, line: AxisLine) -> tuple[int, int]:
        return (line.n, 1) if line.axis == 0 else (1, line.n)

    # Memory

    def load(self, r: schedule.Read) -> Tile:
        """An element of a buffer at every point."""
        m, boxed = self.memory[r.source], self.boxed(r.index)
        if boxed is None:
            return self.gather(r, m)
        at = [self.place(x) for x in r.index]
        extent, masked = [1] * len(at), []
        for i, line in boxed.items():
            extent[i] = line.n
            masked += [i] if line.tail else []
        axes = sorted(boxed, key=lambda i: boxed[i].axis)
        tile = self.b.load(m, at, extent, axes, masked)
        sizes = {line.axis: line.n for line in boxed.values()}
        return self.b.reshape(tile, (sizes.get(0, 1), sizes.get(1, 1)))

    def boxed(self, index: Sequence[Size | schedule.Term]) -> dict[int, AxisLine] | None:
        """The line along each axis of a box; None when the elements do not form one."""
        found: dict[int, AxisLine] = {}
        for i, x in enumerate(index):
            if isinstance(x, schedule.Term):
                return None
            if not self.moving(x):
                continue
            line = self.steps(x)
            if line is None or line in found.values():
                return None
            found[i] = line
        return found

    def gather(self, r: schedule.Read, m: Memory) -> Tile:
        tail = any(line.tail for line in self.lines.values())
        picked: dict[int, Tile] = {}
        at: list[Size] = []
        for i, x in enumerate(r.index):
            scalar = not isinstance(x, schedule.Term) and not self.moving(x)
            at.append(self.place(x) if scalar else 0)
            if not scalar:
                picked[i] = self.term(x) if isinstance(x, schedule.Term) else self.numbers(x)
        return self.b.gather(m, picked, at, [1] * len(at), (), tuple(picked) if tail else ())

    def store(self, m: Memory, index: Sequence[Size], value: Tile) -> None:
        """Write a stage in place."""
        at = [self.place(x) for x in index]
        extent, masked, axes = [1] * len(at), [], {}
        for i, x in enumerate(index):
            for n in self.moving(x):
                line = self.lines[n]
                extent[i], axes[line.axis] = line.n, i
                masked += [i] if line.tail else []
        shape = tuple(extent[axes[j]] for j in sorted(axes))
        full = (extent[axes[0]] if 0 in axes else 1, extent[axes[1]] if 1 in axes else 1)
        kept = self.b.reshape(self.b.broadcast(value, full), shape)
        self.b.store(m, kept, at, extent, [axes[j] for j in sorted(axes)], masked)

    def inside(self, value: Tile, scalar: str, axis: int) -> Tile:
        """A tile in which points behind the last one of an axis do not count in a fold."""
        value = self.b.broadcast(value, self.shape)
        for line in dict.fromkeys(self.lines.values()):
            if line.axis == axis and line.tail:
                numbers = self.b.index(line.at, self.along(line), axis)
                test = self.b.apply("lt", numbers, self.b.index(line.size, (1, 1)))
                other = self.b.full(value.dtype, (1, 1), neutral(scalar, value.dtype))
                value = self.b.apply("where", test, value, other)
        return value


def parameters(
    b: Builder, names: Sequence[str], types: Mapping[str, TensorType], writable: bool = False
) -> dict[str, Memory]:
    """Memories for buffers."""
    return {n: b.parameter(n, types[n], writable) for n in names}
