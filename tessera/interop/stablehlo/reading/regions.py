"""Ops whose regions say how to fold, compare, write or repeat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.dtype import bool_, i64
from tessera.interop.jax.rules import RULES as PRIMITIVES
from tessera.interop.stablehlo.reading.shape import numbers, written
from tessera.interop.stablehlo.reading.table import OpFrame, rule
from tessera.interop.stablehlo.tree import HloOp, HloRegion
from tessera.interop.stablehlo.writer import StableHloError
from tessera.ir.graph.ir import Value, concrete
from tessera.lang import control, op
from tessera.ops.control import cond, scan, while_loop
from tessera.ops.gather import scatter_add
from tessera.ops.shape import pad

_LARGEST = 1024  # elements along an axis that a comparison of any form sorts


def kind_of(region: HloRegion) -> str | None:
    """The one op that a region of two scalars applies to them: `add`, `second`; None for all else."""
    if len(region.arguments) != 2 or not region.ops:
        return None
    a, b = region.arguments
    last = region.ops[-1].operands
    if len(region.ops) == 1:
        return "second" if last == (b,) else None
    if len(region.ops) != 2:
        return None
    only = region.ops[0]
    fits = set(only.operands) == {a, b} and len(only.operands) == 2 and last == only.results
    commutes = only.name in _FOLDS
    return only.name.removeprefix("stablehlo.") if fits and commutes else None


# What a fold is called, its op on two operands, and where it starts.
_FOLDS: dict[str, tuple[str, Any, Any]] = {
    "stablehlo.add": ("reduce_sum", op.add, 0), "stablehlo.multiply": ("reduce_prod", op.mul, 1),
    "stablehlo.maximum": ("reduce_max", op.maximum, -math.inf),
    "stablehlo.minimum": ("reduce_min", op.minimum, math.inf),
    "stablehlo.and": ("reduce_and", op.logical_and, True),
    "stablehlo.or": ("reduce_or", op.logical_or, False),
}  # fmt: skip


def _start(name: str, x: Value) -> Any:
    start = _FOLDS[name][2]
    if isinstance(start, float) and x.dtype.kind in "iu":
        held = np.iinfo(np.dtype(x.dtype.np))
        return held.min if start < 0 else held.max
    return start


def _is_start(name: str, init: Value) -> bool:
    return init.storage is not None and bool(np.asarray(init) == _start(name, init))


def _folds(name: str | None, x: Value) -> bool:
    if name not in _FOLDS:
        return False
    return x.dtype is bool_ if name in ("stablehlo.and", "stablehlo.or") else x.dtype is not bool_


def _named(o: HloOp) -> str | None:
    found = o.attributes.get("applies") or kind_of(o.regions[0])
    return found if found is None or "." in found else f"stablehlo.{found}"


@rule("reduce")
def _reduce(frame: OpFrame, o: HloOp, *values: Value) -> Any:
    count = len(values) // 2
    xs, inits = values[:count], values[count:]
    axes = numbers(o, "dimensions")
    name = _named(o)
    if count == 1 and _folds(name, xs[0]):
        assert name is not None
        return _folded(name, xs[0], inits[0], axes)
    if not o.regions:
        raise StableHloError(
            f"stablehlo: line {o.line}: a fold by {name} of {xs[0].dtype} has no rule"
        )
    return _by_region(frame, o, xs, inits, axes)


def _folded(name: str, x: Value, init: Value, axes: Sequence[int]) -> Value:
    primitive, join, _ = _FOLDS[name]
    kept = tuple(n for a, n in enumerate(x.shape) if a not in axes)
    if any(x.shape[a] == 0 for a in axes):
        return op.broadcast_to(init, kept)
    y = PRIMITIVES[primitive]({"axes": tuple(axes)}, x) if axes else x
    return y if _is_start(name, init) else join(y, init)


def _by_region(
    frame: OpFrame, o: HloOp, xs: Sequence[Value], inits: Sequence[Value], axes: Sequence[int]
) -> Any:
    if not axes:
        return list(frame.run(o.regions[0], [*inits, *xs]))

    def join(a: Any, b: Any) -> Any:
        return tuple(frame.run(o.regions[0], [*a, *b]))

    return list(control.reduce(tuple(xs), tuple(inits), join, tuple(axes)))


class _Grid:
    """Windows over an operand: how it is padded and where each window reads, axis by axis."""

    def __init__(self, o: HloOp, rank: int):
        ones = [1] * rank
        self.size = numbers(o, "window_dimensions") or ones
        self.stride = numbers(o, "window_strides") or ones
        self.gap = numbers(o, "window_dilations") or ones
        self.inner = [d - 1 for d in numbers(o, "base_dilations") or ones]
        given = o.attributes.get("padding")
        pads = np.zeros((rank, 2), int) if given is None else np.asarray(given)
        self.pads = np.broadcast_to(pads, (rank, 2)) if pads.size == 1 else pads.reshape(rank, 2)

    def padded(self, x: Value, fill: Value) -> Value:
        low, high = (tuple(map(int, self.pads[:, k])) for k in (0, 1))
        made: Value = pad.bind(x, fill, low=low, high=high, inner=tuple(self.inner))
        return made

    def counts(self, shape: Sequence[int]) -> list[int]:
        each = zip(shape, self.size, self.stride, self.gap, strict=True)
        return [max((n - (s - 1) * g - 1) // k + 1, 0) for n, s, k, g in each]

    def places(self, shape: Sequence[int]) -> Any:
        """Flat positions that each window reads, windows first."""
        rank, counts = len(shape), self.counts(shape)
        total = np.zeros((*counts, *self.size), np.int64)
        for a in range(rank):
            at = (
                np.arange(counts[a])[:, None] * self.stride[a]
                + np.arange(self.size[a]) * self.gap[a]
            )
            wide = [1] * (2 * rank)
            wide[a], wide[rank + a] = counts[a], self.size[a]
            total += at.reshape(wide) * int(np.prod(shape[a + 1 :], dtype=np.int64))
        return total

    def read(self, x: Value) -> Value:
        """(windows..., elements of a window...)."""
        return op.take(op.reshape(x, (-1,)), self.places([int(n) for n in x.shape]), 0)


@rule("reduce_window")
def _reduce_window(frame: OpFrame, o: HloOp, *values: Value) -> Any:
    count = len(values) // 2
    xs, inits = values[:count], values[count:]
    rank = xs[0].ndim
    grid, name = _Grid(o, rank), _named(o)
    quick = {"stablehlo.add": "sum", "stablehlo.maximum": "max", "stablehlo.minimum": "min"}
    if count == 1 and name in quick and _folds(name, xs[0]) and _is_start(str(name), inits[0]):
        p = {
            "window_dimensions": grid.size, "window_strides": grid.stride, "window_dilation": grid.gap,
            "base_dilation": [d + 1 for d in grid.inner], "padding": [tuple(map(int, r)) for r in grid.pads],
        }  # fmt: skip
        return PRIMITIVES[f"reduce_window_{quick[str(name)]}"](p, xs[0])
    wide = [grid.read(grid.padded(x, i)) for x, i in zip(xs, inits, strict=True)]
    axes = list(range(rank, 2 * rank))
    if count == 1 and _folds(name, xs[0]):
        return _folded(str(name), wide[0], inits[0], axes)
    return _by_region(frame, o, wide, inits, axes)


@rule("select_and_scatter")
def _select_and_scatter(frame: OpFrame, o: HloOp, x: Value, source: Value, init: Value) -> Value:
    """Each element of source goes to the first largest element of its window: the slope of a max pool."""
    choose, join = o.regions
    ways = {"GE": -math.inf, "LE": math.inf}
    way = next((w for p in choose.ops for w in _words(p) if w in ways), None)
    if way is None or len(choose.ops) != 2 or kind_of(join) != "add":
        raise StableHloError(
            f"stablehlo: line {o.line}: select_and_scatter takes GE or LE, and sums"
        )
    grid = _Grid(o, x.ndim)
    edge = _start("stablehlo.maximum" if way == "GE" else "stablehlo.minimum", x)
    wide = grid.padded(x, op.full((), edge, x.dtype))
    shape = [int(n) for n in wide.shape]
    places = grid.places(shape).reshape((*source.shape, -1))
    read = op.take(op.reshape(wide, (-1,)), places, 0)
    best = (op.argmax if way == "GE" else op.argmin)(read, -1)
    at = op.squeeze(op.take_along_axis(places, op.expand_dims(best, -1), -1), -1)
    flat = op.zeros((math.prod(shape),), x.dtype)
    total = op.reshape(
        scatter_add.bind(flat, op.reshape(source, (-1,)), op.reshape(at, (-1,)), axes=(0,)),
        shape,
    )
    low = [int(p) for p in grid.pads[:, 0]]
    inside = tuple(slice(a, a + int(n)) for a, n in zip(low, x.shape, strict=True))
    return op.add(op.index(total, inside), init)


def _words(o: HloOp) -> list[str]:
    return [*o.attributes.get("words", []), str(o.attributes.get("comparison_direction", ""))]


_SCATTERS = {
    "second": "scatter", "add": "scatter-add", "multiply": "scatter-mul", "minimum": "scatter-min",
    "maximum": "scatter-max",
}  # fmt: skip


@rule("scatter")
def _scatter(frame: OpFrame, o: HloOp, *values: Value) -> Value:
    kind = kind_of(o.regions[0])
    if len(values) != 3 or kind not in _SCATTERS:
        raise StableHloError(
            f"stablehlo: line {o.line}: scatter sets, adds, multiplies or takes extremes of one tensor"
        )
    return written(frame, o, _SCATTERS[kind], *values)


@rule("map")
def _map(frame: OpFrame, o: HloOp, *xs: Value) -> Any:
    return frame.run(o.regions[0], xs)


# Order


@rule("sort")
def _sort(frame: OpFrame, o: HloOp, *xs: Value) -> Any:
    axis = int(o.attributes.get("dimension", -1)) % xs[0].ndim
    region = o.regions[0]
    key = _key(region, xs)
    if key is not None:
        if len(xs) == 1:
            return op.sort(xs[0], axis)
        order = op.argsort(xs[key], axis)
        return [op.take_along_axis(x, order, axis) for x in xs]
    n = int(xs[0].shape[axis])
    if n > _LARGEST:
        raise StableHloError(
            f"stablehlo: line {o.line}: a comparison of this form sorts at most {_LARGEST} elements, but "
            f"there are {n}; sort by one key"
        )
    ranks = _ranked(frame, region, [op.moveaxis(x, axis, -1) for x in xs], n)
    order = op.moveaxis(ranks, -1, axis)
    return [op.take_along_axis(x, order, axis) for x in xs]


def _ranked(frame: OpFrame, region: HloRegion, xs: Sequence[Value], n: int) -> Value:
    """The order of the last axis by any comparison: each element counts those before it."""
    pairs = [part for x in xs for part in (op.expand_dims(x, -1), op.expand_dims(x, -2))]
    (less,) = frame.run(region, pairs)  # (..., i, j): whether i comes before j
    neither = op.logical_not(op.logical_or(less, op.swapaxes(less, -1, -2)))
    earlier = np.triu(np.ones((n, n), bool), 1)
    before = op.logical_or(less, op.logical_and(neither, earlier))
    return op.argsort(op.sum(op.cast(before, i64), -2), -1)


def _key(region: HloRegion, xs: Sequence[Value]) -> int | None:
    """Which operand a comparison orders by, when it is the plain order of one; None for all else."""
    made = {r: p for p in region.ops for r in p.results}
    last = made.get(region.ops[-1].operands[0]) if region.ops[-1].operands else None
    if last is None or last.name != "stablehlo.compare" or "LT" not in _words(last):
        return None
    sides = [_sources(x, made) for x in last.operands]
    for k, x in enumerate(xs):
        a, b = region.arguments[2 * k : 2 * k + 2]
        if sides == [{a}, {b}]:
            direct = last.operands == (a, b)
            canonical = len(region.ops) > 2 and "TOTALORDER" in _total(last)
            return (
                k
                if (direct and x.dtype.kind != "f") or (canonical and x.dtype.kind == "f")
                else None
            )
    return None


def _total(o: HloOp) -> list[str]:
    return [*o.attributes.get("words", []), str(o.attributes.get("compare_type", ""))]


def _sources(name: str, made: dict[str, HloOp]) -> set[str]:
    """The arguments that a value is computed from, through choices and comparisons alone."""
    o = made.get(name)
    if o is None:
        return {name}
    if o.name not in ("stablehlo.select", "stablehlo.compare", "stablehlo.constant"):
        return {name}
    return {s for x in o.operands for s in _sources(x, made)}


# Control flow


@rule("while")
def _while(frame: OpFrame, o: HloOp, *init: Value) -> Any:
    test, body = o.regions
    count = _steps(frame, test, body, init)
    if count is not None:
        if count == 0:
            return list(init)

        def step(carry: Any, _: Any) -> Any:
            return tuple(frame.run(body, carry)), ()

        last, _ = scan(step, tuple(init), None, length=count)
        return list(last)
    out = while_loop(
        lambda c: frame.run(test, c)[0], lambda c: tuple(frame.run(body, c)), tuple(init)
    )
    return list(out)


def _steps(frame: OpFrame, test: HloRegion, body: HloRegion, init: Sequence[Value]) -> int | None:
    """How often a loop runs that counts up by one to a known number; None for all else."""
    tests = {r: p for p in test.ops for r in p.results}
    ended = tests.get(test.ops[-1].operands[0])
    if ended is None or ended.name != "stablehlo.compare" or "LT" not in _words(ended):
        return None
    counter, limit = ended.operands
    if counter not in test.arguments:
        return None
    k = test.arguments.index(counter)
    bodies = {r: p for p in body.ops for r in p.results}
    moved = bodies.get(body.ops[-1].operands[k])
    if moved is None or moved.name != "stablehlo.add" or body.arguments[k] not in moved.operands:
        return None
    (step,) = [x for x in moved.operands if x != body.arguments[k]] or [body.arguments[k]]
    by = _known(frame, step, bodies, body, init)
    stop = _known(frame, limit, tests, test, init)
    start = _number(init[k])
    if by != 1 or stop is None or start is None:
        return None
    return max(stop - start, 0)


def _known(
    frame: OpFrame, name: str, made: dict[str, HloOp], region: HloRegion, init: Sequence[Value]
) -> int | None:
    if name in made:
        o = made[name]
        value = o.attributes.get("value") if o.name == "stablehlo.constant" else None
        return int(value) if isinstance(value, np.ndarray) and value.size == 1 else None
    if name in region.arguments:
        return None
    return _number(frame.find(name))


def _number(v: Value) -> int | None:
    if v.storage is None or v.ndim or v.dtype.kind not in "iu":
        return None
    return int(np.asarray(v))


@rule("case")
def _case(frame: OpFrame, o: HloOp, index: Value) -> Any:
    """The branch of an index; the last one where the index is outside."""
    branches = o.regions
    if index.storage is not None:
        k = int(np.asarray(index))
        return frame.run(branches[k if 0 <= k < len(branches) else -1], ())

    def from_(k: int) -> Any:
        if k == len(branches) - 1:
            return tuple(frame.run(branches[k], ()))
        return cond(
            op.eq(index, k), lambda: tuple(frame.run(branches[k], ())), lambda: from_(k + 1)
        )

    return list(from_(0))


@rule("if")
def _if(frame: OpFrame, o: HloOp, which: Value) -> Any:
    yes, no = o.regions
    if which.storage is not None:
        return frame.run(yes if bool(np.asarray(which)) else no, ())
    return list(cond(which, lambda: tuple(frame.run(yes, ())), lambda: tuple(frame.run(no, ()))))


@rule("partition_id", "replica_id")
def _alone(frame: OpFrame, o: HloOp) -> Value:
    return concrete(np.zeros((), np.uint32))
