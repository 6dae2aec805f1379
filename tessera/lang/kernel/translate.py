"""translate: a kernel at the types of a call, as a Tile kernel with its results and what a call must satisfy.

Sizes stay symbolic unless a tile needs their number.  Then parsing begins again, knowing it; so it does where
two unnamed sizes turn out to be one.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tessera.algebra.operator import Operator
from tessera.core.dims import Dim, Size, substitute, symbol, symbols
from tessera.core.errors import ShapeError
from tessera.core.types import TensorType
from tessera.ir.tile.cpu.passes.vector_accesses import vector_accesses, widths_of
from tessera.ir.tile.ir import Kernel, Memory
from tessera.ir.tile.serial import serialised
from tessera.lang.kernel.lowered import LoweredKernel
from tessera.lang.kernel.parse import Parser
from tessera.lang.kernel.places import EqualSizes, TilePlaces
from tessera.lang.kernel.signature import BoundArguments, KernelParameter, at_sizes
from tessera.lang.kernel.source import FunctionSource, source_of
from tessera.lang.kernel.values import (
    Axes,
    AxisSpan,
    KernelArray,
    KernelError,
    NeedEqual,
    NeedGrid,
    NeedNumber,
    Struct,
    TileValue,
)
from tessera.lang.kernel.writer import KernelWriter
from tessera.lang.schedule import Schedule
from tessera.lang.state import KVCache

_MOST = 64  # times that parsing may begin again


@dataclass(frozen=True)
class Assumed:
    """What a translation knows of sizes beside the annotations."""

    numbers: Mapping[str, int] = field(default_factory=dict)
    equal: Mapping[str, Size] = field(default_factory=dict)
    grid: tuple[tuple[str, Size], ...] | None = None  # where the kernel prints or checks

    def of(self, shape: Sequence[Size]) -> tuple[Size, ...]:
        """Sizes under these assumptions."""
        for _ in range(len(self.equal) + 1):
            shape = at_sizes(tuple(shape), self.equal)
        return at_sizes(tuple(shape), self.numbers)


@dataclass(frozen=True)
class Translated:
    """A Tile kernel, and how a call uses it."""

    kernel: Kernel
    inputs: tuple[TensorType, ...]  # of the arguments, in order
    written: tuple[int, ...]  # arguments that are stored to: the call returns them
    results: tuple[TensorType, ...]  # made by return statements
    single: bool  # whether there is one result, not a tuple
    equal: tuple[EqualSizes, ...]
    assumed: Assumed
    roles: Mapping[str, Size]  # sizes that blocks of m and n cut
    blocks: Mapping[str, str]  # along which axis of the grid an argument is loaded
    hints: tuple[tuple[str, Any], ...]
    reads: tuple[
        tuple[FunctionSource, str, Any], ...
    ]  # names around the function, and their values then
    loops: Mapping[Any, Mapping[str, Axes]] = field(
        default_factory=dict
    )  # places of what they carry
    grid: tuple[tuple[str, Size], ...] = ()  # as the kernel says it; instances may run as a loop
    returned: tuple[Axes, ...] = ()  # places of the tiles that it returns
    partial: frozenset[str] = frozenset()  # results of which some elements may stay 0
    reports: tuple[Any, ...] = ()  # what it prints and checks: the last results are theirs

    @property
    def shown(self) -> int:
        """How many results a call gives, after the arguments that were stored to."""
        said: int = sum(r.count for r in self.reports)
        return len(self.results) - said

    def equations(self) -> list[tuple[Size, Size, str]]:
        """Sizes that a call must find equal, and what they are of."""
        found = [(e.left, e.right, e.reason) for e in self.equal]
        return found + [(symbol(n), x, n) for n, x in self.assumed.equal.items()]

    def is_current(self) -> bool:
        """Whether the names that the function reads still have the values they had."""
        return all(_unchanged(source.lookup(name), x) for source, name, x in self.reads)


def _unchanged(now: Any, then: Any) -> bool:
    if now is then:
        return True
    plain = isinstance(now, bool | int | float | str | tuple)
    return plain and type(now) is type(then) and bool(now == then)


def translate(
    f: Callable[..., Any], bound: BoundArguments, sizes: Mapping[str, Size], schedule: Schedule,
    inline: Callable[[Any], Any], fixed: bool = False,
) -> Translated:  # fmt: skip
    """The Tile kernel of a function for arguments of these types, and of these sizes where it must know.

    Fixed, it is for these sizes alone.
    """
    numbers = {n: k for n, k in sizes.items() if fixed and not isinstance(k, Dim)}
    source, assumed = source_of(f), Assumed(numbers)
    for _ in range(_MOST):
        try:
            return Translation(source, bound, assumed, schedule, inline, fixed).run()
        except NeedNumber as e:
            assumed = replace(
                assumed, numbers={**assumed.numbers, e.name: _known(source, sizes, e)}, grid=None
            )
        except NeedEqual as e:
            assumed = replace(assumed, equal={**assumed.equal, e.name: e.other}, grid=None)
        except NeedGrid as e:
            assumed = replace(assumed, grid=e.grid)
    raise AssertionError(f"{source.name}: sizes do not settle: {assumed}")


def _known(source: FunctionSource, sizes: Mapping[str, Size], need: NeedNumber) -> int:
    size = sizes[need.name]
    if isinstance(size, Dim):
        raise ShapeError(
            f"{source.name}: size {need.name} is symbolic here ({size}), and a tile has that many elements; "
            "give the axis a number"
        )
    return size


class Translation:
    """One attempt."""

    def __init__(
        self, source: FunctionSource, bound: BoundArguments, assumed: Assumed, schedule: Schedule,
        inline: Callable[[Any], Any], fixed: bool = False,
    ):  # fmt: skip
        self.schedule = schedule
        self.source, self.bound, self.assumed = source, bound, assumed
        self.blocks: dict[str, str] = {}  # along which axis of the grid an argument is loaded
        self.w = self.writer()
        self.arrays = [self._array(p) for p in bound.parameters]
        tensors = [a for a, p in zip(self.arrays, bound.parameters, strict=True) if not p.number]
        self.places = self.made(schedule, tensors[0] if tensors else None)
        self.places.on_gpu = fixed
        if schedule.stages is not None and not fixed:  # on a GPU, Triton overlaps rounds
            self.places.ahead = schedule.stages - 1
        self.places.known_grid = self.places.known_grid or assumed.grid
        self.parser = Parser(self.w, self.places, inline)
        self.returned: list[Axes] = []

    def writer(self) -> KernelWriter:
        """What writes the kernel."""
        return KernelWriter(self.source.name, self.bound.unnamed)

    def made(self, schedule: Schedule, first: KernelArray | None) -> TilePlaces:
        """Where its tiles lie."""
        return TilePlaces(self.w, schedule, first)

    def _array(self, p: KernelParameter) -> KernelArray:
        t = TensorType(p.type.dtype, self.assumed.of(p.type.shape))
        return KernelArray(".".join(p.path) or p.name, self.w.b.parameter(p.name, t))

    def run(self) -> Translated:
        with _blamed(self.source):
            returned = self.parser.function(self.source, self.variables())
        assert isinstance(self.source.tree, ast.FunctionDef)
        last = self.source.tree.body[-1]
        with _blamed(self.source, last):
            results, single = self.results(returned)
        written = tuple(i for i, a in enumerate(self.arrays) if a.memory.writable)
        if len(results) == len(self.places.hidden) and not written:
            raise self.source.blame(
                KernelError(f"{self.source.name} neither returns nor stores anything"),
                self.source.tree,
            )
        grid = self.places.grid.axes() or (("_m", 1),)
        if self.places.speaks and self.assumed.grid is None:
            raise NeedGrid(grid)
        made = self.w.b.finish()
        kernel: Kernel = LoweredKernel(made.name, made.parameters, grid, made.body)
        with _blamed(self.source):
            kernel = self.narrowed(kernel)
        if self.places.serial:
            kernel = serialised(kernel)
        return Translated(
            kernel, tuple(a.memory.type for a in self.arrays), written, tuple(results), single,
            tuple(self.places.equal), self.assumed,
            {role: size for role, (size, _) in self.places.grid.roles.items()}, self.blocks,
            tuple(self.parser.hints), tuple(self.parser.reads.values()),
            self.parser.loops, grid, tuple(self.returned),
            frozenset(self.places.partial) | {m.name for m in self.places.hidden},
            tuple(self.places.reports),
        )  # fmt: skip

    def narrowed(self, kernel: Kernel) -> Kernel:
        """A kernel whose accesses are as wide as its schedule and its hints say."""
        width, said = self.schedule.vector, self.places.widths
        asked = {} if width is None else {m.name: width for m in kernel.parameters}
        made = vector_accesses(kernel, asked | said)
        acting = widths_of(made).keys()
        lost = next((n for n in said if n not in acting), None)
        if lost is not None or (width is not None and not acting):
            what = lost or "its tensors"
            raise KernelError(
                f"{kernel.name}: vector does nothing: {what} are read at places that tiles of indices name, "
                "or under masks, one by one; leave it out"
            )
        return made

    def variables(self) -> dict[str, Any]:
        """The arguments as the kernel sees them."""
        found: dict[str, Any] = dict(self.bound.static)
        for p, a in zip(self.bound.parameters, self.arrays, strict=True):
            if p.path:
                owner = found.setdefault(p.path[0], Struct(p.path[0], {}))
                owner.fields[p.path[1]] = a
                if isinstance(self.bound.holders.get(p.path[0]), KVCache):
                    owner.fields["length"] = a.shape[-2]
            elif p.number:
                found[p.name] = self.w.plain(self.w.b.load(a.memory, (), ()))
            elif p.loaded:
                found[p.name] = self._loaded(a)
            else:
                found[p.name] = a
        for n, x in self.bound.holders.items():
            if isinstance(x, Operator) or (
                isinstance(x, tuple | list) and not hasattr(x, "_fields")
            ):
                found[n] = tuple(found[n].fields.values())
            elif isinstance(x, dict):
                found[n] = found[n].fields
        return {n: found[n] for n in self.bound.names}

    def _loaded(self, a: KernelArray) -> TileValue:
        """The block of an argument: rows along m, or n if its rows are others, and all columns."""
        rank, known = a.ndim, self.places.grid.roles
        if rank < 2:
            return self.places.load(a, self.places.box(a, None, None))
        rows = a.shape[-2]
        free = (r for r in ("m", "n") if r not in known or known[r][0] == rows)
        role = self.blocks.get(a.name) or next(free, None)
        if role is None:
            raise KernelError(
                f"{a} has other rows than the two tiles before it; use KTile and tile.load"
            )
        self.blocks[a.name] = role
        return self.places.load(a, self.places.box(a, self.places.block(role), None))

    def results(self, returned: Any) -> tuple[list[TensorType], bool]:
        if returned is None:
            returned = ()
        single = not isinstance(returned, tuple | list)
        made = []
        for i, x in enumerate([returned] if single else returned):
            if self._is_made(x):
                made.append(x.memory)
                continue
            if not isinstance(x, TileValue | Dim | bool | int | float):
                raise KernelError(_no_result(x))
            self.returned.append(self.w.tile(x).axes)
            made.append(self._result(i, self.w.tile(x)))
        hidden = self.places.hidden
        if len({id(m) for m in made}) != len(self.w.b.parameters) - len(self.arrays) - len(hidden):
            raise KernelError(
                "a kernel returns each tensor that it makes with tile.empty, once; scratch of an instance is "
                "tile.alloc(shape, dtype)"
            )
        self.w.b.parameters[len(self.arrays) :] = [*made, *hidden]
        return [m.type for m in (*made, *hidden)], single

    def _is_made(self, x: Any) -> bool:
        """Whether x is a tensor that the kernel makes and stores to block by block."""
        own = [m for m in self.w.b.parameters[len(self.arrays) :] if m not in self.places.hidden]
        return isinstance(x, KernelArray) and any(x.memory is m for m in own)

    def _result(self, i: int, x: TileValue) -> Memory:
        """Store a tile as the block of a result, whose sizes follow from the places of the tile."""
        grid = self.places.grid
        spans = [
            AxisSpan(n, 0, n, True) if a is None else AxisSpan(a.size, a.start, n, a.exact)
            for n, a in zip(x.shape, x.axes, strict=True)
        ]
        lead = grid.shape if grid.batch is not None else ()
        t = TensorType(x.dtype, (*lead, *(s.size for s in spans)))
        self.check_grid(x, spans)
        m = Memory(f"result{i}", t, "global", True)
        self.w.b.parameters.append(m)
        a = KernelArray(m.name, m)
        places = self.places
        box = places.boxed(places.batch(a, len(lead), None) if lead else [], spans)
        places.store(a, x, box, None)
        return m

    def check_grid(self, x: TileValue, spans: Sequence[AxisSpan]) -> None:
        """Every axis of the grid but the batch must show in the result."""
        used = {s for span in spans for s in symbols(span.start)}
        counts = {n: c for n, c in self.places.grid.axes() if n != "_b" and c != 1}
        for name in counts:
            if name not in used:
                raise KernelError(
                    f"every instance along the grid axis {name} returns the whole {x.type}; return a tile "
                    "of each block, or tile.per_block of it"
                )


def _no_result(x: Any) -> str:
    said = f"a kernel returns tiles, got {x!r:.60}"
    if isinstance(x, KernelArray) and x.memory.writable:
        return f"{said}; the call returns what is stored to without a return"
    if isinstance(x, KernelArray):
        return f"{said}; load a tile of it with tile.load"
    return f"{said}; return several in a tuple" if isinstance(x, dict) else said


class _blamed:  # noqa: N801
    """Errors without a place are at the head of the function, or at a statement."""

    def __init__(self, source: FunctionSource, node: Any = None):
        self.source, self.node = source, node or source.tree

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, KernelError | ShapeError):
            self.source.blame(error, self.node)


def known_sizes(t: Translated, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes of a call under the names that the kernel has for them; an error where they differ."""
    for a, b, reason in t.equations():
        left, right = substitute(a, sizes), substitute(b, sizes)
        if left != right:
            raise ShapeError(f"{t.kernel.name}: {reason} is {left} here and {right} there")
    demand_sizes(t, sizes)
    return {n: sizes[n] for n in t.kernel.sizes}


def demand_sizes(t: Translated, sizes: Mapping[str, Size]) -> None:
    """Raise ShapeError where sizes of a call leave less than nothing: of instances, or of a result."""
    counts = [(f"instances along its grid ({n})", n) for _, n in t.grid]
    made = t.kernel.parameters[len(t.inputs) :]
    counts += [
        (f"elements along axis {i} of {m.name} ({n})", n)
        for m in made
        for i, n in enumerate(m.type.shape)
    ]
    for what, n in counts:
        count = substitute(n, sizes)
        if isinstance(count, int) and count < 0:
            known = ", ".join(f"{k} = {sizes[k]}" for k in sorted(symbols(n)) if k in sizes)
            raise ShapeError(
                f"{t.kernel.name}: there would be {count} {what} where {known}; the tensors are too small"
            )
