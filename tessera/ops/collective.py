"""Collectives over an axis that vmap or a mesh names: each element sees what all of them hold.

    vmap(lambda x: x - op.pmean(x, "batch"), axis_name="batch")(xs)

They exist only inside of the function that is mapped: batching along the axis turns them into sums,
slices and gathers, or, where several ranks share the axis, into exchanges between these (ops/ranks.py), so
that no compiled program holds one and they are not registered.  A sum is a balanced binary tree over the
elements.  The adjoint of a collective is its dual: psum of psum, all_gather of psum_scatter, ppermute of
the way back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tessera.core.dims import Size
from tessera.core.dtype import i64
from tessera.core.errors import OperandError
from tessera.core.factors import Factors, single
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value, bind
from tessera.ir.graph.op import Op, Params, Types
from tessera.ops import ranks
from tessera.ops.batching import NEW_AXIS, Spread, in_front, leading, to_front
from tessera.ops.creation import iota
from tessera.ops.define import as_value, cast_to
from tessera.ops.elementwise import add, div, eq, mul, where
from tessera.ops.gather import gather, take
from tessera.ops.ranks import between, nodes, sum_between
from tessera.ops.reduction import max as max_of
from tessera.ops.reduction import sum as sum_of
from tessera.ops.shape import concat, reshape, slice_, stack

# Axes that are named here ------------------------------------------------------------------------


class _AxesState(threading.local):
    axes: tuple[tuple[str, Size], ...] = ()


_STATE = _AxesState()


@contextmanager
def naming(name: str | None, size: Size) -> Iterator[None]:
    """Let collectives name an axis while the block runs; None names nothing."""
    before = _STATE.axes
    if name is not None:
        _STATE.axes = (*before, (name, size))
    try:
        yield
    finally:
        _STATE.axes = before


def axis_size_of(op: str, name: str) -> Size:
    """The size of the innermost axis of this name."""
    for known, size in reversed(_STATE.axes):
        if known == name:
            return size
    have = ", ".join(repr(n) for n, _ in _STATE.axes) or "none"
    raise OperandError(
        f"{op}: no axis is named {name!r} here (named: {have}); name it with vmap(f, axis_name={name!r})"
    )


# Ops ----------------------------------------------------------------------------------------------

# (node, operands, batched, size) -> the result along the axis that the node names, and whether it is
# batched.
Own = Callable[[Node, Sequence[Value], Sequence[bool], Size], tuple[Value, bool]]
ALONG: dict[Op, Own] = {}


def _nowhere(*xs: Any, **params: Any) -> Any:
    raise AssertionError(f"a collective over {params['axis']!r} was not batched")


def _same(types: Types, outs: Types, p: Params) -> Factors:
    """How a collective is cut by another mesh axis: along all axes of its operand."""
    axes = [[f"a{k}" for k in range(t.rank)] for t in types]
    return single(axes, axes, dict(zip(axes[0], types[0].shape, strict=True)))


def _with_first(ins: bool, outs: bool) -> Callable[[Types, Types, Params], Factors]:
    """How one is cut whose operand, result or both have an axis in front with an element for each shard."""

    def factors(types: Types, results: Types, p: Params) -> Factors:
        rest = types[0].shape[1:] if ins else types[0].shape
        axes = [f"a{k}" for k in range(len(rest))]
        sizes = {"first": p["size"], **dict(zip(axes, rest, strict=True))}
        each = [["first", *axes] if has else axes for has in (ins, outs)]
        return single(each[:1], each[1:], sizes, frozenset(("first",)))

    return factors


def _collective(name: str, doc: str, own: Own, **record: Any) -> Op:
    record.setdefault("infer", lambda types, p: types)
    record.setdefault("factors", _same)
    record.setdefault("batch", leading)
    effects = frozenset(("collective",))
    op = Op(name, doc, call=name, numpy=_nowhere, effects=effects, **record)
    ALONG[op] = own
    return op


_TREE = 4096  # elements up to which a sum is a tree of log2(n) nodes; meshes are smaller


def tree_sum(x: Value) -> Value:
    """The sum over axis 0: a balanced binary tree over its elements, rounded once."""
    n, dtype = x.shape[0], x.dtype
    if not isinstance(n, int) or n > _TREE or n == 0:
        return cast_to(sum_of(x, 0), dtype)
    return cast_to(_pairs(_wide(x)), dtype)


def _wide(x: Value) -> Value:
    """x in the format that sums of it are kept in."""
    return cast_to(x, x.dtype.accum) if x.dtype.kind == "f" else x


def _pairs(x: Value) -> Value:
    """Add neighbours until one element is left; the last of an odd number waits."""
    rest = (0,) * (x.ndim - 1), x.shape[1:], (1,) * (x.ndim - 1)
    while x.shape[0] > 1:
        n = x.shape[0]
        even, odd = (slice_(x, (i, *rest[0]), (n - n % 2, *rest[1]), (2, *rest[2])) for i in (0, 1))
        last = [slice_(x, (n - 1, *rest[0]), (n, *rest[1]))] if n % 2 else []
        x = concat([add(even, odd), *last], 0) if last else add(even, odd)
    return reshape(x, x.shape[1:])


def _nodes(x: Value, spread: Spread, fold: Callable[[Value], Value]) -> Value:
    """This rank's nodes of the tree along axis 0, each folded."""
    low, high = spread.here
    ends = [(a - low, b - low) for a, b in nodes(low, high, spread.total)]
    rest = (0,) * (x.ndim - 1), x.shape[1:]
    parts = [fold(slice_(x, (a, *rest[0]), (b, *rest[1]))) for a, b in ends]
    return stack(parts) if len(parts) > 1 else reshape(parts[0], (1, *parts[0].shape))


def _sum_along(
    n: Node, xs: Sequence[Value], batched: Sequence[bool], size: Size
) -> tuple[Value, bool]:
    (x,), spread = xs, NEW_AXIS.spread
    if not batched[0]:
        return mul(x, size if spread is None else spread.total), False
    if spread is None:
        return tree_sum(x), False
    wide = _wide(x)
    parts = stack([_pairs(wide)]) if spread.loose else _nodes(wide, spread, _pairs)
    return cast_to(sum_between(parts, spread), x.dtype), False


def _max_along(
    n: Node, xs: Sequence[Value], batched: Sequence[bool], size: Size
) -> tuple[Value, bool]:
    (x,), spread = xs, NEW_AXIS.spread
    if not batched[0]:
        return x, False
    if spread is None:
        return max_of(x, 0), False
    return between(ranks.MAX, _nodes(x, spread, lambda v: max_of(v, 0)), spread), False


def _gather_along(
    n: Node, xs: Sequence[Value], batched: Sequence[bool], size: Size
) -> tuple[Value, bool]:
    (x,), spread = xs, NEW_AXIS.spread
    if spread is None or not batched[0]:
        return in_front(x, batched[0], size if spread is None else spread.total), False
    return between(ranks.GATHER, x, spread), False


def _scatter_along(
    n: Node, xs: Sequence[Value], batched: Sequence[bool], size: Size
) -> tuple[Value, bool]:
    (x,), spread = xs, NEW_AXIS.spread
    if spread is None:
        return _sum_along(n, xs, batched, size)[0], True
    if not batched[0]:
        return _mine(mul(x, spread.total), spread), True
    parts = _nodes(_wide(x), spread, _pairs)
    return cast_to(between(ranks.SCATTER, parts, spread), x.dtype), True


def _mine(x: Value, spread: Spread) -> Value:
    """The elements along axis 0 that are this rank's."""
    low, high = spread.here
    rest = (0,) * (x.ndim - 1), x.shape[1:]
    return slice_(x, (low, *rest[0]), (high, *rest[1]))


def _part_along(
    n: Node, xs: Sequence[Value], batched: Sequence[bool], size: Size
) -> tuple[Value, bool]:
    (x,), spread = xs, NEW_AXIS.spread
    if not batched[0]:
        return (x if spread is None else _mine(x, spread)), True
    first = 0 if spread is None else spread.here[0]
    each = iota((size,))
    return gather.bind(x, each, add(each, first), axes=(0, 1)), True


def _all_to_all_along(
    n: Node, xs: Sequence[Value], batched: Sequence[bool], size: Size
) -> tuple[Value, bool]:
    spread = NEW_AXIS.spread
    x = in_front(xs[0], batched[0], size)
    return (to_front(x, 1) if spread is None else between(ranks.ALL_TO_ALL, x, spread)), True


PSUM = _collective(
    "psum", "The sum over an axis.", _sum_along, kinds="uifc", linear=(0,),
    transpose=lambda n, ct, k: bind(PSUM, ct, **n.params),
)  # fmt: skip


def _max_jvp(n: Node, ts: Sequence[Value | None]) -> Value | None:
    """Those that are the largest share the tangent, as in op.max."""
    (t,), (x,) = ts, n.operands
    if t is None:
        return None
    first = cast_to(eq(x, n.results[0]), x.dtype)
    return div(bind(PSUM, mul(t, first), **n.params), bind(PSUM, first, **n.params))


PMAX = _collective("pmax", "The largest over an axis.", _max_along, kinds="buif", jvp=_max_jvp)


def _gathered(types: Types, p: Params) -> list[TensorType]:
    return [types[0].with_shape((p["size"], *types[0].shape))]


ALL_GATHER = _collective(
    "all_gather", "What all elements hold, along a new first axis.",
    _gather_along, infer=_gathered, linear=(0,), factors=_with_first(False, True), transpose=lambda n, ct,
    k: bind(PSUM_SCATTER, ct, **n.params),
    batch=lambda n, xs, batched: to_front(bind(n.op, *xs, **n.params), 1),
)  # fmt: skip

PSUM_SCATTER = _collective(
    "psum_scatter", "The part of the sum over an axis that is this element's.", _scatter_along,
    factors=_with_first(True, False),
    infer=lambda types, p: [types[0].with_shape(types[0].shape[1:])], kinds="uifc", linear=(0,),
    transpose=lambda n, ct, k: bind(ALL_GATHER, ct, **n.params),
    batch=lambda n, xs, batched: bind(n.op, to_front(xs[0], 1), **n.params),
)  # fmt: skip


def _placed(types: Types, p: Params) -> list[TensorType]:
    return [types[0].with_shape((p["size"], *types[0].shape))]


PART = _collective(
    "part", "The part of x, cut along its first axis, that is this element's.", _part_along,
    factors=_with_first(True, False),
    infer=lambda types, p: [types[0].with_shape(types[0].shape[1:])], linear=(0,),
    transpose=lambda n, ct, k: bind(PLACE, ct, **n.params),
    batch=lambda n, xs, batched: bind(n.op, to_front(xs[0], 1), **n.params),
)  # fmt: skip


def _place_along(
    n: Node, xs: Sequence[Value], batched: Sequence[bool], size: Size
) -> tuple[Value, bool]:
    x, spread = in_front(xs[0], batched[0], size), NEW_AXIS.spread
    total, first = (size, 0) if spread is None else (spread.total, spread.here[0])
    mine = eq(add(iota((size, 1)), first), iota((1, total), 1))
    shape = (size, total, *(1 for _ in x.shape[1:]))
    wide = reshape(x, (x.shape[0], 1, *x.shape[1:]))
    return where(reshape(mine, shape), wide, 0), True


PLACE = _collective(
    "place", "Zeros along a new first axis, with x where this element is.", _place_along,
    factors=_with_first(False, True),
    infer=_placed, linear=(0,), transpose=lambda n, ct, k: bind(PART, ct, **n.params),
    batch=lambda n, xs, batched: to_front(bind(n.op, *xs, **n.params), 1),
)  # fmt: skip

ALL_TO_ALL = _collective(
    "all_to_all", "What each element holds for this one, along the first axis.", _all_to_all_along,
    factors=_with_first(True, True),
    linear=(0,), transpose=lambda n, ct, k: bind(ALL_TO_ALL, ct, **n.params),
    batch=lambda n, xs, batched: to_front(bind(n.op, to_front(xs[0], 1), **n.params), 1),
)  # fmt: skip


def _permute(
    n: Node, xs: Sequence[Value], batched: Sequence[bool], size: Size
) -> tuple[Value, bool]:
    x, spread = in_front(xs[0], batched[0], size), NEW_AXIS.spread
    if spread is not None:
        return between(ranks.PERMUTE, x, spread, perm=n.params["perm"]), True
    senders = {to: source for source, to in n.params["perm"]}
    source = np.array([senders.get(i, -1) for i in range(x.shape[0])])
    moved = take(x, as_value(np.maximum(source, 0)), axis=0)
    got = as_value((source >= 0).reshape(-1, *(1 for _ in x.shape[1:])))
    return where(got, moved, 0), True


PPERMUTE = _collective(
    "ppermute", "What another element sends.", _permute, linear=(0,),
    transpose=lambda n, ct, k: bind(
        PPERMUTE, ct, axis=n.params["axis"], perm=tuple((b, a) for a, b in n.params["perm"])
    ),
)  # fmt: skip


def _index_along(
    n: Node, xs: Sequence[Value], batched: Sequence[bool], size: Size
) -> tuple[Value, bool]:
    first = 0 if NEW_AXIS.spread is None else NEW_AXIS.spread.here[0]
    return (add(iota((size,)), first) if first else iota((size,))), True


AXIS_INDEX = _collective(
    "axis_index", "Which element this is.", _index_along,
    infer=lambda types, p: [TensorType(i64, ())], linear=(),
)  # fmt: skip


def mentions(n: Node, name: str) -> bool:
    """Whether a node, or one in its regions, is a collective over this axis."""
    if n.op in ALONG:
        return bool(n.params["axis"] == name)
    return any(mentions(m, name) for r in n.regions for m in r.nodes)
