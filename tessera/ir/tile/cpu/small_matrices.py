"""small_matrices: factors of small matrices and substitution, sixteen matrices or many columns side by side.

    l = small_cholesky(a)
->  program r by 16: for j, i: s = a[i, j] - sum of l[i, k] l[j, k]; l[i, j] = s / l[j, j]

Elements of the matrices of an instance are adjacent in scratch, so an operation on one element is
one of vectors.  A substitution with several right-hand sides has their columns beside each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tessera.core.dims import Size, product
from tessera.core.dtype import i64
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile
from tessera.ir.tile.launch import Expansion, Launch, Threads

_LANES = 16  # matrices of an instance: a vector of AVX-512 in f32
_COLUMNS = 32  # right-hand sides of an instance: two such vectors


class _Matrices:
    """A kernel on matrices of a batch, some of them at a time."""

    def __init__(
        self, step: Primitive, types: Mapping[str, TensorType], lanes: int = _LANES,
        threads: Threads | None = None,
    ):  # fmt: skip
        self.b, self.p, self.step = Builder("kernel"), step.params, step
        self.batch, self.threads = lanes, threads or Threads()
        t = types[step.operands[0]]
        n = t.shape[-1]
        assert isinstance(n, int)
        self.n, self.dtype, self.count = n, t.dtype, product(t.shape[:-2])
        self.x = self.b.parameter("x", TensorType(t.dtype, (self.count, n, n)))
        self.width = lanes
        self.row: Size = 0

    def expansion(self) -> Expansion:
        launch = Launch(self.kernel(), self.step.operands, self.step.results, self.threads)
        return Expansion((launch,))

    def kernel(self) -> Kernel:
        raise AssertionError(f"{self.step}: its kernel is that of a subclass")

    def lanes(self) -> None:
        """An instance has neighbours in the batch."""
        self.row = self.b.program((self.count + self.batch - 1) // self.batch) * self.batch

    def bring(self, m: Memory, *at: Size) -> Tile:
        """An element of every matrix of the instance."""
        rest = (1,) * len(at)
        return self.b.load(m, (self.row, *at), (self.batch, *rest), axes=(0,), masked=(0,))

    def send(self, m: Memory, t: Tile, *at: Size) -> None:
        rest = (1,) * len(at)
        self.b.store(m, t, (self.row, *at), (self.batch, *rest), axes=(0,), masked=(0,))

    def get(self, m: Memory, *at: Size) -> Tile:
        """What scratch holds of an element."""
        rest = (1,) * len(at)
        return self.b.load(m, (*at, 0), (*rest, self.width), axes=(len(at),))

    def put(self, m: Memory, t: Tile, *at: Size) -> None:
        rest = (1,) * len(at)
        self.b.store(m, t, (*at, 0), (*rest, self.width), axes=(len(at),))

    def less(self, s: Tile, x: Tile, y: Tile) -> Tile:
        """s - x y, rounded once."""
        return self.b.apply("fma", self.b.apply("neg", x), y, s)

    def number(self, value: float) -> Tile:
        return self.b.full(self.dtype, (1,), value)


class _Cholesky(_Matrices):
    def kernel(self) -> Kernel:
        b, n = self.b, self.n
        y = b.parameter("y", self.x.type, writable=True)
        self.lanes()
        held = b.alloc(self.dtype, (n, n, self.batch))
        with b.loop(0, n) as column:
            j = column.variable
            s = self.element(held, j, j)
            root = b.apply(
                "where",
                b.apply("gt", s, self.number(0.0)),
                b.apply("sqrt", s),
                self.number(math.nan),
            )
            self.put(held, root, j, j)
            self.send(y, root, j, j)
            with b.loop(j + 1, n) as row:
                i = row.variable
                below = b.apply("div", self.element(held, i, j), root)
                self.put(held, below, i, j)
                self.send(y, below, i, j)
                self.send(y, b.full(self.dtype, (self.batch,), 0.0), j, i)
        return b.finish()

    def element(self, held: Memory, i: Size, j: Size) -> Tile:
        """a[i, j] less the products of what is known of rows i and j."""
        with self.b.loop(0, j, 1, (self.bring(self.x, i, j),)) as known:
            k = known.variable
            known.carry(self.less(known.carried[0], self.get(held, i, k), self.get(held, j, k)))
        return known.results[0]


class _Lu(_Matrices):
    def kernel(self) -> Kernel:
        b, n = self.b, self.n
        y = b.parameter("y", self.x.type, writable=True)
        places = b.parameter("perm", TensorType(i64, (self.count, n)), writable=True)
        signs = b.parameter("sign", TensorType(self.dtype, (self.count,)), writable=True)
        self.lanes()
        a, perm = b.alloc(self.dtype, (n, n, self.batch)), b.alloc(i64, (n, self.batch))
        with b.loop(0, n) as row:
            self.put(perm, b.index(row.variable, (self.batch,)), row.variable)
            with b.loop(0, n) as column:
                here = row.variable, column.variable
                self.put(a, self.bring(self.x, *here), *here)
        with b.loop(0, n, 1, (b.full(self.dtype, (self.batch,), 1.0),)) as step:
            j = step.variable
            at = self.largest(a, j)
            self.swap(a, perm, j, at)
            stays = b.apply("eq", at, b.index(j, (1,)))
            sign = step.carried[0]
            step.carry(b.apply("where", stays, sign, b.apply("neg", sign)))
            self.eliminate(a, j)
        self.send(signs, step.results[0])
        with b.loop(0, n) as row:
            self.send(places, self.get(perm, row.variable), row.variable)
            with b.loop(0, n) as column:
                here = row.variable, column.variable
                self.send(y, self.get(a, *here), *here)
        return b.finish()

    def largest(self, a: Memory, j: Size) -> Tile:
        """The row of the first of the largest elements of column j, from row j on."""
        b = self.b
        first = b.apply("abs", self.get(a, j, j)), b.index(j, (self.batch,))
        with b.loop(j + 1, self.n, 1, first) as row:
            size, here = (
                b.apply("abs", self.get(a, row.variable, j)),
                b.index(row.variable, (self.batch,)),
            )
            best, at = row.carried
            more = b.apply("gt", size, best)
            row.carry(b.apply("where", more, size, best), b.apply("where", more, here, at))
        return row.results[1]

    def swap(self, a: Memory, perm: Memory, j: Size, at: Tile) -> None:
        """Rows j and `at` of every matrix in each other's place."""
        with self.b.loop(j + 1, self.n) as row:
            i = row.variable
            here = self.b.apply("eq", at, self.b.index(i, (1,)))
            self.exchange(perm, here, (j,), (i,))
            with self.b.loop(0, self.n) as column:
                self.exchange(a, here, (j, column.variable), (i, column.variable))

    def exchange(self, m: Memory, here: Tile, up: tuple[Size, ...], down: tuple[Size, ...]) -> None:
        x, y = self.get(m, *up), self.get(m, *down)
        self.put(m, self.b.apply("where", here, y, x), *up)
        self.put(m, self.b.apply("where", here, x, y), *down)

    def eliminate(self, a: Memory, j: Size) -> None:
        b = self.b
        pivot = self.get(a, j, j)
        none = b.apply("eq", pivot, self.number(0.0))
        with b.loop(j + 1, self.n) as row:
            i = row.variable
            x = self.get(a, i, j)
            factor = b.apply("where", none, x, b.apply("div", x, pivot))
            self.put(a, factor, i, j)
            with b.loop(j + 1, self.n) as column:
                k = column.variable
                self.put(a, self.less(self.get(a, i, k), factor, self.get(a, j, k)), i, k)


class _Substitution(_Matrices):
    def __init__(
        self, step: Primitive, types: Mapping[str, TensorType], lanes: int = _LANES,
        columns: int = _COLUMNS, threads: Threads | None = None,
    ):  # fmt: skip
        super().__init__(step, types, lanes, threads)
        self.sides = columns
        self.columns = types[step.operands[1]].shape[-1]
        shape = (self.count, self.n, self.columns)
        self.rhs = self.b.parameter("b", TensorType(self.dtype, shape))
        self.y = self.b.parameter("y", TensorType(self.dtype, shape), writable=True)
        self.by_matrix = self.columns == 1
        self.at: Size = 0

    def kernel(self) -> Kernel:
        b, n = self.b, self.n
        if self.by_matrix:
            self.lanes()
        else:
            self.width = self.sides
            self.row = b.program(self.count)
            self.at = b.program((self.columns + self.sides - 1) // self.sides) * self.sides
        known = b.alloc(self.dtype, (n, self.width))
        down = self.p["lower"] != self.p["transpose"]
        with b.loop(0, n) as step:
            t = step.variable
            i = t if down else n - 1 - t
            first, last = (0, i) if down else (i + 1, n)
            with b.loop(first, last, 1, (self.line(i),)) as before:
                j = before.variable
                before.carry(self.less(before.carried[0], self.factor(i, j), self.get(known, j)))
            s = before.results[0]
            s = s if self.p["unit_diagonal"] else b.apply("div", s, self.factor(i, i))
            self.put(known, s, i)
            if self.by_matrix:
                self.send(self.y, s, i, 0)
            else:
                b.store(
                    self.y, s, (self.row, i, self.at), (1, 1, self.sides), axes=(2,), masked=(2,)
                )
        return b.finish()

    def line(self, i: Size) -> Tile:
        """Row i of the right-hand sides."""
        if self.by_matrix:
            return self.bring(self.rhs, i, 0)
        return self.b.load(
            self.rhs, (self.row, i, self.at), (1, 1, self.sides), axes=(2,), masked=(2,)
        )

    def factor(self, i: Size, j: Size) -> Tile:
        at = (j, i) if self.p["transpose"] else (i, j)
        if self.by_matrix:
            return self.bring(self.x, *at)
        return self.b.reshape(self.b.load(self.x, (self.row, *at), (1, 1, 1), axes=()), (1,))


def substitution(
    step: Primitive, types: Mapping[str, TensorType], lanes: int = _LANES,
    columns: int = _COLUMNS, threads: Threads | None = None,
) -> Expansion:  # fmt: skip
    """The launch of a substitution: so many matrices, or right-hand sides, in an instance."""
    return _Substitution(step, types, lanes, columns, threads).expansion()


SMALL_MATRICES = {
    "small_cholesky": lambda step, types: _Cholesky(step, types).expansion(),
    "small_lu": lambda step, types: _Lu(step, types).expansion(),
    "small_substitute": substitution,
}
