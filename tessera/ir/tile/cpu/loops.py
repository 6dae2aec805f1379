"""loops: a loop whose steps are a few scalar operations, as one kernel.

    while_loop (i, x): i < n -> (i + 1, x * 0.5)   ->   for going (i < n), i, x: i + 1, x * 0.5, i + 1 < n

The regions are lowered to Schedule IR as every program, and then written element by element: a tensor is one
scalar tile for each of its elements, so what a loop carries stays in registers.  A fold has the order of
core/folds.py, so a step has the bits that it has as a program of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from tessera.core.dims import Size, substitute, symbol, symbols
from tessera.core.dtype import FORMATS, DType, bool_
from tessera.core.evaluate import identity
from tessera.core.folds import LANES, LEAF
from tessera.core.types import TensorType
from tessera.ir.schedule import ir as schedule
from tessera.ir.schedule.fusion_analysis import COST
from tessera.ir.schedule.layout import layout_of, row_major
from tessera.ir.schedule.lower import lower
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile

STEPS = 1 << 18  # of a while_loop in one launch, so that somebody who waits may interrupt it
LENGTH = "steps"  # the size of a scan
_MOST = 600  # what a step may cost: code grows with it, and compilers take longer for it
_ELEMENTS = 64  # of a tensor
_DTYPES = frozenset(
    FORMATS[n] for n in ("bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f32", "f64")
)
_EXACT = frozenset(("add", "mul", "max", "min"))  # f(f(identity, x), identity) is f(identity, x)

Elements = Any  # an array of scalar tiles
Known = Mapping[str, Elements]


def loop_kernel(step: schedule.HostCall) -> Kernel | None:
    """The kernel of a loop whose steps are short; None: its regions are programs of their own."""
    n = step.node
    if n.op.control not in _WRITERS or sum(len(r.nodes) for r in n.regions) > _MOST:
        return None
    types = [v.type for v in (*n.operands, *n.results)]
    programs = [lower(r) for r in n.regions] if all(map(_is_plain, types)) else []
    if not programs or any(map(_is_cut, programs)) or sum(map(_cost, programs)) > _MOST:
        return None
    return _WRITERS[n.op.control](step, programs)


def _is_cut(p: schedule.Program) -> bool:
    """Whether the user says how a kernel is cut up, which one kernel for all steps could not follow."""
    kernels = [s for s in p.steps if isinstance(s, schedule.Kernel)]
    return any(k.asked or k.tile is not None for k in kernels)


def _is_plain(t: TensorType) -> bool:
    return t.dtype in _DTYPES and 0 not in t.shape[1:]


# What a step costs ------------------------------------------------------------------------------


def _cost(p: schedule.Program) -> float:
    """About how many scalar operations a program takes; infinite if it is not all of them."""
    if not all(_is_small(b.type) for b in p.buffers.values()):
        return math.inf
    return sum(map(_step_cost, p.steps))


def _is_small(t: TensorType) -> bool:
    return t.dtype in _DTYPES and t.static and 0 < math.prod(_shape(t)) <= _ELEMENTS


def _step_cost(s: schedule.Step) -> float:
    match s:
        case schedule.Kernel() | schedule.Group():
            return sum(map(_stage_cost, s.stages))
        case schedule.HostCall() if s.node.op.control == "branch":
            return sum(_cost(lower(r)) for r in s.node.regions)
        case schedule.HostCall() if s.node.op.call in ("barrier", "constant"):
            return 0
        case schedule.HostCall():
            return 0 if _layout(s) is not None else math.inf
    return math.inf


def _stage_cost(s: schedule.Stage) -> float:
    sizes = [a.size for a in (*s.axes, *s.reduced)]
    if s.dtype not in _DTYPES or not all(isinstance(n, int) and n > 0 for n in sizes):
        return math.inf
    axes = {a.name for a in (*s.axes, *s.reduced)}
    if not all(_sizes(t) <= axes for t in schedule.walk(s.term)):
        return math.inf  # a size of the whole program is a number of each step
    each = sum(map(_term_cost, schedule.walk(s.term)))
    return math.prod(map(int, sizes)) * (each + len(s.reduced))


def _sizes(t: schedule.Term) -> frozenset[str]:
    """The axes and sizes that a term itself names."""
    match t:
        case schedule.Position():
            return symbols(t.value)
        case schedule.Read():
            plain = (i for i in t.index if not isinstance(i, schedule.Term))
            return frozenset(s for i in plain for s in symbols(i))
    return frozenset()


def _term_cost(t: schedule.Term) -> float:
    if t.dtype not in _DTYPES or (any(True for _ in t.children()) and isinstance(t, schedule.Read)):
        return math.inf
    return COST.get(t.scalar, 1) if isinstance(t, schedule.Apply) else 0


def _layout(s: schedule.HostCall) -> tuple[int, tuple[int, ...]] | None:
    """Where a view of a tensor in row-major order lies in it, in bytes."""
    n = s.node
    if n.op.view is None:
        return None
    x, y = n.operands[0].type, n.results[0].type
    return layout_of(n.op, x, y, n.params, (0, row_major(x)))


def _shape(t: TensorType) -> tuple[int, ...]:
    return t.shape  # type: ignore[return-value]


# Steps as scalar tiles --------------------------------------------------------------------------


def _places(shape: Sequence[int]) -> list[tuple[int, ...]]:
    return list(product(*map(range, shape)))


def _array(shape: Sequence[int], tiles: Sequence[Tile]) -> Elements:
    made = np.empty(len(tiles), object)
    made[:] = tiles
    return made.reshape(shape)


class _ElementWriter:
    """Writes programs on elements that are known."""

    def __init__(self, b: Builder):
        self.b = b

    def program(self, p: schedule.Program, inputs: Sequence[Elements]) -> list[Elements]:
        """The outputs of a program."""
        known: dict[str, Elements] = dict(zip(p.inputs, inputs, strict=True))
        for s in p.steps:
            match s:
                case schedule.Kernel():
                    self.kernel(s, known)
                case schedule.Group():
                    for k in s.kernels:
                        self.kernel(k, known)
                case schedule.HostCall():
                    known.update(zip(s.results, self.moved(s, known), strict=True))
        return [known[name] for name in p.outputs]

    def moved(self, s: schedule.HostCall, known: Known) -> list[Elements]:
        """The results of a view, of a barrier or of a choice."""
        xs = [known[name] for name in s.operands]
        if s.node.op.control == "branch":
            return self.choice(s, xs)
        if s.node.op.makes == "data":
            return [self.constant(s.node.params["value"].array, s.node.results[0].dtype)]
        layout = _layout(s)
        if layout is None:
            return xs
        (offset, strides), size = layout, row_major(TensorType(s.node.operands[0].dtype, (1,)))[0]
        shape = _shape(s.node.results[0].type)
        flat = xs[0].reshape(-1)
        lies = (offset + sum(map(int.__mul__, i, strides)) for i in _places(shape))
        return [_array(shape, [flat[at // size] for at in lies])]

    def choice(self, s: schedule.HostCall, xs: Sequence[Elements]) -> list[Elements]:
        """Both branches, and for every element the one that counts: scalar ops are total."""
        pred, *rest = xs
        branches = []
        for r in s.node.regions:
            p = lower(r)
            captured = [self.constant(v.storage, v.dtype) for v in p.captured]
            branches.append(self.program(p, [*rest, *captured]))
        out = []
        for yes, no in zip(*branches, strict=True):
            pairs = zip(yes.flat, no.flat, strict=True)
            out.append(_array(yes.shape, [self.b.apply("where", pred[()], *p) for p in pairs]))
        return out

    def constant(self, x: Any, dtype: DType) -> Elements:
        return _array(x.shape, [self.b.full(dtype, (), number) for number in x.ravel().tolist()])

    def kernel(self, k: schedule.Kernel, known: dict[str, Elements]) -> None:
        for s in k.stages:
            shape = [int(a.size) for a in s.axes]
            tiles = [self.point(k, s, i, known) for i in _places(shape)]
            known[s.name] = _array(shape, tiles)

    def point(self, k: schedule.Kernel, s: schedule.Stage, at: Sequence[int], known: Known) -> Tile:
        """A stage at one point of its axes."""
        env: dict[str, Size] = dict(zip((a.name for a in s.axes), at, strict=True))
        if s.combine is None:
            return _Terms(self.b, known, env).term(s.term)
        (axis,) = s.reduced
        steps = [_Terms(self.b, known, {**env, axis.name: i}) for i in range(int(axis.size))]
        if k.contracts and s is k.stages[0]:
            return self.contracted(s, steps)
        xs = [x.term(s.term) for x in steps]
        start = self.b.full(s.dtype, (), identity(s.combine, s.dtype))
        if len(s.axes) == k.rows:
            return self.lanes(s.combine, xs, start)
        return self.chain(s.combine, xs, start)

    def contracted(self, s: schedule.Stage, steps: Sequence[_Terms]) -> Tile:
        """One chain of fused multiply-adds; integers have the same bits in any order."""
        assert isinstance(s.term, schedule.Apply), s
        total = self.b.full(s.dtype, (), 0)
        for at in steps:
            x, y = map(at.term, s.term.operands)
            if s.dtype.kind == "f":
                total = self.b.apply("fma", x, y, total)
            else:
                total = self.b.apply("add", total, self.b.apply("mul", x, y))
        return total

    def chain(self, name: str, xs: Sequence[Tile], start: Tile) -> Tile:
        for x in xs:
            start = self.b.apply(name, start, x)
        return start

    def lanes(self, name: str, xs: Sequence[Tile], start: Tile) -> Tile:
        """16 chains, and then the upper half of them onto the lower; None is a lane of nothing."""
        assert len(xs) <= LEAF, name
        nothing = None if name in _EXACT else start
        made = [
            self.chain(name, xs[i::LANES], start) if xs[i::LANES] else nothing for i in range(LANES)
        ]
        while len(made) > 1:
            half = len(made) // 2
            made = [self.both(name, x, y) for x, y in zip(made[:half], made[half:], strict=True)]
        assert made[0] is not None, name
        return made[0]

    def both(self, name: str, x: Tile | None, y: Tile | None) -> Tile | None:
        return x if y is None else y if x is None else self.b.apply(name, x, y)


class _Terms:
    """Terms at one point, each written once."""

    def __init__(self, b: Builder, known: Known, env: Mapping[str, Size]):
        self.b, self.known, self.env = b, known, env
        self.written: dict[int, Tile] = {}

    def term(self, t: schedule.Term) -> Tile:
        found = self.written.get(id(t))
        if found is None:
            found = self.written[id(t)] = self.write(t)
        return found

    def write(self, t: schedule.Term) -> Tile:
        match t:
            case schedule.Literal():
                return self.b.full(t.dtype, (), t.value)
            case schedule.Position():
                return self.b.cast(self.b.index(substitute(t.value, self.env)), t.dtype)
            case schedule.Cast():
                return self.b.cast(self.term(t.operand), t.dtype)
            case schedule.Apply():
                return self.b.apply(t.scalar, *map(self.term, t.operands))
            case schedule.Read():
                place = tuple(substitute(i, self.env) for i in t.index)
                read: Tile = self.known[t.source][place]
                return read
        raise AssertionError(t)


# Loops ------------------------------------------------------------------------------------------


class _LoopKernel:
    """A kernel being written: what it is given, what it makes, and the programs of its regions."""

    def __init__(self, step: schedule.HostCall, programs: Sequence[schedule.Program]):
        n = step.node
        self.b, self.programs = Builder(n.op.name, n.location), programs
        self.writer = _ElementWriter(self.b)
        self.operands = [v.type for v in n.operands]
        self.results = [v.type for v in n.results]

    def given(self, name: str, types: Sequence[TensorType], writable: bool = False) -> list[Memory]:
        return [self.b.parameter(f"{name}{i}", t, writable) for i, t in enumerate(types)]

    def captured(self) -> list[list[Elements]]:
        """What each region has captured: parameters after all operands."""
        memories = [
            self.given(f"k{i}_", [v.type for v in p.captured]) for i, p in enumerate(self.programs)
        ]
        return [[self.load(m) for m in each] for each in memories]

    def load(self, m: Memory, step: Size | None = None) -> Elements:
        """The elements of a memory, or of one of its rows."""
        shape = _shape(m.type)[0 if step is None else 1 :]
        row = () if step is None else (step,)
        tiles = [self.b.load(m, (*row, *at), (1,) * m.type.rank, axes=()) for at in _places(shape)]
        return _array(shape, tiles)

    def store(self, m: Memory, x: Elements, step: Size | None = None) -> None:
        row = () if step is None else (step,)
        for at in _places(x.shape):
            self.b.store(m, x[at], (*row, *at), (1,) * m.type.rank, axes=())


def _tiles(arrays: Sequence[Elements]) -> list[Tile]:
    return [t for x in arrays for t in x.flat]


def _arrays(tiles: Sequence[Tile], types: Sequence[TensorType]) -> list[Elements]:
    out, rest = [], list(tiles)
    for t in types:
        n = math.prod(_shape(t))
        out.append(_array(_shape(t), rest[:n]))
        rest = rest[n:]
    return out


def _while(step: schedule.HostCall, programs: Sequence[schedule.Program]) -> Kernel:
    """(*carry, *outer, *captured) -> (*carry, going): at most STEPS steps; going: the test still holds."""
    w = _LoopKernel(step, programs)
    memories, types = w.given("x", w.operands), w.results
    captured = w.captured()
    results, flag = w.given("y", types, True), w.b.parameter("going", TensorType(bool_, ()), True)
    carry = [w.load(m) for m in memories[: len(types)]]
    outer = [w.load(m) for m in memories[len(types) :]]

    def test(carry: Sequence[Elements]) -> Tile:
        (going,) = w.writer.program(programs[0], [*carry, *outer, *captured[0]])
        tile: Tile = going[()]
        return tile

    with w.b.loop(0, STEPS, carried=(test(carry), *_tiles(carry)), going=True) as loop:
        now = _arrays(loop.carried[1:], types)
        following = w.writer.program(programs[1], [*now, *outer, *captured[1]])
        loop.carry(test(following), *_tiles(following))
    for m, x in zip(results, _arrays(loop.results[1:], types), strict=True):
        w.store(m, x)
    w.b.store(flag, loop.results[0], (), ())
    return w.b.finish()


def _scan(step: schedule.HostCall, programs: Sequence[schedule.Program]) -> Kernel:
    """(*carry, *xs, *outer, *captured) -> (*carry, *ys), of any number of steps."""
    w, params = _LoopKernel(step, programs), step.node.params
    count, stop = params["carry"], params["carry"] + params["xs"]
    steps = symbol(LENGTH)
    long = [t.with_shape((steps, *t.shape[1:])) for t in w.operands[count:stop]]
    memories = w.given("x", [*w.operands[:count], *long, *w.operands[stop:]])
    (captured,), types = w.captured(), w.results[:count]
    results = w.given("y", types, True)
    rows = w.given("z", [t.with_shape((steps, *t.shape[1:])) for t in w.results[count:]], True)
    outer = [w.load(m) for m in memories[stop:]]
    carried = _tiles([w.load(m) for m in memories[:count]])
    with w.b.loop(0, steps, carried=carried) as loop:
        at = steps - 1 - loop.variable if params["reverse"] else loop.variable
        xs = [w.load(m, at) for m in memories[count:stop]]
        inputs = [*_arrays(loop.carried, types), *xs, *outer, *captured]
        out = w.writer.program(programs[0], inputs)
        for m, y in zip(rows, out[count:], strict=True):
            w.store(m, y, at)
        loop.carry(*_tiles(out[:count]))
    for m, x in zip(results, _arrays(loop.results, types), strict=True):
        w.store(m, x)
    return w.b.finish()


_WRITERS = {"while": _while, "scan": _scan}
