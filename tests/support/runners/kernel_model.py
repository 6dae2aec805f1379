"""A second meaning of the kernel language, in plain NumPy: the oracle of random kernels.

The Python of a kernel runs once for every instance, on tiles that know the places of their elements.  It
shares no code with tessera: what it says about masks, places, gathers and results is read from
docs/kernels.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Place = tuple[int, int] | None  # size of the axis, and where the tile starts


@dataclass(frozen=True)
class Span:
    """Elements of an axis."""

    size: int
    start: int
    length: int
    until: int | None = None  # where it ends before its axis does


class Block(int):
    """A block size that names an axis of the grid."""

    role: str


class Tile:
    """Numbers, and where along each axis they belong."""

    def __init__(self, data: Any, places: Sequence[Place] | None = None):
        self.data = np.asarray(data)
        self.places: tuple[Place, ...] = (
            (None,) * self.data.ndim if places is None else tuple(places)
        )
        assert len(self.places) == self.data.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def T(self) -> Tile:
        return Tile(self.data.T, self.places[::-1])

    def __bool__(self) -> bool:
        return bool(self.data.item())

    def __index__(self) -> int:
        return int(self.data.item())

    def __getitem__(self, key: Any) -> Tile:
        left = zip(self.places, self.shape, strict=True)
        places: list[Place] = []
        for k in key if isinstance(key, tuple) else (key,):
            if k is None:
                places.append(None)
                continue
            place, n = next(left)
            if isinstance(k, slice):
                start, stop, _ = k.indices(n)
                part = None if place is None or place == (n, 0) else (place[0], place[1] + start)
                places.append(place if stop - start == n else part)
        return Tile(self.data[key], [*places, *(p for p, _ in left)])

    def valid(self, axis: int) -> Any:
        """Which elements along an axis lie on it."""
        n, place = self.shape[axis], self.places[axis]
        if place is None:
            return np.ones(n, bool)
        at = place[1] + np.arange(n)
        return (at >= 0) & (at < place[0])

    def masked(self, axis: int, value: Any) -> Any:
        """The numbers, with a value where they lie outside of an axis."""
        shape = [1] * self.data.ndim
        shape[axis] = -1
        ok = np.broadcast_to(self.valid(axis).reshape(shape), self.shape)
        return np.where(ok, self.data, np.asarray(value, self.data.dtype))


def _number(x: Any) -> Any:
    return x.data if isinstance(x, Tile) else x


def _meet(tiles: Sequence[Tile], rank: int) -> list[Place]:
    found: list[Place] = [None] * rank
    for i in range(rank):
        own = [(t.shape[i - rank], t.places[i - rank]) for t in tiles if t.data.ndim >= rank - i]
        wide = [p for n, p in own if n != 1] or [p for _, p in own]
        known = [p for p in wide if p is not None]
        assert len(set(known)) < 2, "places differ"
        found[i] = known[0] if known else None
    return found


def apply(f: Callable[..., Any], *xs: Any) -> Any:
    """A function of elements."""
    tiles = [x for x in xs if isinstance(x, Tile)]
    if not tiles:
        return f(*xs)
    with np.errstate(all="ignore"):
        out = np.asarray(f(*map(_number, xs)))
    kinds = {t.data.dtype for t in tiles}
    own = kinds.pop()
    if (
        not kinds and _is_float(out.dtype) and _is_float(own)
    ):  # numbers beside tiles take their dtype
        out = out.astype(own)
    return Tile(out, _meet(tiles, out.ndim))


def _method(name: str, f: Callable[..., Any]) -> None:
    setattr(Tile, f"__{name}__", lambda self, *o: apply(f, self, *o))
    setattr(Tile, f"__r{name}__", lambda self, o: apply(lambda a, b: f(b, a), self, o))


for _name, _f in (
    ("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("truediv", np.divide),
    ("lt", np.less), ("le", np.less_equal), ("gt", np.greater), ("ge", np.greater_equal),
    ("eq", np.equal), ("ne", np.not_equal), ("neg", np.negative), ("and", np.logical_and),
    ("or", np.logical_or), ("mod", np.mod), ("floordiv", np.floor_divide),
):  # fmt: skip
    _method(_name, _f)


class Array:
    """A tensor that a kernel is called with."""

    def __init__(self, data: Any):
        self.data = data

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    @property
    def dtype(self) -> Any:
        return self.data.dtype

    def __getitem__(self, key: Any) -> Tile:
        listed = key if isinstance(key, tuple) else (key,)
        tiles = [k for k in listed if isinstance(k, Tile)]
        index = np.broadcast_arrays(*(np.asarray(_number(k)) for k in listed))
        inside = np.ones(index[0].shape, bool)
        for i, n in zip(index, self.shape, strict=True):
            inside &= (i >= 0) & (i < n)
        safe = tuple(np.where(inside, i, 0) for i in index)
        found = self.data[safe] if self.data.size else np.zeros(inside.shape, self.data.dtype)
        out = np.where(inside, found, np.zeros_like(found)).astype(self.data.dtype)
        return Tile(out, _meet(tiles, out.ndim) if tiles else None)


_FOLDS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "sum": (np.sum, lambda d: 0), "prod": (np.prod, lambda d: 1),
    "max": (np.max, lambda d: -math.inf if _is_float(d) else _limit(d).min),
    "min": (np.min, lambda d: math.inf if _is_float(d) else _limit(d).max),
    "any": (np.any, lambda d: False), "all": (np.all, lambda d: True),
}  # fmt: skip


def _is_float(d: Any) -> bool:
    """Whether a dtype is of floats; bfloat16 is one of another package."""
    return d.kind == "f" or d.name == "bfloat16"


def _kind(dtype: Any) -> Any:
    return np.dtype(getattr(dtype, "np", dtype))


def _limit(d: Any) -> Any:
    return np.iinfo(d)


class Model:
    """`tile` for one instance."""

    def __init__(
        self, blocks: dict[str, int], point: dict[str, int], first: Array, made: dict[int, Array]
    ):
        self.blocks, self.point, self.first, self.made = blocks, point, first, made
        self.grid: dict[str, int] = {}
        self.roles: dict[str, tuple[int, int]] = {}
        self.count = 0  # tensors that this instance was given

    # The grid

    def context(self) -> Any:
        made = type("T", (), {})()
        for role, n in self.blocks.items():
            b = Block(n)
            b.role = role
            setattr(made, role, b)
        return made

    def _role(self, role: str, size: int) -> Span:
        n = self.blocks[role]
        self.roles[role] = (size, n)
        self.grid[f"_{role}"] = -(-size // n)
        return Span(size, self.point.get(f"_{role}", 0) * n, n)

    def program(self, count: int) -> int:
        name = f"_q{sum(k.startswith('_q') for k in self.grid)}"
        self.grid[name] = count
        return self.point.get(name, 0)

    def program_of(self, role: str) -> int:
        return self.point.get(f"_{role}", 0)

    def per_block(self, x: Any) -> Tile:
        t = x if isinstance(x, Tile) else Tile(x)
        order = [n for n in ("_m", "_n") if n in self.grid]
        order += [n for n in self.grid if n not in order]
        place, total = 0, 1
        for n in order:
            place = place * self.grid[n] + self.point.get(n, 0)
            total *= self.grid[n]
        return Tile(t.data[None], [(total, place), *t.places])

    # Memory

    def _along(self, size: int, place: Any, default: str | None) -> Any:
        if isinstance(place, Span | Tile):
            return place
        if isinstance(place, Block):
            return self._role(place.role, size)
        if place is None and default is not None:
            return self._role(default, size)
        return Span(size, 0, size if place is None else int(place))

    def _places(self, x: Array, rows: Any, cols: Any, at: Any, shape: Any) -> list[Any]:
        if at is not None or shape is not None:
            starts = (0,) * len(x.shape) if at is None else tuple(map(int, at))
            lengths = (1,) * len(x.shape) if shape is None else shape
            return [Span(n, s, k) for n, s, k in zip(x.shape, starts, lengths, strict=True)]
        if len(x.shape) == 1:
            place = rows if cols is None else cols
            return [self._along(x.shape[0], place, "m" if place is None else None)]
        own = "m" if rows is None else None
        return [self._along(x.shape[0], rows, own), self._along(x.shape[1], cols, None)]

    def load(
        self, x: Array, rows: Any = None, cols: Any = None, *, at: Any = None, shape: Any = None,
        mask: Any = None, fill: Any = 0, unchecked: bool = False, **hints: Any,
    ) -> Tile:  # fmt: skip
        places = self._places(x, rows, cols, at, shape)
        index, marks = self._index(places)
        inside = np.ones(np.broadcast_shapes(*(i.shape for i in index)), bool)
        safe = []
        for i, n in zip(index, x.shape, strict=True):
            inside = inside & (i >= 0) & (i < n)
            safe.append(np.clip(i, 0, max(n - 1, 0)))
        empty = np.asarray(fill).astype(x.data.dtype)
        whole = np.full(inside.shape, empty)
        found = np.where(inside, x.data[tuple(safe)], empty) if x.data.size else whole
        t = Tile(found.astype(x.data.dtype), marks)
        return t if mask is None else self.where(mask, t, Tile(empty))

    def _index(self, places: Sequence[Any]) -> tuple[list[Any], list[Place]]:
        """An index of NumPy for each axis, and the places of the tile: rows before columns."""
        lines = [
            (p.data.astype(np.int64), p.places)
            if isinstance(p, Tile)
            else (p.start + np.arange(p.length), ((p.until or p.size, p.start),))
            for p in places
        ]
        if len(lines) == 1:
            return [lines[0][0]], list(lines[0][1])
        (rows, a), (cols, b) = lines
        both = all(isinstance(p, Tile) for p in places)
        if both and max(rows.ndim, cols.ndim) > 1:
            return [rows, cols], _meet(
                [Tile(rows, a), Tile(cols, b)],
                np.broadcast_shapes(rows.shape, cols.shape).__len__(),
            )
        return [rows.reshape(rows.shape + (1,) * cols.ndim), cols], [*a, *b]

    def store(
        self, x: Array, value: Any, rows: Any = None, cols: Any = None, *, at: Any = None,
        shape: Any = None, mask: Any = None, distinct: bool = False,
    ) -> None:  # fmt: skip
        t = value if isinstance(value, Tile) else Tile(value)
        if at is not None and any(isinstance(i, Tile) and i.data.ndim for i in at):
            self._each(x, t, at, mask, lambda old, new: new)
            return
        if at is not None:
            t = Tile(t.data.reshape((1,) * (len(x.shape) - t.data.ndim) + t.shape))
        if at is None and rows is None and cols is None:
            spans: list[Any] = [
                Span(n, 0 if p is None else p[1], k)
                for n, k, p in zip(x.shape, t.shape, t.places, strict=True)
            ]
        else:
            spans = self._places(x, rows, cols, at, t.shape if at is not None else shape)
        sizes = tuple(s.length for s in spans)
        data = np.broadcast_to(t.data, sizes)
        ok = np.broadcast_to(True if mask is None else _number(mask), sizes)
        for here in np.ndindex(sizes):
            there = tuple(s.start + i for s, i in zip(spans, here, strict=True))
            if ok[here] and all(0 <= i < n for i, n in zip(there, x.shape, strict=True)):
                x.data[there] = data[here]

    def accumulate(
        self, x: Array, value: Any, *, at: Sequence[Any], mask: Any = None, how: str = "add"
    ) -> None:
        f = {"add": np.add, "max": np.maximum, "min": np.minimum}[how]
        self._each(x, value, at, mask, lambda old, new: f(old, new))

    def _each(
        self, x: Array, value: Any, at: Sequence[Any], mask: Any, f: Callable[[Any, Any], Any]
    ) -> None:
        """One element after the other; those of indices past an edge are none."""
        (index,) = at
        t, i = _tile(value), _tile(index)
        data, there = np.broadcast_arrays(t.data.astype(x.data.dtype), i.data)
        ok = np.broadcast_to(True if mask is None else _number(mask), data.shape).copy()
        for y in (t, i):
            for axis in range(y.data.ndim):
                shape = [1] * y.data.ndim
                shape[axis] = -1
                ok &= y.valid(axis).reshape(shape)
        for here in np.ndindex(data.shape):
            if ok[here] and 0 <= there[here] < len(x.data):
                x.data[there[here]] = f(x.data[there[here]], data[here])

    def empty(self, shape: Sequence[int], dtype: Any = np.float32) -> Array:
        self.count += 1
        return self.made.setdefault(self.count, Array(np.zeros(tuple(shape), _kind(dtype))))

    # Making tiles

    def zeros(self, shape: Any, dtype: Any = np.float32) -> Tile:
        return Tile(np.zeros(shape, _kind(dtype)))

    def full(self, shape: Any, value: Any, dtype: Any = None) -> Tile:
        default = np.int64 if isinstance(value, int) else np.float32
        return Tile(np.full(shape, value, default if dtype is None else _kind(dtype)))

    def arange(self, n: int) -> Tile:
        return Tile(np.arange(n))

    def row_index(self) -> Tile:
        size, n = self.roles["m"]
        start = self.point.get("_m", 0) * n
        return Tile(start + np.arange(n)[:, None], [(size, start), None])

    def col_index(self, span: Any = None) -> Tile:
        if span is None:
            size, n = self.roles["n"]
            span = Span(size, self.point.get("_n", 0) * n, n)
        return Tile(span.start + np.arange(span.length)[None], [None, (span.size, span.start)])

    def range(self, *bounds: Any, **_: Any) -> Any:
        return range(*map(int, bounds))

    def _blocks(self, size: int, block: int) -> list[Span]:
        return [Span(size, i, int(block)) for i in range(0, size, int(block))]

    def range_k(self, shape: Sequence[int], block: int, **_: Any) -> list[Span]:
        return self._blocks(shape[-1], block)

    def range_n(
        self, shape: Sequence[int], block: int, start: Any = 0, stop: Any = None, **_: Any
    ) -> list[Span]:
        if stop is None:
            return self._blocks(shape[0], block)
        size, first, end = shape[0], int(start), min(int(stop), shape[0])
        places = range(first, end, int(block))
        return [Span(size, i, int(block), end) for i in places]

    def span(self, size: int, start: int, length: int) -> Span:
        return Span(size, start, int(length))

    # Computing

    def where(self, c: Any, x: Any, y: Any) -> Any:
        return apply(lambda c, x, y: np.where(c, x, y), c, x, y)

    def cast(self, x: Tile, dtype: Any) -> Tile:
        t = _tile(x)
        with np.errstate(all="ignore"):
            return Tile(t.data.astype(_kind(dtype)), t.places)

    def dot(self, a: Tile, b: Tile, acc: Any = None) -> Tile:
        left, right = a.masked(1, 0), b.masked(0, 0)
        wrong = ~(a.valid(1) & b.valid(0))
        left, right = np.where(wrong[None], 0, left), np.where(wrong[:, None], 0, right)
        made = left.astype(np.float64) @ right.astype(np.float64)
        wide = np.result_type(a.data, b.data)
        out = Tile(made.astype(wide), (a.places[0], b.places[1]))
        return out if acc is None else acc + out

    def transpose(self, x: Tile, axes: Any = None) -> Tile:
        return x.T

    def place(self, x: Tile, like: Tile | None) -> Tile:
        return Tile(x.data, None if like is None else like.places)

    def expand(self, x: Tile, axis: int) -> Tile:
        places = list(x.places)
        places.insert(axis, None)
        return Tile(np.expand_dims(x.data, axis), places)

    def broadcast(self, x: Tile, shape: Sequence[int]) -> Tile:
        places = [None if n != m else p for n, m, p in zip(x.shape, shape, x.places, strict=True)]
        return Tile(np.broadcast_to(x.data, tuple(shape)), places)

    def reshape(self, x: Tile, shape: Sequence[int]) -> Tile:
        """The first axis keeps its place where it stays, or takes all that follow it; axes of 1 come and
        go.
        """
        data = x.data.reshape(tuple(shape))
        places: list[Place] = [None] * data.ndim
        kept = [(n, p) for n, p in zip(x.shape, x.places, strict=True) if n != 1]
        if [n for n, _ in kept] == [n for n in data.shape if n != 1]:
            left = iter(kept)
            return Tile(data, [next(left)[1] if n != 1 else None for n in data.shape])
        first = x.places[0]
        if data.shape and data.shape[0] == x.shape[0]:
            places[0] = first
        elif data.ndim == 1 and first is not None:
            inner = math.prod(x.shape[1:])
            places[0] = (first[0] * inner, first[1] * inner)
        return Tile(data, places)

    def fold(self, name: str, x: Tile, axis: Any, keepdims: bool) -> Tile:
        f, neutral = _FOLDS[name]
        axes = range(x.data.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        picked = sorted({a % x.data.ndim for a in axes})
        data = x.data
        if name in ("any", "all"):
            data = data != 0
        for a in picked:
            data = Tile(data, x.places).masked(a, neutral(data.dtype))
        wide = np.float64 if _is_float(data.dtype) and name in ("sum", "prod") else None
        out = f(data if wide is None else data.astype(wide), axis=tuple(picked), keepdims=keepdims)
        if wide is not None:
            out = out.astype(x.data.dtype)
        places = [
            (None if i in picked else p)
            for i, p in enumerate(x.places)
            if keepdims or i not in picked
        ]
        return Tile(out, places)

    def mean(self, x: Tile, axis: Any = None, keepdims: bool = False) -> Tile:
        total = self.fold("sum", x, axis, keepdims)
        axes = range(x.data.ndim) if axis is None else (axis % x.data.ndim,)
        count = math.prod(int(x.valid(a).sum()) for a in axes)
        with np.errstate(all="ignore"):
            return Tile((total.data / np.float64(count)).astype(x.data.dtype), total.places)

    def _backward(self, x: Tile, how: str, axis: int) -> Tile:
        a = axis % x.data.ndim
        data = np.flip(x.masked(a, _FOLDS[how][1](x.data.dtype)), a)
        f = {"max": np.maximum, "min": np.minimum}[how]
        return Tile(np.flip(f.accumulate(data, axis=a), a), x.places)

    def _exclusive(self, x: Tile, how: str, axis: int, init: Any) -> Tile:
        f = {"max": np.maximum, "min": np.minimum}[how]
        rows = np.moveaxis(x.data, axis, 0)
        out = [np.full_like(rows[0], init)]
        for row in rows[:-1]:
            out.append(f(out[-1], row))
        return Tile(np.moveaxis(np.stack(out), 0, axis), x.places)

    def _by_function(self, xs: Any, f: Any, axis: int) -> tuple[Tile, ...]:
        rows = [np.moveaxis(x.data, axis, 0) for x in xs]
        state = [r[0] for r in rows]
        outs = [[s] for s in state]
        with np.errstate(all="ignore"):
            for i in range(1, len(rows[0])):
                state = [s.astype(r.dtype) for s, r in
                         zip(f(state, [r[i] for r in rows]), rows, strict=True)]  # fmt: skip
                for out, s in zip(outs, state, strict=True):
                    out.append(s)
        return tuple(
            Tile(np.moveaxis(np.stack(o), 0, axis), x.places) for o, x in zip(outs, xs, strict=True)
        )

    def flip(self, x: Tile, axis: int) -> Tile:
        return Tile(np.flip(x.data, axis), self._unplaced(x, axis))

    def _unplaced(self, x: Tile, axis: int) -> list[Place]:
        return [None if i == axis % x.data.ndim else p for i, p in enumerate(x.places)]

    def concat(self, xs: Sequence[Tile], axis: int) -> Tile:
        return Tile(np.concatenate([x.data for x in xs], axis), self._unplaced(xs[0], axis))

    def gather(self, x: Tile, index: Tile, axis: int) -> Tile:
        n = x.shape[axis]
        found = np.take(x.data, np.clip(index.data, 0, n - 1), axis)
        ok = (index.data >= 0) & (index.data < n)
        return Tile(np.where(ok, found, np.zeros_like(found)), self._unplaced(x, axis))

    def sort(self, x: Tile, axis: int, descending: bool = False) -> Tile:
        data = np.sort(x.data, axis)
        return Tile(np.flip(data, axis) if descending else data, x.places)

    def topk(self, x: Tile, k: int, axis: int) -> tuple[Tile]:
        return (Tile(np.flip(np.sort(x.data, axis), axis)[:, :k], self._unplaced(x, axis)),)

    def scan(
        self, x: Any, how: Any = "add", axis: int = -1, *, reverse: bool = False,
        exclusive: bool = False, init: Any = None,
    ) -> Any:  # fmt: skip
        if callable(how):
            return self._by_function(x, how, axis)
        if reverse:
            return self._backward(x, how, axis)
        if exclusive:
            return self._exclusive(x, how, axis, init)
        f = {
            "add": np.cumsum,
            "mul": np.cumprod,
            "max": np.maximum.accumulate,
            "min": np.minimum.accumulate,
        }[how]
        a = axis % x.data.ndim
        neutral = {"add": 0, "mul": 1}.get(how)
        fill = neutral if neutral is not None else _FOLDS[how][1](x.data.dtype)
        data = x.masked(a, fill)
        with np.errstate(all="ignore"):
            return Tile(f(data, axis=a).astype(x.data.dtype), x.places)

    def _arg(self, name: str, x: Tile, axis: int) -> Tile:
        a = axis % x.data.ndim
        low = _FOLDS["max" if name == "argmax" else "min"][1](x.data.dtype)
        place = x.places[a]
        found = getattr(np, name)(x.masked(a, low), axis=a)
        places = [p for i, p in enumerate(x.places) if i != a]
        return Tile(found + (0 if place is None else place[1]), places)

    def argmax(self, x: Tile, axis: int = -1) -> Tile:
        return self._arg("argmax", x, axis)

    def argmin(self, x: Tile, axis: int = -1) -> Tile:
        return self._arg("argmin", x, axis)

    def __getattr__(self, name: str) -> Any:
        if name in _FOLDS:
            return lambda x, axis=None, keepdims=False: self.fold(name, x, axis, keepdims)
        found = {
            "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "rsqrt": lambda x: 1 / np.sqrt(x),
            "maximum": np.maximum, "minimum": np.minimum,
        }.get(name) or getattr(np, name)  # fmt: skip
        return lambda *xs: apply(found, *xs)


def run(
    f: Callable[..., Any], blocks: dict[str, int], arrays: Sequence[Any], stored: Sequence[int] = ()
) -> list[Any]:
    """What a kernel makes: the arguments it stores to, then what it returns; f takes `tile` first."""
    given = [Array(np.array(a)) if isinstance(a, np.ndarray) else a for a in arrays]
    spare = [Array(np.array(a)) if isinstance(a, np.ndarray) else a for a in arrays]
    first = next(a for a in given if isinstance(a, Array))
    probe = Model(blocks, {}, first, {})
    results = _results(f(probe, *spare))
    made: dict[int, Array] = {}
    for point in itertools.product(*map(range, probe.grid.values())):
        m = Model(blocks, dict(zip(probe.grid, point, strict=True)), first, made)
        m.roles = dict(probe.roles)
        m.grid = {n: c for n, c in probe.grid.items() if not n.startswith("_q")}
        _write(results, f(m, *given))
    return [*(given[i].data for i in stored), *results]


def _listed(out: Any) -> tuple[Any, ...]:
    return out if isinstance(out, tuple) else () if out is None else (out,)


def _tile(x: Any) -> Tile:
    return x if isinstance(x, Tile) else Tile(x)


def _results(out: Any) -> list[Any]:
    """Zeros of the sizes that the tiles of an instance are blocks of."""
    made = []
    for x in _listed(out):
        if isinstance(x, Array):
            made.append(np.zeros(x.shape, x.dtype))
            continue
        t = _tile(x)
        shape = [n if p is None else p[0] for n, p in zip(t.shape, t.places, strict=True)]
        made.append(np.zeros(shape, t.data.dtype))
    return made


def _write(results: list[Any], out: Any) -> None:
    """Put the tiles of an instance where they belong."""
    for y, x in zip(results, _listed(out), strict=True):
        if isinstance(x, Array):
            y[...] = x.data
            continue
        t = _tile(x)
        for here in np.ndindex(t.shape):
            there = tuple(k if p is None else p[1] + k for k, p in zip(here, t.places, strict=True))
            if all(0 <= k < n for k, n in zip(there, y.shape, strict=True)):
                y[there] = t.data[here]
