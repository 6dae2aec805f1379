"""small_matrices: a small matrix in the registers of a warp, factored column by column.

    l = small_cholesky(a)
->  program m: for j: c = a[:, j]; l[:, j] = c / sqrt(c[j]); a -= l[:, j] l[:, j]^T

Every element is a number less products in ascending order, as on a CPU, so the bits are the same.  A
substitution has its neighbours in the batch, or several right-hand sides, in the threads of a warp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tessera.core.dims import Size, product
from tessera.core.dtype import i64
from tessera.core.types import TensorType
from tessera.ir.schedule.gpu_blocks import power
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.cpu.small_matrices import substitution
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile
from tessera.ir.tile.launch import Expansion, Launch, Threads

_LEAST = (
    8  # rows of a tile: with fewer elements than threads, Triton 3.6 and 3.9 compile without an end
)
_WARP = 32  # matrices, or right-hand sides, of a substitution: a thread each


class _Factor:
    """A kernel with a matrix in each instance, rounded up to a power of two."""

    def __init__(self, step: Primitive, types: Mapping[str, TensorType]):
        self.b, self.step, t = Builder(step.primitive), step, types[step.operands[0]]
        self.n, self.dtype = int(t.shape[-1]), t.dtype
        self.count: Size = product(t.shape[:-2])
        self.type = TensorType(t.dtype, (self.count, self.n, self.n))
        self.size = max(power(self.n), _LEAST)
        self.x = self.b.parameter("x", self.type)
        self.rows = self.b.index(0, (self.size, 1), 0)
        self.columns = self.b.index(0, (1, self.size), 1)

    def expansion(self) -> Expansion:
        launch = Launch(self.kernel(), self.step.operands, self.step.results, Threads(1))
        return Expansion((launch,))

    def kernel(self) -> Kernel:
        raise AssertionError(f"{self.step}: its kernel is that of a subclass")

    def begin(self) -> None:
        self.at = self.b.program(self.count)
        self.masked = (1, 2) if self.size > self.n else ()

    def matrix(self) -> Tile:
        n = self.size
        return self.b.load(self.x, (self.at, 0, 0), (1, n, n), (1, 2), self.masked)

    def send(self, m: Memory, t: Tile) -> None:
        n = self.size
        self.b.store(m, t, (self.at, 0, 0), (1, n, n), (1, 2), self.masked)

    def number(self, value: float) -> Tile:
        return self.b.full(self.dtype, (1, 1), value)

    def pick(self, x: Tile, here: Tile, axis: int) -> Tile:
        """What x has where `here` holds, once along the axis: exactly, the sign of a zero too."""
        least = self.number(-math.inf) if x.dtype is self.dtype else self.b.full(i64, (1, 1), -1)
        return self.b.fold("max", self.b.apply("where", here, x, least), axis)

    def less(self, s: Tile, x: Tile, y: Tile) -> Tile:
        """s - x y, rounded once."""
        return self.b.apply("fma", self.b.apply("neg", x), y, s)


class _Cholesky(_Factor):
    def kernel(self) -> Kernel:
        b, n = self.b, self.size
        y = b.parameter("y", self.type, writable=True)
        self.begin()
        with b.loop(0, self.n, 1, (self.matrix(), b.full(self.dtype, (n, n), 0.0))) as step:
            a, factor = step.carried
            j = b.index(step.variable, (1, 1))
            here = b.apply("eq", self.columns, j)
            column = self.pick(a, here, 1)
            s = self.pick(column, b.apply("eq", self.rows, j), 0)
            positive = b.apply("gt", s, self.number(0.0))
            root = b.apply("where", positive, b.apply("sqrt", s), self.number(math.nan))
            below = b.apply("div", column, root)
            line = b.apply("where", b.apply("eq", self.rows, j), root, below)
            known = b.apply("and", here, b.apply("ge", self.rows, j))
            step.carry(
                self.less(a, below, b.transpose(below)), b.apply("where", known, line, factor)
            )
        self.send(y, step.results[1])
        return b.finish()


class _Lu(_Factor):
    def kernel(self) -> Kernel:
        b, n = self.b, self.size
        y = b.parameter("y", self.type, writable=True)
        places = b.parameter("perm", TensorType(i64, (self.count, self.n)), writable=True)
        signs = b.parameter("sign", TensorType(self.dtype, (self.count,)), writable=True)
        self.begin()
        first = self.matrix(), b.index(0, (n, 1), 0), self.number(1.0)
        with b.loop(0, self.n, 1, first) as step:
            a, perm, sign = step.carried
            j = b.index(step.variable, (1, 1))
            at = self.largest(self.pick(a, b.apply("eq", self.columns, j), 1), j)
            a, pivots = self.swapped(a, at, j)
            perm, _ = self.swapped(perm, at, j)
            turned = b.apply("neg", sign)
            step.carry(
                self.eliminated(a, pivots, j),
                perm,
                b.apply("where", b.apply("eq", at, j), sign, turned),
            )
        a, perm, sign = step.results
        self.send(y, a)
        b.store(places, b.reshape(perm, (n,)), (self.at, 0), (1, n), (1,), self.masked[:1])
        b.store(signs, b.reshape(sign, (1,)), (self.at,), (1,))
        return b.finish()

    def largest(self, column: Tile, j: Tile) -> Tile:
        """The row of the first of the largest elements, from row j on; NaN is large in row j alone."""
        b, size = self.b, self.b.apply("abs", column)
        nan = b.apply("ne", size, size)
        alone = b.apply(
            "where", b.apply("eq", self.rows, j), self.number(math.inf), self.number(-1.0)
        )
        size = b.apply("where", nan, alone, size)
        done = b.apply("lt", self.rows, j)
        size = b.apply("where", done, self.number(-2.0), size)
        outside = b.apply("ge", self.rows, b.index(self.n, (1, 1)))
        size = b.apply("where", outside, self.number(-2.0), size)
        best = b.apply("eq", size, b.fold("max", size, 0))
        return b.fold("min", b.apply("where", best, self.rows, b.index(self.n, (1, 1))), 0)

    def swapped(self, a: Tile, at: Tile, j: Tile) -> tuple[Tile, Tile]:
        """Rows j and `at` in each other's place, and what row j has then."""
        b = self.b
        up, down = b.apply("eq", self.rows, j), b.apply("eq", self.rows, at)
        upper, lower = self.pick(a, up, 0), self.pick(a, down, 0)
        return b.apply("where", up, lower, b.apply("where", down, upper, a)), lower

    def eliminated(self, a: Tile, pivots: Tile, j: Tile) -> Tile:
        b = self.b
        here = b.apply("eq", self.columns, j)
        column, pivot = self.pick(a, here, 1), self.pick(pivots, here, 1)
        none = b.apply("eq", pivot, self.number(0.0))
        factor = b.apply("where", none, column, b.apply("div", column, pivot))
        right = b.apply("gt", self.columns, j)
        rest = b.apply("where", right, self.less(a, factor, pivots), a)
        rest = b.apply("where", here, factor, rest)
        return b.apply("where", b.apply("gt", self.rows, j), rest, a)


def _substitute(step: Primitive, types: Mapping[str, TensorType]) -> Expansion:
    return substitution(step, types, _WARP, _WARP, Threads(1))


SMALL_MATRICES = {
    "small_cholesky": lambda step, types: _Cholesky(step, types).expansion(),
    "small_lu": lambda step, types: _Lu(step, types).expansion(),
    "small_substitute": _substitute,
}
