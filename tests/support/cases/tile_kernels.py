"""Random Tile kernels, for the laws of the level: every operation, dtype and kind of access.

`programs()` is a Hypothesis strategy.  A program is a kernel and arguments for it.  Instances write
apart from each other, and scratch is written before it is read, so that the order of instances and
what memory held before do not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tessera.core.approximate import FUNCTIONS
from tessera.core.dims import Size, substitute, symbol
from tessera.core.dtype import FORMATS, DType, bool_, f32, f64, i32, i64
from tessera.core.scalar import REINTERPRETS, SCALARS
from tessera.core.types import TensorType
from tessera.ir.target.cpu.scalars import TEMPLATES
from tessera.ir.tile import rules
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile
from tests.support.cases.random_graphs import data_for

_PLAIN = sorted(rules.FORMATS - rules.STORAGE)
DTYPES = [f32, f32, f32, f64, i32, i64, *(FORMATS[n] for n in _PLAIN)]
STORAGE = [FORMATS[n] for n in sorted(rules.STORAGE)]
SIZES = (1, 2, 3, 5, 16, 17, 33)
EXTENTS = (1, 2, 3, 4, 5, 7, 15, 16, 17, 32)
LARGEST = 80  # elements of a tile
# The sign of a NaN is not part of the law, and these two show it.
SHOW_NAN = {"signbit", "copysign"}
NAMES = {
    kind: [
        n for n in [*rows, "where"]
        if n in SCALARS and n not in FUNCTIONS and n not in SHOW_NAN and n not in REINTERPRETS
        and (n == "where" or kind in rules.KINDS.get(n, "f"))
    ]
    for kind, rows in TEMPLATES.items()
}  # fmt: skip
FOLDS = {k: [n for n in ns if SCALARS[n].identity is not None] for k, ns in NAMES.items()}
Draw = Callable[[Any], Any]


@dataclass(frozen=True)
class Program:
    """A kernel and data to run it on."""

    kernel: Kernel
    arrays: list[Any]

    def fresh(self) -> list[Any]:
        """The arguments, for one run."""
        return [a.copy() for a in self.arrays]

    def run(self) -> list[Any]:
        """The arguments after the interpreter."""
        arrays = self.fresh()
        interpret(self.kernel, arrays)
        return arrays

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(f"{self.kernel.text}\n{self.arrays}")


@st.composite
def programs(draw: Draw) -> Program:
    """A random kernel with its arguments."""
    made = _Maker(draw)
    kernel = made.kernel()
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    types = [m.type.substitute(made.values) for m in kernel.parameters]
    arrays = [
        np.zeros(t.shape, t.dtype.np) if m.writable else _data(t, rng)
        for m, t in zip(kernel.parameters, types, strict=True)
    ]
    return Program(kernel, arrays)


class _Maker:
    """Draws one kernel."""

    def __init__(self, draw: Draw):
        self.draw, self.b = draw, Builder("k")
        self.values = {n: self.pick(SIZES) for n in ("A", "B", "C")}
        self.pool: list[Tile] = []  # tiles in scope
        self.inputs: list[Memory] = []
        self.grid: list[tuple[Size, Size]] = []  # variable and count
        self.loops: list[Size] = []
        self.outs = 0

    def pick(self, xs: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(xs))

    def number(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def size(self) -> Size:
        return self.pick([symbol("A"), symbol("B"), symbol("C"), 1, 4, 16])

    def kernel(self) -> Kernel:
        for i in range(self.number(1, 3)):
            shape = tuple(self.size() for _ in range(self.number(1, 3)))
            self.inputs.append(self.b.parameter(f"x{i}", TensorType(self.pick(DTYPES), shape)))
        used = {s for m in self.inputs for s in _names(m)}
        for _ in range(self.number(0, 2)):
            axis = self.pick([n for m in self.inputs for n in m.type.shape])
            count = self.pick([axis, (axis + 3) // 4, (axis + 15) // 16])
            if self.value(count) <= 5:
                self.grid.append((self.b.program(count), count))
        self.load()
        self.steps(self.number(3, 14))
        for t in self.pool[-3:]:
            self.store_tile(t)
        self.values = {n: v for n, v in self.values.items() if n in used}
        return self.b.finish()

    def value(self, x: Size) -> int:
        return int(substitute(x, self.values))

    def steps(self, count: int) -> None:
        choices = [
            self.apply, self.apply, self.apply, self.cast, self.cast, self.load, self.load,
            self.fold, self.scan, self.index, self.full, self.dot, self.reshape, self.spread,
            self.turn, self.loop, self.scratch, self.column, self.store, self.gather, self.rows, self.scatter,
        ]  # fmt: skip
        for _ in range(count):
            self.pick(choices)()

    def tile(self) -> Tile:
        """A tile, rather one of the last, so that most of what is computed is used."""
        return self.pick(self.pool[-4:])

    def keep(self, t: Tile) -> None:
        self.pool.append(t)

    # Memory

    def place(self, n: Size, room: int) -> tuple[Size, int, bool]:
        """Where to begin along an axis of size n, how far to go, and whether a mask is needed."""
        whole = [v for v, count in self.grid if count == n]
        kind = self.pick(["masked", "masked", "masked", "first", "last", "whole", "whole"])
        if kind == "whole" and whole:
            return self.pick(whole), 1, False
        if kind == "whole" and isinstance(n, int):
            return 0, min(n, room), False
        if kind in ("first", "last"):
            return (0 if kind == "first" else n - 1), 1, False
        width = self.pick([e for e in EXTENTS if e <= room])
        counters = [v for v, _ in self.grid] + self.loops
        by = self.pick([1, width, 2])
        base: Size = self.pick(counters) * by if counters else 0
        return base + self.pick([0, 0, 0, -1, 3]), width, True

    def load(self) -> None:
        m = self.pick(self.inputs)
        at, extent, masked, room = [], [], [], LARGEST
        for axis, n in enumerate(m.type.shape):
            start, width, mask = self.place(n, room)
            at.append(start)
            extent.append(width)
            room //= width
            if mask:
                masked.append(axis)
        kept = [i for i, w in enumerate(extent) if w > 1 or self.draw(st.booleans())]
        axes = self.draw(st.permutations(kept))
        fill = self.pick([0, 1, -1, 0.5, float("inf"), True])
        self.keep(self.b.load(m, at, extent, axes, masked, fill))

    def out(self, t: Tile, shape: Sequence[Size]) -> Memory:
        """A parameter with a part of this shape for every instance."""
        self.outs += 1
        counts = tuple(n for _, n in self.grid)
        kind = TensorType(t.dtype, (*counts, *shape))
        return self.b.parameter(f"y{self.outs}", kind, True)

    def store(self) -> None:
        self.store_tile(self.tile())

    def store_tile(self, t: Tile) -> None:
        rank = len(self.grid)
        order = self.draw(st.permutations(range(len(t.shape))))
        shape = [0] * len(t.shape)
        for axis, place in enumerate(order):
            shape[place] = t.shape[axis]
        cut = [self.pick([n, n, n + 1, max(n - 1, 1)]) for n in shape]
        m = self.out(t, cut)
        masked = tuple(rank + i for i, (a, b) in enumerate(zip(cut, shape, strict=True)) if a < b)
        at = (*(v for v, _ in self.grid), *(0 for _ in shape))
        extent, axes = (1,) * rank + tuple(shape), tuple(rank + p for p in order)
        self.b.store(m, t, at, extent, axes, masked)
        if self.draw(st.booleans()):
            self.keep(self.b.load(m, at, extent, axes, masked, 1))

    def scratch(self) -> None:
        """A tile through memory of its own, read back from another place."""
        t = self.tile()
        m = self.b.alloc(t.dtype, t.shape, self.pick(["private", "shared"]))
        at, every = (0,) * len(t.shape), tuple(range(len(t.shape)))
        self.b.store(m, t, at, t.shape)
        moved = tuple(self.pick([0, 1, -1]) for _ in t.shape)
        self.keep(self.b.load(m, moved, t.shape, self.draw(st.permutations(every)), every, 1))

    def column(self) -> None:
        """A line of symbolic length through scratch, in chunks with a masked end."""
        m = self.pick([m for m in self.inputs if m.type.rank == 1] or [None])
        if m is None:
            return self.load()
        (n,), width = m.type.shape, self.pick((3, 4, 16))
        kept = self.b.alloc(m.type.dtype, (n,))
        with self.b.loop(0, n, width) as l:
            x = self.b.load(m, (l.variable,), (width,), masked=(0,))
            self.b.store(kept, x, (l.variable,), (width,), masked=(0,))
        start = self.b.full(m.type.dtype, (width,), 1)
        with self.b.loop(0, n // width * width, width, [start]) as l:
            x = self.b.load(kept, (l.variable,), (width,))
            name = self.pick(FOLDS[m.type.dtype.kind])
            l.carry(self.b.apply(name, l.carried[0], x))
        self.keep(l.results[0])
        return None

    def places(self, like: Tile) -> Tile:
        """Small numbers, one for all or one for each element of a tile."""
        fits = [u for u in self.pool if u.shape in ((), (1,) * len(like.shape), like.shape)]
        x = self.b.cast(self.pick(fits), i64)
        x = self.b.apply("mod", x, self.b.full(i64, (1,) * len(x.shape), 9))
        if math.prod(x.shape) > 1 and self.draw(st.booleans()):
            for axis in range(len(x.shape)):
                x = self.b.fold("min", x, axis)
        return self.b.apply("add", x, self.b.full(i64, (), self.pick([0, -1])))

    def gather(self) -> None:
        """Elements of an input at numbers that may lie outside, a line of them at each."""
        t, m = self.tile(), self.pick(self.inputs)
        rank = m.type.rank
        axes = sorted({self.number(0, rank - 1) for _ in range(2)})
        kept = [i for i in range(rank) if i not in axes][-1:] if len(t.shape) == 1 else []
        extent = [t.shape[0] if i in kept else 1 for i in range(rank)]
        picked = {axis: self.places(t) for axis in axes}
        at = [self.pick([0, 0, 1]) for _ in range(rank)]
        self.keep(self.b.gather(m, picked, at, extent, kept, range(rank), self.pick([0, 1])))

    def rows(self) -> None:
        """Numbered rows of an input: the numbers lie along an axis of one element of the box."""
        lines = [t for t in self.pool if len(t.shape) == 1]
        wide = [m for m in self.inputs if m.type.rank == 2]
        if not lines or not wide:
            return
        t, m, count = self.pick(lines), self.pick(wide), self.pick([1, 3, 4])
        rows = self.b.reshape(self.b.broadcast(self.places(t), t.shape), (t.shape[0], 1))
        fill = self.pick([0, 1])
        self.keep(
            self.b.gather(m, {0: rows}, (0, self.pick([0, 1])), (1, count), (0, 1), (0, 1), fill)
        )

    def scatter(self) -> None:
        """A tile to numbered places of scratch, of which some are outside and some are the same."""
        t = self.tile()
        if len(t.shape) != 1:
            return
        lines = self.draw(st.booleans())
        shape = (4, t.shape[0]) if lines else (5,)
        m = self.b.alloc(t.dtype, shape)
        every = tuple(range(len(shape)))
        self.b.store(m, self.b.full(t.dtype, shape, 1), (0,) * len(shape), shape)
        at = self.places(t)
        if not lines:
            at = self.b.broadcast(at, t.shape)
        extent = (1, t.shape[0]) if lines else (1,)
        alone = lines and at.shape in ((), (1,))  # one row at one place
        self.b.scatter(m, t, {0: at}, (0,) * len(shape), extent, every[1:], every, distinct=alone)
        self.keep(self.b.load(m, (0,) * len(shape), shape))

    # Values

    def full(self) -> None:
        shape = self.pick([(), (1,), (3,), (16,), (2, 5), self.tile().shape])
        value = self.pick([0, 1, 2, -3, 0.5, float("nan"), float("-inf")])
        self.keep(self.b.full(self.pick(DTYPES), shape, value))

    def index(self) -> None:
        shape = self.tile().shape
        axis = self.pick([None, *range(len(shape))])
        counters = [v for v, _ in self.grid] + self.loops
        at = self.pick([0, 7, *counters, *(3 * v - 1 for v in counters), symbol_of(self.inputs)])
        self.keep(self.b.index(at, shape, axis))

    def beside(self, t: Tile, dtype: DType) -> Tile:
        """A tile of a dtype that broadcasts with t."""
        fits = [u for u in self.pool if _broadcasts(t.shape, u.shape)]
        return self.b.cast(self.pick(fits or [t]), dtype)  # a load may be larger than LARGEST

    def apply(self) -> None:
        t = self.tile()
        name = self.pick(NAMES[t.dtype.kind])
        if name == "where":
            xs = [self.beside(t, bool_), t, self.beside(t, t.dtype)]
        else:
            xs = [t, *(self.beside(t, t.dtype) for _ in range(SCALARS[name].arity - 1))]
        if len({x.shape for x in xs}) > 2 and not _meet(xs):
            xs = [t if x.dtype is t.dtype else self.b.cast(t, x.dtype) for x in xs]
        self.keep(self.b.apply(name, *xs))

    def cast(self) -> None:
        t = self.tile()
        if self.draw(st.booleans()):
            t = self.b.cast(t, self.pick(STORAGE))
        self.keep(self.b.cast(t, self.pick(DTYPES)))

    def with_axes(self) -> Tile:
        fits = [t for t in self.pool if t.shape]
        return self.pick(fits) if fits else self.b.reshape(self.tile(), (1,))

    def fold(self) -> None:
        t = self.with_axes()
        axis = self.number(0, len(t.shape) - 1)
        self.keep(self.b.fold(self.pick(FOLDS[t.dtype.kind]), t, axis))

    def scan(self) -> None:
        t = self.with_axes()
        axis = self.number(0, len(t.shape) - 1)
        self.keep(self.b.scan(self.pick(FOLDS[t.dtype.kind]), t, axis))

    def matrix(self, t: Tile) -> Tile:
        last = t.shape[-1] if t.shape else 1
        return self.b.reshape(t, (math.prod(t.shape) // last, last))

    def dot(self) -> None:
        a = self.matrix(self.tile())
        if a.dtype.kind == "b":
            a = self.b.cast(a, i32)
        m, k = a.shape
        fits = [t for t in self.pool if len(t.shape) == 2 and t.shape[0] == k]
        other = fits or [self.b.transpose(a)]
        b = self.b.cast(self.pick(other), a.dtype)
        shape = (m, b.shape[1])
        wide = a.dtype.accum if self.draw(st.booleans()) or a.dtype.is_narrow else a.dtype
        if math.prod(shape) > LARGEST:
            return
        fits = [t for t in self.pool if t.shape == shape]
        acc = self.b.cast(self.pick(fits), wide) if fits else self.b.full(wide, shape, 1)
        self.keep(self.b.dot(a, b, acc))

    def reshape(self) -> None:
        t = self.tile()
        n = math.prod(t.shape)
        shapes = [(n,), (1, n), (n, 1), *((k, n // k) for k in (2, 3, 4) if n % k == 0)]
        if self.draw(st.booleans()):
            self.keep(self.b.expand(t, self.number(0, len(t.shape))))
        else:
            self.keep(self.b.reshape(t, self.pick(shapes)))

    def spread(self) -> None:
        t = self.tile()
        shape = tuple(self.pick([1, 2, 17]) if n == 1 else n for n in t.shape or (1,))
        if math.prod(shape) <= LARGEST:
            self.keep(self.b.broadcast(t, shape))

    def turn(self) -> None:
        self.keep(self.b.transpose(self.matrix(self.tile())))

    # Loops

    def loop(self) -> None:
        if len(self.loops) == 2:
            return
        carried = [self.tile() for _ in range(self.number(0, 2))]
        start = self.pick([0, 0, 1, -2])
        stop = self.pick([2, 3, *(n for m in self.inputs for n in m.type.shape)])
        outer = list(self.pool)
        with self.b.loop(start, stop, self.pick([1, 2, 16]), carried) as l:
            self.loops.append(l.variable)
            self.pool += l.carried
            inside = len(self.pool)
            self.loop_steps()
            new = (
                [self.back(self.pick(self.pool[inside - len(carried) :]), t) for t in carried]
                if carried
                else []
            )
            l.carry(*new)
            self.loops.pop()
        self.pool = outer + list(l.results)

    def loop_steps(self) -> None:
        for _ in range(self.number(1, 3)):
            self.pick([self.apply, self.load, self.cast, self.fold, self.index, self.scratch])()

    def back(self, x: Tile, t: Tile) -> Tile:
        """x in the type of t."""
        x = self.b.cast(x, t.dtype)
        if x.shape == t.shape:
            return x
        for axis in range(len(x.shape)):
            x = self.b.fold("max", x, axis)
        return self.b.broadcast(self.b.reshape(x, ()), t.shape)


def _data(t: TensorType, rng: np.random.Generator) -> Any:
    """Random elements; in one array of three many are special, and NaN drowns the rest."""
    if t.dtype.kind == "b" or rng.random() < 0.33:
        return data_for(t, rng)
    return (
        (rng.normal(size=t.shape) * 50)
        .astype(np.int64 if t.dtype.kind != "f" else f64.np)
        .astype(t.dtype.np)
    )


def _names(m: Memory) -> set[str]:
    return {
        s for n in m.type.shape for s in ("A", "B", "C") if not isinstance(n, int) and s in str(n)
    }


def symbol_of(inputs: Sequence[Memory]) -> Size:
    return inputs[0].type.shape[0]


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    if not a or not b:
        return True
    both = len(a) == len(b)
    return (
        both
        and math.prod(map(max, a, b)) <= LARGEST
        and all(m == n or 1 in (m, n) for m, n in zip(a, b, strict=True))
    )


def _meet(xs: Sequence[Tile]) -> bool:
    return all(_broadcasts(x.shape, y.shape) for x in xs for y in xs)
