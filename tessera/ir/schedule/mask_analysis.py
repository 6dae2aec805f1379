"""hidden: find the columns of a row that have no effect and need not be computed.

    e[r, c] = exp(where(r >= c, s[r, c], -inf) - top[r])   ->   beyond column r, e is 0

A term that chooses by the place of a column (`where(r + 2 >= c, ...)`) takes its other branch beyond a
bound.  If every fold over the columns meets its neutral element there, and whatever a later product
reads is 0, the columns beyond the bound change no bit of a result of finite numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tessera.core.dims import Size, symbol, symbols
from tessera.core.evaluate import identity
from tessera.ir.schedule.ir import Apply, Axis, Cast, Literal, Position, Read, Stage, Term, walk

_ABOVE = "above -inf"  # a number that is not -inf
_SIDES = {
    "ge": (0, 1, 0),
    "le": (1, 0, 0),
    "gt": (0, 1, -1),
    "lt": (1, 0, -1),
}  # row, column, shift
Value = float | str | None  # what is known of a term: its value, _ABOVE, or nothing


@dataclass(frozen=True)
class Hidden:
    """Columns from `row + offset + 1` on have no effect; stages are constants there."""

    offset: Size
    constants: Mapping[str, float]

    def stop(self, last: Size) -> Size:
        """The first column that no row up to `last` sees."""
        return last + self.offset + 1

    def asks(self, t: Term, row: str, column: str | None) -> bool:
        """Whether a condition is whether the row sees the column."""
        return column is not None and _offset(t, row, column) is not None


def hidden(stages: Sequence[Stage], row: int, size: Size, passed: Iterable[str]) -> Hidden | None:
    """What rows, the axis number `row`, see of their `size` columns; None: everything.

    `passed` are the stages that a product reads.
    """
    offsets = {o for s in stages for o in _offsets(s, row)}
    if len(offsets) != 1:
        return None
    (offset,) = offsets
    known: dict[str, Value] = {}
    for s in stages:
        columns = (*s.axes[row + 1 :], *s.reduced)
        if len(columns) != 1 or columns[0].size != size:
            known[s.name] = None
            continue
        value = _Beyond(s.axes[row], columns[0], known).value(s.term)
        if s.combine is not None:
            if not isinstance(value, float) or value != identity(s.combine, s.dtype):
                return None
            value = None
        known[s.name] = value
    if any(known.get(name) != 0.0 for name in passed):
        return None
    return Hidden(offset, {n: v for n, v in known.items() if isinstance(v, float)})


def _offsets(s: Stage, row: int) -> set[Size]:
    """The bounds in a stage: c <= r + offset is seen."""
    columns = (*s.axes[row + 1 :], *s.reduced)
    if len(columns) != 1:
        return set()
    found = (_offset(t, s.axes[row].name, columns[0].name) for t in walk(s.term))
    return {o for o in found if o is not None}


def _offset(t: Term, row: str, column: str) -> Size | None:
    if not isinstance(t, Apply) or t.scalar not in _SIDES:
        return None
    r, c, shift = _SIDES[t.scalar]
    left, right = _place(t.operands[r]), _place(t.operands[c])
    if left is None or right is None:
        return None
    above, below = left - symbol(row), right - symbol(column)
    own = {row, column}
    if own & symbols(above) or own & symbols(below):
        return None
    offset: Size = above - below + shift
    return offset


def _place(t: Term) -> Size | None:
    """A whole number that is a polynomial of axes and sizes."""
    match t:
        case Position():
            return t.value
        case Literal() if type(t.value) is int:
            return t.value
        case Cast() if t.dtype.kind == "i" and t.operand.dtype.kind == "i":
            return _place(t.operand)
        case Apply(scalar="add" | "sub"):
            a, b = map(_place, t.operands)
            if a is None or b is None:
                return None
            return a + b if t.scalar == "add" else a - b
    return None


class _Beyond:
    """The values of terms beyond the bound."""

    def __init__(self, row: Axis, column: Axis, known: Mapping[str, Value]):
        self.row, self.column, self.known = row, column, known

    def value(self, t: Term) -> Value:
        match t:
            case Literal():
                return float(t.value) if isinstance(t.value, int | float) else None
            case Read():
                return self.known.get(t.source)
            case Cast():
                inner = self.value(t.operand)
                return inner if inner in (0.0, math.inf, -math.inf) else None
            case Apply():
                return self.apply(t)
        return None

    def apply(self, t: Apply) -> Value:
        if t.scalar == "where":
            return self.where(*t.operands)
        values = [self.value(o) for o in t.operands]
        match t.scalar, values:
            case "sub", [x, y] if x == -math.inf and (
                y == _ABOVE or (isinstance(y, float) and y > -math.inf)
            ):
                return -math.inf
            case "exp", [x] if x == -math.inf:
                return 0.0
        return None

    def where(self, condition: Term, yes: Term, no: Term) -> Value:
        if _offset(condition, self.row.name, self.column.name) is not None:
            return self.value(no)
        a, b = self.value(yes), self.value(no)
        if isinstance(a, float) and a == b:
            return a
        # where(x == -inf, 0, x): never -inf
        match condition:
            case Apply(scalar="eq", operands=(x, Literal(value=v))) if v == -math.inf and x == no:
                return _ABOVE if isinstance(a, float) and a > -math.inf else None
        return None
