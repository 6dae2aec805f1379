"""update: parts of tensors are replaced in place; nothing else of them is touched.

    y[s + i, j] = v(i, j)   for i < m, j < n    ->    block of elements e of the part: y[place(e)] = v(e
    // n, e % n)

What is written is a term, computed where it is stored.  All tensors are lines of elements here.  Axes that
the part covers whole are one with the axis before them, so that a row of a cache is one stretch of memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tessera.core.dims import Size, symbol, symbols
from tessera.core.dtype import i64
from tessera.core.types import TensorType
from tessera.ir.schedule.device_steps import Update
from tessera.ir.schedule.gpu_blocks import MULTIPROCESSORS, power
from tessera.ir.schedule.index import narrow, rejoined
from tessera.ir.schedule.ir import Read, Term, reads, with_reads
from tessera.ir.tile.gpu.terms import AxisLine, Terms
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile

_FEWEST, _MOST = 128, 1024  # elements of a block
_E = "_e"  # the number of an element of a part


@dataclass(frozen=True)
class _Axis:
    """Elements of the tensor and of the part along an axis, and the start that it has, in steps of so
    many.
    """

    size: int
    part: int
    start: str | None  # None where it is 0
    unit: int = 1


def update(updates: Sequence[Update], types: Mapping[str, TensorType]) -> tuple[Kernel, list[str]]:
    """The kernel of updates of equally many elements, and the tensors that it has as parameters."""
    return _UpdateWriter(updates, types).kernel()


class _UpdateWriter:
    def __init__(self, updates: Sequence[Update], types: Mapping[str, TensorType]):
        self.updates, self.types, self.b = updates, types, Builder("update")
        self.memory: dict[str, Memory] = {}
        self.count = updates[0].count
        self.block = min(max(power(-(-self.count // MULTIPROCESSORS)), _FEWEST), _MOST)

    def kernel(self) -> tuple[Kernel, list[str]]:
        merged = [_merged(u, self.types[u.whole]) for u in self.updates]
        for u in self.updates:
            self.parameter(u.whole, self.line(u.whole), True)
        picked = {r.source for u in self.updates for r in reads(u.part.term) if _is_picked(r)}
        terms = [_on_line(u, self.types, picked) for u in self.updates]
        for r in (r for t in terms for r in reads(t)):
            whole = r.source in picked
            self.parameter(r.source, self.types[r.source] if whole else self.line(r.source))
        for start in (a.start for axes in merged for a in axes if a.start is not None):
            self.parameter(start, self.types[start])
        first = self.b.program(-(-self.count // self.block)) * self.block
        where = Terms(self.b, self.memory, lambda name: None)
        where.lines[_E] = AxisLine(1, first, self.block, self.count)
        # Everything is loaded before anything is stored.
        values = [self.b.reshape(where.spread(where.term(t)), (self.block,)) for t in terms]
        places = [self.place(axes, first) for axes in merged]
        for u, value, place in zip(self.updates, values, places, strict=True):
            y = self.memory[u.whole]
            self.b.scatter(y, value, {0: place}, (0,), (1,), (), (0,), distinct=True)
        return self.b.finish(), list(self.memory)

    def parameter(self, name: str, t: TensorType, writable: bool = False) -> None:
        if name not in self.memory:
            self.memory[name] = self.b.parameter(f"x{len(self.memory)}", t, writable)

    def line(self, name: str) -> TensorType:
        t = self.types[name]
        return TensorType(t.dtype, (prod(int(n) for n in t.shape),))

    def place(self, axes: Sequence[_Axis], first: Size) -> Tile:
        """Where in the tensor the elements of this block go."""
        b, block = self.b, self.block
        e = b.index(first, (block,), 0)
        place, rest, stride = b.full(i64, (block,), 0), e, 1
        for a in reversed(axes):
            here, rest = _split(b, rest, a.part)
            if a.start is not None:
                start = b.load(self.memory[a.start], (), ())
                at = _clamped(b, b.cast(start, i64), a)
                here = b.apply("add", here, b.broadcast(at, (block,)))
            place = b.apply("add", place, _times(b, here, stride))
            stride *= a.size
        past = b.apply("ge", e, b.full(i64, (block,), self.count))
        return b.apply("where", past, b.full(i64, (block,), stride), place)


def _on_line(u: Update, types: Mapping[str, TensorType], picked: set[str]) -> Term:
    """The term of a part as one of the number of an element; tensors are lines, save those that are
    picked from.
    """
    e = symbol(_E)
    sizes = {a.name: int(a.size) for a in u.part.axes}
    steps = dict(zip(sizes, _strides(list(sizes.values())), strict=True))
    env: dict[str, Size] = {n: narrow((e // steps[n]) % sizes[n], {_E: u.count}) for n in sizes}

    def change(r: Read) -> Read:
        if r.source in picked:
            return r
        strides = _strides([int(n) for n in types[r.source].shape])
        flat: Size = sum((i * n for i, n in zip(r.index, strides, strict=True)), 0)
        flat = rejoined(narrow(flat, sizes))
        rest = flat - sum(symbol(n) * steps[n] for n in sizes if sizes[n] > 1)
        return replace(r, index=(flat if symbols(rest) & sizes.keys() else e + rest,))

    return with_reads(u.part.term, change).at(env)


def _is_picked(r: Read) -> bool:
    """Whether data says where a tensor is read; and a tensor of no axes is no line."""
    return not r.index or any(isinstance(i, Term) for i in r.index)


def _strides(shape: Sequence[int]) -> list[int]:
    return [prod(shape[i + 1 :]) for i in range(len(shape))]


def _merged(u: Update, whole: TensorType) -> list[_Axis]:
    """The axes, those that are covered whole merged into the ones before them."""
    out: list[_Axis] = []
    for size, axis, start in zip(whole.shape, u.part.axes, u.starts, strict=True):
        n = int(size)
        if out and start is None:
            a = out.pop()
            out.append(_Axis(a.size * n, a.part * n, a.start, a.unit * n))
        else:
            out.append(_Axis(n, int(axis.size), start))
    return out


def _split(b: Builder, e: Tile, n: int) -> tuple[Tile, Tile]:
    """Numbers along an axis of n, and along those before it."""
    size = b.full(i64, e.shape, n)
    return b.apply("mod", e, size), b.apply("floor_div", e, size)


def _clamped(b: Builder, start: Tile, a: _Axis) -> Tile:
    """A start, moved so that the part lies inside."""
    last = b.full(i64, (), (a.size - a.part) // a.unit)
    return _times(b, b.apply("min", b.apply("max", start, b.full(i64, (), 0)), last), a.unit)


def _times(b: Builder, x: Tile, n: int) -> Tile:
    return x if n == 1 else b.apply("mul", x, b.full(i64, x.shape, n))
