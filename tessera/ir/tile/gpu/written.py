"""written: kernels that the user wrote, as a GPU runs them best.

    dot(cast(a, f32), cast(b, f32), acc) of narrow a and b   ->   dot(a, b, acc)
    fold(x), scan(x)                                         ->   fold(x) {order = neighbours}, ...
    dot(x, ones, acc), sums of rows                          ->   acc + trees of 16 columns, one by one

Products of narrow floats are exact in f32, so a product of two such tiles is what the matrix units compute
from the narrow ones, at many times the speed; whole numbers of 8 bits are narrow floats, too.  How the
units round sums is theirs, as in all products of narrow floats.

A fold of a tile is a tree over halves, which suits the vectors of a CPU, and a scan one chain.  On a GPU the
threads of a warp hold neighbours: halves lie in different warps, and a chain waits for each element.  So both
are trees over neighbours there, as in all GPU folds; their order is that of the tile's shape alone, and no
number of threads changes a bit.

Sums of rows that a chain adds up, as softmax in blocks has them, would go through the loop of a product whose
operands lie in shared memory.  Groups of 16 columns are trees over neighbours, and the chain is over groups:
blocks of any multiple of 16 columns have the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tessera.core.dims import product
from tessera.core.dtype import DType, bf16, f16, f32, i64
from tessera.core.errors import ScheduleError
from tessera.core.types import TensorType
from tessera.ir.schedule.gpu_blocks import power
from tessera.ir.tile.gpu.folds import has_any_order
from tessera.ir.tile.gpu.tma_loads import fetched
from tessera.ir.tile.ir import Block, Builder, Kernel, Operation, Tile, walk
from tessera.ir.tile.launch import Threads, threads_said
from tessera.ir.tile.rules import NEIGHBOURS

_FLOATS = (bf16, f16)
WRITTEN_STAGES = 2  # of kernels that people write, where their schedules say nothing
GROUP = 16  # columns whose sum is a tree; a thread's part of a row in the layout of matrix units
MOST_ELEMENTS = 1 << 20  # of a tile: Triton's limit
_LARGE = 128 * 128  # elements of a tile that four warps would not have registers for
Narrow = dict[Tile, Tile]  # what was cast, by what it was cast to


def written(kernel: Kernel) -> Kernel:
    """The same kernel, whose products of narrow floats are known as such and whose folds join neighbours."""
    names = {op.name for op in walk(kernel.body)}
    body = kernel.body
    if "dot" in names:
        body = _summed(_narrowed(body, {}))
    if names & {"fold", "scan"}:
        body = _ordered(body)
    return kernel if body is kernel.body else replace(kernel, body=body)


def _summed(block: Block) -> Block:
    """Products with a column of ones as sums of rows."""
    made: list[Operation] = []
    ones: set[Tile] = set()
    for op in block.operations:
        if op.block is not None:
            made.append(_with(op, op.operands, _summed(op.block)))
            continue
        if op.name == "full" and op.attributes["value"] == 1:
            ones.add(op.results[0])
        if op.name == "dot" and op.operands[1] in ones and _sums_rows(op):
            made += _row_sums(op)
        else:
            made.append(op)
    return replace(block, operations=tuple(made))


def _sums_rows(op: Operation) -> bool:
    x, one, acc = op.operands
    columns = x.shape[1]
    whole = columns % GROUP == 0 and columns & (columns - 1) == 0
    return whole and one.shape[1] == 1 and x.dtype is acc.dtype and x.dtype.kind == "f"


def _row_sums(op: Operation) -> list[Operation]:
    """The sums of groups of columns, added to what there is one after the other."""
    x, _, total = op.operands
    b = Builder("row_sums")
    count = x.shape[1] // GROUP
    groups = b.fold("add", b.reshape(x, (x.shape[0], count, GROUP)), 2, NEIGHBOURS)
    number = b.index(0, (1, count, 1), 1)
    for i in range(count):
        chosen = b.apply("eq", number, b.full(i64, (1, 1, 1), i))
        own = b.apply("where", chosen, groups, b.full(x.dtype, (1, 1, 1), -0.0))
        part = b.fold("add", own, 1, NEIGHBOURS) if count > 1 else groups
        total = b.apply("add", total, b.reshape(part, op.results[0].shape))
    made = list(b.finish().body.operations)
    last = next(o for o in reversed(made) if total in o.results)
    return [*made[: made.index(last)], _giving(last, op.results)]


def _giving(op: Operation, results: tuple[Tile, ...]) -> Operation:
    return Operation(op.name, op.operands, op.attributes, results, None, None, op.location)


def _ordered(block: Block) -> Block:
    """Folds and scans whose bits depend on their order, by neighbours."""
    made = []
    for op in block.operations:
        new = op
        if op.block is not None:
            new = _with(op, op.operands, _ordered(op.block))
        elif op.name in ("fold", "scan") and _depends_on_order(op):
            new = Operation(
                op.name,
                op.operands,
                {**op.attributes, "order": NEIGHBOURS},
                op.results,
                None,
                None,
                op.location,
            )
        made.append(new)
    return replace(block, operations=tuple(made))


def _depends_on_order(op: Operation) -> bool:
    x, axis = op.operands[0], op.attributes["axis"]
    return x.shape[axis] > 2 and not has_any_order(op.attributes["scalar"], x.dtype)


def _narrowed(block: Block, narrow: Narrow) -> Block:
    made: list[Operation] = []
    for op in block.operations:
        if op.block is not None:
            made.append(_with(op, op.operands, _narrowed(op.block, narrow)))
            continue
        if op.name == "cast" and _is_exact(op):
            narrow[op.results[0]] = op.operands[0]
        elif op.name == "transpose" and op.operands[0] in narrow:
            made.append(_turned(op, narrow))
        if op.name == "dot" and (d := _common(op, narrow)) is not None:
            casts = [x for t in op.operands[:2] if (x := _as(narrow[t], d)) is not None]
            made += casts
            found = {x.operands[0]: x.results[0] for x in casts}
            a, b = (found.get(narrow[t], narrow[t]) for t in op.operands[:2])
            op = _with(op, (a, b, op.operands[2]), None)
        made.append(op)
    return replace(block, operations=tuple(made))


def _turned(op: Operation, narrow: Narrow) -> Operation:
    """The transpose of what was cast, beside that of what it was cast to."""
    x = narrow[op.operands[0]]
    out = narrow[op.results[0]] = Tile(TensorType(x.dtype, op.results[0].shape))
    return Operation("transpose", (x,), op.attributes, (out,), None, None, op.location)


def _is_exact(op: Operation) -> bool:
    """Whether a cast is to f32 from numbers that a narrow float can be."""
    d = op.operands[0].dtype
    whole = d.kind in "iu" and d.bits <= 8
    return op.results[0].dtype is f32 and (d in _FLOATS or whole)


def _common(op: Operation, narrow: Narrow) -> DType | None:
    """The narrow float that both factors of a product are, or are as good as."""
    if any(t not in narrow for t in op.operands[:2]):
        return None
    floats = {d for t in op.operands[:2] if (d := narrow[t].dtype) in _FLOATS}
    return next(iter(floats)) if len(floats) == 1 else None


def _as(x: Tile, d: DType) -> Operation | None:
    """The cast of whole numbers to a narrow float; None where they are that."""
    if x.dtype is d:
        return None
    return Operation("cast", (x,), {}, (Tile(TensorType(d, x.shape)),), None, None, None)


def _with(op: Operation, operands: tuple[Tile, ...], block: Block | None) -> Operation:
    return Operation(op.name, operands, op.attributes, op.results, op.memory, block, op.location)


def written_threads(k: Kernel, said: Sequence[int] | None) -> Threads:
    """Launch options of a user's kernel; an option that would do nothing here is an error."""
    _fits(k)
    threads = threads_said(said or (usual_warps(k), WRITTEN_STAGES))
    if threads.descriptors and not fetched(k):
        raise ScheduleError(
            f"{k.name}: tma does nothing: no factor of a product is loaded as a box of a tensor of known "
            f"columns "
            "whose rows begin at multiples of 16 bytes; leave it out"
        )
    if threads.specialise and not threads.descriptors:
        raise ScheduleError(
            f"{k.name}: specialise does nothing without tma: warps that fetch have the copy engine fetch; "
            f"add .tma()"
        )
    return threads


def _fits(k: Kernel) -> None:
    """Refuse a tile that no GPU program can hold."""
    for op in walk(k.body):
        for t in op.results:
            if (n := product(tuple(power(n) for n in t.shape))) > MOST_ELEMENTS:
                shape = " x ".join(map(str, t.shape))
                raise ScheduleError(
                    f"{k.name}: {op.name} gives a tile of {shape} elements, {n:,} with its padding; one of a "
                    f"GPU holds at most {MOST_ELEMENTS:,}; load it in blocks, as tile.load(x, T.m) with "
                    f"T = tile.context() does"
                ).at(op.location)


def usual_warps(k: Kernel) -> int:
    """Warps for a kernel whose schedule names none: more where tiles are large."""
    tiles = (x.shape for op in walk(k.body) for x in op.results)
    return 8 if max((product(shape) for shape in tiles), default=0) >= _LARGE else 4
