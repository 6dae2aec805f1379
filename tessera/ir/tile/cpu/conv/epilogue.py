"""Epilogues: what kernels do with a finished tile of a primitive: store it, or compute what follows it first.

    y[box] = t   ->   y[box] = silu(t + b[channels of box])

Boxes are in (batch, group, channel, place, ...); the results lie so, and operands of the same shape too.
Operands that are a line along the batch and the channels are (batch, group, channel).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.core.dims import Size
from tessera.core.types import TensorType
from tessera.ir.schedule import ir as schedule
from tessera.ir.schedule.ir import Primitive, Read
from tessera.ir.schedule.passes.fuse_epilogues import is_point, line_of
from tessera.ir.tile.ir import Builder, Memory, Tile


class Results:
    """Where the tiles of a primitive go."""

    # Whether tiles are best given in rows, as long chains on whole blocks do not fit the registers.
    by_rows = False

    def declare(self, b: Builder, shape: TensorType) -> None:
        """Declare what the kernel reads beside its own operands, and what it writes; boxes are in `shape`."""
        self.b, self.shape = b, shape
        self.y = b.parameter("y", shape, writable=True)

    def write(
        self, tile: Tile, at: Sequence[Size], extent: Sequence[int], axes: Sequence[int],
        masked: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """A finished tile, rounded to the dtype of what the primitive makes."""
        self.b.store(self.y, tile, at, extent, axes=axes, masked=masked)


class Epilogue(Results):
    """The stages of a primitive's epilogue."""

    by_rows = True

    def __init__(self, step: Primitive, types: Mapping[str, TensorType]):
        assert step.epilogue is not None
        self.kernel, self.made = step.epilogue, step.made
        self.others, self.types = step.others, types
        self.own = {s.name: s.type for s in self.kernel.stages}

    def declare(self, b: Builder, shape: TensorType) -> None:
        self.b, self.shape = b, shape
        self.points: dict[str, Memory] = {}
        self.lines: dict[str, Memory] = {}
        batch, groups, made = shape.shape[:3]
        for name in self.others:
            reads = [
                (r, s)
                for s in self.kernel.stages
                for r in schedule.reads(s.term)
                if r.source == name
            ]
            (r, s), t = reads[0], self.types[name]
            if is_point(r, s, t):
                self.points[name] = b.parameter(name, TensorType(t.dtype, shape.shape))
                continue
            line = line_of(r, s, t)
            assert line is not None, r
            sizes = (batch if line[0] else 1, *((groups, made) if line[1] else (1, 1)))
            self.lines[name] = b.parameter(name, TensorType(t.dtype, sizes))
        self.out = {
            n: b.parameter(n, TensorType(self.own[n].dtype, shape.shape), writable=True)
            for n in self.kernel.outputs
        }

    def write(
        self, tile: Tile, at: Sequence[Size], extent: Sequence[int], axes: Sequence[int],
        masked: Sequence[int] = (),
    ) -> None:  # fmt: skip
        box = _Box(self, at, extent, axes, masked, tile.shape)
        values = {self.made: tile}
        for s in self.kernel.stages:
            values[s.name] = self.b.broadcast(box.term(s.term, values), tile.shape)
            if s.name in self.out:
                self.b.store(self.out[s.name], values[s.name], at, extent, axes=axes, masked=masked)


class _Box:
    """A box of the result, and the terms of stages in it."""

    def __init__(
        self, e: Epilogue, at: Sequence[Size], extent: Sequence[int], axes: Sequence[int],
        masked: Sequence[int], shape: tuple[int, ...],
    ):  # fmt: skip
        self.e, self.at, self.extent, self.axes, self.masked = e, at, extent, axes, masked
        self.shape = shape
        self.one = (1,) * len(shape)

    def term(self, t: schedule.Term, values: Mapping[str, Tile]) -> Tile:
        """A term at the points of the box."""
        b = self.e.b
        match t:
            case schedule.Literal():
                return b.full(t.dtype, self.one, t.value)
            case schedule.Cast():
                return b.cast(self.term(t.operand, values), t.dtype)
            case schedule.Apply():
                return b.apply(t.scalar, *(self.term(o, values) for o in t.operands))
            case Read():
                return values[t.source] if t.source in values else self.read(t)
        raise AssertionError(t)

    def read(self, r: Read) -> Tile:
        """A tensor at the points of the box, or at its batch and channels."""
        e = self.e
        if r.source in e.points:
            memory = e.points[r.source]
            tile = e.b.load(memory, self.at, self.extent, axes=self.axes, masked=self.masked)
            return e.b.reshape(tile, self.shape)
        memory = e.lines[r.source]
        batch, group, channel = (
            0 if n == 1 else i for i, n in zip(self.at, memory.type.shape, strict=False)
        )
        wide = self.extent[2] if memory.type.shape[2] != 1 else 1
        masked = (2,) if 2 in self.masked and memory.type.shape[2] != 1 else ()
        tile = e.b.load(memory, (batch, group, channel), (1, 1, wide), axes=(2,), masked=masked)
        # The tile has the channels where the box keeps their axis.
        shape = [wide if a == 2 else 1 for a in self.axes]
        return e.b.reshape(tile, shape if wide > 1 else self.one)


def results_of(step: Primitive, types: Mapping[str, TensorType]) -> Results:
    """Where a step's tiles go."""
    return Results() if step.epilogue is None else Epilogue(step, types)
