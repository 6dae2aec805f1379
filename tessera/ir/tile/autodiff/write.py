"""Writing a reversed kernel: what the kernel computed again, then the cotangents from the end to the start.

    for i: y = f(i, y)   ->   for i: save y; y = f(i, y)
                              for i from the last: y = saved; ct of y = transposed derivative of f at (i, y)

A load's cotangent is stored to the gradient of its memory, and a store's is loaded from the cotangent of its
memory.  What a loop carries is kept in scratch for every turn; scratch that turns out to be read by nobody is
removed afterwards (prune.py).  A loop that data end counts its turns; where no size bounds them, what it
carries is kept at some turns, and computed again from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.core.dims import Dim, Size, Symbol, larger, substitute, symbol, symbols
from tessera.core.dtype import DType, i64
from tessera.core.types import TensorType
from tessera.ir.tile.autodiff.activity import moving
from tessera.ir.tile.autodiff.boxes import Box
from tessera.ir.tile.autodiff.checkpoints import Checkpoints
from tessera.ir.tile.autodiff.memories import changing, check_stores, stale_loads
from tessera.ir.tile.autodiff.padding import ends_of
from tessera.ir.tile.autodiff.plan import ends_by_data, loads_of, meets_once, place_of, stores_of
from tessera.ir.tile.autodiff.rules import RULES, Slopes, inside, no_rule
from tessera.ir.tile.autodiff.through_scratch import fill
from tessera.ir.tile.autodiff.upper_bound import most
from tessera.ir.tile.ir import Block, Builder, Kernel, Memory, Operation, Tile, walk

_SKIPPED = frozenset(("prefetch", "barrier"))
_MOST = 1 << 30  # turns of a loop that no size bounds
SLOTS = 256  # checkpoints of a loop that no size bounds, at each of two distances
Turn = tuple[Size, Tile | None]  # the number of a turn: a size, and what data add to it


def wide(dtype: DType) -> DType:
    """What cotangents of a dtype add up in."""
    return dtype.base.compute if dtype.is_narrow else dtype


class Writer:
    """A kernel being reversed."""

    def __init__(
        self, kernel: Kernel, count: int, wanted: Sequence[bool], given: Sequence[bool], slopes: Slopes
    ):  # fmt: skip
        self.kernel, self.slopes, self.b = kernel, slopes, Builder(f"{kernel.name}_back")
        self.b.grid = list(kernel.grid)
        inputs, made = kernel.parameters[:count], kernel.parameters[count:]
        self.results = [*(m for m in inputs if m.writable), *made]
        differentiated = [m for m, w in zip(inputs, wanted, strict=True) if w]
        self.moving, self.held = moving(kernel, differentiated)
        check_stores(kernel, self.held)
        self.stale = stale_loads(kernel, self.results, count)
        self.unknown: dict[Tile, Operation] = {}  # what stale loads gave
        self.changing, self.tapes = changing(kernel), dict[Operation, tuple[Memory, list[str]]]()
        self.repeats = False  # whether what is computed was computed before
        self.ends = ends_of(kernel)
        self.tiles: dict[Tile, Tile] = {}
        self.cts: dict[Tile, Tile] = {}
        self.sizes: dict[str, Size] = {}
        self.shifts: dict[str, Tile] = {}  # what data add to counters
        self.turns: dict[str, Turn] = {}
        self.counts: dict[Operation, Tile] = {}  # of the turns of loops that data end
        self.zeroed: set[Tile] = set()
        self.saved: dict[Operation, list[Memory] | None] = {}
        self.memories = {m: self.b.parameter(m.name, m.type) for m in inputs}
        self.cotangents = self._cotangents(given)
        self.places = {
            m: place_of(kernel, m) for m in differentiated if m in self.held and not m.writable
        }
        self.gradients = self._gradients()

    def free(self, name: str) -> str:
        """A name that no parameter has: those of a derivative's derivative repeat."""
        taken = {m.name for m in self.b.parameters}
        while name in taken:
            name += "_"
        return name

    def _cotangents(self, given: Sequence[bool]) -> dict[Memory, Memory]:
        """The cotangents of what the kernel makes; one that is met twice is used up as it is read."""
        found = {}
        for m, g in zip(self.results, given, strict=True):
            if g:
                stores = stores_of(self.kernel, m)
                loaded = bool(loads_of(self.kernel, m))
                used_up = m in self.memories or loaded or not meets_once(stores)
                found[m] = self.b.parameter(self.free(f"ct_{m.name}"), m.type, used_up)
        return found

    def _gradients(self) -> dict[Memory, Memory]:
        """Those that must be 0 before the kernel runs first, since they are operands of it."""
        found = {}
        for partial in (True, False):
            for m, p in self.places.items():
                if p.partial is partial:
                    shape = (*(n for _, n in p.own), *m.type.shape)
                    dtype = wide(m.type.dtype) if p.own or p.adds else m.type.dtype
                    found[m] = self.b.parameter(
                        self.free(f"d_{m.name}"), TensorType(dtype, shape), True
                    )
        return found

    def kernel_back(self) -> Kernel:
        """The reversed kernel."""
        self._record()
        self.forward(self.kernel.body)
        self.repeats = True
        self.reverse(self.kernel.body)
        return self.b.finish()

    def size(self, x: Any) -> Any:
        """A size in terms of the new counters."""
        if isinstance(x, tuple):
            return tuple(self.size(n) for n in x)
        return substitute(x, self.sizes) if isinstance(x, Dim) else x

    def shift(self, x: Size) -> Tile | None:
        """What data add to a position."""
        found: Tile | None = None
        for name in sorted(symbols(x) & self.shifts.keys()):
            factor = substitute(x, {name: 1}) - substitute(x, {name: 0})
            if not isinstance(factor, int) or name in symbols(x - factor * symbol(name)):
                return self.b.apply("sub", self.number(x), self.b.index(self.size(x)))
            by = self.shifts[name]
            by = by if factor == 1 else self.b.apply("mul", by, self.b.full(i64, (), factor))
            found = by if found is None else self.b.apply("add", found, by)
        return found

    def number(self, x: Size) -> Tile:
        """A position as a tile, computed from counters that data shift."""
        if not symbols(x) & self.shifts.keys():
            return self.b.index(self.size(x))
        assert isinstance(x, Dim)
        total: Tile | None = None
        for monomial, factor in x.terms:
            term = self.b.full(i64, (), factor)
            for atom, power in monomial:
                for _ in range(power):
                    term = self.b.apply("mul", term, self._atom(atom))
            total = term if total is None else self.b.apply("add", total, term)
        assert total is not None
        return total

    def _atom(self, atom: Any) -> Tile:
        if isinstance(atom, Symbol):
            at = self.b.index(self.size(symbol(atom.name)))
            by = self.shifts.get(atom.name)
            return at if by is None else self.b.apply("add", at, by)
        names = {"//": "floor_div", "%": "mod", "max": "max", "min": "min"}
        return self.b.apply(names[atom.function], self.number(atom.left), self.number(atom.right))

    def index(self, x: Size, shape: Sequence[int], axis: int | None = None) -> Tile:
        """A position, and those after it along an axis."""
        at, by = self.b.index(self.size(x), shape, axis), self.shift(x)
        return at if by is None else self.b.apply("add", at, by)

    def box(self, op: Operation) -> Box:
        """Where an operation reads or writes."""
        a = op.attributes
        picked = {}
        if axes := a.get("picked", ()):
            picked = dict(zip(axes, map(self.tiles.get, op.operands[-len(axes) :]), strict=True))
        for i, at in enumerate(a["at"]):
            if (by := self.shift(at)) is not None:
                picked[i] = self.b.apply("add", picked[i], by) if i in picked else by
        return Box(self.size(a["at"]), a["extent"], a["axes"], a["masked"], picked)

    def add(self, t: Tile, ct: Tile) -> None:
        """Add to the cotangent of a tile."""
        if t in self.moving:
            self.cts[t] = self.b.apply("add", self.cts[t], ct) if t in self.cts else ct

    # What the kernel computed

    def forward(self, block: Block) -> None:
        """The values of a block again; nothing is stored to parameters."""
        for op in block.operations:
            self.b.location = op.location
            if op.block is not None:
                self._forward_loop(op, op.block)
            elif op.name == "alloc":
                assert op.memory is not None
                m = op.memory
                self.memories[m] = self.b.alloc(m.type.dtype, m.type.shape, m.space)
            elif op in self.stale:
                t = self.tiles[op.results[0]] = self._zeros(op.results[0])
                self.unknown[t] = op
            elif op in self.tapes and self.repeats:
                m, loops = self.tapes[op]
                self.tiles[op.results[0]] = self._slot(loops, op.results[0]).load(self.b, m)
            elif not self._is_done(op):
                self._again(op)

    def _is_done(self, op: Operation) -> bool:
        """Whether an operation is not to be repeated: it stores what is not asked for, or was stored."""
        stores = op.memory is not None and not op.results
        kept = self.repeats and op.memory in self.changing
        return op.name in _SKIPPED or (stores and (op.memory in self.results or kept))

    def _again(self, op: Operation) -> None:
        memory = None if op.memory is None else self.memories[op.memory]
        operands = [self.tiles[t] for t in op.operands]
        if memory is not None:
            self._access_again(op, memory, operands)
            return
        if op.name == "index":
            a = op.attributes
            self.tiles[op.results[0]] = self.index(a["at"], op.results[0].shape, a["axis"])
            return
        attributes = {key: self.size(x) for key, x in op.attributes.items()}
        made = self.b.repeat(op, operands, attributes, None)
        self.tiles.update(zip(op.results, made, strict=True))

    def _access_again(self, op: Operation, m: Memory, operands: Sequence[Tile]) -> None:
        """A load or a store again; one of a box that data move now is one at places."""
        b, box, a = self.b, self.box(op), op.attributes
        if not op.results:
            if not box.picked:
                b.store(m, operands[0], box.at, box.extent, box.axes, box.masked)
            else:
                says = op.name == "store" or bool(a.get("distinct"))
                b.scatter(
                    m, operands[0], box.picked, box.at, box.extent, box.axes, box.masked, says
                )
            return
        if box.picked:
            t = b.gather(m, box.picked, box.at, box.extent, box.axes, box.masked, a["fill"])
        else:
            t = b.load(m, box.at, box.extent, box.axes, box.masked, a["fill"])
            if a["fill"] == 0:
                self.zeroed.add(t)
        self.tiles[op.results[0]] = t
        if op in self.tapes:
            tape, loops = self.tapes[op]
            self._slot(loops, t).store(b, tape, t)

    def _record(self) -> None:
        """Memory for what loops load of scratch that changes."""
        counters = self._counters()
        for m in self.changing:
            for x in loads_of(self.kernel, m):
                sizes = [_bound(a, counters) for a in x.loops]
                if not sizes:
                    continue
                if None in sizes:
                    what = "scratch that one turn of a loop that data end hands to the next"
                    raise no_rule(x.op, what)
                t = x.op.results[0]
                kept = self.b.alloc(t.dtype, (*(n for n in sizes if n is not None), *t.shape))
                self.tapes[x.op] = kept, [a["variable"] for a in x.loops]

    def _slot(self, loops: Sequence[str], t: Tile) -> Box:
        """Where a tile is kept that is loaded in a turn of each of these loops."""
        n, sizes = len(loops), t.shape
        turns = [self.turns[name] for name in loops]
        at = (*(size for size, _ in turns), *(0,) * len(sizes))
        axes = tuple(range(n, n + len(sizes)))
        picked = {k: by for k, (_, by) in enumerate(turns) if by is not None}
        return Box(at, (*(1,) * n, *sizes), axes, (), picked)

    def _forward_loop(self, op: Operation, block: Block) -> None:
        a, b = op.attributes, self.b
        size = _bound(a, self._counters())
        saved = (
            None if size is None else [b.alloc(t.dtype, (size, *t.shape)) for t in block.arguments]
        )
        ends, name = ends_by_data(a), a["variable"]
        start, stop, step = self._fixed(op, a["start"]), self._fixed(op, a["stop"]), a["step"]
        first = [self.tiles[t] for t in op.operands]
        counter = [b.full(i64, (), 0)] if ends else []
        with b.loop(start, stop, step, [*first, *counter], like=op) as loop:
            self._enter(name, loop.variable, ((loop.variable - start) // step, None), None)
            carried = loop.carried[: len(first)]
            self.tiles.update(zip(block.arguments, carried, strict=True))
            for m, t in zip(saved or (), carried, strict=saved is not None):
                self._slot([name], t).store(b, m, t)
            self.forward(block)
            more = [b.apply("add", loop.carried[-1], b.full(i64, (), 1))] if ends else []
            loop.carry(*(self.tiles[t] for t in block.outputs), *more)
        self.saved[op] = saved
        if ends:
            self.counts[op] = loop.results[-1]
        self.tiles.update(zip(op.results, loop.results[: len(first)], strict=True))

    def _enter(self, name: str, counter: Size, turn: Turn, shift: Tile | None) -> None:
        """Say what the counter of a loop is from here on."""
        self.sizes[name], self.turns[name] = counter, turn
        self.shifts.pop(name, None)
        if shift is not None:
            self.shifts[name] = shift

    def _fixed(self, op: Operation, x: Size) -> Size:
        """A bound of a loop."""
        if symbols(x) & self.shifts.keys():
            raise no_rule(op, "a loop whose bounds are of the counter of a loop that data end")
        found: Size = self.size(x)
        return found

    def _counters(self) -> dict[str, tuple[Size, Size]]:
        """The counters of the kernel, and between which sizes they lie."""
        found: dict[str, tuple[Size, Size]] = {g: (0, n - 1) for g, n in self.kernel.grid}
        for op in walk(self.kernel.body):
            if op.block is not None:
                a = op.attributes
                last = most(a["stop"] - 1, found)
                found[a["variable"]] = (-most(-a["start"], found), last)
        return found

    # Cotangents

    def reverse(self, block: Block) -> None:
        """The cotangents of a block, from its last operation to its first."""
        for op in block.operations:
            if op.name == "alloc" and op.memory in self.held:
                self._zero_scratch(op.memory)
        for op in reversed(block.operations):
            self.b.location = op.location
            if op.block is not None:
                self._reverse_loop(op, op.block)
            elif op.name in ("store", "scatter"):
                self._store(op)
            elif op.results and (ct := self.cts.pop(op.results[0], None)) is not None:
                self._operation(op, ct)

    def _operation(self, op: Operation, ct: Tile) -> None:
        if op.traits.reads:
            self._load(op, ct)
        elif op.name in RULES:
            RULES[op.name](self, op, ct)

    def _reverse_loop(self, op: Operation, block: Block) -> None:
        a, b = op.attributes, self.b
        carried = [k for k, t in enumerate(block.arguments) if t in self.moving]
        around = [t for t in _free(block) if t in self.moving]
        named = [*(op.results[k] for k in carried), *around]
        if not named and not any(o.memory in self.held for o in walk(block)):
            return
        before = [self.cts.pop(t) if t in self.cts else self._zeros(t) for t in named]
        outer, count = self.cts, self.counts.get(op)
        turns = _bound(a, self._counters()) if count is not None else self._fixed(op, _turns(a))
        last = None if count is None else b.apply("sub", count, b.full(i64, (), 1))
        kept = self._checkpoints(op, block, count) if self.saved[op] is None else None
        with b.loop(0, _MOST if turns is None else turns, 1, before, count) as loop:
            self._turn_back(op, loop.variable, turns, last)
            state = self._state(op, block, kept)
            self.tiles.update(zip(block.arguments, state, strict=True))
            self.forward(block)
            self.cts = {}
            for t, ct in zip(
                [*(block.outputs[k] for k in carried), *around], loop.carried, strict=True
            ):
                self.add(t, ct)
            self.reverse(block)
            after = [*(block.arguments[k] for k in carried), *around]
            b.location = op.location
            loop.carry(*(self.cts.get(t) or self._zeros(t) for t in after))
        self.cts = outer
        for t, ct in zip([*(op.operands[k] for k in carried), *around], loop.results, strict=True):
            self.add(t, ct)

    def _turn_back(self, op: Operation, i: Dim, turns: Size | None, last: Tile | None) -> None:
        """The counter of a loop in turn i from its end."""
        a = op.attributes
        start, step, name = self._fixed(op, a["start"]), a["step"], a["variable"]
        if last is None:
            assert turns is not None
            place = turns - 1 - i
            self._enter(name, start + place * step, (place, None), None)
            return
        by = last if step == 1 else self.b.apply("mul", last, self.b.full(i64, (), step))
        self._enter(name, start - i * step, (-i, last), by)

    def _state(self, op: Operation, block: Block, kept: Checkpoints | None) -> Sequence[Tile]:
        """What a loop carries into a turn: as it was saved, or computed again from a checkpoint."""
        name, saved = op.attributes["variable"], self.saved[op]
        if saved is not None:
            return [
                self._slot([name], t).load(self.b, m)
                for t, m in zip(block.arguments, saved, strict=True)
            ]
        assert kept is not None
        here = self.sizes[name], self.turns[name], self.shifts[name]
        size, by = self.turns[name]
        assert by is not None
        # A turn is the last of its stretch, or the first that is reversed: the stretch is computed once more.
        turn = self.b.apply("add", self.b.index(size), by)
        stretch = self._over(turn, kept.far)
        base = self._times(stretch, kept.far)
        within = self.b.apply("sub", turn, base)
        last = self.b.apply("sub", kept.far, self.b.full(i64, (), 1))
        begins = self.b.apply("eq", self.b.index(size), self.b.full(i64, (), 0))
        ends = self.b.apply("logical_or", begins, self.b.apply("eq", within, last))
        again = self.b.apply("add", within, self.b.full(i64, (), 1))
        again = self.b.apply("where", ends, again, self.b.full(i64, (), 0))
        begin = kept.load(self.b, kept.coarse, stretch)
        self._replay(op, block, begin, base, again, (kept.fine, kept.near))
        slot = self._over(within, kept.near)
        done = self._times(slot, kept.near)
        rest = self.b.apply("sub", within, done)
        state = kept.load(self.b, kept.fine, slot)
        made = self._replay(op, block, state, self.b.apply("add", base, done), rest, None)
        self._enter(name, *here)
        return made

    def _checkpoints(self, op: Operation, block: Block, count: Tile | None) -> Checkpoints:
        """Room for states of a loop that no size bounds, and the states at some turns, evenly spread."""
        b = self.b
        assert count is not None
        slots = b.full(i64, (), SLOTS)
        far = b.apply(
            "max",
            self._over(b.apply("add", count, b.full(i64, (), SLOTS - 1)), slots),
            b.full(i64, (), 1),
        )
        near = b.apply(
            "max",
            self._over(b.apply("add", far, b.full(i64, (), SLOTS - 1)), slots),
            b.full(i64, (), 1),
        )
        coarse, fine = (
            [b.alloc(t.dtype, (SLOTS + 1, *t.shape)) for t in block.arguments] for _ in range(2)
        )
        begin = [self.tiles[t] for t in op.operands]
        self._replay(op, block, begin, b.full(i64, (), 0), count, (coarse, far))
        return Checkpoints(coarse, fine, far, near)

    def _replay(
        self, op: Operation, block: Block, begin: Sequence[Tile], base: Tile, turns: Tile,
        keep: tuple[Sequence[Memory], Tile] | None,
    ) -> Sequence[Tile]:  # fmt: skip
        """Some turns of a loop again from a state on; the states at each stride are kept.

        A state is kept in the slot that its turn leads up to, so that the last one there is at a stride.
        """
        a, b, name = op.attributes, self.b, op.attributes["variable"]
        start, step = self._fixed(op, a["start"]), a["step"]
        shift = base if step == 1 else b.apply("mul", base, b.full(i64, (), step))
        with b.loop(0, _MOST, 1, begin, turns) as loop:
            self._enter(name, start + loop.variable * step, (loop.variable, base), shift)
            self.tiles.update(zip(block.arguments, loop.carried, strict=True))
            if keep is not None:
                memories, stride = keep
                up = b.apply("sub", stride, b.full(i64, (), 1))
                slot = self._over(b.apply("add", b.index(loop.variable), up), stride)
                for m, t in zip(memories, loop.carried, strict=True):
                    Checkpoints.box(t, slot).store(b, m, t)
            self.forward(block)
            loop.carry(*(self.tiles[t] for t in block.outputs))
        return loop.results

    def _over(self, x: Tile, y: Tile) -> Tile:
        return self.b.apply("floor_div", x, y)

    def _times(self, x: Tile, y: Tile) -> Tile:
        return self.b.apply("mul", x, y)

    def _zeros(self, t: Tile) -> Tile:
        return self.b.full(t.dtype, t.shape, 0)

    # Memory

    def _load(self, op: Operation, ct: Tile) -> None:
        """Store the cotangent of a load to the gradient of its memory, or add to what is there."""
        assert op.memory is not None
        b, box = self.b, self.box(op)
        if op.name == "gather":  # indices past the end of theirs name any element
            ct = inside(self, ct, self.ends[op.results[0]], range(len(ct.shape)))
        if op.memory not in self.places:
            box.add(b, self.cotangents[op.memory], ct)
            return
        p, d = self.places[op.memory], self.gradients[op.memory]
        box = box.behind([self.size(symbol(g)) for g, _ in p.own])
        if p.adds:
            box.add(b, d, ct)
        else:
            box.store(b, d, b.cast(ct, d.type.dtype))

    def _store(self, op: Operation) -> None:
        """The cotangent of what was stored lies where it was stored to; what was there before has none."""
        assert op.memory is not None
        m, value = self.cotangents.get(op.memory), op.operands[0]
        if m is None:
            return
        box = self.box(op)
        ct = box.load(self.b, m)
        if not box.picked:
            self.zeroed.add(ct)
        if (
            m.writable and "atomic" not in op.attributes
        ):  # a sum leaves what was there its cotangent
            box.store(self.b, m, self._zeros(value))
        self.add(value, ct)

    def _zero_scratch(self, m: Memory) -> None:
        """The cotangent of scratch: what is loaded adds to it, what is stored uses it up."""
        d = self.b.alloc(m.type.dtype, m.type.shape, m.space)
        sizes: Any = m.type.shape
        if all(isinstance(n, int) for n in sizes):
            self.b.store(d, self.b.full(m.type.dtype, sizes, 0), (0,) * len(sizes), sizes)
        else:
            fill(self.b, d, 0)
        self.cotangents[m] = d


def _turns(a: Any) -> Size:
    """How many turns a loop makes."""
    turns: Size = (a["stop"] - a["start"] + a["step"] - 1) // a["step"]
    return turns


def _bound(a: Mapping[str, Any], counters: Any) -> Size | None:
    """A size that the turns of a loop do not exceed; None where there is none, since data end it."""
    turns = most(_turns(a), counters)
    if ends_by_data(a) and isinstance(turns, int) and turns >= _MOST >> 12:
        return None
    return larger(turns, 1)


def _free(block: Block) -> list[Tile]:
    """The tiles that a block uses and does not make, in the order of their use."""
    made = set(block.arguments)
    found: dict[Tile, None] = {}
    for op in walk(block):
        made.update(op.results)
        if op.block is not None:
            made.update(op.block.arguments)
    for op in walk(block):
        inner = () if op.block is None else op.block.outputs
        found.update(dict.fromkeys(t for t in (*op.operands, *inner) if t not in made))
    found.update(dict.fromkeys(t for t in block.outputs if t not in made))
    return list(found)
