"""written: kernels that the user wrote, as a GPU runs them best.

    dot(cast(a, f32), cast(b, f32), acc) of narrow a and b   ->   dot(a, b, acc)

Products of narrow floats are exact in f32, so a product of two such tiles is what the matrix units compute
from the narrow ones, at many times the speed; whole numbers of 8 bits are narrow floats, too.  How the
units round sums is theirs, as in all products of narrow floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tessera.core.dims import product
from tessera.core.dtype import DType, bf16, f16, f32
from tessera.core.errors import ScheduleError
from tessera.core.types import TensorType
from tessera.ir.tile.gpu.tma_loads import fetched
from tessera.ir.tile.ir import Block, Kernel, Operation, Tile, walk
from tessera.ir.tile.launch import Threads, threads_said

_FLOATS = (bf16, f16)
WRITTEN_STAGES = 2  # of kernels that people write, where their schedules say nothing
_LARGE = 128 * 128  # elements of a tile that four warps would not have registers for
Narrow = dict[Tile, Tile]  # what was cast, by what it was cast to


def written(kernel: Kernel) -> Kernel:
    """The same kernel, in which products of narrow floats are known as such."""
    if not any(op.name == "dot" for op in walk(kernel.body)):
        return kernel
    return replace(kernel, body=_narrowed(kernel.body, {}))


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


def usual_warps(k: Kernel) -> int:
    """Warps for a kernel whose schedule names none: more where tiles are large."""
    tiles = (x.shape for op in walk(k.body) for x in op.results)
    return 8 if max((product(shape) for shape in tiles), default=0) >= _LARGE else 4
