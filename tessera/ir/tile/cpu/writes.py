"""writes: a part of a tensor is replaced in place, as Tile programs.

    y = x; y[s + i, :] = v[i, :]   ->   copy: y = x;   program i: y[s + i, :] = v[i, :]

The copy is a launch of its own.  Where the memory plan gives x and y one place it is left out, so that what
a run moves is the part alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.core.dims import Dim, Size, product
from tessera.core.dtype import DType, i64, u8
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.cpu.copies import copy_line, part_of_line
from tessera.ir.tile.cpu.passes.nontemporal_stores import bypass
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile
from tessera.ir.tile.launch import Expansion, Launch

_WIDE, _LANES = 64, 16


def whole_copy(x: TensorType) -> Kernel:
    """A tensor as it is."""
    b, t = Builder("kernel"), TensorType(_moved(x.dtype), (1, product(x.shape)))
    source, made = b.parameter("x", t), b.parameter("y", t, writable=True)
    copy_line(b, source, made, 0, part_of_line(b, t.shape[1]), 0)
    return bypass(b.finish())


def after_copy(step: Primitive, types: Mapping[str, TensorType], kernel: Kernel) -> Expansion:
    """The launches of a step that replaces a part of its first operand: a copy, and what is replaced."""
    x, *others = step.operands
    copy = Launch(whole_copy(types[x]), (x,), step.results)
    return Expansion((copy, Launch(kernel, tuple(others), step.results)))


def lower_write_slice(step: Primitive, types: Mapping[str, TensorType]) -> Expansion:
    """A box from a start on, which is moved to fit inside."""
    x, part, *starts = (types[n] for n in step.operands)
    b, dtype, last = Builder("kernel"), _moved(x.dtype), x.rank - 1
    v = b.parameter("v", TensorType(dtype, part.shape))
    at = [b.parameter(f"s{a}", t) for a, t in enumerate(starts)]
    y = b.parameter("y", TensorType(dtype, x.shape), writable=True)
    here: list[Size] = [b.program(n) for n in part.shape[:-1]]
    cut = [a for a, (n, m) in enumerate(zip(x.shape, part.shape, strict=True)) if n != m]
    begin = {a: _clamped(b, at[a], x.shape[a] - part.shape[a]) for a in cut}
    rows = last not in cut  # a line of the part is a line of the tensor

    def put(column: Size, width: int, tail: bool) -> None:
        place = (*here, column)
        picked = {
            a: b.reshape(b.apply("add", begin[a], b.index(place[a])), (1,) * rows) for a in cut
        }
        _put(b, y, v, picked, place, width, tail, rows)

    if rows:
        _line(b, part.shape[-1], put)
    else:
        with b.loop(0, part.shape[-1]) as c:
            put(c.variable, 1, False)
    return after_copy(step, types, b.finish())


def lower_write_rows(step: Primitive, types: Mapping[str, TensorType]) -> Expansion:
    """Rows of each sequence from its first on, at most so many of them; those past the room are dropped, or
    wrap.
    """
    held, new, first, count = (types[n] for n in step.operands)
    batch, heads, room, size = held.shape
    b, dtype = Builder("kernel"), _moved(held.dtype)
    v = b.parameter("v", TensorType(dtype, new.shape))
    firsts, counts = b.parameter("first", first), b.parameter("count", count)
    y = b.parameter("y", TensorType(dtype, held.shape), writable=True)
    sequence, head = b.program(batch), b.program(heads)
    start, n = (_of_sequence(b, m, sequence) for m in (firsts, counts))
    with b.loop(0, new.shape[2]) as i:
        number = b.index(i.variable)
        at = b.apply("add", start, number)
        if step.params["wrap"]:
            at = b.apply("mod", at, b.index(room))
        at = b.apply("where", b.apply("lt", number, n), at, b.full(i64, (), -1))
        picked = {2: b.reshape(at, (1,))}

        def put(column: Size, width: int, tail: bool, row: Dim = i.variable) -> None:
            _put(b, y, v, picked, (sequence, head, row, column), width, tail, True)

        _line(b, size, put)
    return after_copy(step, types, b.finish())


def _moved(dtype: DType) -> DType:
    """What elements are moved as."""
    return u8 if dtype.kind == "f" and dtype.bits == 8 else dtype.base


def _clamped(b: Builder, start: Memory, last: Size) -> Tile:
    at = b.cast(b.load(start, (), ()), i64)
    return b.apply("min", b.apply("max", at, b.full(i64, (), 0)), b.index(last))


def _of_sequence(b: Builder, m: Memory, sequence: Dim) -> Tile:
    """A number, or that of a sequence."""
    alone = m.type.rank == 0
    return b.cast(b.load(m, () if alone else (sequence,), () if alone else (1,), axes=()), i64)


def _line(b: Builder, size: Size, put: object) -> None:
    """Call put(column, width, tail) for vectors along a line."""
    assert callable(put)
    start: Size = 0
    for width, tail in ((_WIDE, False), (_LANES, True)):
        stop = size if tail else size // width * width
        if start != stop:
            with b.loop(start, stop, width) as c:
                put(c.variable, width, tail)
        start = stop


def _put(
    b: Builder, y: Memory, v: Memory, picked: Mapping[int, Tile], place: Sequence[Size], width: int,
    tail: bool, rows: bool,
) -> None:  # fmt: skip
    """Write elements of the part, or one, at the places that were picked."""
    last = len(place) - 1
    kept, edge = ((last,) if rows else ()), ((last,) if tail else ())
    extent = (*(1 for _ in place[:-1]), width)
    value = b.load(v, place, extent, axes=kept, masked=edge)
    at = [0 if a in picked else i for a, i in enumerate(place)]
    if picked:
        b.scatter(y, value, picked, at, extent, kept, (*picked, *edge))
    else:
        b.store(y, value, place, extent, axes=kept, masked=edge)


WRITES = {"write_slice": lower_write_slice, "write_rows": lower_write_rows}
