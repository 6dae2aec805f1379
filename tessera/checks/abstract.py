"""Kernels on intervals: every instance is run with bounds in the place of numbers.

Sizes and positions are concrete, so that masks, loops and scratch are followed exactly; only the
elements of the inputs are unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.checks.intervals import (
    INF,
    Array,
    Hull,
    IntervalResult,
    bounds_of,
    compare,
    square,
    test,
)
from tessera.checks.relations import Relations
from tessera.core.approximate import FUNCTIONS
from tessera.core.dims import Size, substitute
from tessera.core.dtype import DType
from tessera.core.evaluate import scalar
from tessera.core.rounding import round_to
from tessera.core.scalar import SCALARS
from tessera.ir.tile.interp import Instance
from tessera.ir.tile.ir import Block, Memory, Operation, Tile

_LARGE = 2.0**53  # from here on f64 does not hold every integer
UNWRITTEN = -1  # in the place of a doubt: an element of a result that nothing was stored to
KINDS = ("overflow", "nan", "zero", "unknown")


@dataclass(frozen=True)
class Doubt:
    """Something that may go wrong at an operation, as far as the bounds tell."""

    kind: str  # of KINDS
    op: Operation
    lo: float
    hi: float


def unit(dtype: DType) -> float:
    """Half the distance of neighbours at 1."""
    return 2.0 ** -(dtype.format.digits or 53)


def smallest(dtype: DType) -> float:
    """The smallest number above 0."""
    return {"f64": 5e-324, "f32": 1.5e-45, "f16": 6e-8, "bf16": 1e-40}.get(dtype.name, 2.0**-16)


def hull(lo: Any, hi: Any, shape: Sequence[int], key: Array, nan: bool = False) -> Hull:
    """The same bounds everywhere, of exact values."""
    shape = tuple(shape)
    return Hull(
        np.full(shape, lo, float), np.full(shape, hi, float), np.zeros(shape),
        np.full(shape, nan), key, np.zeros(shape, np.int64),
    )  # fmt: skip


def limits(dtype: DType) -> tuple[float, float]:
    """The least and the largest number of a dtype."""
    if dtype.kind == "f":
        return -INF, INF
    if dtype.kind == "b":
        return 0.0, 1.0
    signed = dtype.kind == "i"
    return -(2.0 ** (dtype.bits - 1)) * signed, 2.0 ** (dtype.bits - signed) - 1


def _mix(*keys: Array) -> Array:
    """One number for several, different for different ones (splitmix64)."""
    total = np.zeros((), np.uint64)
    for k in keys:
        with np.errstate(over="ignore"):
            z = (total * np.uint64(3) + k.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            total = z ^ (z >> np.uint64(31))
    return np.asarray(total)


def _name(text: str) -> Array:
    return np.asarray(int.from_bytes(text.encode()[:8].ljust(8), "big") ^ hash_of(text), np.uint64)


def hash_of(text: str) -> int:
    """A number for a text, the same in every process."""
    total = 0
    for c in text.encode():
        total = (total * 1099511628211 + c) % (1 << 63)
    return total


class Abstract:
    """One program instance on bounds."""

    def __init__(
        self, variables: dict[str, int], memories: dict[Memory, Hull], fresh: Any, facts: Relations
    ):
        self.variables, self.memories, self.fresh, self.facts = variables, memories, fresh, facts
        self.tiles: dict[Tile, Hull] = {}
        self.steps = 0
        self.doubts: list[Doubt] = []
        self.live: set[int] = set()  # the numbers of doubts that reach a result, from 1 on

    def number(self, x: Size) -> int:
        return int(substitute(x, self.variables))

    def block(self, block: Block, inputs: Sequence[Hull]) -> list[Hull]:
        self.tiles.update(zip(block.arguments, inputs, strict=True))
        for op in block.operations:
            self.steps += 1
            results = getattr(self, f"_{op.name}")(op, *(self.tiles[t] for t in op.operands))
            self.tiles.update(zip(op.results, results, strict=True))
        return [self.tiles[t] for t in block.outputs]

    def doubt(self, kind: str, op: Operation, where: Any, r: Hull) -> None:
        """Note that something may go wrong at some elements."""
        new = np.broadcast_to(where, r.shape) & (r.bad == 0)
        if not new.any():
            return
        number = next(
            (i + 1 for i, d in enumerate(self.doubts) if d.kind == kind and d.op is op), None
        )
        if number is None:
            self.doubts.append(Doubt(kind, op, float(r.lo[new].min()), float(r.hi[new].max())))
            number = len(self.doubts)
        r.bad = np.where(new, number, r.bad)

    # Memory: positions are those of the interpreter, which sees arrays that hold the bounds.

    def _at(self, op: Operation) -> tuple[Any, Array]:
        assert op.memory is not None
        seen = Instance(self.variables, {op.memory: self.memories[op.memory].lo})
        _, index, inside = seen.places(op)
        return index, inside

    def _alloc(self, op: Operation) -> list[Hull]:
        m = op.memory
        assert m is not None
        shape = [self.number(n) for n in m.type.shape]
        self.memories[m] = hull(*limits(m.type.dtype), shape, self.fresh(shape), True)
        return []

    def _for(self, op: Operation, *carried: Hull) -> list[Hull]:
        a, values = op.attributes, list(carried)
        assert op.block is not None
        for i in range(self.number(a["start"]), self.number(a["stop"]), a["step"]):
            self.variables[a["variable"]] = i
            values = self.block(op.block, values)
        return values

    def _load(self, op: Operation) -> list[Hull]:
        assert op.memory is not None
        index, inside = self._at(op)
        m, fill = self.memories[op.memory], float(op.attributes["fill"])
        kept = op.attributes["axes"]
        dropped = tuple(i for i in range(inside.ndim) if i not in kept)

        def read(x: Array, outside: Any) -> Array:
            box = np.where(inside, x[index], outside) if x.size else np.full(inside.shape, outside)
            return np.transpose(np.squeeze(box, dropped), np.argsort(np.argsort(kept)))

        key = _constant(fill)
        parts = zip(m.parts, (fill, fill, 0.0, False, key, 0), strict=True)
        out = Hull(*(read(x, f) for x, f in parts))
        out.bad = np.maximum(out.bad, 0)
        return [out]

    def _store(self, op: Operation, value: Hull) -> list[Hull]:
        assert op.memory is not None
        index, inside = self._at(op)
        where = tuple(np.broadcast_to(i, inside.shape)[inside] for i in index)
        order, m = np.argsort(op.attributes["axes"]), self.memories[op.memory]
        for to, x in zip(m.parts, value.parts, strict=True):
            box = np.transpose(x, order).reshape(inside.shape)
            to[where] = box[inside] if where else box
        if op.memory.space == "global":
            self.live |= set(np.unique(value.bad).tolist()) & set(np.unique(m.bad[where]).tolist())
        return []

    _store_async = _store

    def _wait(self, op: Operation) -> list[Hull]:
        return []

    _barrier = _prefetch = _wait

    def _gather(self, op: Operation, *indices: Hull) -> list[Hull]:
        """Any element of the memory, or what lies outside."""
        assert op.memory is not None
        m, shape = self.memories[op.memory], op.results[0].shape
        fill = float(op.attributes["fill"])
        lo, hi = min(m.lo.min(initial=fill), fill), max(m.hi.max(initial=fill), fill)
        out = hull(lo, hi, shape, self.fresh(shape), bool(m.nan.any()))
        out.err, out.bad = (
            np.full(shape, m.err.max(initial=0.0)),
            np.full(shape, m.bad.max(initial=0)),
        )
        return [out]

    def _scatter(self, op: Operation, value: Hull, *indices: Hull) -> list[Hull]:
        """Any element may have been written."""
        assert op.memory is not None
        m = self.memories[op.memory]
        m.lo, m.hi = np.minimum(m.lo, value.lo.min()), np.maximum(m.hi, value.hi.max())
        m.err, m.nan = np.maximum(m.err, value.err.max()), m.nan | value.nan.any()
        m.key, m.bad = self.fresh(m.lo.shape), np.maximum(m.bad, value.bad.max())
        if op.memory.space == "global":
            self.live |= set(np.unique(value.bad).tolist())
        return []

    # Values

    def _full(self, op: Operation) -> list[Hull]:
        t, value = op.results[0], float(op.attributes["value"])
        if t.dtype.kind in "iu" and abs(value) >= _LARGE:
            return [hull(*limits(t.dtype), t.shape, np.full(t.shape, _constant(value)))]
        return [hull(value, value, t.shape, np.full(t.shape, _constant(value)), math.isnan(value))]

    def _index(self, op: Operation) -> list[Hull]:
        t, axis = op.results[0], op.attributes["axis"]
        base = np.full(t.shape, float(self.number(op.attributes["at"])))
        if axis is not None:
            line = np.arange(t.shape[axis])
            base = base + line.reshape([-1] + [1] * (len(t.shape) - axis - 1))
        return [_exact(base, base, _constant(base))]

    def _apply(self, op: Operation, *xs: Hull) -> list[Hull]:
        return [self.scalar(op, op.attributes["scalar"], xs, op.results[0].dtype)]

    def scalar(self, op: Operation, name: str, xs: Sequence[Hull], dtype: DType) -> Hull:
        """A scalar op on bounds."""
        operand = op.operands[-1].dtype
        if name == "where":
            return self.where(*xs)
        shape = np.broadcast_shapes(*(x.shape for x in xs))
        if name not in SCALARS:  # inline assembly, of which nothing is proved
            free = bounds_of(name, xs)
            key = np.broadcast_to(_mix(_name(name), *(x.key for x in xs)), shape).copy()
            out = Hull(
                free.lo, free.hi, np.full(shape, INF), np.ones(shape, bool), key, _worst(xs, shape)
            )
            self.doubt("unknown", op, True, out)
            return out
        if all(np.all(x.point) for x in xs):
            out = self.known(name, xs, operand, dtype, shape)
            self.judge(op, xs, out)
            self.doubt("nan", op, out.nan, out)
            return out
        key = np.broadcast_to(_mix(_name(name), *(x.key for x in xs)), shape).copy()
        if operand.kind != "f" or dtype.kind != "f":
            return self.whole(name, xs, operand, dtype, key)
        nan = np.zeros(shape, bool)
        for x in xs:
            nan = nan | x.nan
        r = bounds_of(name, xs)
        if name == "mul" and np.any(same := xs[0].key == xs[1].key):
            both = square(xs[0])  # a number times itself is not negative
            r.lo, r.hi = np.where(same, both.lo, r.lo), np.where(same, both.hi, r.hi)
        out = self.rounded(op, name, r, nan, xs, dtype, key)
        self.facts.apply(name, xs, out)
        self.judge(op, xs, out)
        return out

    def known(
        self, name: str, xs: Sequence[Hull], operand: DType, dtype: DType, shape: Sequence[int]
    ) -> Hull:
        """Numbers that are known are computed."""
        values = [round_to(x.lo, operand) if operand.kind != "b" else x.lo != 0 for x in xs]
        y = np.broadcast_to(scalar(name, values, dtype), shape).astype(float)
        err = np.zeros(shape) if dtype.kind != "f" else np.abs(y) * self.ulps(name, dtype)
        if any(np.any(x.err) for x in xs):
            grown = bounds_of(name, xs).err if operand.kind == dtype.kind == "f" else 1.0
            err = err + (INF if grown is None else grown)
        bad = np.isnan(y)
        return Hull(
            np.where(bad, -INF, y), np.where(bad, INF, y), err, bad, _constant(y), _worst(xs, shape)
        )

    def ulps(self, name: str, dtype: DType) -> float:
        """The relative error of a scalar op that is computed once."""
        own = FUNCTIONS.get(name)
        ulp = SCALARS[name].ulp if own is None else max(own.f32, own.f64)
        return 2 * max(ulp, 0.5) * unit(dtype.compute) + (unit(dtype) if dtype.is_narrow else 0)

    def rounded(
        self, op: Operation, name: str, r: IntervalResult, nan: Array, xs: Sequence[Hull], dtype: DType,
        key: Array,
    ) -> Hull:  # fmt: skip
        """The bounds of what is computed, from those of the exact result."""
        shape = key.shape
        own = name in FUNCTIONS or SCALARS[name].ulp > 0.5
        slack = self.ulps(name, dtype) if own else 0.0
        tiny = smallest(dtype) if own and name not in ("exp", "exp2") else 0.0
        lo = r.lo - np.where(np.isfinite(r.lo), np.abs(r.lo), 0) * slack - tiny
        hi = r.hi + np.where(np.isfinite(r.hi), np.abs(r.hi), 0) * slack + tiny
        lo, hi = (_round(np.broadcast_to(x, shape), dtype) for x in (lo, hi))
        size = np.maximum(np.abs(lo), np.abs(hi))
        own_err = 0.0 if r.exact else np.where(np.isfinite(size), size, 0) * self.ulps(name, dtype)
        err = (INF if r.err is None else r.err) + own_err + (0.0 if r.exact else smallest(dtype))
        err = np.broadcast_to(err, shape).copy()
        out = Hull(lo, hi, err, nan | r.nan, key, _worst(xs, shape))
        if r.wild:
            self.doubt("unknown", op, True, out)
            return out
        self.doubt("zero", op, np.asarray(r.zero) & ~nan, out)
        self.doubt("nan", op, np.asarray(r.nan) & ~nan, out)
        return out

    def judge(self, op: Operation, xs: Sequence[Hull], out: Hull) -> None:
        """Whether a result may be infinite although the operands are not."""
        finite = np.ones(out.shape, bool)
        for x in xs:
            finite = finite & np.isfinite(x.size)
        self.doubt("overflow", op, finite & ~np.isfinite(out.size) & ~out.nan, out)

    def whole(
        self, name: str, xs: Sequence[Hull], operand: DType, dtype: DType, key: Array
    ) -> Hull:
        """Integers and bools: comparisons and sums by their bounds, the rest by the dtype."""
        shape = key.shape
        r = compare(name, *xs) if len(xs) == 2 else test(name, xs[0])
        if r is None and operand.kind in "iu" and name in ("add", "sub", "mul", "max", "min"):
            r = bounds_of(name, xs)
        low, high = limits(dtype)
        if r is None or np.any(r.lo < low) or np.any(r.hi > high):
            out = hull(low, high, shape, key)
            out.bad = _worst(xs, shape)
            return out
        lo, hi = (np.broadcast_to(x, shape).astype(float) for x in (r.lo, r.hi))
        vague = np.zeros(shape)  # whether exact operands might have given another answer
        for x in xs:
            vague = np.maximum(vague, x.err > 0)
        return Hull(lo, hi, vague, np.zeros(shape, bool), key, _worst(xs, shape))

    def where(self, c: Hull, a: Hull, b: Hull) -> Hull:
        """The one or the other; both where the condition is open."""
        shape = np.broadcast_shapes(c.shape, a.shape, b.shape)
        yes, no = c.lo >= 1, c.hi <= 0
        apart = np.maximum(a.hi, b.hi) - np.minimum(a.lo, b.lo)
        apart = np.where(np.isnan(apart), INF, apart) * (c.err > 0)
        either = {
            "lo": np.minimum(a.lo, b.lo), "hi": np.maximum(a.hi, b.hi),
            "err": np.maximum(a.err, b.err) + np.where(c.err > 0, apart, 0), "nan": a.nan | b.nan,
            "key": _mix(_name("where"), c.key, a.key, b.key),
            "bad": np.maximum(np.maximum(a.bad, b.bad), c.bad),
        }  # fmt: skip
        parts = [
            np.broadcast_to(np.where(yes, getattr(a, k), np.where(no, getattr(b, k), v)), shape)
            for k, v in either.items()
        ]
        return Hull(*parts)

    def _cast(self, op: Operation, x: Hull) -> list[Hull]:
        dtype, source = op.results[0].dtype, op.operands[0].dtype
        if dtype.kind == "f":
            wider = source.kind == "f" and unit(source) >= unit(dtype) and _fits(source, dtype)
            if wider:
                return [x]
            lo, hi = _round(x.lo, dtype), _round(x.hi, dtype)
            over = np.isnan(lo) | np.isnan(hi)  # of a format that has no infinity
            lo, hi = np.where(np.isnan(lo), -INF, lo), np.where(np.isnan(hi), INF, hi)
            err = x.err + np.where(np.isfinite(x.size), x.size, 0) * unit(dtype) + smallest(dtype)
            out = Hull(lo, hi, err, x.nan | over, _mix(_name(f"cast {dtype}"), x.key), x.bad)
            self.doubt("overflow", op, np.isfinite(x.size) & ~np.isfinite(out.size), out)
            return [out]
        low, high = limits(dtype)
        key = _mix(_name(f"cast {dtype}"), x.key)
        if dtype.kind == "b":
            lo, hi = (~x.has(0)).astype(float), 1.0 - (x.point & (x.lo == 0))
        elif source.kind == "f":
            lo, hi = np.clip(np.trunc(x.lo), low, high), np.clip(np.trunc(x.hi), low, high)
            lo, hi = np.where(x.nan, np.minimum(lo, 0), lo), np.where(x.nan, np.maximum(hi, 0), hi)
        else:
            wraps = (x.lo < low) | (x.hi > high)
            lo, hi = np.where(wraps, low, x.lo), np.where(wraps, high, x.hi)
        return [Hull(lo, hi, (x.err > 0) * 1.0, np.zeros(x.shape, bool), key, x.bad)]

    def _fold(self, op: Operation, x: Hull) -> list[Hull]:
        name, axis, dtype = op.attributes["scalar"], op.attributes["axis"], op.results[0].dtype
        x = x.map(lambda v: np.moveaxis(v, axis, 0))
        while len(x.lo) > 1:
            n = len(x.lo)
            half = 1 << (n - 1).bit_length() - 1
            low = self.scalar(op, name, (_cut(x, 0, n - half), _cut(x, half, n)), dtype)
            x = _stack([low, _cut(x, n - half, half)])
        return [x.map(lambda v: np.moveaxis(v, 0, axis))]

    def _scan(self, op: Operation, x: Hull) -> list[Hull]:
        name, axis, dtype = op.attributes["scalar"], op.attributes["axis"], op.results[0].dtype
        x = x.map(lambda v: np.moveaxis(v, axis, 0))
        rows = [_cut(x, 0, 1)]
        for i in range(1, len(x.lo)):
            rows.append(self.scalar(op, name, (rows[-1], _cut(x, i, i + 1)), dtype))
        return [_stack(rows).map(lambda v: np.moveaxis(v, 0, axis))]

    def _dot(self, op: Operation, a: Hull, b: Hull, acc: Hull) -> list[Hull]:
        dtype, steps = op.results[0].dtype, a.shape[1]
        for k in range(steps):
            x, y = _column(a, k), _cut(b, k, k + 1)
            if dtype.kind == "f":
                acc = self.scalar(op, "fma", (x, y, acc), dtype)
            else:
                product = self.scalar(op, "mul", (x, y), dtype)
                acc = self.scalar(op, "add", (acc, product), dtype)
        return [acc]

    def _dot_parts(self, op: Operation, x: Hull, y: Hull, acc: Hull) -> list[Hull]:
        t = op.results[0]
        return [hull(*limits(t.dtype), t.shape, self.fresh(t.shape))]

    def _words(self, op: Operation, x: Hull) -> list[Hull]:
        t = op.results[0]
        return [hull(*limits(t.dtype), t.shape, self.fresh(t.shape))]

    def _dot_words(self, op: Operation, x: Hull, y: Hull, acc: Hull) -> list[Hull]:
        return self._dot_parts(op, x, y, acc)

    def _reshape(self, op: Operation, x: Hull) -> list[Hull]:
        return [x.map(lambda v: v.reshape(op.results[0].shape))]

    def _broadcast(self, op: Operation, x: Hull) -> list[Hull]:
        return [x.map(lambda v: np.broadcast_to(v, op.results[0].shape))]

    def _transpose(self, op: Operation, x: Hull) -> list[Hull]:
        return [x.map(lambda v: v.T)]


def _constant(value: Any) -> Array:
    """The key of a number."""
    bits = np.asarray(value, float)
    return _mix(_name("constant"), np.ascontiguousarray(bits).view(np.uint64).reshape(bits.shape))


def _round(x: Array, dtype: DType) -> Array:
    """Bounds as numbers of a dtype; rounding keeps their order."""
    with np.errstate(all="ignore"):
        wide = x.astype(dtype.compute.np)
        return np.asarray(round_to(wide, dtype)).astype(float)


def _fits(narrow: DType, wide: DType) -> bool:
    return narrow.bits <= wide.bits and not (narrow.name == "bf16" and wide.name == "f16")


def _cut(x: Hull, start: int, stop: int) -> Hull:
    return x.map(lambda v: v[start:stop])


def _column(x: Hull, k: int) -> Hull:
    return x.map(lambda v: v[:, k : k + 1])


def _stack(xs: Sequence[Hull]) -> Hull:
    return Hull(*(np.concatenate(p) for p in zip(*(x.parts for x in xs), strict=True)))


def _exact(lo: Array, hi: Array, key: Array) -> Hull:
    zero = np.zeros(lo.shape)
    return Hull(lo, hi, zero, zero != 0, key, np.zeros(lo.shape, np.int64))


def _worst(xs: Sequence[Hull], shape: Sequence[int]) -> Array:
    """The doubt that an element has from its operands."""
    out = np.zeros(tuple(shape), np.int64)
    for x in xs:
        out = np.maximum(out, x.bad)
    return out
