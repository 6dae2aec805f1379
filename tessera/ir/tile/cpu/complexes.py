"""Complex ops point by point: tensors of pairs in memory, their parts in vectors.

z[i] = x[i] * y[i]   ->   program i by 4096: for i by 32: parts of x and y, formula, store both parts
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tessera.core.dims import Size, product, smaller
from tessera.core.pairs import FORMULAS, Pair
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile
from tessera.ir.tile.launch import Expansion, Launch
from tessera.ir.tile.number import TileNumber, numbers_of

_BLOCK = 4096  # elements of an instance
_WIDTH = 32  # elements of a step: two vectors of 16 numbers


def lower_complex(step: Primitive, types: Mapping[str, TensorType]) -> Expansion:
    """One kernel for the whole tensors, as rows of elements."""
    kernel = _Map(step, types).kernel()
    return Expansion((Launch(kernel, step.operands, step.results),))


class _Map:
    def __init__(self, step: Primitive, types: Mapping[str, TensorType]):
        self.b, self.formula = Builder("kernel"), FORMULAS[step.primitive]
        self.real = numbers_of(step.order)
        self.size: Size = product(types[step.results[0]].shape)
        self.ins = [self.memory(f"x{i}", types[n]) for i, n in enumerate(step.operands)]
        self.out = self.memory("y", types[step.results[0]], writable=True)
        real = self.out.type.dtype
        # Parts go through here on their way between memory and vectors.
        self.rooms = [self.b.alloc(real, (2, _WIDTH)) for _ in (*self.ins, self.out)]

    def memory(self, name: str, t: TensorType, writable: bool = False) -> Memory:
        shape = (self.size, 2) if t.dtype.kind == "c" else (self.size,)
        return self.b.parameter(name, TensorType(t.dtype.real, shape), writable)

    def kernel(self) -> Kernel:
        start = self.b.program((self.size + _BLOCK - 1) // _BLOCK) * _BLOCK
        stop = smaller(start + _BLOCK, self.size)
        whole = (stop - start) // _WIDTH * _WIDTH + start
        for first, last, masked in ((start, whole, ()), (whole, stop, (0,))):
            if first != last:
                with self.b.loop(first, last, _WIDTH) as loop:
                    self.chunk(loop.variable, masked)
        return self.b.finish()

    def chunk(self, at: Size, masked: tuple[int, ...]) -> None:
        xs = [self.bring(m, r, at, masked) for m, r in zip(self.ins, self.rooms, strict=False)]
        self.send(self.formula(*xs), at, masked)

    def bring(self, m: Memory, room: Memory, at: Size, masked: tuple[int, ...]) -> Any:
        if m.type.rank == 1:
            return self.real(self.b, self.b.load(m, (at,), (_WIDTH,), masked=masked))
        both = self.b.load(m, (at, 0), (_WIDTH, 2), axes=(1, 0), masked=masked)
        self.b.store(room, both, (0, 0), (2, _WIDTH))
        parts = (self.b.load(room, (p, 0), (1, _WIDTH), axes=(1,)) for p in (0, 1))
        return Pair(*(self.real(self.b, t) for t in parts))

    def send(self, y: Any, at: Size, masked: tuple[int, ...]) -> None:
        if self.out.type.rank == 1:
            self.b.store(self.out, y.tile, (at,), (_WIDTH,), masked=masked)
            return
        room = self.rooms[-1]
        for p, part in enumerate(y):
            self.b.store(room, self.tile(part), (p, 0), (1, _WIDTH), axes=(1,))
        both = self.b.load(room, (0, 0), (2, _WIDTH))
        self.b.store(self.out, both, (at, 0), (_WIDTH, 2), axes=(1, 0), masked=masked)

    def tile(self, part: TileNumber | None) -> Tile:
        if part is None:
            return self.b.full(self.out.type.dtype, (_WIDTH,), 0.0)
        return part.tile


COMPLEX = dict.fromkeys(FORMULAS, lower_complex)
