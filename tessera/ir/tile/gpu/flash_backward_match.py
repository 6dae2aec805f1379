"""Doubles: kernels in which blocks of two factors pass by two tiles, as queries and cotangents pass by keys
and values.

    for i: s = dot(x, a[i]); w = f(s); d = dot(y, b[i]); sum1 = dot(w, b[i], sum1); sum0 = dot(g(w, d),
    a[i], sum0)

The sum of weights times the second factor may be missing.  f and g read numbers too, one for each row,
which stay, or one for each column, which pass by with the factors.  Whatever differs from this form in any
way is no double.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tessera.core.dims import product, substitute, symbol, symbols
from tessera.core.dtype import bf16, f16, f32
from tessera.ir.tile.gpu.flash_forward_match import (
    GROUPS,
    ROWS,
    TmaBox,
    around_loops,
    has_rows,
    memory_of,
    shared_out,
)
from tessera.ir.tile.ir import Block, Kernel, Memory, Operation, Tile

NAMES = frozenset(
    (
        "s",
        "d",
        "w",
        "x",
        "p",
        "u",
        "i",
        "at",
        "bar",
        "box",
        "own",
        "one",
        "two",
        "rest",
        "turn",
        "which",
        "phase",
        "before",
        "begin",
        "begun",
        "rows",
        "cols",
        "flat",
        "factor",
        "nothing",
        "newer",
        "first",
        "second",
        "left",
        "right",
        "produce",
        "consume",
        "tile_full",
        "left_full",
        "left_empty",
        "right_full",
        "right_empty",
        "load_box",
        "store_box",
    )
)  # that the frame of a double has for itself
_ON_TILES = frozenset(("apply", "cast", "full", "index"))
_SIZES = (64, 128)  # rows of a factor


@dataclass(frozen=True)
class BackwardLoop:
    """A loop of a double."""

    loop: Operation
    left: Operation  # the load of the first product's factor
    right: Operation  # and of the second one's
    lines: dict[Tile, Operation]  # numbers that pass by, and their loads
    scores: Tile  # the first product
    other: Tile  # and the second one
    weights: Tile
    slopes: Tile
    weighing: tuple[Operation, ...]  # how scores become weights
    sloping: tuple[Operation, ...]  # and weights and the second product become slopes
    places: tuple[
        int, ...
    ]  # of the sums among what the loop carries: that of slopes, then that of weights

    @property
    def block(self) -> Block:
        assert self.loop.block is not None
        return self.loop.block


@dataclass(frozen=True)
class Double:
    """The parts of a kernel."""

    kernel: Kernel
    tiles: tuple[Operation, ...]  # the loads of what factors pass by
    numbers: tuple[Operation, ...]  # loads and reshapes of one number for each row
    starts: tuple[Operation, ...]  # what sums begin with
    passes: tuple[BackwardLoop, ...]  # loops that follow each other
    after: tuple[Operation, ...]
    outs: tuple[Operation, ...]  # the stores of the sums

    @property
    def rows(self) -> int:
        """Of a factor, which are columns of the scores."""
        return self.passes[0].scores.shape[1]

    @property
    def columns(self) -> int:
        """Of tiles and sums."""
        return self.tiles[0].results[0].shape[1]

    @property
    def groups(self) -> int:
        """Instances that one block of threads runs."""
        return GROUPS[self.columns]

    @property
    def boxes(self) -> dict[Memory, TmaBox]:
        """What is fetched and stored as boxes."""
        return _boxes(self)


def double(kernel: Kernel) -> Double | None:
    """The parts of a kernel that is a double."""
    parts = around_loops(kernel)
    if parts is None:
        return None
    before, loops, after = parts
    tiles = tuple(op for op in before if op.name == "load" and len(op.attributes["axes"]) == 2)
    starts = tuple(op for op in before if op.name == "full")
    numbers = tuple(op for op in before if op not in {*tiles, *starts})
    outs = tuple(op for op in after if op.name == "store")
    if len(tiles) != 2 or kernel.sizes or not _are(after, *_ON_TILES, "store"):
        return None
    if not _are(numbers, "load", "reshape"):
        return None
    known = {op.results[0] for op in numbers if op.name == "reshape"}
    steps = [_pass(loop, tiles, known) for loop in loops]
    found = tuple(s for s in steps if s is not None)
    p = Double(kernel, tiles, numbers, starts, found, after, outs)
    return p if len(found) == len(loops) and _fits(p) else None


def _are(operations: Iterable[Operation], *names: str) -> bool:
    return all(op.name in names for op in operations)


# Loops


@dataclass(frozen=True)
class _Products:
    """The products of a loop."""

    left: Operation
    right: Operation
    scores: Tile
    other: Tile
    factors: dict[int, Tile]  # what multiplies the left factor, 0, and the right one, 1
    places: tuple[int, ...]
    used: frozenset[Operation]  # products, their loads, zeros and narrow factors


def _products(
    block: Block, tiles: tuple[Operation, ...], makers: dict[Tile, Operation]
) -> _Products | None:
    """Two products with tiles, of which each begins with zeros, and one or two sums with the same factors."""
    dots = [op for op in block.operations if op.name == "dot"]
    ones = [op for op in dots if any(op.operands[0] is t.results[0] for t in tiles)]
    sums = [op for op in dots if op not in ones]
    if len(ones) != 2 or not 1 <= len(sums) <= 2 or len(sums) != len(block.arguments):
        return None
    ones.sort(key=lambda op: op.operands[0] is tiles[1].results[0])
    loads = [makers.get(op.operands[1]) for op in (*ones, *sums)]
    zeros = [makers.get(op.operands[2]) for op in ones]
    casts = [makers.get(op.operands[0]) for op in sums]
    made = [op for op in (*loads, *zeros, *casts) if op is not None]
    if [op.name for op in made] != ["load"] * len(dots) + ["full"] * 2 + ["cast"] * len(sums):
        return None
    left, right, *again = made[: len(dots)]
    places = [_place(block, op) for op in sums]
    roles = [next((i for i, f in enumerate((left, right)) if _same_box(f, g)), 2) for g in again]
    found = tuple(p for _, p in sorted(zip(roles, places, strict=True)) if p is not None)
    if len(found) != len(sums) or sorted(roles) != list(range(len(sums))):
        return None
    if any(z.attributes["value"] != 0 for z in made[len(dots) : len(dots) + 2]):
        return None
    narrow = [op.operands[0] for op in made[len(dots) + 2 :]]
    s, d = (op.results[0] for op in ones)
    factors = dict(zip(roles, narrow, strict=True))
    return _Products(left, right, s, d, factors, found, frozenset((*dots, *made)))


def _pass(loop: Operation, tiles: tuple[Operation, ...], known: set[Tile]) -> BackwardLoop | None:
    """The parts of a loop that is one of a double; `known` are numbers that stay."""
    block = loop.block
    assert block is not None
    makers = {t: op for op in block.operations for t in op.results}
    p = _products(block, tiles, makers)
    turned = [op for op in block.operations if op.name == "reshape"]
    lines = {op.results[0]: makers.get(op.operands[0]) for op in turned}
    loads = {t: op for t, op in lines.items() if op is not None and op.name == "load"}
    if p is None or len(loads) != len(lines):
        return None
    w, slopes = _crossing(block, p.scores, p.other), p.factors[0]
    if w is None or p.factors.get(1, w) is not w:
        return None
    given = {*known, *lines}
    weighing = _makers_of(w, makers, {p.scores, *given})
    sloping = _makers_of(slopes, makers, {w, p.other, *given})
    if weighing is None or sloping is None:
        return None
    parts = {*p.used, *turned, *loads.values(), *weighing, *sloping}
    if any(op not in parts for op in block.operations):
        return None
    return BackwardLoop(
        loop, p.left, p.right, loads, p.scores, p.other, w, slopes, weighing, sloping, p.places
    )


def _place(block: Block, dot: Operation) -> int | None:
    """Which of the carried tiles a product adds to; None if it does more, or something else does."""
    for i, t in enumerate(block.arguments):
        if t is dot.operands[2]:
            readers = sum(x is t for op in block.operations for x in op.operands)
            return i if readers == 1 and block.outputs[i] is dot.results[0] else None
    return None


def _same_box(a: Operation | None, b: Operation | None) -> bool:
    """Whether two loads read the same elements, of which one may turn them."""
    if a is None or b is None or a.memory is not b.memory:
        return False
    return all(a.attributes[n] == b.attributes[n] for n in ("at", "extent", "masked"))


def _crossing(block: Block, s: Tile, d: Tile) -> Tile | None:
    """The one tile that scores became and that meets the second product."""
    of_s, of_d = {s}, {d}
    met: dict[Tile, None] = {}
    for op in block.operations:
        if op.name not in _ON_TILES:
            continue
        if not of_d.isdisjoint(op.operands):
            met |= {t: None for t in op.operands if t in of_s and t not in of_d}
            of_d |= {*op.results}
        if not of_s.isdisjoint(op.operands):
            of_s |= {*op.results}
    (w, *more) = met or [None]
    return None if more else w


def _makers_of(
    t: Tile, makers: dict[Tile, Operation], given: set[Tile]
) -> tuple[Operation, ...] | None:
    """The operations that make a tile from given ones, in order; None where they need more."""
    found: dict[Operation, None] = {}

    def visit(x: Tile) -> bool:
        if x in given:
            return True
        op = makers.get(x)
        if op is None or op.name not in _ON_TILES or not all(visit(y) for y in op.operands):
            return False
        found[op] = None
        return True

    return tuple(found) if visit(t) else None


# Sizes


def _fits(p: Double) -> bool:
    return _is_whole(p) and _is_closed(p) and _is_shared(p) and _keeps_pace(p)


def _boxes(p: Double) -> dict[Memory, TmaBox]:
    out: dict[Memory, TmaBox] = {}
    for op in _accesses(p):
        *lead, columns = op.attributes["extent"]
        out[memory_of(op)] = TmaBox(memory_of(op), int(product(tuple(lead))), int(columns))
    return out


def _accesses(p: Double) -> list[Operation]:
    """Loads and stores that are boxes."""
    passing = [op for s in p.passes for op in (s.left, s.right, *s.lines.values())]
    return [*p.tiles, *passing, *p.outs]


def _is_whole(p: Double) -> bool:
    """Whether every tile has a shape that is printed, and every box lies inside of its memory."""
    dtype, n = memory_of(p.tiles[0]).type.dtype, p.rows
    if dtype not in (bf16, f16) or n not in _SIZES or p.columns not in GROUPS:
        return False
    for op in (*p.tiles, *p.outs):
        if not _is_box(op, dtype, (ROWS, p.columns), False):
            return False
    for s in p.passes:
        shapes = {t.shape for t in (s.scores, s.other, s.weights, s.slopes)}
        sums = {(t.shape, t.dtype) for t in s.block.arguments}
        if shapes != {(ROWS, n)} or sums != {((ROWS, p.columns), f32)}:
            return False
        if not all(_is_box(op, dtype, (n, p.columns), True) for op in (s.left, s.right)):
            return False
        if not all(_is_line(op, n) and t.shape == (1, n) for t, op in s.lines.items()):
            return False
    loads = [op for op in p.numbers if op.name == "load"]
    turned = [op.results[0].shape for op in p.numbers if op.name == "reshape"]
    found: dict[Memory, set[tuple[int, ...]]] = {}
    for op in _accesses(p):
        found.setdefault(memory_of(op), set()).add(tuple(op.attributes["extent"]))
    return (
        all(len(x) == 1 for x in found.values())
        and all(_is_line(op, ROWS) and memory_of(op) not in found for op in loads)
        and all(x == (ROWS, 1) for x in turned)
    )


def _is_box(op: Operation, dtype: Any, shape: tuple[int, int], turned: bool) -> bool:
    m, a, rank = memory_of(op), op.attributes, memory_of(op).type.rank
    axes = (rank - 1, rank - 2) if turned else (rank - 2, rank - 1)
    return (
        has_rows(op)
        and tuple(a["extent"]) == (*[1] * (rank - 2), *shape)
        and tuple(a["axes"]) == axes
        and m.type.dtype is dtype
        and product(m.type.shape[:-1]) < 1 << 31
    )


def _is_line(op: Operation, n: int) -> bool:
    m, a, rank = memory_of(op), op.attributes, memory_of(op).type.rank
    return (
        not a["masked"]
        and tuple(a["extent"]) == (*[1] * (rank - 1), n)
        and tuple(a["axes"]) == (rank - 1,)
        and m.type.dtype is f32
        and product(m.type.shape) < 1 << 31
    )


def _is_closed(p: Double) -> bool:
    """Whether each part reads only what it is given, and loops follow each other."""
    made = {t for op in p.starts for t in op.results}
    last = p.passes[-1].loop.results
    known = {*last, *(t for op in p.after for t in op.results)}
    indices = [op for s in p.passes for op in (*s.weighing, *s.sloping) if op.name == "index"]
    return (
        made.issuperset(p.passes[0].loop.operands)
        and all(known.issuperset(op.operands) for op in p.after)
        and len(p.outs) == len(last)
        and all(b.loop.operands == a.loop.results for a, b in pairwise(p.passes))
        and all(a.places == b.places for a, b in pairwise(p.passes))
        and all(op.attributes["axis"] is not None for op in indices)
        and NAMES.isdisjoint(m.name for m in p.kernel.parameters)
    )


def _is_shared(p: Double) -> bool:
    """Whether neighbours of the grid, and loops one after the other, read the same factors."""
    last, _ = p.kernel.grid[-1]
    read = []
    for s in p.passes:
        own = {s.loop.attributes["variable"]: symbol("_i")}
        boxes = (s.left, s.right, *s.lines.values())
        if any(last in symbols(n) for op in boxes for n in op.attributes["at"]):
            return False
        read.append(
            [(op.memory, [substitute(n, own) for n in op.attributes["at"]]) for op in boxes]
        )
    return all(x == read[0] for x in read)


def _keeps_pace(p: Double) -> bool:
    """Whether each of some neighbours begins at most one step after the one before it, and ends at most
    one before.
    """
    last, count = p.kernel.grid[-1]
    loops = [s.loop.attributes for s in p.passes]
    step = int(loops[0]["step"])
    ends = [loops[0]["start"], *(a["stop"] for a in loops)]
    if any(a["stop"] != b["start"] for a, b in pairwise(loops)):
        return False
    if any(int(a["step"]) != p.rows for a in loops) or any(symbols(n) - {last} for n in ends):
        return False

    def places(number: int) -> list[int]:
        return [int(substitute(n, {last: number})) for n in ends]

    taken = [places(i) for i in range(int(count))]
    for at in taken:
        if any(b < a or (b - a) % step for a, b in pairwise(at)) or at[0] == at[-1]:
            return False
    return all(
        b[0] - a[0] in (0, step) and a[-1] - b[-1] in (0, step)
        for block in shared_out(taken, p.groups)
        for a, b in pairwise(block)
    )
