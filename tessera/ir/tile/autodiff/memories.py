"""Which uses of memory a kernel may make when it is reversed: a load must see again what it saw before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tessera.ir.tile.autodiff.plan import accesses, meets_once
from tessera.ir.tile.autodiff.rules import no_rule
from tessera.ir.tile.ir import Block, Kernel, Memory, Operation, walk

_LOADS, _STORES = ("load", "gather"), ("store", "scatter")


def check_memories(kernel: Kernel, written: Iterable[Memory], held: set[Memory]) -> None:
    """Raise RuleError at an access that a reversed kernel could not repeat."""
    for op in walk(kernel.body):
        if op.name in _STORES and op.memory in held and op.operands[0].dtype.kind == "f":
            _check_narrow(op)
    for m in written:
        _check_written(kernel, m)
    for m in kernel.scratch():
        _check_scratch(kernel.body, m, is_loop=False)


def _check_narrow(op: Operation) -> None:
    if op.operands[0].dtype.name.startswith("f8"):
        raise no_rule(op, f"a store of {op.operands[0].dtype}")


def _check_written(kernel: Kernel, m: Memory) -> None:
    """A tensor is loaded before it is stored to, or part by part in a loop."""
    uses = accesses(kernel, m, (*_LOADS, *_STORES))
    loads = [x for x in uses if x.op.name in _LOADS]
    stored = False
    for x in uses:
        stored = stored or x.op.name in _STORES
        if stored and x.op.name in _LOADS:
            raise no_rule(x.op, f"a load of {m.name} after a store to it")
    for x in loads:
        around = [y for y in uses if y.op.name in _STORES and y.loops[:1] == x.loops[:1] != ()]
        same = all((y.at, y.extent, y.loops) == (x.at, x.extent, x.loops) for y in around)
        if around and not (same and meets_once([x])):
            raise no_rule(x.op, f"a load of {m.name} in a loop that stores to it")


def _check_scratch(block: Block, m: Memory, is_loop: bool) -> None:
    """In a loop scratch is written as a whole before it is read: turns hand nothing on in it."""
    uses: Sequence[Operation] = [
        op for op in walk(block) if op.memory is m and op.name in (*_LOADS, *_STORES)
    ]
    own = any(op.name == "alloc" and op.memory is m for op in walk(block))
    if is_loop and uses and not own and not _is_whole(uses[0], m):
        raise no_rule(uses[0], "scratch that one turn of a loop hands to the next")
    for op in block.operations:
        if op.block is not None:
            _check_scratch(op.block, m, is_loop=True)


def _is_whole(op: Operation, m: Memory) -> bool:
    return op.name == "store" and tuple(op.attributes["extent"]) == tuple(m.type.shape)
