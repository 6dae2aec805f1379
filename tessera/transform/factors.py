"""The factors of a node: along which axes a mesh can cut it, from the record of its op.

In this order: the record's own `factors`; its signature; its view or pick, followed with marked indices;
the axes that `axis` or `axes` do not name; a first axis that is a stack of problems.  None: nothing is
known, so that the op runs on whole operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tessera.core.errors import TesseraError
from tessera.core.factors import Axis, Factors, single
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node
from tessera.ir.graph.op import Element, Op, Params
from tessera.ops.batching import along, leading
from tessera.ops.creation import iota

Types = Sequence[TensorType]
_MATRIX = 2  # axes that a problem of such an op has at most: operands with more are stacks


def factors_of(n: Node, types: Types, outs: Types, params: Params) -> Factors | None:
    """The factors of a node on operands of these static types."""
    if n.regions or any(0 in t.shape for t in (*types, *outs)):
        return None
    op = n.op
    if op.factors is not None:
        return _counted(n, op.factors(types, outs, params))
    if op.signature is not None:
        return _of_signature(op, types, outs, params)
    if op.view is not None or op.pick is not None:
        return _of_indices(n, op.view or op.pick, types, outs, params)  # type: ignore[arg-type]
    if not types:
        return None
    return _along_axes(op, types, outs, params) or _stacked(op, types, outs, params)


def _counted(n: Node, f: Factors) -> Factors:
    """Places that count along an axis of theirs are that axis: along it nothing moves."""
    for name, i in f.places.items():
        made = n.operands[i].node
        if made is None or made.op is not iota.op:
            continue
        k = made.params["axis"]
        ((same,),) = f.ins[i][k : k + 1]
        if f.sizes[same] != f.sizes[name]:
            continue

        def renamed(x: tuple[Axis, ...], old: str = name, new: str = same) -> tuple[Axis, ...]:
            return tuple(tuple(new if g == old else g for g in axis) for axis in x)

        f = replace(
            f, ins=tuple(map(renamed, f.ins)), outs=tuple(map(renamed, f.outs)), whole=f.whole - {same},
            counted={**f.counted, i: k}, places={g: j for g, j in f.places.items() if g != name},
        )  # fmt: skip
    return f


def _of_signature(op: Op, types: Types, outs: Types, params: Params) -> Factors | None:
    sig = op.sig(types, params)
    assert sig is not None
    bound, found = sig.bind(op.name, types)
    sizes: dict[str, Any] = dict(found)
    for a, k in zip(bound.out, outs[0].shape, strict=True):
        sizes.setdefault(a, k)
    twice = {a for axes in (*bound.ins, bound.out) for a in axes if axes.count(a) > 1}
    folded = frozenset(bound.reduced) if op.combine is None else frozenset()
    return single(bound.ins, [bound.out], sizes, frozenset(bound.whole) | folded | twice)


# Views and picks ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _IndexMark:
    """An index: scale * (index along an axis of the result) + offset, or a mixture of several."""

    axes: frozenset[int]
    scale: Any = 1
    offset: Any = 0
    mixed: bool = False

    def __add__(self, other: Any) -> _IndexMark:
        if isinstance(other, _IndexMark):
            return _IndexMark(self.axes | other.axes, mixed=True)
        return _IndexMark(self.axes, self.scale, self.offset + other, self.mixed)

    __radd__ = __add__

    def __mul__(self, other: Any) -> _IndexMark:
        if isinstance(other, _IndexMark):
            return _IndexMark(self.axes | other.axes, mixed=True)
        return _IndexMark(self.axes, self.scale * other, self.offset * other, self.mixed)

    __rmul__ = __mul__

    def __sub__(self, other: Any) -> _IndexMark:
        made: _IndexMark = self + (-1 * other)
        return made

    def __rsub__(self, other: Any) -> _IndexMark:
        made: _IndexMark = -1 * self + other
        return made

    def __floordiv__(self, other: Any) -> _IndexMark:
        return _IndexMark(self.axes, mixed=True)

    __mod__ = __floordiv__

    @property
    def axis(self) -> int | None:
        """The axis of the result that this index is, unchanged."""
        same = not self.mixed and self.scale == 1 and self.offset == 0
        return next(iter(self.axes)) if same and len(self.axes) == 1 else None


def _of_indices(
    n: Node, follow: Callable[..., Any], types: Types, outs: Types, params: Params
) -> Factors | None:
    marks = tuple(_IndexMark(frozenset((k,))) for k in range(outs[0].rank))
    try:
        index = follow(marks, types, params)
    except TypeError:  # arithmetic that marks do not follow
        return None
    out = [f"o{k}" for k in range(outs[0].rank)]
    names = [[f"x{i}.{k}" for k in range(t.rank)] for i, t in enumerate(types)]
    mixed: set[str] = set()
    counted: dict[int, int] = {}
    places: dict[str, int] = {}
    for a, ix in enumerate(index):
        _follow(n, a, ix, names, types, outs[0], mixed, counted, places)
    sizes = {
        f: k for x, t in zip(names, types, strict=True) for f, k in zip(x, t.shape, strict=True)
    }
    sizes |= dict(zip(out, outs[0].shape, strict=True))
    lost = {f for x in names for f in x if f not in (*out, *places)}  # read in part
    held = {f for x in names for f in x if x.count(f) > 1}
    made = single(names, [out], sizes, frozenset(mixed | lost | held))
    return replace(made, counted=counted, places=places)


def _follow(
    n: Node, a: int, ix: Any, names: list[list[str]], types: Types, out: TensorType, mixed: set[str],
    counted: dict[int, int], places: dict[str, int],
) -> None:  # fmt: skip
    """Give axis a of operand 0, and those of an operand that says where, the names of the result's axes."""
    if isinstance(ix, _IndexMark):
        _follow_one(a, ix, names[0], types[0], out, mixed)
    if not isinstance(ix, Element):
        return
    for k, jx in enumerate(ix.index):
        if isinstance(jx, _IndexMark):
            _follow_one(k, jx, names[ix.operand], types[ix.operand], out, mixed)
    if isinstance(ix.offset, _IndexMark):
        mixed |= {f"o{k}" for k in ix.offset.axes}  # a shard would begin at another place
        return
    if ix.offset != 0:
        return
    which = n.operands[ix.operand].node
    if which is not None and which.op is iota.op:
        k = which.params["axis"]
        jx = ix.index[k]
        same = isinstance(jx, _IndexMark) and jx.axis is not None
        if same and types[0].shape[a] == out.shape[jx.axis]:
            names[0][a] = f"o{jx.axis}"  # the index is the place itself
            counted[ix.operand] = k
            return
    places[names[0][a]] = ix.operand


def _follow_one(
    a: int, ix: _IndexMark, mine: list[str], t: TensorType, out: TensorType, mixed: set[str]
) -> None:
    k = ix.axis
    if k is not None and t.shape[a] == out.shape[k]:
        mine[a] = f"o{k}"
    else:
        mixed |= {f"o{k}" for k in ix.axes}


# Axes that others name ----------------------------------------------------------------------------


def _along_axes(op: Op, types: Types, outs: Types, params: Params) -> Factors | None:
    """An op whose only axes are those that `axis` or `axes` name; the others are a stack of problems."""
    named = params.get("axis", params.get("axes"))
    rank = types[0].rank
    if named is None or (op.batch is not None and op.batch is not along):
        return None
    if any(t.rank != rank for t in (*types, *outs)):
        return None
    own = {named} if isinstance(named, int) else set(named)
    rest = [k for k in range(rank) if k not in own]
    if any(t.shape[k] != types[0].shape[k] for t in (*types, *outs) for k in rest):
        return None
    sizes = {f"f{k}": types[0].shape[k] for k in rest}

    def axes(which: str, t: TensorType) -> tuple[Axis, ...]:
        sizes.update({f"{which}.{k}": t.shape[k] for k in own})
        return tuple((f"f{k}",) if k in rest else (f"{which}.{k}",) for k in range(rank))

    ins = tuple(axes(f"x{i}", t) for i, t in enumerate(types))
    made = tuple(axes(f"y{i}", t) for i, t in enumerate(outs))
    return Factors(ins, made, sizes, frozenset(f for f in sizes if "." in f))


def _stacked(op: Op, types: Types, outs: Types, params: Params) -> Factors | None:
    """An op that treats axes in front as a stack of problems: the first axis, if it is one of these."""
    if op.batch is not leading or max(t.rank for t in types) <= _MATRIX:
        return None
    size = types[0].shape[0]
    if any(t.rank == 0 or t.shape[0] != size for t in (*types, *outs)):
        return None
    inner = [t.with_shape(t.shape[1:]) for t in types]
    try:
        found = op.result_types(inner, params)
    except (TesseraError, ValueError, IndexError):  # too few axes are left for the op
        return None
    if any(f.shape != t.shape[1:] for f, t in zip(found, outs, strict=True)):
        return None
    sizes = {"b": size}

    def axes(which: str, t: TensorType) -> tuple[Axis, ...]:
        sizes.update({f"{which}.{k}": t.shape[k] for k in range(1, t.rank)})
        return (("b",), *((f"{which}.{k}",) for k in range(1, t.rank)))

    ins = tuple(axes(f"x{i}", t) for i, t in enumerate(types))
    made = tuple(axes(f"y{i}", t) for i, t in enumerate(outs))
    return Factors(ins, made, sizes, frozenset(f for f in sizes if f != "b"))
