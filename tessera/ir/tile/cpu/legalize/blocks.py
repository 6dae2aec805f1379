"""Expansion: the operations of a block one after the other, with what must be computed when.

An operation on large tiles is remembered until its result is needed.  Before memory is overwritten,
what was loaded from it and is still needed is kept; what a loop needs again and again is computed
before it.
"""

from __future__ import annotations

from tessera.core.processor import Registers
from tessera.ir.tile.cpu.legalize.carry import used_by
from tessera.ir.tile.cpu.legalize.large import size_of
from tessera.ir.tile.cpu.legalize.moves import Moves
from tessera.ir.tile.cpu.legalize.nests import ElementTask
from tessera.ir.tile.cpu.legalize.subtiles import memory_of, wide_axes
from tessera.ir.tile.cpu.legalize.swap_dot_operands import turned_products
from tessera.ir.tile.ir import Block, Kernel, Memory, Operation, Tile, walk

_DEAR = 8.0  # instructions that are not done twice
_VIRTUAL = frozenset(
    ("load", "gather", "full", "index", "apply", "cast", "broadcast", "transpose", "dot_parts")
)


class BlockExpansion(Moves):
    """A kernel being expanded."""

    def __init__(self, kernel: Kernel, large: set[Tile], of: Registers):
        super().__init__(kernel)
        self.large, self.registers = large, of
        self.users: dict[Tile, list[Operation]] = {}
        for op in walk(kernel.body):
            for t in op.operands:
                self.users.setdefault(t, []).append(op)
        self.depth = _depths(kernel.body, 0)
        self.turned_products = turned_products(kernel, self.users, self.depth)
        self.orders = {
            op.operands[0 if op in self.turned_products else 1]:
            (1, 0) if op in self.turned_products else (0, 1)
            for op in walk(kernel.body)
            if op.name == "dot"
        }  # fmt: skip
        self.live: set[Tile] = set()  # tiles that a later operation of an open block reads

    def kernel(self) -> Kernel:
        self.block(self.source.body)
        return self.b.finish()

    def block(self, block: Block) -> None:
        outside, ends = self.live, _last_uses(block)
        after: list[set[Tile]] = [set() for _ in block.operations]
        for t, i in ends.items():
            for j in range(i):
                after[j].add(t)
        skip = False
        for i, op in enumerate(block.operations):
            self.b.location = op.location
            self.live = outside | after[i]
            self.wanted = self.live | set(used_by(op))
            if not skip:
                following = block.operations[i + 1] if i + 1 < len(block.operations) else None
                skip = self.step(op, following)
            else:
                skip = False
        self.live = self.wanted = outside
        self.flush()

    def step(self, op: Operation, following: Operation | None) -> bool:
        """One operation; whether the one that follows is done with it."""
        if op.block is not None:
            self.enter(op, op.block)
        elif self.large.isdisjoint((*op.operands, *op.results)):
            self.plain(op)
        elif op.name == "dot":
            return self.dot(op, following)
        elif op.name == "fold":
            self.add(ElementTask(op.operands[0], fold=op))
            if size_of(op.results[0]) == 1:  # which operations on tiles that fit may read
                self.flush()
        elif op.name == "store":
            self.overwrite(memory_of(op))
            self.store(op)
        elif op.name == "scatter":
            self.overwrite(memory_of(op))
            self.scatter(op)
        elif op.name == "scan":
            self.scan(op)
        elif op.name == "reshape" and not _moves_no_element(op):
            self.reshape(op)
        else:
            self.remember(op)
        return False

    # Memory

    def plain(self, op: Operation) -> None:
        """An operation on tiles that fit."""
        if op.name in ("store", "scatter"):
            self.overwrite(memory_of(op))
            self.flush()
        elif any(op.memory in nest.writes for nest in self.waiting):
            self.flush()
        if op.name == "index" and op.attributes["axis"] is None:
            self.indices[op.results[0]] = op.attributes["at"]
        self.operation(op)

    def overwrite(self, m: Memory) -> None:
        """Keep what is still needed of what memory holds."""
        for t in [t for t in self.made if t in self.live]:
            if t not in self.kept and m in self.memories_of(t):
                self.keep(t)
                self.flush()

    def store(self, op: Operation) -> None:
        t = op.operands[0]
        if not self.is_same_box(t, op):
            self.keep(t)
            self.flush()
        self.add(ElementTask(t, store=op))

    def is_same_box(self, t: Tile, op: Operation) -> bool:
        """Whether all that a tile reads of a memory is read where it is then written."""
        m = op.memory
        if t in self.kept or t not in self.made:
            return True
        here = self.made[t]
        if here.memory is m:
            same = ("at", "extent", "axes")
            return here.name == "load" and all(here.attributes[k] == op.attributes[k] for k in same)
        if m not in self.memories_of(t):
            return True
        if here.name not in ("apply", "cast"):
            return False
        return all(
            m not in self.memories_of(x) or (x.shape == t.shape and self.is_same_box(x, op))
            for x in here.operands
        )

    # Values

    def remember(self, op: Operation) -> None:
        """Have a result computed where it is read, or keep it if that is dear."""
        (t,) = op.results
        self.made[t] = op
        if self.is_worth_keeping(t, op):
            self.keep(t)

    def is_worth_keeping(self, t: Tile, op: Operation) -> bool:
        users = self.users.get(t, ())
        if any(u.name == "dot" and not self.is_ready(u, t) for u in users):
            return True
        if op.name in ("load", "full", "index", "broadcast", "reshape"):
            return False
        cost = self.cost(t)
        again = len(users) > 1 or any(self.depth[u] > self.depth[op] for u in users)
        return (again and cost > _DEAR) or (cost > 2 and self.spreads(t))

    def spreads(self, t: Tile) -> bool:
        """Whether each element of a tile is read for several others."""
        for u in self.users.get(t, ()):
            if u.name in ("apply", "broadcast") and size_of(u.results[0]) > size_of(t):
                return True
            if u.name in ("reshape", "transpose") and self.spreads(u.results[0]):
                return True
        return False

    def is_ready(self, op: Operation, t: Tile) -> bool:
        """Whether a product reads a factor from where it lies."""
        a, b, _ = op.operands
        if op in self.turned_products:
            return t in self.kept if t is a else t is not b or self.in_place(t, left=True)
        return (t is not a or self.in_place(t, left=True)) and (
            t is not b or self.in_place(t, left=False)
        )

    def dot(self, op: Operation, following: Operation | None) -> bool:
        """A product; whether the store that follows is done with it."""
        a, b, acc = op.operands
        for x in (a, b):
            if not self.is_ready(op, x):
                self.keep(x)
        self.flush()
        is_stored = following is not None and following.name == "store" and (
            following.operands[0] is op.results[0] and len(self.users[op.results[0]]) == 1
        )  # fmt: skip
        if not is_stored or following is None:
            self.product(op, None)
            return False
        m = memory_of(following)
        self.overwrite(m)
        taken = m in self.memories_of(a) | self.memories_of(b)
        turned = op in self.turned_products and b.shape[1] > 1
        fits = not taken and not turned and self.is_same_box(acc, following)
        self.product(op, following if fits else None)
        return fits

    # Loops

    def enter(self, op: Operation, block: Block) -> None:
        """A loop; what it needs of the tiles before it is ready or cheap."""
        writes = {o.memory for o in walk(block) if o.name in ("store", "scatter")}
        inside = set(used_by(op))
        for t in [t for t in self.made if t in inside or t in self.live]:
            if t in self.kept:
                continue
            if writes & self.memories_of(t) or (t in inside and self.cost(t) > _DEAR):
                self.keep(t)
        self.flush()
        with self.scope():
            outside, self.live = self.live, self.live | {t for t in inside if t in self.made}
            self.loop(op, block)
            self.live = outside


def _depths(block: Block, depth: int) -> dict[Operation, int]:
    """How many loops are around each operation."""
    found = {}
    for op in block.operations:
        found[op] = depth
        if op.block is not None:
            found |= _depths(op.block, depth + 1)
    return found


def _last_uses(block: Block) -> dict[Tile, int]:
    """The last operation of a block that reads a tile, by its number."""
    found: dict[Tile, int] = {}
    for i, op in enumerate(block.operations):
        found.update(dict.fromkeys(used_by(op), i))
    found.update(dict.fromkeys(block.outputs, len(block.operations)))
    return found


def _moves_no_element(op: Operation) -> bool:
    """Whether a reshape only adds and drops axes of one element."""
    x, t = op.operands[0].shape, op.results[0].shape
    return [x[i] for i in wide_axes(x)] == [t[i] for i in wide_axes(t)]
