"""Collectives over an axis that vmap names: each element of the batch sees what all of them hold.

    vmap(lambda x: x - op.pmean(x, "batch"), axis_name="batch")(xs)

They exist only inside of the function that is mapped: batching along the axis turns them into sums,
slices and gathers, so that no compiled program holds one and they are not registered.  The adjoint of
a collective is its dual: psum of psum, all_gather of psum_scatter, ppermute of the way back.
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
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value, bind
from tessera.ir.graph.op import Op, Params, Types
from tessera.ops.batching import in_front, leading, to_front
from tessera.ops.creation import iota
from tessera.ops.define import as_value, cast_to
from tessera.ops.elementwise import div, eq, mul, where
from tessera.ops.gather import take
from tessera.ops.reduction import max as max_of
from tessera.ops.reduction import sum as sum_of

# Axes that are named here ------------------------------------------------------------------------


class _State(threading.local):
    axes: tuple[tuple[str, Size], ...] = ()


_STATE = _State()


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


def _collective(name: str, doc: str, own: Own, **record: Any) -> Op:
    record.setdefault("infer", lambda types, p: types)
    record.setdefault("batch", leading)
    effects = frozenset(("collective",))
    op = Op(name, doc, call=name, numpy=_nowhere, effects=effects, **record)
    ALONG[op] = own
    return op


def _sum_along(
    n: Node, xs: Sequence[Value], batched: Sequence[bool], size: Size
) -> tuple[Value, bool]:
    (x,) = xs
    return (cast_to(sum_of(x, 0), x.dtype) if batched[0] else mul(x, size)), False


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


PMAX = _collective(
    "pmax", "The largest over an axis.",
    lambda n, xs, batched, size: (max_of(xs[0], 0) if batched[0] else xs[0], False),
    kinds="buif", jvp=_max_jvp,
)  # fmt: skip


def _gathered(types: Types, p: Params) -> list[TensorType]:
    return [types[0].with_shape((p["size"], *types[0].shape))]


ALL_GATHER = _collective(
    "all_gather", "What all elements hold, along a new first axis.",
    lambda n, xs, batched, size: (in_front(xs[0], batched[0], size), False),
    infer=_gathered, linear=(0,), transpose=lambda n, ct, k: bind(PSUM_SCATTER, ct, **n.params),
    batch=lambda n, xs, batched: to_front(bind(n.op, *xs, **n.params), 1),
)  # fmt: skip

PSUM_SCATTER = _collective(
    "psum_scatter", "The part of the sum over an axis that is this element's.",
    lambda n, xs, batched, size: (_sum_along(n, xs, batched, size)[0], True),
    infer=lambda types, p: [types[0].with_shape(types[0].shape[1:])], kinds="uifc", linear=(0,),
    transpose=lambda n, ct, k: bind(ALL_GATHER, ct, **n.params),
    batch=lambda n, xs, batched: bind(n.op, to_front(xs[0], 1), **n.params),
)  # fmt: skip


def _permute(
    n: Node, xs: Sequence[Value], batched: Sequence[bool], size: Size
) -> tuple[Value, bool]:
    x = in_front(xs[0], batched[0], size)
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

AXIS_INDEX = _collective(
    "axis_index", "Which element this is.", lambda n, xs, batched, size: (iota((size,)), True),
    infer=lambda types, p: [TensorType(i64, ())], linear=(),
)  # fmt: skip


def mentions(n: Node, name: str) -> bool:
    """Whether a node, or one in its regions, is a collective over this axis."""
    if n.op in ALONG:
        return bool(n.params["axis"] == name)
    return any(mentions(m, name) for r in n.regions for m in r.nodes)
