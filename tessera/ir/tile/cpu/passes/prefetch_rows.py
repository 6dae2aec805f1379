"""ahead: while a row is computed, the next one is fetched.

    row p:  for i: m = max(m, load x[p, i]);  for i: e = exp(load x[p, i] - m)
->  row p:  for i: m = max(m, load x[p, i]);  for i: e = exp(load x[p, i] - m); prefetch x[p + 1, i]

The first loop over a row waits for memory, and those after it find the row in the first cache: so memory
would rest while they compute.  A processor that looks ahead by itself stops at the end of a page.  The
second loop therefore asks for the next row, in ascending order, which lets the processor join in.  A long
row goes to the second cache, and only while functions such as exp are computed: memory is as busy as it
can be elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from operator import is_

from tessera.core.approximate import FUNCTIONS
from tessera.core.dims import Size, substitute, symbol, symbols
from tessera.ir.tile.ir import Block, Kernel, Memory, Operation, walk

_LEAST = 512  # bytes of a row that is worth asking for
_NEAR, _FAR = 8 << 10, 128 << 10  # bytes of rows that go to the first cache, to the second one


def ahead(kernel: Kernel) -> Kernel:
    """The same kernel, with prefetches where a loop reads again what a loop before it has read."""
    if not kernel.grid:
        return kernel
    written = {op.memory for op in walk(kernel.body) if op.name not in ("load", "prefetch")}
    rows = {m for m in kernel.parameters if m not in written and _LEAST <= _row_bytes(m) <= _FAR}
    body = _rows(kernel.body, kernel.grid[-1][0], 1, rows)
    return kernel if body is kernel.body else replace(kernel, body=body)


def _row_bytes(m: Memory) -> int:
    """Bytes of a row of a memory, 0 where they are not known before a call."""
    last = m.type.shape[-1] if m.type.rank > 1 else 0
    return last * max(m.type.dtype.bits // 8, 1) if isinstance(last, int) else 0


def _rows(block: Block, row: str, step: int, sources: Set[Memory]) -> Block:
    """A block that computes a row; a loop in it goes over columns, or over rows that are smaller."""
    read: set[Memory] = set()
    asked: set[Memory] = set()
    made = []
    for op in block.operations:
        if op.block is None or _never_runs(op):
            made.append(op)
            continue
        here = _memories(op.block, row, sources)
        again = {m for m in here & read - asked if _row_bytes(m) <= _NEAR or _computes(op.block)}
        read |= here
        asked |= again
        a = op.attributes
        if again:
            inner = _asking(op, op.block, row, step, again)
        else:
            inner = _rows(op.block, a["variable"], a["step"], sources - asked)
        made.append(op if inner is op.block else _with(op, inner))
    return _replaced(block, made)


def _memories(block: Block, row: str, sources: Set[Memory]) -> set[Memory]:
    """Of which memories a block reads the row."""
    return {op.memory for op in walk(block) if _reads(op, row, sources) and op.memory is not None}


def _reads(op: Operation, row: str, sources: Set[Memory | None]) -> bool:
    """Whether an operation is a load of the row; what is masked is at the end of a memory."""
    a = op.attributes
    if op.name != "load" or op.memory not in sources or a["masked"]:
        return False
    return any(row in symbols(x) for x in a["at"])


def _computes(block: Block) -> bool:
    """Whether a loop has functions that take longer than memory."""
    return any(op.attributes.get("scalar") in FUNCTIONS for op in walk(block))


def _asking(loop: Operation, block: Block, row: str, step: int, again: Set[Memory]) -> Block:
    """The body of a loop over columns that asks for those of the next row."""
    made: list[Operation] = []
    for op in block.operations:
        if op.block is not None:
            inner = _asking(op, op.block, row, step, again)
            made.append(op if inner is op.block else _with(op, inner))
            continue
        made.append(op)
        if _reads(op, row, again):
            *lead, _ = op.attributes["at"]
            beside = [x for x in block.operations if _reads(x, row, {op.memory})]
            beside = [x for x in beside if list(x.attributes["at"][:-1]) == lead]
            at = (*lead, _column(loop, beside, beside.index(op)))
            hint = {
                "at": tuple(substitute(x, {row: symbol(row) + step}) for x in at),
                "extent": op.attributes["extent"],
                "write": False,
            }
            if op.memory is not None and _row_bytes(op.memory) > _NEAR:
                hint["far"] = True
            made.append(Operation("prefetch", (), hint, (), op.memory, None, op.location))
    return _replaced(block, made)


def _column(loop: Operation, beside: Sequence[Operation], number: int) -> Size:
    """Where a load of several in a loop would begin if they all went through the row in order."""
    a, at = loop.attributes, beside[number].attributes["at"][-1]
    each: list[int] = [x.attributes["extent"][-1] for x in beside]
    if len(beside) > 1 and sum(each) % a["step"] == 0:
        first = substitute(beside[0].attributes["at"][-1], {a["variable"]: a["start"]})
        turn = symbol(a["variable"]) - a["start"]
        at = first + turn * (sum(each) // a["step"]) + sum(each[:number])
    column: Size = at
    return column


def _never_runs(loop: Operation) -> bool:
    start, stop = loop.attributes["start"], loop.attributes["stop"]
    return isinstance(start, int) and isinstance(stop, int) and start >= stop


def _replaced(block: Block, made: Sequence[Operation]) -> Block:
    same = len(made) == len(block.operations) and all(map(is_, made, block.operations))
    return block if same else replace(block, operations=tuple(made))


def _with(op: Operation, block: Block) -> Operation:
    return Operation(op.name, op.operands, op.attributes, op.results, op.memory, block, op.location)
