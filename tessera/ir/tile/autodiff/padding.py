"""padding: along which axes the elements of a tile may be past the end of a tensor.

A load with masked axes fills what is past the end, and what is computed from it is of no use.  Where a
derivative adds such an axis up, those elements must be left out: 0 times what they hold may be NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.core.dims import Size
from tessera.ir.tile.ir import Block, Kernel, Operation, Tile


@dataclass(frozen=True)
class AxisEnd:
    """Where an axis of a tile ends: the position of its first element, and the size of the axis."""

    start: Size
    size: Size
    by: Tile | None = None  # a number that is data and moves the first element


Ends = tuple[AxisEnd | None, ...]  # one for each axis of a tile; None: nothing lies past the end


def ends_of(kernel: Kernel) -> dict[Tile, Ends]:
    """Where the axes of every tile end."""
    found: dict[Tile, Ends] = {}
    _block(kernel.body, found)
    return found


def _block(block: Block, found: dict[Tile, Ends]) -> None:
    for op in block.operations:
        if op.block is not None:
            _loop(op, op.block, found)
        elif op.results:
            found[op.results[0]] = _of(op, found)


def _loop(op: Operation, block: Block, found: dict[Tile, Ends]) -> None:
    """What a loop carries ends where it does before the first turn, or after one."""
    for a, t in zip(block.arguments, op.operands, strict=True):
        found[a] = found[t]
    for _ in range(2):  # what the first walk finds, the second one spreads
        _block(block, found)
        for a, t in zip(block.arguments, block.outputs, strict=True):
            found[a] = tuple(x or y for x, y in zip(found[a], found[t], strict=True))
    for y, a in zip(op.results, block.arguments, strict=True):
        found[y] = found[a]


def _of(op: Operation, found: dict[Tile, Ends]) -> Ends:
    y, ends = op.results[0], [found[t] for t in op.operands]
    if op.traits.reads:
        return _loaded(op, y, ends)
    if op.name == "dot":
        a, b, acc = ends
        return (a[0] or acc[0], b[1] or acc[1])
    if op.name in ("full", "index"):
        return (None,) * len(y.shape)
    if op.name == "transpose":
        return ends[0][::-1]
    if op.name == "reshape":
        return _reshaped(op.operands[0].shape, ends[0], y.shape)
    # Elementwise, folds and broadcasts: an axis that is kept ends where it did.
    return tuple(_kept(op.operands, ends, i, n) for i, n in enumerate(y.shape))


def _kept(operands: Sequence[Tile], ends: Sequence[Ends], i: int, size: int) -> AxisEnd | None:
    for t, e in zip(operands, ends, strict=True):
        if e and t.shape[i] == size and e[i] is not None:
            return e[i]
    return None


def _loaded(op: Operation, y: Tile, indices: Sequence[Ends]) -> Ends:
    """Boxes end with their tensor; what tiles of indices name ends with those."""
    assert op.memory is not None
    a, shape, rank = op.attributes, op.memory.type.shape, len(y.shape)
    moves = dict(zip(a.get("picked", ()), op.operands, strict=True))
    ends: list[AxisEnd | None] = [None] * rank
    for k, i in enumerate(a["axes"][:rank]):
        by = moves.get(i)
        if i in a["masked"] and a["extent"][i] != 1:
            ends[k] = AxisEnd(a["at"][i], shape[i], by)
    for t, e in zip(op.operands, indices, strict=True):
        for k, end in enumerate(e):
            dim = k + rank - len(t.shape)
            if end is not None and t.shape[k] == y.shape[dim]:
                ends[dim] = ends[dim] or end
    return tuple(ends)


def _reshaped(before: Sequence[int], ends: Ends, after: Sequence[int]) -> Ends:
    """Axes of size 1 may come and go; other changes of shape lose where axes end."""
    kept = [(n, e) for n, e in zip(before, ends, strict=True) if n != 1]
    if [n for n, _ in kept] != [n for n in after if n != 1]:
        return (None,) * len(after)
    left = iter(kept)
    return tuple(None if n == 1 else next(left)[1] for n in after)
