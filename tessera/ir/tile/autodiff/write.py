"""Writing a reversed kernel: what the kernel computed again, then the cotangents from the end to the start.

    for i: y = f(i, y)   ->   for i: save y; y = f(i, y)
                              for i from the last: y = saved; ct of y = transposed derivative of f at (i, y)

A load's cotangent is stored to the gradient of its memory, and a store's is loaded from the cotangent of its
memory.  What a loop carries is kept in scratch for every turn; scratch that turns out to be read by nobody is
removed afterwards (prune.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.core.dims import Dim, Size, larger, substitute, symbol
from tessera.core.dtype import DType
from tessera.core.types import TensorType
from tessera.ir.tile.autodiff.activity import moving
from tessera.ir.tile.autodiff.memories import check_memories
from tessera.ir.tile.autodiff.padding import ends_of
from tessera.ir.tile.autodiff.plan import accesses, meets_once, place_of
from tessera.ir.tile.autodiff.rules import RULES, Slopes, no_rule
from tessera.ir.tile.autodiff.upper_bound import most
from tessera.ir.tile.ir import Block, Builder, Kernel, Memory, Operation, Tile, walk

_SKIPPED = frozenset(("prefetch", "barrier"))


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
        check_memories(kernel, self.results, self.held)
        self.ends = ends_of(kernel)
        self.tiles: dict[Tile, Tile] = {}
        self.cts: dict[Tile, Tile] = {}
        self.sizes: dict[str, Size] = {}
        self.zeroed: set[Tile] = set()
        self.saved: dict[Operation, list[Memory]] = {}
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
                stores = accesses(self.kernel, m, ("store", "scatter"))
                used_up = m in self.memories or not meets_once(stores)
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
        self.forward(self.kernel.body)
        self.reverse(self.kernel.body)
        return self.b.finish()

    def size(self, x: Any) -> Any:
        """A position in terms of the new counters."""
        if isinstance(x, tuple):
            return tuple(self.size(n) for n in x)
        return substitute(x, self.sizes) if isinstance(x, Dim) else x

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
            elif op.name not in _SKIPPED and not (op.memory in self.results and not op.results):
                self._again(op)

    def _again(self, op: Operation) -> None:
        memory = None if op.memory is None else self.memories[op.memory]
        operands = [self.tiles[t] for t in op.operands]
        attributes = {key: self.size(x) for key, x in op.attributes.items()}
        made = self.b.repeat(op, operands, attributes, memory)
        self.tiles.update(zip(op.results, made, strict=True))
        if op.name == "load" and op.attributes["fill"] == 0:
            self.zeroed.update(made)

    def _forward_loop(self, op: Operation, block: Block) -> None:
        a, b = op.attributes, self.b
        if a.get("bounded") or a.get("going"):
            raise no_rule(op, "a loop that data end")
        start, stop, step = self.size(a["start"]), self.size(a["stop"]), a["step"]
        turns = larger(most(_turns(a), self._counters()), 1)
        saved = [b.alloc(t.dtype, (turns, *t.shape)) for t in block.arguments]
        self.saved[op] = saved
        with b.loop(start, stop, step, [self.tiles[t] for t in op.operands]) as loop:
            self.sizes[a["variable"]] = loop.variable
            self.tiles.update(zip(block.arguments, loop.carried, strict=True))
            for m, t in zip(saved, loop.carried, strict=True):
                b.store(m, t, *_slot((loop.variable - start) // step, t))
            self.forward(block)
            loop.carry(*(self.tiles[t] for t in block.outputs))
        self.tiles.update(zip(op.results, loop.results, strict=True))

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
        if op.name == "load":
            self._load(op, ct)
        elif op.name == "gather":
            raise no_rule(op, "a load at places that data names")
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
        count, outer = self.size(_turns(a)), self.cts
        with b.loop(0, count, 1, before) as loop:
            place = count - 1 - loop.variable
            self.sizes[a["variable"]] = self.size(a["start"]) + place * a["step"]
            for t, m in zip(block.arguments, self.saved[op], strict=True):
                axes = tuple(range(1, len(t.shape) + 1))
                self.tiles[t] = b.load(m, *_slot(place, t)[:2], axes)
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

    def _zeros(self, t: Tile) -> Tile:
        return self.b.full(t.dtype, t.shape, 0)

    # Memory

    def _box(self, op: Operation) -> tuple[Any, ...]:
        a = op.attributes
        return self.size(a["at"]), a["extent"], a["axes"], a["masked"]

    def _load(self, op: Operation, ct: Tile) -> None:
        """Store the cotangent of a load to the gradient of its memory, or add to what is there."""
        assert op.memory is not None
        at, extent, axes, masked = self._box(op)
        if op.memory not in self.places:
            self._add_to(self.cotangents[op.memory], ct, (at, extent, axes, masked))
            return
        p, d = self.places[op.memory], self.gradients[op.memory]
        n = len(p.own)
        own = tuple(self.size(symbol(g)) for g, _ in p.own)
        box = (
            (*own, *at), (*(1,) * n, *extent), tuple(i + n for i in axes),
            tuple(i + n for i in masked),
        )  # fmt: skip
        if p.adds:
            self._add_to(d, ct, box)
        else:
            self.b.store(d, self.b.cast(ct, d.type.dtype), *box)

    def _add_to(self, m: Memory, ct: Tile, box: tuple[Any, ...]) -> None:
        total = self.b.apply("add", self.b.load(m, *box), self.b.cast(ct, m.type.dtype))
        self.b.store(m, total, *box)

    def _store(self, op: Operation) -> None:
        """The cotangent of what was stored lies where it was stored to; what was there before has none."""
        assert op.memory is not None
        m, value, b = self.cotangents.get(op.memory), op.operands[0], self.b
        if m is None:
            return
        box, zeros = self._box(op), self._zeros(value)
        if op.name == "store":
            ct = b.load(m, *box)
            self.zeroed.add(ct)
            if m.writable:
                b.store(m, zeros, *box)
        else:
            picked = dict(
                zip(op.attributes["picked"], (self.tiles[t] for t in op.operands[1:]), strict=True)
            )
            ct = b.gather(m, picked, *box)
            if m.writable:
                b.scatter(m, zeros, picked, *box)
        self.add(value, ct)

    def _zero_scratch(self, m: Memory) -> None:
        """The cotangent of scratch: what is loaded adds to it, what is stored uses it up."""
        d = self.b.alloc(m.type.dtype, m.type.shape, m.space)
        sizes: Any = m.type.shape
        self.b.store(d, self.b.full(m.type.dtype, sizes, 0), (0,) * len(sizes), sizes)
        self.cotangents[m] = d


def _turns(a: Any) -> Size:
    """How many turns a loop makes."""
    turns: Size = (a["stop"] - a["start"] + a["step"] - 1) // a["step"]
    return turns


def _slot(place: Size, t: Tile) -> tuple[Any, Any, Any]:
    """The box of a tile that is saved at a turn of a loop."""
    return (place, *(0,) * len(t.shape)), (1, *t.shape), tuple(range(1, len(t.shape) + 1))


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
