"""Nests: which loops compute a kernel, in which order, and what is staged close by.

A nest is a value.  Its loops stand outermost first; each walks an axis in steps, so that the loops
of one axis cut it into ever smaller blocks.  The axes have the same names in every kernel:

    b0, b1, ...   the rows of a contraction (its batch)      r0, r1, ...   the rows of other kernels
    m, n, k       rows, columns and reduced axis of a        c             the columns of a row
                  contraction                                k             what is folded for each column
                                                             l             leaves of the fold of a row

    parallel m:504, parallel n:64, k:512, m:6, k:1, unroll m:1, vector n:16; stage right at 3
    parallel r0:8, r0:1, c:64, unroll l:4, vector c:16

Rows that no loop names are shared among instances one by one.  Kernels of rows may share a fold too:
`parallel c:32768` gives each instance a subtree of leaves of a row, `parallel k:2048` one of the axis that
is folded for each column.

The primitives below return a new nest or raise ScheduleError.  None of them changes a bit of the
result: the order of a fold belongs to core/folds.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tessera.core.errors import ScheduleError
from tessera.core.folds import LANES, LEAF

KINDS = ("serial", "parallel", "unroll", "vector")
_BLOCKS = ("unroll", "vector")
_LOOP = re.compile(r"(?:(parallel|unroll|vector) )?([a-z]\w*):(\d+)")
_STAGE = re.compile(r"stage (\w+) at (\d+)")


@dataclass(frozen=True)
class NestLoop:
    """A loop over an axis, `step` points at a time."""

    axis: str
    step: int
    kind: str = "serial"

    def __str__(self) -> str:
        return f"{'' if self.kind == 'serial' else self.kind + ' '}{self.axis}:{self.step}"


@dataclass(frozen=True)
class Nest:
    """Loops, outermost first, and the factors that are copied to scratch, before which loop."""

    loops: tuple[NestLoop, ...]
    staged: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        check(self)

    def __str__(self) -> str:
        stages = "".join(f"; stage {name} at {i}" for name, i in self.staged)
        return ", ".join(map(str, self.loops)) + stages

    def steps(self, axis: str, *kinds: str) -> list[int]:
        """The steps of the loops over an axis, outermost first."""
        wanted = kinds or KINDS
        return [x.step for x in self.loops if x.axis == axis and x.kind in wanted]


def parse_nest(text: str) -> Nest:
    """The nest that a line describes."""
    head, *rest = text.split("; ")
    loops, staged = [], []
    for part in head.split(", ") if head else ():
        found = _LOOP.fullmatch(part)
        if found is None:
            raise ScheduleError(f"nest: {part!r} is no loop, expected one like 'parallel m:64'")
        kind, axis, step = found.groups()
        loops.append(NestLoop(axis, int(step), kind or "serial"))
    for part in rest:
        found = _STAGE.fullmatch(part)
        if found is None:
            raise ScheduleError(f"nest: {part!r} is no stage, expected one like 'stage right at 3'")
        staged.append((found.group(1), int(found.group(2))))
    return Nest(tuple(loops), tuple(staged))


# Legality -------------------------------------------------------------------------------------


def check(nest: Nest) -> None:
    """Raise ScheduleError unless the loops nest as they must."""
    seen: dict[str, NestLoop] = {}
    ordered = ("parallel", "serial", "block")
    place = 0
    for i, x in enumerate(nest.loops):
        if x.kind not in KINDS or x.step < 1:
            raise ScheduleError(f"nest: loop {i} is {x}, expected a step of at least 1 and a kind "
                                f"of {', '.join(KINDS)}")  # fmt: skip
        here = ordered.index("block" if x.kind in _BLOCKS else x.kind)
        if here < place:
            raise ScheduleError(
                f"nest: {x} stands inside {nest.loops[i - 1]}; parallel loops come first, then "
                "serial ones, then what is unrolled and vectorised"
            )
        place = here
        _check_step(x, seen.get(x.axis))
        seen[x.axis] = x
    names = [name for name, _ in nest.staged]
    if len(set(names)) != len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise ScheduleError(f"nest: {twice} is staged twice; stage it once")
    for name, i in nest.staged:
        if not 0 <= i <= len(nest.loops):
            raise ScheduleError(f"nest: {name} is staged at {i}, expected 0 to {len(nest.loops)}")


def _check_step(x: NestLoop, outer: NestLoop | None) -> None:
    if outer is not None and outer.step % x.step:
        raise ScheduleError(f"nest: {x} does not divide the blocks of {outer}")
    if x.axis == "k" and x.kind in _BLOCKS:
        raise ScheduleError(f"nest: {x}: a fold runs in its own order, so its loop is serial")
    if x.axis == "k" and x.step % LEAF and LEAF % x.step:
        raise ScheduleError(
            f"nest: {x} cuts leaves of the fold; use a divisor or multiple of {LEAF}"
        )
    if x.kind == "vector" and x.step != LANES:
        raise ScheduleError(f"nest: {x}: vectors have {LANES} elements")


# Primitives -----------------------------------------------------------------------------------


def split(nest: Nest, loop: int, step: int) -> Nest:
    """Cut the blocks of a loop into smaller ones.

    m:504                 -> split(nest, 0, 6) ->  m:504, m:6
    """
    x = _at(nest, loop, "split")
    if x.kind in _BLOCKS:
        raise ScheduleError(f"split: {x} is one block of registers already")
    if step >= x.step or x.step % step:
        raise ScheduleError(f"split: {step} does not divide {x} into smaller blocks")
    inner = replace(x, step=step, kind="serial")
    place = loop + 1 if x.kind == "serial" else _first(nest, "serial")
    return _insert(nest, place, inner)


def widen(nest: Nest, loop: int, step: int) -> Nest:
    """Have a loop take larger blocks, which a new loop cuts into those of before.

    parallel r0:1, c:64   -> widen(nest, 0, 8) ->  parallel r0:8, r0:1, c:64
    """
    x = _at(nest, loop, "widen")
    if x.kind in _BLOCKS:
        raise ScheduleError(f"widen: {x} is one block of registers already")
    if step <= x.step or step % x.step:
        raise ScheduleError(f"widen: {step} is no multiple of {x}")
    loops = list(nest.loops)
    loops[loop] = replace(x, step=step)
    return split(replace(nest, loops=tuple(loops)), loop, x.step)


def fuse(nest: Nest, loop: int) -> Nest:
    """Make one loop of a loop and the next one over the same axis: the opposite of split.

    m:504, m:6            -> fuse(nest, 0) ->  m:6
    """
    x = _at(nest, loop, "fuse")
    inner = [i for i, y in enumerate(nest.loops) if i > loop and y.axis == x.axis]
    if not inner or nest.loops[inner[0]].kind in _BLOCKS:
        raise ScheduleError(f"fuse: {x} has no loop of its axis inside")
    at = inner[0]
    if any(y.kind == "serial" for y in nest.loops[loop + 1 : at]) and x.kind == "serial":
        raise ScheduleError(
            f"fuse: other loops stand between {x} and {nest.loops[at]}; reorder first"
        )
    loops = list(nest.loops)
    loops[loop] = replace(x, step=loops.pop(at).step)
    staged = tuple((n, i - 1 if i > at else i) for n, i in nest.staged)
    return Nest(tuple(loops), staged)


def reorder(nest: Nest, order: Sequence[int]) -> Nest:
    """Put the loops in another order; loops of one axis keep theirs.

    parallel m:504, parallel n:64   -> reorder(nest, [1, 0]) ->  parallel n:64, parallel m:504
    """
    if sorted(order) != list(range(len(nest.loops))):
        raise ScheduleError(f"reorder: {list(order)} is no order of {len(nest.loops)} loops")
    return replace(nest, loops=tuple(nest.loops[i] for i in order))


def parallel(nest: Nest, loop: int) -> Nest:
    """Have instances share a loop, which must stand with the parallel ones, outermost.

    m:504, n:64, ...      -> parallel(nest, 0) ->  parallel m:504, n:64, ...
    """
    return _kind(nest, loop, "parallel")


def serial(nest: Nest, loop: int) -> Nest:
    """Run a loop inside each instance.

    parallel m:504, n:64  -> serial(nest, 0) ->  m:504, n:64
    """
    return _kind(nest, loop, "serial")


def unroll(nest: Nest, axis: str, count: int) -> Nest:
    """Compute so many points of an axis at once, in registers of their own.

    m:6, ..., unroll m:1  -> unroll(nest, "m", 12) ->  m:12, ..., unroll m:1
    """
    at = [i for i, x in enumerate(nest.loops) if x.axis == axis and x.kind not in _BLOCKS]
    if not at:
        raise ScheduleError(f"unroll: there is no loop over {axis} to unroll")
    loops = list(nest.loops)
    for i in at:  # the blocks around keep whole numbers of it
        last = i == at[-1]
        loops[i] = replace(loops[i], step=count if last else max(loops[i].step // count, 1) * count)
    return replace(nest, loops=tuple(loops))


def vectorize(nest: Nest, axis: str, vectors: int) -> Nest:
    """Compute so many vectors of 16 elements of an axis at once.

    n:64, ..., vector n:16  -> vectorize(nest, "n", 2) ->  n:32, ..., vector n:16
    """
    if not nest.steps(axis, "vector"):
        raise ScheduleError(f"vectorize: {axis} does not lie along vectors in {nest}")
    return unroll(nest, axis, vectors * LANES)


def stage(nest: Nest, name: str, loop: int | None) -> Nest:
    """Copy what is read of a factor to scratch before a loop, or (None) read it where it lies.

    k:512, m:6, k:1       -> stage(nest, "right", 1) ->  k:512, m:6, k:1; stage right at 1
    """
    if name not in ("left", "right"):
        raise ScheduleError(f"stage: {name!r} is no factor, expected 'left' or 'right'")
    rest = tuple(s for s in nest.staged if s[0] != name)
    return replace(nest, staged=rest if loop is None else (*rest, (name, loop)))


def _kind(nest: Nest, loop: int, kind: str) -> Nest:
    x = _at(nest, loop, kind)
    if x.kind in _BLOCKS:
        raise ScheduleError(f"{kind}: {x} is one block of registers")
    loops = list(nest.loops)
    loops[loop] = replace(x, kind=kind)
    return replace(nest, loops=tuple(loops))


def _at(nest: Nest, loop: int, name: str) -> NestLoop:
    if not 0 <= loop < len(nest.loops):
        raise ScheduleError(f"{name}: there is no loop {loop} in {nest}")
    return nest.loops[loop]


def _first(nest: Nest, kind: str) -> int:
    """Where loops of a kind begin."""
    rank = {"parallel": 0, "serial": 1, "unroll": 2, "vector": 2}
    return next(
        (i for i, x in enumerate(nest.loops) if rank[x.kind] >= rank[kind]), len(nest.loops)
    )


def _insert(nest: Nest, place: int, x: NestLoop) -> Nest:
    loops = (*nest.loops[:place], x, *nest.loops[place:])
    return Nest(loops, tuple((n, i + 1 if i >= place else i) for n, i in nest.staged))
