"""Pipelines: kernels in which blocks of two factors pass by a tile, as keys and values pass by queries.

    for i: s = dot(q, k[i]); w, again, ... = f(s, ...); acc = dot(w, v[i], acc * again)

One step may come before the loop, with an f of its own, as a loop that is taken once.
A kernel that is one can be printed for groups of threads with roles: one fetches, others multiply.  Whatever
differs from this form in any way is no pipeline, and Triton prints it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from tessera.core.dims import Size, product, substitute, symbol, symbols
from tessera.core.dtype import bf16, f16, f32
from tessera.ir.tile.ir import Block, Kernel, Memory, Operation, Tile, walk

T = TypeVar("T")
Operations = tuple[Operation, ...]
ROWS = 64  # of a tile: those of one matrix instruction
DEPTH = 128  # rows of a factor
GROUPS = {64: 3, 128: 2}  # instances that one block of threads runs, by columns of a tile
NAMES = frozenset(
    (
        "s",
        "w",
        "p",
        "i",
        "at",
        "acc",
        "own",
        "bar",
        "box",
        "again",
        "rest",
        "turn",
        "which",
        "phase",
        "before",
        "tiles",
        "left",
        "right",
        "rows",
        "sums",
        "factor",
        "nothing",
        "newer",
        "fetch",
        "produce",
        "consume",
    )
)  # that the frame of a pipeline has for itself
_ON_TILES = frozenset(("apply", "cast", "fold", "full", "index"))


@dataclass(frozen=True)
class PipelineLoop:
    """A loop of a pipeline."""

    loop: Operation
    left: Operation  # the load of the first product's factor
    right: Operation  # and of the second one's
    scores: Tile  # the first product
    weights: Tile  # of which the second product has the narrow form
    again: Tile  # what the sums so far are multiplied by
    between: tuple[Operation, ...]  # how scores become all that a step hands on

    @property
    def block(self) -> Block:
        assert self.loop.block is not None
        return self.loop.block

    def bound(self, name: str) -> Size:
        """Where the loop starts or stops."""
        size: Size = self.loop.attributes[name]
        return size


@dataclass(frozen=True)
class Pipeline:
    """The parts of a kernel."""

    kernel: Kernel
    tile: Operation  # the load of what factors pass by
    before: tuple[Operation, ...]
    steps: tuple[PipelineLoop, ...]  # loops that follow each other
    after: tuple[Operation, ...]
    out: Operation  # the store of the sums

    @property
    def columns(self) -> int:
        """Of a tile and of the sums."""
        return self.tile.results[0].shape[1]

    @property
    def groups(self) -> int:
        """Instances that one block of threads runs."""
        return GROUPS[self.columns]


@dataclass(frozen=True)
class TmaBox:
    """Rows of a memory that the tensor memory accelerator copies at once; all axes but the last count
    rows.
    """

    memory: Memory
    rows: int
    columns: int

    @property
    def is_line(self) -> bool:
        """Whether it is a part of one row, of a memory that is one line."""
        return self.rows == 1

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the memory."""
        *lead, last = (int(n) for n in self.memory.type.shape)
        return int(product(tuple(lead))), last


def around_loops(kernel: Kernel) -> tuple[Operations, Operations, Operations] | None:
    """What comes before the one or two loops of a kernel, which follow each other, these, and what comes
    after.
    """
    operations = kernel.body.operations
    at = [i for i, op in enumerate(operations) if op.name == "for"]
    if not at or at != list(range(at[0], at[0] + len(at))) or len(at) > 2:
        return None
    first, end = at[0], at[-1] + 1
    return operations[:first], operations[first:end], operations[end:]


def pipeline(kernel: Kernel) -> Pipeline | None:
    """The parts of a kernel that is a pipeline."""
    parts = around_loops(kernel)
    if parts is None:
        return None
    before, loops, after = parts
    loads = [op for op in before if op.name == "load"]
    stores = [op for op in after if op.name == "store" and len(op.attributes["axes"]) == 2]
    if len(loads) != 1 or len(stores) != 1 or not _are_tiles(before, "load"):
        return None
    if not _are_tiles(after, "store", "reshape") or kernel.sizes:
        return None
    steps = [_step(loop, loads[0].results[0]) for loop in loops]
    found = tuple(s for s in steps if s is not None)
    p = Pipeline(kernel, loads[0], before, found, after, stores[0])
    return p if len(found) == len(loops) and _fits(p) else None


def boxes(p: Pipeline) -> dict[Memory, TmaBox]:
    """What is fetched and stored as boxes."""
    out: dict[Memory, TmaBox] = {}
    for op in (p.tile, *_loads(p), p.out):
        *_, rows, columns = op.attributes["extent"]
        out[memory_of(op)] = TmaBox(memory_of(op), int(rows), int(columns))
    return out


def _are_tiles(operations: tuple[Operation, ...], *more: str) -> bool:
    return all(op.name in _ON_TILES or op.name in more for op in operations)


def _step(loop: Operation, tile: Tile) -> PipelineLoop | None:
    """The parts of a loop that is a step of a pipeline."""
    block = loop.block
    assert block is not None
    makers = {t: op for op in block.operations for t in op.results}
    dots = [op for op in block.operations if op.name == "dot"]
    if len(dots) != 2 or dots[0].operands[0] is not tile:
        return None
    operands = (*dots[0].operands[1:], *dots[1].operands)
    factors = [makers[t] for t in operands if t in makers]
    if [op.name for op in factors] != ["load", "full", "cast", "load", "apply"]:
        return None
    left, zero, narrow, right, scaled = factors
    if zero.attributes["value"] != 0 or scaled.attributes["scalar"] != "mul":
        return None
    between = tuple(op for op in block.operations if op not in {*factors, *dots})
    acc, again = scaled.operands
    # The sums are touched by their own product alone, so that it may still run while weights are made.
    own = not any(t is acc for op in (*between, *dots, narrow) for t in op.operands)
    if not own or block.arguments[0] is not acc or block.outputs[0] is not dots[1].results[0]:
        return None
    if not _are_tiles(between) or again is acc:
        return None
    return PipelineLoop(loop, left, right, dots[0].results[0], narrow.operands[0], again, between)


def _fits(p: Pipeline) -> bool:
    return _is_whole(p) and _is_closed(p) and _is_shared(p) and _keeps_pace(p)


def memory_of(op: Operation) -> Memory:
    """What a load or store accesses."""
    assert op.memory is not None
    return op.memory


def has_rows(op: Operation) -> bool:
    """Whether the rows of a box are there, and the copy engine takes them: past their last column it
    reads 0.
    """
    last = memory_of(op).type.rank - 1
    return all(axis == last for axis in op.attributes["masked"]) and (
        int(memory_of(op).type.shape[-1]) * 2 % 16 == 0
    )


def _loads(p: Pipeline) -> list[Operation]:
    return [op for s in p.steps for op in (s.left, s.right)]


def _is_whole(p: Pipeline) -> bool:
    """Whether every tile has the one shape that is printed, and every box lies inside of its memory."""
    dtype = memory_of(p.out).type.dtype
    if p.columns not in GROUPS:
        return False
    for op in (p.tile, *_loads(p), p.out):
        m, a = memory_of(op), op.attributes
        rows = ROWS if op is p.tile or op is p.out else DEPTH
        box = (*[1] * (m.type.rank - 2), rows, p.columns)
        if tuple(a["extent"]) != box or m.type.dtype is not dtype:
            return False
        if not has_rows(op) or product(m.type.shape[:-1]) >= 1 << 31:
            return False
    states = [t for s in p.steps for t in s.block.arguments]
    indices = [op for op in walk(p.kernel.body) if op.name == "index"]
    return (
        dtype in (bf16, f16)
        and all(t.shape in ((ROWS, 1), (ROWS, p.columns)) and t.dtype is f32 for t in states)
        and all(op.attributes["axis"] is not None for op in indices)
        and all(b.loop.operands == a.loop.results for a, b in pairwise(p.steps))
    )


def _is_closed(p: Pipeline) -> bool:
    """Whether each part reads only what it is given: parts are functions of their own."""
    for s in p.steps:
        handed = (s.weights, s.again, *s.block.outputs[1:])
        if not _makes(s.between, (s.scores, *s.block.arguments[1:]), handed):
            return False
    starts = tuple(op for op in p.before if op.name == "full")
    folds = [op for op in walk(p.kernel.body) if op.name == "fold"]
    return (
        len(starts) == len(p.before) - 1
        and _makes(starts, (), p.steps[0].loop.operands)
        and _makes(p.after, p.steps[-1].loop.results, ())
        and all(op.attributes["axis"] == 1 and op.operands[0].shape[0] == ROWS for op in folds)
        and NAMES.isdisjoint(m.name for m in p.kernel.parameters)
    )


def _makes(
    operations: tuple[Operation, ...], given: tuple[Tile, ...], wanted: tuple[Tile, ...]
) -> bool:
    """Whether operations read nothing but what is given and made, and make what is wanted."""
    known = {*given, *(t for op in operations for t in op.results)}
    return known.issuperset(wanted) and all(known.issuperset(op.operands) for op in operations)


def _is_shared(p: Pipeline) -> bool:
    """Whether neighbours of the grid, and loops, read the same factors as many steps before their end."""
    last, _ = p.kernel.grid[-1]
    stop, read = p.steps[-1].bound("stop"), []
    for s in p.steps:
        own = {s.loop.attributes["variable"]: stop - 1 - symbol("_left")}
        for op, turned in ((s.left, True), (s.right, False)):
            rank = memory_of(op).type.rank
            axes = (rank - 1, rank - 2) if turned else (rank - 2, rank - 1)
            if tuple(op.attributes["axes"]) != axes:
                return False
            at = [substitute(n, own) for n in op.attributes["at"]]
            if any(last in symbols(n) for n in at):
                return False
            read.append((op.memory, at))
    return read[:2] == read[-2:]


def _keeps_pace(p: Pipeline) -> bool:
    """Whether instances that share what is fetched end together, and others begin at most a step after
    the first.
    """
    last, count = p.kernel.grid[-1]
    loops = [s.loop.attributes for s in p.steps]
    if any(a["step"] != 1 for a in loops) or any(
        a["stop"] != b["start"] for a, b in pairwise(loops)
    ):
        return False
    ends = [loops[0]["start"], *(a["stop"] for a in loops)]
    if ends[0] != 0 or any(symbols(n) - {last} for n in ends):
        return False
    taken = [[int(substitute(n, {last: i})) for n in ends] for i in range(int(count))]
    first = all(at[1] == 1 for at in taken) or len(ends) == 2
    return first and all(
        at[-1] > 0 and most[-1] - at[-1] in (0, 1)
        for most, *others in shared_out(taken, p.groups)
        for at in (most, *others)
    )


def shared_out(instances: list[T], groups: int) -> list[list[T]]:
    """Instances by blocks of threads; the last one is there as often as it takes to fill its block."""
    filled = [*instances, *instances[-1:] * (-len(instances) % groups)]
    return [filled[i : i + groups] for i in range(0, len(filled), groups)]
