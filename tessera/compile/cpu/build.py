"""build: a graph of loop nests through Schedule IR and Tile IR to an image of machine code.

Kernels go to LLVM one by one: workers build a kernel while the next one is lowered.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace

from tessera.compile.artifact import Call, Image
from tessera.core.dims import Dim, symbols
from tessera.core.during import During
from tessera.core.errors import ScheduleError
from tessera.core.flags import flags
from tessera.core.tables import Table
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Graph
from tessera.ir.schedule import lower as to_schedule
from tessera.ir.schedule.choose import default_nest
from tessera.ir.schedule.filters import filtered
from tessera.ir.schedule.inside import facts_of
from tessera.ir.schedule.ir import (
    Group,
    HostCall,
    Kernel,
    Position,
    Primitive,
    Program,
    Read,
    walk,
)
from tessera.ir.schedule.legality import is_legal
from tessera.ir.schedule.loosen import loosen
from tessera.ir.schedule.nest import parse_nest
from tessera.ir.schedule.passes import shares_folds
from tessera.ir.schedule.verify import verify as verify_schedule
from tessera.ir.target.cpu.emit import emit
from tessera.ir.target.cpu.entry import Entry
from tessera.ir.target.cpu.program import program
from tessera.ir.tile import ir as tile
from tessera.ir.tile import lower as to_tile
from tessera.ir.tile.clashes import verify_shares
from tessera.ir.tile.inside import verify_inside
from tessera.ir.tile.loops import loop_kernel
from tessera.ir.tile.verify import verify as verify_tile
from tessera.runtime import builder, tuned
from tessera.runtime.blocks import blocks_source
from tessera.runtime.code import Key, Loading
from tessera.runtime.kernel import source_of
from tessera.runtime.pool import pool_source


def build(
    g: Graph, sizes: Mapping[str, int] | None = None, numerics: str = "deterministic"
) -> Image:
    """The image of a graph, whose machine code is in memory and on disk afterwards.

    Kernels have the nests that the tuner found for them, at these sizes if any are given.
    """
    builder.start(len(g.nodes))  # there are no more kernels than nodes, nor more workers than cores
    with During("schedule"):
        schedule = schedule_of(g, sizes, numerics)
        if flags().verify:
            verify_schedule(schedule)
    with During("LLVM"), Loading() as loading:
        loading.add(pool_source())
        loading.add(blocks_source())
        image = _Building(schedule, loading).image()
        loading.finish()
    return image


def schedule_of(
    g: Graph, sizes: Mapping[str, int] | None = None, numerics: str = "deterministic"
) -> Program:
    """The Schedule IR of a graph, with the nests that the tuner found at these sizes."""
    p = filtered(to_schedule.lower(g))
    if numerics == "fast":
        p = loosen(p)
    found = tuned.entries()
    if not found:
        return p
    types = {n: b.type for n, b in p.buffers.items()}
    steps = [_tuned(s, types, sizes or {}, found) if isinstance(s, Kernel) else s for s in p.steps]
    return replace(p, steps=tuple(steps))


def _tuned(
    k: Kernel, types: Mapping[str, TensorType], sizes: Mapping[str, int],
    found: Mapping[tuple[str, str], str],
) -> Kernel:  # fmt: skip
    own = {n: sizes[n] for n in sizes_of(k, types) if n in sizes}
    text = found.get((identity(k, types), tuned.size_class(own)))
    if text is None:
        return k
    try:
        nest = parse_nest(text)
    except ScheduleError:  # of another version
        return k
    return replace(k, nest=nest) if is_legal(k, nest) else k


def sizes_of(k: Kernel, types: Mapping[str, TensorType]) -> list[str]:
    """The symbolic sizes that a kernel has: in shapes, loops and terms, as in y * mean(x)."""
    axes = [a for s in k.stages for a in (*s.axes, *s.reduced)]
    found = [d for n in (*k.inputs(), *k.outputs) for d in types[n].shape]
    found += [a.size for a in axes]
    for t in (t for s in k.stages for t in walk(s.term)):
        if isinstance(t, Position):
            found.append(t.value)
        elif isinstance(t, Read):
            found += [i for i in t.index if isinstance(i, int | Dim)]
    own = {a.name for a in axes}
    return sorted({name for d in found for name in symbols(d)} - own)


def identity(k: Kernel, types: Mapping[str, TensorType]) -> str:
    """What a kernel is known by to the tuner: SHA-256 of its form without a nest."""
    return hashlib.sha256(form_of(replace(k, nest=None), types).encode()).hexdigest()


def tiles_of(schedule: Program) -> Iterator[tuple[str, tile.Kernel]]:
    """The Tile kernels of a program under the names of their steps."""
    types = {n: b.type for n, b in schedule.buffers.items()}
    for s in schedule.steps:
        if not isinstance(s, HostCall):
            yield from to_tile.expand(s, types).named(s.name)
            continue
        loop = loop_kernel(s)
        if loop is not None:
            yield "_".join((s.node.op.name, *s.results[:1])), loop


def target_of(tiles: Mapping[str, tile.Kernel]) -> dict[str, str]:
    """The LLVM IR of Tile kernels."""
    return {name: emit(k) for name, k in tiles.items()}


class _Building:
    """Turns steps into calls; kernels that differ only in names are lowered once."""

    def __init__(self, schedule: Program, loading: Loading):
        self.schedule, self.loading = schedule, loading
        self.types: dict[str, TensorType] = {n: b.type for n, b in schedule.buffers.items()}
        self.steps: list[Call | HostCall] = []
        self.kernels: list[tuple[Entry, Key]] = []
        self.known: dict[str, int] = {}  # the kernel of each form
        self.tables: dict[Table, str] = {}
        self.loops: dict[int, int] = {}  # the kernel of each loop, by its step

    def image(self) -> Image:
        for s in self.schedule.steps:
            if isinstance(s, HostCall):
                self.host(s)
            elif isinstance(s, Kernel | Group):
                self.call(s)
            else:
                self.expand(s)
        entries, codes = zip(*self.kernels, strict=True) if self.kernels else ((), ())
        return Image(
            self.types, tuple(self.steps), (*self.schedule.inputs, *self.tables.values()),
            self.schedule.outputs, entries, codes, tuple(self.tables), self.loops,
        )  # fmt: skip

    def host(self, s: HostCall) -> None:
        with During("tile"):
            loop = loop_kernel(s)
        if loop is not None:
            self.loops[len(self.steps)] = self.kernel(loop)
        self.steps.append(s)

    def call(self, s: Kernel | Group) -> None:
        if isinstance(s, Kernel) and not s.contracts and shares_folds(s, s.nest or default_nest(s)):
            self.expand(s)
            return
        form = form_of(s, self.types)
        if form not in self.known:
            with During("tile"):
                lowered = to_tile.lower(s, self.types)
            self.known[form] = self.kernel(lowered)
        self.steps.append(Call(s.name, self.known[form], tuple(s.inputs()), s.outputs))

    def expand(self, s: Kernel | Primitive) -> None:
        with During("tile"):
            e = to_tile.expand(s, self.types)
        inner = {n: f"{s.name}.{n}" for n in e.between}
        self.types.update({inner[n]: t for n, t in e.between.items()})
        inner |= {n: self.table(t) for n, t in e.tables.items()}
        for launch, (name, k) in zip(e.launches, e.named(s.name), strict=True):
            ins, outs = (
                tuple(inner.get(n, n) for n in names) for names in (launch.inputs, launch.outputs)
            )
            self.steps.append(Call(name, self.kernel(k), ins, outs))

    def table(self, t: Table) -> str:
        """The buffer of a table, one for all who read it."""
        name = self.tables.setdefault(t, f"table.{len(self.tables)}")
        self.types[name] = t.type
        return name

    def kernel(self, k: tile.Kernel) -> int:
        """Begin to build a kernel; its number."""
        with During("tile"):
            if flags().verify:
                verify_tile(k)
                verify_inside(k, facts_of(self.schedule.guards))
        with During("emit"):
            p = program(k)
        if flags().verify:
            verify_shares(k, p.shares)
        entry = Entry(**{f.name: getattr(p, f.name) for f in fields(Entry)})
        self.kernels.append((entry, self.loading.add(source_of(p))))
        return len(self.kernels) - 1


def form_of(k: Kernel | Group, types: Mapping[str, TensorType]) -> str:
    """The text of a kernel in which names are numbered: kernels of one form are one program.

    t7[_r0<8, _t7_1<64]: f32 = exp(x3[_r0, _t7_1])   ->   %0[%1<8, %2<64]: f32 = exp(%3[%1, %2])
    """
    stages = {s.name for s in k.stages}
    axes = {a.name for s in k.stages for a in (*s.axes, *s.reduced)}
    buffers = dict.fromkeys((*k.inputs(), *k.outputs))
    own = stages | axes | buffers.keys()
    numbers: dict[str, str] = {}

    def number(m: re.Match[str]) -> str:
        word = m.group()
        return numbers.setdefault(word, f"%{len(numbers)}") if word in own else word

    inner = k.kernels if isinstance(k, Group) else (k,)
    skipped = ("name", "stages")
    rest = [
        getattr(x, f.name) for x in inner for f in fields(x) if f.name not in (*skipped, "tile")
    ]
    rest += [x.tile for x in inner if x.tile is not None]
    rest += [(k.rows, [len(x.stages) for x in inner])]
    text = _WORD.sub(number, "\n".join([*k.outputs, *map(str, k.stages), repr(rest)]))
    parameters = [f"{numbers.get(n, n)}: {types[n]}" for n in buffers]
    # A size may be called like a buffer; it keeps its name, by which a call gives it.
    sizes = {name for b in buffers for x in types[b].shape for name in symbols(x)}
    return "\n".join([text, *parameters, *sorted(sizes & own)])


_WORD = re.compile(r"\b[A-Za-z_]\w*")
