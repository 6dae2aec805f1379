"""copies: tensors put together and padded, as Tile programs that move vectors.

y = concat(a, b)   ->   program r, block: for each operand: copy what it has of the block
y = pad(x, v)      ->   program r, block: y = x where x has an element, v elsewhere
"""

from __future__ import annotations

from collections.abc import Mapping

from tessera.core.dims import Size, larger, product, smaller
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.ir import Builder, Memory, Tile
from tessera.ir.tile.launch import Expansion, Launch

_BLOCK = 4096  # elements of a row that an instance writes
_WIDE, _LANES = 64, 16


def lower_concat(step: Primitive, types: Mapping[str, TensorType]) -> Expansion:
    """Tensors seen as rows of different lengths, one after another in the rows of the result."""
    b, axis = Builder("kernel"), step.params["axis"]
    operands, out = [types[n] for n in step.operands], types[step.results[0]]
    rows = product(out.shape[:axis])
    lengths = [product(t.shape[axis:]) for t in operands]
    ins = [b.parameter(f"x{i}", TensorType(out.dtype, (rows, n))) for i, n in enumerate(lengths)]
    whole = product(out.shape[axis:])
    y = b.parameter("y", TensorType(out.dtype, (rows, whole)), writable=True)
    row = b.program(rows)
    first, last = part_of_line(b, whole)
    offset: Size = 0
    for x, n in zip(ins, lengths, strict=True):
        start, stop = larger(first, offset), smaller(last, offset + n)
        copy_line(b, x, y, row, (start, larger(stop, start)), offset)
        offset = offset + n
    return Expansion((Launch(b.finish(), step.operands, step.results),))


def part_of_line(b: Builder, size: Size) -> tuple[Size, Size]:
    """The part of a row that this instance writes."""
    if isinstance(size, int) and size <= _BLOCK:
        return 0, size
    start = b.program((size + _BLOCK - 1) // _BLOCK) * _BLOCK
    return start, smaller(start + _BLOCK, size)


def copy_line(
    b: Builder, x: Memory, y: Memory, row: Size, span: tuple[Size, Size], offset: Size
) -> None:
    """Elements of a row, the last ones one by one: what follows is another operand's."""
    first, stop = span
    start = first
    for width in (_WIDE, _LANES, 1):
        end = (stop - first) // width * width + first
        if start != end:
            with b.loop(start, end, width) as c:
                value = b.load(x, (row, c.variable - offset), (1, width), axes=(1,))
                b.store(y, value, (row, c.variable), (1, width), axes=(1,))
        start = end


def lower_pad(step: Primitive, types: Mapping[str, TensorType]) -> Expansion:
    """A row of the result for each instance, or a part of one."""
    b, low, inner = Builder("kernel"), step.params["low"], step.params["inner"]
    t, out = types[step.operands[0]], types[step.results[0]]
    x, v = b.parameter("x", t), b.parameter("v", types[step.operands[1]])
    y = b.parameter("y", out, writable=True)
    rows: list[Size] = [b.program(n) for n in out.shape[:-1]]
    fill = b.reshape(b.load(v, (), (), axes=()), (1,))
    first, stop = part_of_line(b, out.shape[-1])
    axis = t.rank - 1
    start = first
    for width, tail in ((_WIDE, False), (_LANES, True)):
        end = stop if tail else (stop - first) // width * width + first
        if start != end:
            with b.loop(start, end, width) as c:
                here = (*rows, c.variable)
                extent = (*(1 for _ in rows), width)
                at = [i - a for i, a in zip(here, low, strict=True)]
                lead = [_parted(i, n, k) for i, n, k in zip(at[:-1], t.shape, inner, strict=False)]
                value = _padded_line(b, x, [*lead, at[-1]], width, inner[-1], fill)
                b.store(y, value, here, extent, axes=(axis,), masked=(axis,) if tail else ())
        start = end
    return Expansion((Launch(b.finish(), step.operands, step.results),))


def _parted(i: Size, n: Size, inner: Size) -> Size:
    """The element at a place of an axis with `inner` places between neighbours; n when there is none."""
    if isinstance(inner, int) and inner == 0:
        return i
    between = smaller(i % (inner + 1), 1)
    return i // (inner + 1) * (1 - between) + n * between


def _padded_line(
    b: Builder, x: Memory, at: list[Size], width: int, inner: Size, fill: Tile
) -> Tile:
    """The line of the result from a place on: elements of x, and the fill elsewhere."""
    t, axis = x.type, x.type.rank - 1
    if isinstance(inner, int) and inner == 0:
        extent = (*(1 for _ in at[:-1]), width)
        value = b.load(x, at, extent, axes=(axis,), masked=range(t.rank))
        return b.apply("where", _inside(b, t, at, b.index(at[-1], (width,), 0)), value, fill)
    i, step = b.index(at[-1], (width,), 0), b.index(inner + 1, (1,))
    whole = b.apply("eq", b.apply("mod", i, step), b.index(0, (1,)))
    place = b.apply("where", whole, b.apply("floor_div", i, step), b.index(t.shape[-1], (1,)))
    value = b.gather(x, {axis: place}, (*at[:-1], 0), (1,) * t.rank, masked=range(t.rank))
    return b.apply("where", _inside(b, t, at, place), value, fill)


def _inside(b: Builder, t: TensorType, at: list[Size], line: Tile) -> Tile:
    """Which of the places of a line along the last axis are in a tensor."""
    found: Tile | None = None
    for axis, (place, n) in enumerate(zip(at, t.shape, strict=True)):
        i = line if axis == t.rank - 1 else b.index(place, (1,))
        low, high = b.apply("ge", i, b.index(0, (1,))), b.apply("lt", i, b.index(n, (1,)))
        ok = b.apply("logical_and", low, high)
        found = ok if found is None else b.apply("logical_and", found, ok)
    assert found is not None
    return found


COPIES = {"concat": lower_concat, "pad": lower_pad}
