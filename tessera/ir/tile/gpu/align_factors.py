"""Factors whose rows begin anywhere are copied to rows that the copy engine can fetch.

    a[1000, 999]  ->  a8[1000, 1000]: the same rows, each followed by a zero

The tensor memory accelerator fetches boxes of memory whose rows begin at multiples of 16 bytes; others are
loaded number by number.  A copy of a factor that many blocks read costs less.  What is read behind a row is
0 as before: no bit changes.

    b[n, k] f32  ->  b_turned[k, n]

No matrix unit takes f32: threads side by side have neighbouring columns of a block, and the columns of a
right factor whose rows lie along k come from one bank of shared memory, one after the other.  Turned first,
they lie beside each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tessera.core.dtype import bool_, i64
from tessera.core.types import TensorType
from tessera.ir.schedule.factors import bare, factors, is_plain, read_of
from tessera.ir.schedule.ir import (
    Apply,
    Axis,
    Kernel,
    Literal,
    Position,
    Read,
    Stage,
    Term,
    reads,
    with_reads,
)
from tessera.ir.tile.gpu.contraction import shape_of
from tessera.ir.tile.gpu.rows import Rows
from tessera.ir.tile.launch import Launch

_BYTES = 16  # at whose multiples a row begins, for 16-byte loads
_MANY = 128  # rows and columns of a product whose factors are read often enough
_DEEP = 64  # terms of its sums
_TURNED_FOR = 64  # rows of a product of f32, for which its right factor is turned
_TURNED_FROM = (
    1 << 25
)  # products of numbers, of which threads multiply some 2^44 in a second: a launch takes less


@dataclass(frozen=True)
class Aligned:
    """A contraction on copies of factors: their types, the columns that zeros follow, the launches that
    copy.
    """

    kernel: Kernel
    types: Mapping[str, TensorType] = field(default_factory=dict)
    ends_at: Mapping[str, int] = field(default_factory=dict)
    launches: tuple[Launch, ...] = ()


def align_factors(k: Kernel, types: Mapping[str, TensorType]) -> Aligned:
    """The contraction on copies of its factors where their rows begin anywhere."""
    s = shape_of(k)
    if s.bits == 32:
        return _turned(k, types)
    if s.bits > 16 or min(s.m, s.n) < _MANY or s.k < _DEEP:
        return Aligned(k)
    names = [r.source for r in map(_copied, factors(k.stages[0])) if r]
    copies = {n: f"{n}_rows" for n in names if _is_odd(types[n])}
    if not copies:
        return Aligned(k)
    head = k.stages[0]
    term = with_reads(
        head.term, lambda r: replace(r, source=copies[r.source]) if r.source in copies else r
    )
    return Aligned(
        replace(k, stages=(replace(head, term=term), *k.stages[1:])),
        {new: _padded(types[n]) for n, new in copies.items()},
        {new: int(types[n].shape[-1]) for n, new in copies.items()},
        tuple(_copy(n, types[n], new, _padded(types[n])) for n, new in copies.items()),
    )


def _turned(k: Kernel, types: Mapping[str, TensorType]) -> Aligned:
    """The contraction on a copy of its right factor with columns beside each other, if they lie along k."""
    s, head = shape_of(k), k.stages[0]
    r = _copied(factors(head)[1])
    if r is None or s.m < _TURNED_FOR or s.batch * s.m * s.n * s.k < _TURNED_FROM:
        return Aligned(k)
    over, n = head.reduced[0], head.axes[-1]
    t = types[r.source]
    whole = r.index[-2:] == (n.variable, over.variable) and t.shape[-2:] == (n.size, over.size)
    units = t.dtype.policy.math == "tf32"
    if not whole or units or sum(x.source == r.source for x in reads(head.term)) > 1:
        return Aligned(k)
    new = f"{r.source}_turned"
    turned = t.with_shape((*t.shape[:-2], *t.shape[:-3:-1]))
    term = with_reads(
        head.term,
        lambda x: (
            replace(x, source=new, index=(*x.index[:-2], *x.index[:-3:-1]))
            if x.source == r.source
            else x
        ),
    )
    made = replace(k, stages=(replace(head, term=term), *k.stages[1:]))
    return Aligned(made, {new: turned}, {}, (_turn(r.source, t, new, turned),))


def _turn(x: str, old: TensorType, y: str, new: TensorType) -> Launch:
    """The last two axes in each other's place."""
    axes = tuple(Axis(f"_c{i}", n) for i, n in enumerate(new.shape))
    at = [a.variable for a in axes]
    read = Read(old.dtype, x, (*at[:-2], at[-1], at[-2]))
    kernel = Kernel(f"turned_{x}", len(axes) - 1, (Stage(y, axes, (), None, read),), (y,))
    made = Rows(kernel, {x: old, y: new})
    return Launch(made.kernel(), (x,), (y,), made.threads)


def _copied(t: Term) -> Read | None:
    """The read of a factor that would be a box of memory."""
    plain = bare(t)
    if not is_plain(plain):
        return None
    r = read_of(plain)
    return r if len(r.index) > 1 and not any(isinstance(x, Term) for x in r.index) else None


def _is_odd(t: TensorType) -> bool:
    """Whether rows begin at no multiple of so many bytes; those of one element are no rows."""
    return t.shape[-1] != 1 and int(t.shape[-1]) * t.dtype.bits // 8 % _BYTES != 0


def _padded(t: TensorType) -> TensorType:
    whole = _BYTES * 8 // t.dtype.bits
    return t.with_shape((*t.shape[:-1], -(-int(t.shape[-1]) // whole) * whole))


def _copy(x: str, old: TensorType, y: str, new: TensorType) -> Launch:
    """Rows, each followed by zeros."""
    axes = tuple(Axis(f"_c{i}", n) for i, n in enumerate(new.shape))
    last = Position(i64, axes[-1].variable)
    end = Literal(i64, int(old.shape[-1]) - 1)
    held = Apply(i64, "min", (last, end))
    read = Read(old.dtype, x, (*(a.variable for a in axes[:-1]), held))
    inside = Apply(bool_, "le", (last, end))
    term = Apply(old.dtype, "where", (inside, read, Literal(old.dtype, 0.0)))
    kernel = Kernel(f"rows_of_{x}", len(axes) - 1, (Stage(y, axes, (), None, term),), (y,))
    made = Rows(kernel, {x: old, y: new})
    return Launch(made.kernel(), (x,), (y,), made.threads)
