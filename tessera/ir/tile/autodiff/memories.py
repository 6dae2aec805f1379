"""Which uses of memory a reversed kernel can repeat: a load must see again what it saw before.

A load of a tensor after a store to it is not repeated: there is no derivative where its value is needed, as
in a product; in a sum it is not.  Scratch that changes between the turns of a loop is not repeated either:
what is loaded of it is kept for every turn.
"""

from __future__ import annotations

from collections.abc import Iterable

from tessera.ir.tile.autodiff.plan import accesses, loads_of, meets_once
from tessera.ir.tile.autodiff.rules import no_rule
from tessera.ir.tile.ir import Block, Kernel, Memory, Operation, walk


def check_stores(kernel: Kernel, held: set[Memory]) -> None:
    """Raise RuleError at a store whose cotangent is not known."""
    for op in walk(kernel.body):
        if not op.traits.writes or op.memory not in held or op.operands[0].dtype.kind != "f":
            continue
        if op.operands[0].dtype.name.startswith("f8"):
            raise no_rule(op, f"a store of {op.operands[0].dtype}")
        how = op.attributes.get("atomic")
        if how not in (None, "add"):
            raise no_rule(op, f"an atomic {how}")
        picks = op.operands[1:]
        if (
            how is None
            and any(n != 1 for t in picks for n in t.shape)
            and not op.attributes.get("distinct")
        ):
            raise no_rule(op, "a store of several elements to one place")


def stale_loads(kernel: Kernel, written: Iterable[Memory], count: int) -> set[Operation]:
    """Loads of tensors that may see what the kernel stored, or of what it makes and is not there again."""
    operands = kernel.parameters[:count]
    found: set[Operation] = set()
    for m in written:
        found |= _stale(kernel, m) if m in operands else _loads(kernel, m)
    return found


def _loads(kernel: Kernel, m: Memory) -> set[Operation]:
    return {x.op for x in loads_of(kernel, m)}


def _stale(kernel: Kernel, m: Memory) -> set[Operation]:
    """Those that do not come before all stores, nor part by part in a loop."""
    found: set[Operation] = set()
    uses = accesses(kernel, m)
    stored = False
    for x in uses:
        stored = stored or x.op.traits.writes
        if not x.op.traits.reads:
            continue
        around = [y for y in uses if y.op.traits.writes and y.loops[:1] == x.loops[:1] != ()]
        same = all((y.at, y.extent, y.loops) == (x.at, x.extent, x.loops) for y in around)
        apart = same and not x.picked and meets_once([x])
        if stored or (around and not apart):
            found.add(x.op)
    return found


def changing(kernel: Kernel) -> set[Memory]:
    """Scratch whose elements are not the same again when a loop that loads them is repeated."""
    return {
        m
        for m in kernel.scratch()
        if not _is_settled(kernel.body, m) and _hands_on(kernel.body, m, False)
    }


def _is_settled(block: Block, m: Memory) -> bool:
    """Whether all stores come before all loads, and no loop is around them that is not around the scratch."""
    for op in block.operations:
        if op.traits.makes and op.memory is m:
            uses = [o for o in walk(block) if o.memory is m and _touches(o)]
            stores = [o for o in uses if o.traits.writes]
            own = all(o in block.operations for o in stores)
            return own and all(o.traits.writes for o in uses[: len(stores)])
    return any(_is_settled(op.block, m) for op in block.operations if op.block is not None)


def _touches(op: Operation) -> bool:
    return op.traits.reads or op.traits.writes


def _hands_on(block: Block, m: Memory, is_loop: bool) -> bool:
    """Whether a loop reads scratch that it has not written as a whole before, turn by turn."""
    uses = [op for op in walk(block) if op.memory is m and _touches(op)]
    own = any(op.traits.makes and op.memory is m for op in walk(block))
    if is_loop and uses and not own and not _is_whole(uses[0], m):
        return True
    return any(_hands_on(op.block, m, True) for op in block.operations if op.block is not None)


def _is_whole(op: Operation, m: Memory) -> bool:
    return op.name == "store" and tuple(op.attributes["extent"]) == tuple(m.type.shape)
