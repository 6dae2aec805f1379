"""work: what a step of the Schedule IR computes and moves, counted as one would by hand.

    softmax of n elements: 5 n operations (max, subtract, exp, add, divide) on 2 n elements moved

`flops` counts every arithmetic op once, at the points that it depends on; `cost` counts an exp as the
twenty operations that it takes, and is what the roofline is about.  Bytes are those that a step reads and
writes at least: every element once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log2, prod
from typing import Any

from tessera.checks.roofline import work as tile_work
from tessera.core.costs import COSTS
from tessera.core.dims import Dim, symbols
from tessera.core.filters import TRANSFORMS, parts_of
from tessera.core.scalar import TESTS
from tessera.core.scatters import SCATTERS
from tessera.core.source import Location
from tessera.core.types import TensorType
from tessera.core.writes import WRITES
from tessera.ir.graph.ir import substitute_params
from tessera.ir.schedule.ir import (
    Apply,
    Group,
    HostCall,
    Kernel,
    Primitive,
    Read,
    Stage,
    Step,
    Term,
    reads,
    walk,
)
from tessera.ir.schedule.memory import size_of
from tessera.ir.schedule.passes.fuse_contractions import hidden_columns
from tessera.ir.tile.cpu.lower import expand
from tessera.tune.roofline import number

Types = Mapping[str, TensorType]
Sizes = Mapping[str, int]
# What compares, chooses or moves is no arithmetic.
_FREE = TESTS | {
    "where",
    "pos",
    "neg",
    "abs",
    "real",
    "imag",
    "conj",
    "copysign",
    "not",
    "and",
    "or",
}
_PARTS = frozenset(d.name for d in (*SCATTERS, *WRITES))
_WIDE = ("f64", "c128")
_COMPLEX = {"mul": 6, "add": 2, "sub": 2, "div": 11}


@dataclass(frozen=True)
class StepWork:
    """What a run of a step does."""

    flops: float = 0.0
    cost: float = 0.0
    bytes: float = 0.0
    wide: bool = False  # whether it computes in f64

    def __add__(self, other: StepWork) -> StepWork:
        wide = self.wide or other.wide
        return StepWork(
            self.flops + other.flops, self.cost + other.cost, self.bytes + other.bytes, wide
        )

    def __mul__(self, times: float) -> StepWork:
        return StepWork(self.flops * times, self.cost * times, self.bytes * times, self.wide)

    def least(self, flops: float, bandwidth: float) -> float:
        """The least seconds that it takes at so many operations and bytes a second."""
        return max(self.cost / flops, self.bytes / bandwidth)


def work_of(step: Step, types: Types, sizes: Sizes) -> StepWork:
    """The work of one run of a step at known sizes; types may be symbolic."""
    known = {n: t.substitute(sizes) for n, t in types.items()}
    match step:
        case Kernel() | Group():
            total = sum((w for _, w in stage_work(step, sizes)), StepWork())
            wide = any(known[n].dtype.name in _WIDE for n in step.outputs if n in known)
            return total + StepWork(bytes=_moved(step, known, sizes), wide=wide)
        case Primitive():
            flops = _primitive(step, types, known, sizes)
            wide = any(known[n].dtype.name in _WIDE for n in step.results)
            return StepWork(flops, flops, _primitive_bytes(step, known), wide)
        case HostCall():
            return StepWork(bytes=sum(size_of(known[n]) for n in (*step.operands, *step.results)))


def _primitive(step: Primitive, types: Types, known: Types, sizes: Sizes) -> float:
    """The arithmetic of a primitive: by its formula, or as its kernels do it."""
    count = FORMULAS.get(step.primitive)
    if count is not None:
        shapes = (
            [[int(n) for n in known[x].shape] for x in xs] for xs in (step.operands, step.results)
        )
        return count(*shapes, substitute_params(step.params, sizes))
    launches = expand(step, types).launches
    return sum(tile_work(x.kernel, {n: sizes[n] for n in x.kernel.sizes}).flops for x in launches)


def _primitive_bytes(step: Primitive, known: Types) -> float:
    """What a primitive reads and writes; of a tensor that is written in part, that part."""
    sizes = [size_of(known[n]) for n in step.operands]
    if step.primitive in _PARTS:
        return sum(sizes[1:]) + sizes[1]
    return sum(sizes) + sum(size_of(known[n]) for n in step.results)


def _transform(shape: Sequence[int], lengths: Sequence[int]) -> float:
    """Of a complex transform, as is usual: five n log2 n."""
    return 5 * prod(shape) * sum(log2(n) for n in lengths)


def _transforms(p: Mapping[str, Any]) -> int:
    """How many transforms a filter has."""
    return sum(x.name in TRANSFORMS for x in parts_of(p))


def _axes_lengths(xs: Any, ys: Any, p: Mapping[str, Any]) -> float:
    return _transform(xs[0], [xs[0][a] for a in p["axes"]])


# (shapes of the operands, shapes of the results, parameters) -> operations
FORMULAS: dict[str, Callable[..., float]] = {
    "conv": lambda xs, ys, p: 2 * prod(ys[0]) * prod(xs[1][1:]),
    "conv_weights": lambda xs, ys, p: 2 * prod(xs[1]) * prod(ys[0][1:]),
    "conv_input": lambda xs, ys, p: 2 * prod(xs[0]) * prod(xs[1][1:]),
    "fft": _axes_lengths,
    "ifft": _axes_lengths,
    "rfft": lambda xs, ys, p: _transform(xs[0], [xs[0][p["axis"]]]) / 2,
    "filter": lambda xs, ys, p: _transform(xs[0], [xs[0][p["axis"]]] * _transforms(p)),
    "irfft": lambda xs, ys, p: _transform(ys[0], [ys[0][p["axis"]]]) / 2,
}


def stage_work(step: Kernel | Group, sizes: Sizes) -> Iterator[tuple[Stage, StepWork]]:
    """The arithmetic of each stage."""
    for k in step.kernels if isinstance(step, Group) else (step,):
        for s in k.stages:
            yield s, _arithmetic(s, sizes) * _seen(step, k, s, sizes)


def described(step: Step) -> str:
    """A step in a few words: what kind of loops it is, over which sizes."""
    match step:
        case HostCall():
            return "host"
        case Primitive():
            return step.primitive
        case Group():
            return f"group {_extent(step.kernels[0].stages[0])}"
        case Kernel():
            kind = "product" if step.contracts else "fold" if _folds(step) else "map"
            return f"{kind} {_extent(step.stages[0])}"


def _folds(k: Kernel) -> bool:
    return any(s.combine is not None for s in k.stages)


def _extent(s: Stage) -> str:
    over = f" over {'x'.join(str(a.size) for a in s.reduced)}" if s.reduced else ""
    return f"{'x'.join(str(a.size) for a in s.axes) or '1'}{over}"


def lines_of(step: Step, sizes: Sizes) -> dict[Location | None, float]:
    """The parts of a step's time that its source lines get: by the cost of their stages."""
    if isinstance(step, HostCall):
        return {step.node.location: 1.0}
    if isinstance(step, Primitive):
        return {step.location: 1.0}
    found: dict[Location | None, float] = {}
    for s, w in stage_work(step, sizes):
        # A stage that only moves takes time, too.
        found[s.location] = found.get(s.location, 0.0) + w.cost + _points(s, sizes)
    total = sum(found.values())
    if not total:  # no element at all
        return dict.fromkeys(found, 1 / len(found))
    return {where: x / total for where, x in found.items()}


def _points(s: Stage, sizes: Sizes) -> int:
    return prod(number(a.size, sizes) for a in (*s.axes, *s.reduced))


def _arithmetic(s: Stage, sizes: Sizes) -> StepWork:
    """Every different op of the term at the points that it depends on, and the fold at all points."""
    extents = {a.name: number(a.size, sizes) for a in (*s.axes, *s.reduced)}
    flops = cost = 0.0
    for t in set(walk(s.term)):
        if isinstance(t, Apply) and t.scalar not in _FREE and t.dtype.kind in "fc":
            points = prod(extents[a] for a in _axes(t) & extents.keys())
            flops += points * _ops(t.scalar, t)
            cost += points * max(COSTS.get(t.scalar, 1), _ops(t.scalar, t))
    if s.combine is not None:
        folds = prod(extents.values()) * _ops(s.combine, s.term)
        flops, cost = flops + folds, cost + folds
    return StepWork(flops, cost)


def _ops(scalar: str, t: Term) -> int:
    return _COMPLEX.get(scalar, 2) if t.dtype.kind == "c" else 1


def _axes(t: Term) -> set[str]:
    """The names of axes and sizes that a term depends on."""
    found: set[str] = set()
    for x in walk(t):
        for part in _places(x):
            found |= symbols(part) if isinstance(part, Dim) else set()
    return found


def _places(t: Term) -> tuple[Any, ...]:
    if isinstance(t, Read):
        return t.index
    value = getattr(t, "value", None)
    return (value,) if isinstance(value, Dim) else ()


def _moved(step: Kernel | Group, types: Types, sizes: Sizes) -> float:
    """Bytes of what is read, at the places that are read, and of what is written."""
    made = {s.name for s in step.stages}
    read: dict[str, dict[str, int]] = {}
    for s in step.stages:
        extents = {a.name: number(a.size, sizes) for a in (*s.axes, *s.reduced)}
        for r in reads(s.term):
            if r.source not in made:
                points = prod(extents[a] for a in _axes(r) & extents.keys())
                read.setdefault(r.source, {})[_form(r, extents)] = points
    inputs = sum(
        min(sum(places.values()) * types[n].dtype.itemsize, size_of(types[n]))
        for n, places in read.items()
    )
    return float(inputs + sum(size_of(types[n]) for n in step.outputs))


def _form(r: Read, extents: Mapping[str, int]) -> str:
    """The places of a read in words that do not depend on how its axes are called."""
    text = " , ".join(map(str, r.index))
    for name in sorted(extents, key=len, reverse=True):
        text = text.replace(name, f"<{extents[name]}")
    return text


def _seen(step: Kernel | Group, k: Kernel, s: Stage, sizes: Sizes) -> float:
    """The part of a stage's points that counts: a causal mask hides about half of the columns."""
    if isinstance(step, Group):
        found = hidden_columns(step)
        columns = step.from_scores[0].stages[0].axes[-1].size
        row = s.axes[step.rows - 1] if len(s.axes) >= step.rows else None
        wide = [a for a in (*s.axes[step.rows :], *s.reduced) if a.size == columns]
        if found is None or row is None or not wide or k not in step.from_scores:
            return 1.0
        return _below(number(row.size, sizes), number(columns, sizes), number(found.offset, sizes))
    if not k.seen or s is not k.stages[0]:
        return 1.0
    part, over = 1.0, number(s.reduced[0].size, sizes)
    for x in k.seen:
        rows = number(s.axes[-2 if x.axis == "m" else -1].size, sizes)
        offset = number(x.offset, sizes)
        last = _below(rows, over, offset)
        part *= last if x.side == "last" else 1 - _below(rows, over, offset - 1)
    return part


def _below(rows: int, columns: int, offset: int) -> float:
    """The part of rows x columns where column <= row + offset."""
    seen = sum(min(max(r + offset + 1, 0), columns) for r in range(rows))
    return seen / max(rows * columns, 1)
