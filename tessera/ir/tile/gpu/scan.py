"""scan: running folds as a tree over neighbours, so that blocks share a line.

    y[i] = x[0] + ... + x[i]   ->   totals[p] = fold of part p; carries = sums of the totals before each part;
                                    y = carries[p] taken down the tree of part p, and x[i] at its leaf

E(i), the fold of all before i, is E(0), nothing, taken down the binary tree over aligned neighbours: a left
child has its parent's E, a right one has E and the fold of its sibling.  Then y[i] is E(i) and x[i].  A
part is a subtree, so the bits are the same for any size of parts.  From the end, left and right change
places.

log(exp(x) + exp(y)) is no scalar op of kernels: its two operands are taken out of a pair, and then joined.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from tessera.core.dims import Size
from tessera.core.dtype import DType
from tessera.core.evaluate import neutral
from tessera.core.scans import FOLDS
from tessera.core.types import TensorType
from tessera.ir.schedule.gpu_blocks import power
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.gpu.folds import tree
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile
from tessera.ir.tile.launch import Expansion, Launch, Threads

WHOLE = 4096  # elements of a line that one block scans
PART = 2048  # elements of a part of a longer one
STEPS = 16  # of a part that is scanned for each column: a thread holds all of them
_FEWEST = 1024  # elements of a block of short lines
EACH = 32  # elements of a thread
EACH_LONG = 8  # of one that takes exponentials and logarithms
_LOG = "logaddexp"


@dataclass(frozen=True)
class _Lines:
    """A tensor that is scanned along the middle of three axes."""

    outer: int
    n: int
    inner: int
    dtype: DType

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, (self.outer, self.n, self.inner))


class _Scan:
    """The launches of a scan."""

    def __init__(self, name: str, scalar: str, compute: DType, reverse: bool):
        self.name, self.scalar, self.compute, self.reverse = name, scalar, compute, reverse
        self.launches: list[Launch] = []
        self.between: dict[str, TensorType] = {}

    def lines(self, x: str, y: str, lines: _Lines, result: DType, exclusive: bool = False) -> None:
        """Scan x into y; parts of a long line after their totals."""
        size = part_of(lines)
        if size >= lines.n:
            block = _Block(self, lines, power(lines.n), exclusive, result)
            self.launches.append(block.launch((x,), y))
            return
        depth = len(self.between)
        totals, carries = f"{self.name}_totals{depth}", f"{self.name}_carries{depth}"
        parts = _Lines(lines.outer, -(-lines.n // size), lines.inner, self.compute)
        self.between |= {totals: parts.type, carries: parts.type}
        block = _Block(self, lines, size, exclusive, result)
        self.launches.append(block.totals(x, totals))
        self.lines(totals, carries, parts, self.compute, exclusive=True)
        self.launches.append(block.launch((x, carries), y))


def part_of(lines: _Lines) -> int:
    """How many elements of a line a block takes."""
    if lines.inner > 1:
        return power(lines.n) if lines.n <= STEPS else STEPS
    return power(lines.n) if lines.n <= WHOLE else PART


class _Block:
    """What one block does with a part of a line, or with short lines."""

    def __init__(self, scan: _Scan, lines: _Lines, size: int, exclusive: bool, result: DType):
        self.scan, self.given, self.size = scan, lines, size
        self.exclusive, self.result = exclusive, result
        self.columns = lines.inner > 1
        others = lines.inner if self.columns else lines.outer
        most = 512 // max(lines.dtype.bits // 8, 4) if self.columns else max(_FEWEST // size, 1)
        self.many = min(power(others), most)
        self.parts = -(-lines.n // size)
        elements = self.many * size
        each, most = (EACH_LONG, 16) if scan.scalar == _LOG else (EACH, 8)
        warps = 1 if self.columns else max(min(elements // (32 * each), most), 1)
        self.threads = Threads(warps)

    @property
    def exact(self) -> bool:
        """Whether every order of a line's elements has the same folds, which are those of Triton's scan."""
        scalar = self.scan.scalar
        whole = self.scan.compute.kind in "iu" and (scalar == "add" or not self.exclusive)
        return whole and not self.columns and not self.scan.reverse

    def place(self, b: Builder) -> tuple[tuple[Size, Size, Size], Size]:
        """Where the block begins, and the number of its part."""
        g = self.given
        if self.columns:
            o, p = b.program(g.outer), b.program(self.parts)
            at = b.program(-(-g.inner // self.many)) * self.many
            return (o, p * self.size, at), p
        o, p = b.program(-(-g.outer // self.many)) * self.many, b.program(self.parts)
        return (o, p * self.size, 0), p

    def box(self, n: int) -> tuple[tuple[int, int, int], tuple[int, int], int]:
        """The extent of n elements of the lines, the axes of the tile, and the one that is scanned."""
        if self.columns:
            return (1, n, self.many), (1, 2), 0
        return (self.many, n, 1), (0, 1), 1

    def loaded(self, b: Builder, m: Memory, at: tuple[Size, Size, Size], n: int) -> Tile:
        extent, axes, _ = self.box(n)
        fill = neutral(self.scan.scalar, m.type.dtype.compute)
        masked = tuple(a for a in axes if int(m.type.shape[a]) % extent[a])
        return b.cast(b.load(m, at, extent, axes, masked, fill), self.scan.compute)

    def stored(
        self, b: Builder, m: Memory, value: Tile, at: tuple[Size, Size, Size], n: int
    ) -> None:
        extent, axes, _ = self.box(n)
        masked = tuple(a for a in axes if int(m.type.shape[a]) % extent[a])
        b.store(m, b.cast(value, m.type.dtype), at, extent, axes, masked)

    def totals(self, x: str, totals: str) -> Launch:
        """The fold of each part."""
        b, g, s = Builder(f"{self.scan.name}_totals"), self.given, self.scan
        source = b.parameter("x", g.type)
        kind = TensorType(s.compute, (g.outer, self.parts, g.inner))
        out = b.parameter("totals", kind, writable=True)
        at, p = self.place(b)
        _, _, axis = self.box(self.size)
        self.stored(
            b,
            out,
            _tree(b, s.scalar, self.loaded(b, source, at, self.size), axis),
            (at[0], p, at[2]),
            1,
        )
        return Launch(b.finish(), (x,), (totals,), self.threads)

    def launch(self, inputs: tuple[str, ...], y: str) -> Launch:
        """Scan the parts; the second input has what comes before each of them."""
        return Launch(self.kernel(len(inputs) > 1), inputs, (y,), self.threads)

    def kernel(self, carried: bool) -> Kernel:
        b, g, s = Builder(s_name(self.scan.name, self.exclusive)), self.given, self.scan
        source = b.parameter("x", g.type)
        kind = TensorType(s.compute, (g.outer, self.parts, g.inner))
        before = b.parameter("carries", kind) if carried else None
        out = b.parameter("y", TensorType(self.result, g.type.shape), writable=True)
        at, p = self.place(b)
        _, _, axis = self.box(self.size)
        x = self.loaded(b, source, at, self.size)
        shape = tuple(1 if i == axis else n for i, n in enumerate(x.shape))
        if before is None:
            root = b.full(s.compute, shape, neutral(s.scalar, s.compute))
        else:
            root = self.loaded(b, before, (at[0], p, at[2]), 1)
        if self.exact:
            y = b.apply(s.scalar, b.scan(s.scalar, x, axis), root)
            y = b.apply("sub", y, x) if self.exclusive else y
        else:
            y = exclusive(b, s.scalar, x, axis, root, s.reverse)
            y = y if self.exclusive else _joined(b, s.scalar, y, x)
        self.stored(b, out, y, at, self.size)
        return b.finish()


def s_name(name: str, exclusive: bool) -> str:
    """The name of a kernel."""
    return f"{name}_{'before' if exclusive else 'scan'}"


def exclusive(b: Builder, scalar: str, x: Tile, axis: int, root: Tile, reverse: bool) -> Tile:
    """The folds of all before each element of 2^k along an axis, given what comes before the first."""
    levels = [x]
    while levels[-1].shape[axis] > 1:
        t = levels[-1]
        pairs = _pairs(b, t, axis)
        levels.append(b.reshape(_pair_fold(b, scalar, pairs, axis + 1), _half(t, axis)))
    found = root
    for t in reversed(levels[:-1]):
        pairs = _pairs(b, t, axis)
        first, sibling = _one_of(b, scalar, pairs, axis + 1, int(reverse))
        parent = b.reshape(found, sibling.shape)
        child = b.apply("where", first, parent, _joined(b, scalar, parent, sibling))
        found = b.reshape(child, t.shape)
    return found


def _one_of(b: Builder, scalar: str, pairs: Tile, axis: int, which: int) -> tuple[Tile, Tile]:
    """Which elements of pairs are the first, or the second, and those elements."""
    shape = [1] * len(pairs.shape)
    shape[axis] = 2
    number = b.index(0, tuple(shape), axis)
    one = b.full(number.dtype, (1,) * len(shape), which)
    chosen = b.apply("eq", number, one)
    least = "max" if scalar == _LOG else scalar
    none = b.full(pairs.dtype, (1,) * len(shape), neutral(least, pairs.dtype))
    return chosen, b.fold(least, b.apply("where", chosen, pairs, none), axis)


def _joined(b: Builder, scalar: str, x: Tile, y: Tile) -> Tile:
    """The fold of two."""
    if scalar != _LOG:
        return b.apply(scalar, x, y)
    one = (1,) * len(x.shape)
    apart = b.apply("neg", b.apply("abs", b.apply("sub", x, y)))
    more = b.apply("log1p", b.apply("exp", apart))
    twice = b.apply("add", x, b.full(x.dtype, one, math.log(2)))  # infinities too
    other = b.apply("add", b.apply("max", x, y), more)
    return b.apply("where", b.apply("eq", x, y), twice, other)


def _pair_fold(b: Builder, scalar: str, pairs: Tile, axis: int) -> Tile:
    if scalar != _LOG:
        return b.fold(scalar, pairs, axis)
    (_, left), (_, right) = (_one_of(b, scalar, pairs, axis, i) for i in (0, 1))
    return _joined(b, scalar, left, right)


def _tree(b: Builder, scalar: str, x: Tile, axis: int) -> Tile:
    """The fold of 2^k elements of an axis, which stays."""
    if scalar != _LOG:
        return tree(b, scalar, x, axis)
    while x.shape[axis] > 1:
        x = b.reshape(_pair_fold(b, scalar, _pairs(b, x, axis), axis + 1), _half(x, axis))
    return x


def _half(t: Tile, axis: int) -> tuple[int, ...]:
    return (*t.shape[:axis], t.shape[axis] // 2, *t.shape[axis + 1 :])


def _pairs(b: Builder, t: Tile, axis: int) -> Tile:
    return b.reshape(t, (*t.shape[:axis], t.shape[axis] // 2, 2, *t.shape[axis + 1 :]))


def scan(name: str, step: Primitive, types: Mapping[str, TensorType]) -> Expansion | None:
    """The launches of a running fold; None where there is nothing to fold, or numbers are complex."""
    x, axis = types[step.operands[0]], step.params["axis"]
    if 0 in x.shape or x.dtype.kind not in "fiu" or x.dtype.base is not x.dtype:
        return None
    outer, inner = (math.prod(int(n) for n in s) for s in (x.shape[:axis], x.shape[axis + 1 :]))
    lines = _Lines(outer, int(x.shape[axis]), inner, x.dtype)
    made = _Scan(step.results[0], _SCALARS[name], x.dtype.compute, bool(step.params["reverse"]))
    made.lines(step.operands[0], step.results[0], lines, x.dtype)
    return Expansion(tuple(made.launches), made.between)


_SCALARS = {**FOLDS, "logcumsumexp": _LOG}
SCANS = {name: partial(scan, name) for name in _SCALARS}
