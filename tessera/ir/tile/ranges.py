"""Ranges of whole numbers in tiles: what positions that are computed as tiles can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tessera.core.dims import Size, bounds, larger, smaller
from tessera.core.dtype import i64
from tessera.ir.tile.ir import Operation, Tile


@dataclass(frozen=True)
class Range:
    """Bounds of every element of a tile; None where there is none."""

    low: Size | None = None
    high: Size | None = None


_LARGE = 1 << 40  # coefficients beyond it say nothing of a position, and would overflow
_SAME = frozenset(("reshape", "broadcast", "transpose"))


def range_of(
    op: Operation, known: Mapping[Tile, Range], position: Callable[[Size], Size]
) -> Range | None:
    """The range of what an operation gives, if it is i64 and can be told."""
    if len(op.results) != 1 or op.results[0].dtype is not i64:
        return None
    if op.name == "index":
        at, axis = position(op.attributes["at"]), op.attributes["axis"]
        return Range(at, at if axis is None else at + op.results[0].shape[axis] - 1)
    if op.name == "full":
        value = op.attributes["value"]
        return Range(value, value)
    if op.name == "cast":
        return _cast(op.operands[0])
    xs = [known.get(t, Range()) for t in op.operands]
    if op.name in _SAME:
        return xs[0]
    if op.name in ("fold", "scan"):
        return xs[0] if op.attributes["scalar"] in ("min", "max") else None
    if op.name == "apply" and op.attributes["scalar"] in _RULES:
        made = _RULES[op.attributes["scalar"]](xs)
        return Range(*(_safe(x) for x in (made.low, made.high)))
    return None


def _safe(x: Size | None) -> Size | None:
    """A bound that 64 bits hold for sizes that memory holds; a larger one may have wrapped."""
    terms = [x] if isinstance(x, int) else [] if x is None else [c for _, c in x.terms]
    return None if any(abs(c) >= _LARGE for c in terms) else x


def _cast(x: Tile) -> Range | None:
    """A narrower integer has the bounds of its dtype."""
    if x.dtype.kind == "b":
        return Range(0, 1)
    if x.dtype.kind == "u" and x.dtype.bits < 64:
        return Range(0, (1 << x.dtype.bits) - 1)
    if x.dtype.kind == "i" and x.dtype.bits < 64:
        return Range(-(1 << x.dtype.bits - 1), (1 << x.dtype.bits - 1) - 1)
    return None


def _add(xs: Sequence[Range]) -> Range:
    a, b = xs
    return Range(_sum(a.low, b.low), _sum(a.high, b.high))


def _sum(a: Size | None, b: Size | None) -> Size | None:
    return None if a is None or b is None else a + b


def _neg(xs: Sequence[Range]) -> Range:
    (a,) = xs
    return Range(None if a.high is None else 0 - a.high, None if a.low is None else 0 - a.low)


def _sub(xs: Sequence[Range]) -> Range:
    return _add((xs[0], _neg((xs[1],))))


def _mul(xs: Sequence[Range]) -> Range:
    """By a number, or of ranges that are not negative."""
    for a, b in (xs, xs[::-1]):
        if isinstance(b.low, int) and b.low == b.high:
            ends = [None if x is None else x * b.low for x in (a.low, a.high)]
            return Range(*(ends if b.low >= 0 else ends[::-1]))
    if any(x.low is None or bounds(x.low)[0] < 0 for x in xs):
        return Range()
    return Range(_product(xs[0].low, xs[1].low), _product(xs[0].high, xs[1].high))


def _product(a: Size | None, b: Size | None) -> Size | None:
    return None if a is None or b is None else a * b


def _min(xs: Sequence[Range]) -> Range:
    a, b = xs
    low = None if a.low is None or b.low is None else smaller(a.low, b.low)
    if a.high is None or b.high is None:
        return Range(low, b.high if a.high is None else a.high)
    return Range(low, smaller(a.high, b.high))


def _max(xs: Sequence[Range]) -> Range:
    return _neg((_min([_neg((x,)) for x in xs]),))


def _where(xs: Sequence[Range]) -> Range:
    _, a, b = xs
    low = None if a.low is None or b.low is None else smaller(a.low, b.low)
    high = None if a.high is None or b.high is None else larger(a.high, b.high)
    return Range(low, high)


def _mod(xs: Sequence[Range]) -> Range:
    """Of Python: 0 to b - 1 for a positive b."""
    b = xs[1]
    if b.low is None or b.high is None or bounds(b.low)[0] < 1:
        return Range()
    return Range(0, b.high - 1)


def _floor_div(xs: Sequence[Range]) -> Range:
    a, b = xs
    if not (isinstance(b.low, int) and b.low == b.high and b.low > 0):
        return Range()
    return Range(*(None if x is None else x // b.low for x in (a.low, a.high)))


_RULES: dict[str, Callable[[Sequence[Range]], Range]] = {
    "add": _add, "sub": _sub, "neg": _neg, "mul": _mul, "min": _min, "max": _max, "where": _where,
    "mod": _mod, "floor_div": _floor_div,
}  # fmt: skip
