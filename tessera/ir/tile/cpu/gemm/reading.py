"""How a contraction reads its factors: a row or a column at one k, a word of several k, a square to be
turned.
"""

from __future__ import annotations

from collections.abc import Callable

from tessera.core.dims import Size, substitute, symbols
from tessera.core.folds import LANES
from tessera.ir.schedule import ir as schedule
from tessera.ir.schedule.factors import lies_along
from tessera.ir.schedule.ir import Axis, Read
from tessera.ir.tile.cpu.gemm.narrow import WordParts
from tessera.ir.tile.ir import Builder, Memory, Tile


class Reading:
    """What is read of the factors of a contraction."""

    b: Builder
    memory: dict[str, Memory]
    env: dict[str, Size]
    parts: WordParts
    m: Axis
    over: Axis
    period: int  # how many neighbours along k are in one element of a factor

    def load_square(self, t: schedule.Term, axis: Axis, at: Size, k: Size) -> Tile:
        """16 points of an axis by 16 k."""
        if not isinstance(t, Read):
            return self.made_of(t, lambda o: self.load_square(o, axis, at, k))
        found = [
            [i for i, x in enumerate(t.index) if a.name in symbols(x)] for a in (axis, self.over)
        ]
        along = [i for places in found for i in places]
        extent = [LANES if i in along else 1 for i in range(len(t.index))]
        square = self.b.load(self.memory[t.source], self.places(t, axis, at, k), extent, axes=along)
        return self.b.reshape(square, [LANES if places else 1 for places in found])

    def made_of(self, t: schedule.Term, load: Callable[[schedule.Term], Tile]) -> Tile:
        """What a factor does with what it reads."""
        if isinstance(t, schedule.Literal):
            return self.b.full(t.dtype, (1, 1), t.value)
        inner = [load(o) for o in t.children()]
        if isinstance(t, schedule.Cast):
            return self.b.cast(inner[0], t.dtype)
        assert isinstance(t, schedule.Apply), t
        return self.b.apply(t.scalar, *inner)

    def places(self, r: Read, axis: Axis, at: Size, k: Size) -> list[Size]:
        env = {**self.env, axis.name: at, self.over.name: k}
        return [substitute(i, env) for i in r.index]

    def words(
        self, t: schedule.Term, axis: Axis, at: Size, width: int, k: Size, masked: bool,
        vector: bool,
    ) -> Tile:  # fmt: skip
        """A factor at the k of one word: a row (1, width) when vector, else a column (width, 1)."""
        parts = self.parts
        if parts.count == 1:
            return self.load(t, axis, at, width, k, masked, vector)
        assert isinstance(t, schedule.Cast)
        # Neighbours in memory are joined as a column: LLVM then reads each word in one piece.
        along = vector and not lies_along(t, self.over)
        lines = [
            self.load(t.operand, axis, at, width, k + i, masked, along) for i in range(parts.count)
        ]
        word = parts.joined(self.b, lines, t.dtype)
        if parts.biased and axis is self.m:
            word = self.b.apply("xor", word, parts.bias(self.b, t.dtype))
        return self.b.reshape(word, (1, width) if vector else (width, 1))

    def load(
        self, t: schedule.Term, axis: Axis, at: Size, width: int, k: Size, masked: bool,
        vector: bool,
    ) -> Tile:  # fmt: skip
        """A factor at one k: a row (1, width) when vector, else a column (width, 1)."""
        if isinstance(t, schedule.Position):
            return self.b.index(substitute(t.value, {**self.env, self.over.name: k}), (1, 1))
        if not isinstance(t, Read):
            return self.made_of(t, lambda o: self.load(o, axis, at, width, k, masked, vector))
        r, place = t, self.places(t, axis, at, k)
        shape = (1, width) if vector else (width, 1)
        found = [i for i, x in enumerate(r.index) if axis.name in symbols(x)]
        size, count = self.over.size, self.parts.count
        whole = count == 1 or (isinstance(size, int) and size % count == 0)
        deep = () if whole else [i for i, x in enumerate(r.index) if self.over.name in symbols(x)]
        if not found:  # an axis of one element
            value = self.b.load(
                self.memory[r.source], place, [1] * len(place), axes=(), masked=deep
            )
            return self.b.broadcast(value, shape)
        (along,) = found
        extent = [width if i == along else 1 for i in range(len(place))]
        mask = (along, *deep) if masked else deep
        line = self.b.load(self.memory[r.source], place, extent, axes=(along,), masked=mask)
        return self.b.reshape(line, shape)
