"""The tangent of the result of each Tile operation, from those of its operands: one rule each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tessera.core.dims import Size
from tessera.core.errors import RuleError
from tessera.ir.tile.autodiff.rules import kept, others
from tessera.ir.tile.ir import Builder, Operation, Tile

# (builder, scalar op, operands, result, tangents of the operands or None) -> tangent of the result
Pushes = Callable[[Builder, str, Sequence[Tile], Tile, Sequence[Tile | None]], Tile]


class Push(Protocol):
    """What a rule sees of the kernel being pushed forward."""

    b: Builder
    pushes: Pushes
    tiles: dict[Tile, Tile]  # of the kernel, and what they are in the new one
    ts: dict[Tile, Tile]  # tangents, by tiles of the kernel

    def tangent(self, t: Tile) -> Tile:
        """The tangent of a tile; 0 where it does not move."""


def _apply(p: Push, op: Operation) -> Tile:
    b, scalar, y = p.b, op.attributes["scalar"], op.results[0]
    xs, ts = [p.tiles[t] for t in op.operands], [p.ts.get(t) for t in op.operands]
    if scalar == "where":  # what is not chosen must not be multiplied, either
        sides = [b.full(y.dtype, (), 0) if t is None else t for t in ts[1:]]
        made = b.apply("where", xs[0], *sides)
    else:
        made = p.pushes(b, scalar, xs, p.tiles[y], ts)
    return b.broadcast(b.cast(made, y.dtype), y.shape)


def _fold(p: Push, op: Operation) -> Tile:
    b, x, axis = p.b, op.operands[0], op.attributes["axis"]
    scalar, of, y, t = op.attributes["scalar"], p.tiles[x], p.tiles[op.results[0]], p.tangent(x)
    if scalar == "add":
        return b.fold("add", t, axis)
    if scalar in ("max", "min"):  # the winners share alike
        wins = b.apply("eq", of, y)
        total = b.fold("add", b.apply("where", wins, t, b.full(x.dtype, (), 0)), axis)
        return b.apply("div", total, b.fold("add", b.cast(wins, x.dtype), axis))
    if scalar == "logaddexp":
        share = b.apply("exp", b.apply("sub", of, y))
        return b.fold("add", b.apply("mul", t, share), axis)
    if scalar == "mul":
        return b.fold("add", b.apply("mul", t, others(b, of, axis)), axis)
    raise no_push(op, f"a fold by {scalar}")


def _scan(p: Push, op: Operation) -> Tile:
    """Of y[i] = f(y[i - 1], x[i]), from the first to the last."""
    b, axis, x, y = p.b, op.attributes["axis"], op.operands[0], op.results[0]
    scalar, t = op.attributes["scalar"], p.tangent(x)
    if scalar == "add":
        return b.scan("add", t, axis)
    shape = tuple(1 if i == axis else n for i, n in enumerate(x.shape))
    made, terms, given = (kept(b, v) for v in (p.tiles[y], p.tiles[x], t))
    out = b.alloc(x.dtype, x.shape)

    def at(i: Size) -> tuple[tuple[Size, ...], tuple[int, ...]]:
        return tuple(i if k == axis else 0 for k in range(len(shape))), shape

    first = b.load(given, *at(0))
    b.store(out, first, *at(0))
    with b.loop(1, x.shape[axis], 1, [first]) as loop:
        i = loop.variable
        xs = b.load(made, *at(i - 1)), b.load(terms, *at(i))
        ts = loop.carried[0], b.load(given, *at(i))
        new = b.broadcast(p.pushes(b, scalar, xs, b.load(made, *at(i)), ts), shape)
        b.store(out, new, *at(i))
        loop.carry(new)
    return b.load(out, (0,) * len(shape), x.shape)


def _dot(p: Push, op: Operation) -> Tile:
    x, y, acc = op.operands
    total = p.tangent(acc)
    if x in p.ts:
        total = p.b.dot(p.ts[x], p.tiles[y], total)
    if y in p.ts:
        total = p.b.dot(p.tiles[x], p.ts[y], total)
    return total


PUSH_RULES: dict[str, Callable[[Push, Operation], Tile]] = {
    "apply": _apply,
    "cast": lambda p, op: p.b.cast(p.tangent(op.operands[0]), op.results[0].dtype),
    "fold": _fold,
    "scan": _scan,
    "dot": _dot,
    "reshape": lambda p, op: p.b.reshape(p.tangent(op.operands[0]), op.results[0].shape),
    "broadcast": lambda p, op: p.b.broadcast(p.tangent(op.operands[0]), op.results[0].shape),
    "transpose": lambda p, op: p.b.transpose(p.tangent(op.operands[0])),
}


def no_push(op: Operation, what: str) -> RuleError:
    """The error of what has no derivative."""
    return RuleError(
        f"jvp: {what} has no derivative in a kernel; give the kernel one with ts.custom_jvp"
    ).at(op.location)
