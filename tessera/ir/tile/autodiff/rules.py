"""The cotangents of the operands of each Tile operation, from that of its result: one rule each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tessera.core.dims import Size
from tessera.core.dtype import i64
from tessera.core.errors import RuleError
from tessera.ir.tile.autodiff.padding import Ends
from tessera.ir.tile.ir import Builder, Memory, Operation, Tile

# (builder, scalar op, operands, result, cotangent, which are wanted) -> cotangents of the operands
Slopes = Callable[[Builder, str, Sequence[Tile], Tile, Tile, Sequence[bool]], Sequence[Tile | None]]


class Reverse(Protocol):
    """What a rule sees of the kernel being reversed."""

    b: Builder
    slopes: Slopes
    tiles: dict[Tile, Tile]  # of the kernel, and what they are in the reversed one
    ends: dict[Tile, Ends]
    moving: set[Tile]  # tiles that depend on what is differentiated
    zeroed: set[Tile]  # tiles of the reversed kernel that hold 0 past the end

    def add(self, t: Tile, ct: Tile) -> None:
        """Add to the cotangent of a tile of the kernel."""

    def index(self, x: Size, shape: Sequence[int], axis: int | None = None) -> Tile:
        """A position, and those after it along an axis, in the reversed kernel."""


def inside(r: Reverse, x: Tile, ends: Ends, axes: Sequence[int]) -> Tile:
    """A tile that is 0 past the end of these axes."""
    b = r.b
    for i in axes:
        end = ends[i] if ends else None
        if end is None or x.shape[i] == 1 or x in r.zeroed:
            continue
        shape = [x.shape[i] if k == i else 1 for k in range(len(x.shape))]
        at = r.index(end.start, shape, i)
        if end.by is not None:
            by = r.tiles[end.by]
            at = b.apply("add", at, b.reshape(by, (1,) * len(shape)) if by.shape else by)
        holds = b.apply("lt", at, r.index(end.size, ()))
        x = b.apply("where", holds, x, b.full(x.dtype, (), 0))
    return x


def summed(r: Reverse, ct: Tile, ends: Ends, shape: Sequence[int]) -> Tile:
    """A cotangent added up along the axes that a tile of this shape was repeated along."""
    if ct.shape == tuple(shape):
        return ct
    every = range(len(ct.shape))
    repeated = [i for i in every if not shape or (shape[i] == 1 and ct.shape[i] != 1)]
    ct = inside(r, ct, ends, repeated)
    for i in repeated:
        ct = r.b.fold("add", ct, i)
    return r.b.reshape(ct, shape)


def _apply(r: Reverse, op: Operation, ct: Tile) -> None:
    scalar, y = op.attributes["scalar"], op.results[0]
    wanted = [t in r.moving for t in op.operands]
    xs = [r.tiles[t] for t in op.operands]
    for t, c in zip(op.operands, r.slopes(r.b, scalar, xs, r.tiles[y], ct, wanted), strict=True):
        if c is not None and t in r.moving:
            whole = r.b.broadcast(c, y.shape) if c.shape != y.shape else c
            r.add(t, summed(r, whole, r.ends[y], t.shape))


def _cast(r: Reverse, op: Operation, ct: Tile) -> None:
    r.add(op.operands[0], r.b.cast(ct, op.operands[0].dtype))


def _fold(r: Reverse, op: Operation, ct: Tile) -> None:
    b, x, axis = r.b, op.operands[0], op.attributes["axis"]
    scalar, of, y = op.attributes["scalar"], r.tiles[x], r.tiles[op.results[0]]
    if scalar == "add":
        r.add(x, b.broadcast(ct, x.shape))
    elif scalar in ("max", "min"):  # the winners share alike
        wins = b.cast(b.apply("eq", of, y), x.dtype)
        share = b.apply("div", ct, b.fold("add", wins, axis))
        r.add(x, b.apply("mul", wins, share))
    elif scalar == "logaddexp":
        r.add(x, b.apply("mul", ct, b.apply("exp", b.apply("sub", of, y))))
    elif scalar == "mul":
        r.add(x, b.apply("mul", ct, others(b, of, axis)))
    else:
        raise no_rule(op, f"a fold by {scalar}")


def others(b: Builder, x: Tile, axis: int) -> Tile:
    """For each element the product of the others, so that zeros do no harm."""
    before = _moved(b, b.scan("mul", x, axis), axis, up=True, by=-1, fill=1)
    turned = b.scan("mul", _moved(b, x, axis, up=False, by=-1), axis)
    after = _moved(b, turned, axis, up=False, by=-2, fill=1)
    return b.apply("mul", before, after)


def _scan(r: Reverse, op: Operation, ct: Tile) -> None:
    """Of y[i] = f(y[i - 1], x[i]), from the last to the first; a sum is the sum of what follows."""
    b, axis, y = r.b, op.attributes["axis"], op.results[0]
    ct = inside(r, ct, r.ends[y], (axis,))
    if op.attributes["scalar"] == "add":
        turned = b.scan("add", _moved(b, ct, axis, up=False, by=-1), axis)
        r.add(op.operands[0], _moved(b, turned, axis, up=False, by=-1))
        return
    x, of = op.operands[0], r.tiles[op.operands[0]]
    last, shape = x.shape[axis] - 1, tuple(1 if i == axis else n for i, n in enumerate(x.shape))
    made, given, terms = (kept(b, t) for t in (r.tiles[y], ct, of))
    out = b.alloc(x.dtype, x.shape)

    def at(i: Size) -> tuple[tuple[Size, ...], tuple[int, ...]]:
        return tuple(i if k == axis else 0 for k in range(len(shape))), shape

    with b.loop(0, last, 1, [b.full(x.dtype, shape, 0)]) as loop:
        i = last - loop.variable
        total = b.apply("add", loop.carried[0], b.load(given, *at(i)))
        before, own, here = b.load(made, *at(i - 1)), b.load(terms, *at(i)), b.load(made, *at(i))
        slopes = r.slopes(b, op.attributes["scalar"], (before, own), here, total, (True, True))
        back, mine = (b.full(x.dtype, shape, 0) if c is None else c for c in slopes)
        b.store(out, b.broadcast(mine, shape), *at(i))
        loop.carry(b.broadcast(back, shape))
    b.store(out, b.apply("add", loop.results[0], b.load(given, *at(0))), *at(0))
    r.add(x, b.load(out, (0,) * len(shape), x.shape))


def kept(b: Builder, t: Tile) -> Memory:
    """Scratch that holds a tile."""
    m = b.alloc(t.dtype, t.shape)
    b.store(m, t, (0,) * len(t.shape), t.shape)
    return m


def _moved(b: Builder, x: Tile, axis: int, up: bool, by: int, fill: int = 0) -> Tile:
    """x[i + by], or x[n - i + by] from the last to the first; `fill` where there is no such element."""
    s, n, rank = kept(b, x), x.shape[axis], len(x.shape)
    zeros = (0,) * rank
    own = b.index(0, [n if i == axis else 1 for i in range(rank)], axis)
    start = b.full(i64, (), by if up else n + by)
    place = b.apply("add" if up else "sub", start, own)
    extent = [1 if i == axis else k for i, k in enumerate(x.shape)]
    return b.gather(s, {axis: place}, zeros, extent, tuple(range(rank)), (axis,), fill)


def _dot(r: Reverse, op: Operation, ct: Tile) -> None:
    x, y, acc = op.operands
    if acc in r.moving:
        r.add(acc, ct)
    (_, columns), wide, b = r.ends[op.results[0]], acc.dtype, r.b
    if x in r.moving:
        ends = (r.ends[y][0], columns)
        other = inside(r, b.cast(r.tiles[y], wide), ends, (1,))
        r.add(x, _product(r, inside(r, ct, ends, (1,)), b.transpose(other), x))
    if y in r.moving:
        ends = (r.ends[op.results[0]][0], None)
        other = inside(r, b.cast(r.tiles[x], wide), ends, (0,))
        r.add(y, _product(r, b.transpose(other), inside(r, ct, ends, (0,)), y))


def _product(r: Reverse, a: Tile, c: Tile, like: Tile) -> Tile:
    start = r.b.full(a.dtype, like.shape, 0)
    return r.b.cast(r.b.dot(a, c, start), like.dtype)


def _reshape(r: Reverse, op: Operation, ct: Tile) -> None:
    r.add(op.operands[0], r.b.reshape(ct, op.operands[0].shape))


def _broadcast(r: Reverse, op: Operation, ct: Tile) -> None:
    r.add(op.operands[0], summed(r, ct, r.ends[op.results[0]], op.operands[0].shape))


def _transpose(r: Reverse, op: Operation, ct: Tile) -> None:
    r.add(op.operands[0], r.b.transpose(ct))


RULES: dict[str, Callable[[Reverse, Operation, Tile], None]] = {
    "apply": _apply, "cast": _cast, "fold": _fold, "scan": _scan, "dot": _dot, "reshape": _reshape,
    "broadcast": _broadcast, "transpose": _transpose,
}  # fmt: skip


def no_rule(op: Operation | None, what: str) -> RuleError:
    """The error of what has no derivative."""
    return RuleError(
        f"grad: {what} has no derivative in a kernel; give the kernel one with ts.custom_vjp"
    ).at(None if op is None else op.location)
