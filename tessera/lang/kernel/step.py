"""step: a kernel as plain Python, one instance after the other, so that a debugger can walk through it.

Every intrinsic writes its operations as always, and the Tile interpreter runs each of them at once.  So a
tile has numbers that can be printed, loops are loops, and breakpoint() stops where it stands.
"""

from __future__ import annotations

import ast
import inspect
import operator
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from types import FunctionType, GeneratorType
from typing import Any

import numpy as np

from tessera.core.dims import Size, substitute
from tessera.core.dtype import as_dtype
from tessera.core.source import Location, caller
from tessera.ir.tile.interp import Instance
from tessera.ir.tile.ir import Block, Memory, Tile
from tessera.lang.kernel.attention import RowSums
from tessera.lang.kernel.expressions import (
    BUILTINS,
    binary,
    chosen,
    compare,
    compared,
    is_number,
    is_static,
    joined,
    unary,
)
from tessera.lang.kernel.launch import owned
from tessera.lang.kernel.memory import element
from tessera.lang.kernel.parse import uses_tiles
from tessera.lang.kernel.parts import item
from tessera.lang.kernel.places import TilePlaces
from tessera.lang.kernel.reports import KernelReport, failure, place
from tessera.lang.kernel.signature import BoundArguments
from tessera.lang.kernel.source import FunctionSource, source_of
from tessera.lang.kernel.stepped import TileMeanings, stepped
from tessera.lang.kernel.table import Intrinsic
from tessera.lang.kernel.translate import Assumed, Translated, Translation
from tessera.lang.kernel.values import (
    LIVE,
    Axes,
    AxisElements,
    AxisSpan,
    KernelError,
    LoopRange,
    RunTimeCount,
    Struct,
    TileValue,
)
from tessera.lang.kernel.values import KernelArray as Tensors
from tessera.lang.kernel.writer import KernelWriter
from tessera.lang.schedule import Schedule

Array = np.ndarray[Any, np.dtype[Any]]
Loops = Mapping[Any, Mapping[str, Axes]]


class LiveWriter(KernelWriter):
    """Writes operations, each of which runs at once."""

    def __init__(self, name: str, unnamed: frozenset[str], arrays: Mapping[str, Array]):
        super().__init__(name, unnamed)
        self.arrays = arrays
        self.instance = Instance({}, {})
        self.b.after = self._ran

    def _ran(self) -> None:
        made = self.b.written()[-1]
        m = made.memory
        if m is not None and made.name != "alloc" and m not in self.instance.memories:
            self.instance.memories[m] = self._array(m)
        self.instance.block(Block((), (made,), ()), ())
        self.b.forget()

    def _array(self, m: Memory) -> Array:
        return self.arrays[m.name]

    def known(self, x: Any) -> Any:
        """The number of a tile that is one integer."""
        if not isinstance(x, TileValue) or x.rank or x.dtype.kind not in "iu":
            return x
        return int(self.numbers(x.tile))

    def turns(
        self, start: int, stop: int, state: Sequence[Tile],
        body: Callable[[Size, Sequence[Tile]], list[Tile]],
    ) -> list[Tile]:  # fmt: skip
        """Run a body from start to stop - 1, at once."""
        for i in range(start, stop):
            state = body(i, state)
        return list(state)

    def numbers(self, t: Tile) -> Array:
        """The elements of a tile."""
        return self.instance.tiles[t]


class LivePlaces(TilePlaces):
    """The places of one instance, all of them numbers."""

    point: Mapping[str, int]

    def counter(self, name: str) -> Size:
        """The number of this instance along an axis of the grid."""
        return self.point[name]


class Session:
    """One instance: what intrinsics see of it."""

    def __init__(self, w: LiveWriter, places: LivePlaces, loops: Loops, known: Mapping[str, int]):
        self.w, self.places = w, places
        self.loops, self.known = loops, known
        self.condition: TileValue | None = None
        self.hints: list[tuple[str, Any]] = []
        self.location: Location | None = None
        self.depth = 0

    def invoke(self, f: Any, args: Sequence[Any]) -> Any:
        """What a function gives for tiles."""
        return called(f)(*map(live, args))

    def call(self, f: Intrinsic, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What an intrinsic gives, with its numbers."""
        self.location = caller()
        here: Any = self  # whose places and writer are those of one instance
        made = live(f.run(here, args, kwargs))
        if f.updates and args and isinstance(args[0], LiveTile):
            for name in ("tile", "axes", "pads", "constant"):
                object.__setattr__(args[0], name, getattr(made, name))
        return made

    def enter(self, f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a kernel gives that this one calls."""
        return stepped(f, _MEANINGS)(*args, **kwargs)


def live(x: Any) -> Any:
    """A value with operators: tiles, those in tuples, and ranges."""
    if isinstance(x, tuple | list):
        made = map(live, x)
        return tuple(made) if isinstance(x, tuple) else list(made)
    if isinstance(x, LoopRange):
        return _walked(x)
    if isinstance(x, Struct):
        return Struct(x.name, {n: live(v) for n, v in x.fields.items()})
    if isinstance(x, Tensors) and not isinstance(x, LiveArray):
        return LiveArray(x.name, x.memory, x.parameter, x.attributes)
    if isinstance(x, TileValue) and not isinstance(x, LiveTile | RowSums):
        return LiveTile(x.tile, x.axes, x.pads, x.constant)
    return x


def _walked(r: LoopRange) -> Iterator[Any]:
    start, stop = r.start, r.stop
    assert isinstance(start, int), r
    assert isinstance(stop, int), r
    session: Session = LIVE.session
    if r.bound is not None:
        stop = min(stop, int(session.w.numbers(r.bound.tile)))
    line = session.location
    carried = session.loops.get(line, {})
    session.depth += 1
    try:
        for i in range(start, stop, r.step):
            here = Counted(i)
            around = sys._getframe(1).f_locals
            before = {n: around.get(n) for n in carried}
            try:
                yield r.variable(here)
            finally:  # also where the loop is left by break
                around = sys._getframe(1).f_locals
                for n, x in before.items():
                    _keep(around.get(n), x, here)
                here.over = True
    finally:
        session.depth -= 1
    if start >= stop:
        around = sys._getframe(1).f_locals
        for name, axes in session.loops.get(line, {}).items():
            _settle(around.get(name), axes, session.known)


def _keep(x: Any, before: Any, here: Counted) -> None:
    """What a carried tile holds past the end of this round's block stays as it was."""
    if not isinstance(x, LiveTile) or x is before or not is_number(before):
        return
    w, held = _writer(), list(x.axes)
    for i, a in enumerate(x.axes):
        if a is None or a.exact or a.lost is not None or a.first is not here:
            continue
        old = w.broadcast(w.tile(before, x.dtype), x.shape)
        kept = w.b.apply("where", w.inside(x, i, a), x.tile, old.tile)
        object.__setattr__(x, "tile", kept)
        held[i] = old.axes[i]
    x.__dict__["held"] = tuple(held)


def _settle(x: Any, axes: Axes, known: Mapping[str, int]) -> None:
    """A tile that a loop of no rounds carries lies where its rounds would have put it."""
    if not isinstance(x, LiveTile) or x.rank != len(axes):
        return
    held = list(x.axes)
    for i, a in enumerate(axes):
        if held[i] is None and a is not None:
            first = substitute(a.first, known)
            held[i] = AxisElements(substitute(a.size, known), first, a.exact, a.lost)
            if not isinstance(first, int):  # of a loop around, whose round is in no counter here
                held[i] = None
    x.__dict__["held"] = tuple(held)


class LiveArray(Tensors):
    """A tensor whose elements are x[i, j]."""

    def __getitem__(self, key: Any) -> Any:
        return live(element(LIVE.session, self, key if isinstance(key, tuple) else (key,)))


class Counted(int):
    """A position that a loop gave, and whether its round is over."""

    over = False


def _left(axis: AxisElements | None, n: int) -> AxisElements | None:
    """The place of an axis, if it does not change from round to round of a loop that has gone on."""
    if axis is None or axis.lost is not None or not getattr(axis.first, "over", False):
        return axis
    if not axis.exact and axis.first + n > axis.size:
        raise KernelError(
            "a tile of a block that reached past the end is used after its round; step through sizes "
            "that blocks divide, or use ts.interpret()"
        )
    return None


def _writer() -> LiveWriter:
    assert LIVE.session is not None, "a live tile outlived its kernel"
    writer: LiveWriter = LIVE.session.w
    return writer


class LiveTile(TileValue):
    """A tile with its numbers, for Python's operators and for printing."""

    @property
    def axes(self) -> Axes:
        """Where the elements belong; nowhere along an axis that a loop has moved on from."""
        held: Axes = self.__dict__["held"]
        return tuple(_left(a, n) for a, n in zip(held, self.tile.shape, strict=True))

    @axes.setter
    def axes(self, held: Axes) -> None:
        self.__dict__["held"] = held

    def numpy(self) -> Array:
        """The elements."""
        return _writer().numbers(self.tile)

    def __repr__(self) -> str:
        return f"tile {self.type}\n{self.numpy()}"

    __array_ufunc__ = None  # numbers of NumPy leave the operators to tiles

    def __bool__(self) -> bool:
        if self.numpy().size != 1:
            raise KernelError(f"a condition needs one truth value, got {self.type}")
        return bool(self.numpy().item())

    def __float__(self) -> float:
        return float(self.numpy().item())

    def __index__(self) -> int:
        return operator.index(self.numpy().item())

    def __getitem__(self, key: Any) -> Any:
        return live(item(_writer(), self, key if isinstance(key, tuple) else (key,)))

    @property
    def T(self) -> Any:  # noqa: N802
        """Rows as columns."""
        return live(_writer().transpose(self))

    @property
    def ndim(self) -> int:
        """How many axes."""
        return self.rank

    def astype(self, dtype: Any) -> Any:
        """The tile in another dtype."""
        return live(_writer().cast(self, as_dtype(dtype)))

    def __abs__(self) -> Any:
        return live(_writer().apply("abs", self))

    __hash__ = object.__hash__


def _number(x: Any) -> Any:
    """A value with operators; a whole number of the kernel as Python's."""
    return _writer().known(x) if isinstance(x, RunTimeCount) else live(x)


def _joined(conjunction: bool, *values: Callable[[], Any]) -> Any:
    return live(joined(_writer(), conjunction, (f() for f in values)))


def _compared(kinds: str, *operands: Any) -> Any:
    return live(compared(_writer(), [getattr(ast, k) for k in kinds.split()], operands))


def _negated(x: Any) -> Any:
    return live(unary(_writer(), ast.Not, x))


def _chosen(test: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    if not isinstance(test, LiveTile):
        return yes() if test else no()
    w = _writer()
    holds = w.condition(w.reshape(test, ()) if test.rank else test)
    return _number(chosen(w, "the value", holds, yes(), no()))


def called(f: Any) -> Any:
    """A function as kernels call it: Python's own have the meanings of tiles."""
    if isinstance(f, FunctionType):
        return _parsed(f)
    meaning = BUILTINS.get(f) if isinstance(f, Hashable) else None
    if meaning is None:
        return f

    def run(*args: Any, **kwargs: Any) -> Any:
        args = tuple(list(x) if isinstance(x, GeneratorType) else x for x in args)
        if all(map(is_static, args)):
            return f(*args, **kwargs)
        return _number(meaning(_writer(), *args, **kwargs))

    return run


def _parsed(f: FunctionType) -> Callable[..., Any]:
    """A function that is part of the kernel wherever it meets tiles."""

    def run(*args: Any, **kwargs: Any) -> Any:
        plain = all(map(is_static, (*args, *kwargs.values())))
        if plain and not uses_tiles(
            f, lambda _: None
        ):  # kernels that are called step by themselves
            return f(*args, **kwargs)
        return stepped(f, _MEANINGS)(*args, **kwargs)

    return run


_MEANINGS = TileMeanings(_joined, _negated, _compared, _chosen, called)


def _method(rule: Callable[..., Any], kind: type, swap: bool = False) -> Callable[..., Any]:
    def run(self: Any, *other: Any) -> Any:
        operands = (*other, self) if swap else (self, *other)
        return live(rule(_writer(), kind, *operands))

    return run


_BINARY = {
    "add": ast.Add, "sub": ast.Sub, "mul": ast.Mult, "truediv": ast.Div, "floordiv": ast.FloorDiv,
    "mod": ast.Mod, "pow": ast.Pow, "and": ast.BitAnd, "or": ast.BitOr, "xor": ast.BitXor,
    "lshift": ast.LShift, "rshift": ast.RShift, "matmul": ast.MatMult,
}  # fmt: skip
_COMPARE = {
    "eq": ast.Eq, "ne": ast.NotEq, "lt": ast.Lt, "le": ast.LtE, "gt": ast.Gt, "ge": ast.GtE,
}  # fmt: skip
_UNARY = {"neg": ast.USub, "pos": ast.UAdd, "invert": ast.Invert}
_RULES: list[tuple[dict[str, Any], Callable[..., Any]]] = [
    (_BINARY, binary), (_COMPARE, compare), (_UNARY, unary),
]  # fmt: skip
for _table, _rule in _RULES:
    for _name, _kind in _table.items():
        setattr(LiveTile, f"__{_name}__", _method(_rule, _kind))
for _name, _kind in _BINARY.items():
    setattr(LiveTile, f"__r{_name}__", _method(binary, _kind, swap=True))


@contextmanager
def stepping(now: Session) -> Iterator[None]:
    """Intrinsics belong to this instance while the block runs."""
    before, LIVE.session = LIVE.session, now
    try:
        yield
    finally:
        LIVE.session = before


class _Instance(Translation):
    """A translation in which everything is a number and runs at once."""

    def __init__(
        self, t: Translated, bound: BoundArguments, sizes: Mapping[str, int], schedule: Schedule,
        arrays: Mapping[str, Array], point: Mapping[str, int], source: FunctionSource,
        failed: dict[KernelReport, list[tuple[int, ...]]],
    ):  # fmt: skip
        self.by_name, self.point, self.failed = arrays, point, failed
        self.said, self.grid, self.sizes = t.reports, t.grid, sizes
        super().__init__(source, bound, Assumed(numbers=sizes), schedule, lambda f: None)
        self.blocks.update(t.blocks)
        self.loops = t.loops
        self.places_of_results = t.returned

    def writer(self) -> LiveWriter:
        """What writes the kernel, and runs it."""
        return LiveWriter(self.source.name, self.bound.unnamed, self.by_name)

    def made(self, schedule: Schedule, first: Any) -> LivePlaces:
        """Where its tiles lie."""
        places = LivePlaces(self.w, schedule, first)
        places.point = self.point
        if self.said:
            places.known_grid = tuple((n, substitute(c, self.sizes)) for n, c in self.grid)
        places.live = self
        return places

    def print(self, text: str, tiles: Sequence[TileValue]) -> None:
        """Say at once what is printed."""
        assert isinstance(self.w, LiveWriter)
        axes = [name.lstrip("_") for name, _ in self.grid]
        said = text.format(*(self.w.numbers(x.tile) for x in tiles))
        print(f"{self.source.name}[{place(axes, tuple(self.point.values()))}] {said}")

    def check(self, text: str, holds: TileValue, location: Location | None) -> None:
        """Remember a check that fails."""
        assert isinstance(self.w, LiveWriter)
        if not self.w.numbers(holds.tile).all():
            axes = tuple(name.lstrip("_") for name, _ in self.grid)
            r = KernelReport("check", text, axes, 1, location)
            found = self.failed.setdefault(r, [])
            if tuple(self.point.values()) not in found:
                found.append(tuple(self.point.values()))

    def _result(self, i: int, x: TileValue) -> Memory:
        """Store a tile; one that no round of a loop gave a place lies where a round would have put it."""
        known = {**self.assumed.numbers, **self.point}
        made = live(x)
        if len(self.places_of_results) > i:
            _settle(made, self.places_of_results[i], known)
        return super()._result(i, made)

    def check_grid(self, x: TileValue, spans: Sequence[AxisSpan]) -> None:
        """Nothing: the translation before found that each instance returns a block of its own."""

    def run(self) -> Any:
        """Call the function, and store what it returns."""
        assert isinstance(self.w, LiveWriter)
        assert isinstance(self.places, LivePlaces)
        known = {**self.assumed.numbers, **self.point}
        with stepping(Session(self.w, self.places, self.loops, known)):
            given = {n: live(x) for n, x in self.variables().items()}
            bound = inspect.BoundArguments(
                inspect.signature(self.source.function), OrderedDict(given)
            )
            self.results(stepped(self.source.function, _MEANINGS)(*bound.args, **bound.kwargs))


def step_through(
    t: Translated, bound: BoundArguments, arrays: Sequence[Array], sizes: Mapping[str, int],
    schedule: Schedule, function: Callable[..., Any],
) -> list[Array]:  # fmt: skip
    """Run a kernel as Python: what it stored to, then its results."""
    given, made = owned(t.kernel, arrays, sizes)
    names = [m.name for m in t.kernel.parameters]
    every = dict(zip(names, [*given, *made], strict=True))
    failed: dict[KernelReport, list[tuple[int, ...]]] = {}
    count = 0
    with np.errstate(all="ignore"):
        for point in points(t.grid, sizes):
            _Instance(t, bound, sizes, schedule, every, point, source_of(function), failed).run()
            count += 1
    if failed:
        order = {
            (r.text, r.location and r.location.line): k for k, r in enumerate(reversed(t.reports))
        }
        first = max(failed, key=lambda r: order.get((r.text, r.location and r.location.line), -1))
        raise failure(source_of(function).name, first, failed[first], count)
    for a in made[len(made) - sum(r.count for r in t.reports) :]:
        a.fill(0)  # all has been said
    return [*(given[i] for i in t.written), *made]


def points(grid: Sequence[tuple[str, Size]], sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """The numbers of every instance."""
    names = [n for n, _ in grid]
    counts = [int(substitute(c, sizes)) for _, c in grid]
    for point in product(*map(range, counts)):
        yield dict(zip(names, point, strict=True))
