"""Identities of ops that move elements, as a table: each row is a law, before -> after."""

from __future__ import annotations

from typing import Any

from tessera.core.dims import Dim
from tessera.core.rewrite import Rule
from tessera.ir.graph.ir import Node, Value
from tessera.ops.shape import MOST_JOINED
from tessera.transform.maker import Found, Maker


def _inner(n: Node) -> Node | None:
    """The node of the same op that made the operand."""
    made = n.operands[0].node
    return made if made is not None and made.op is n.op else None


def _same_type(n: Node, m: Maker) -> Found:
    return (n.operands[0],) if n.operands[0].type is n.results[0].type else None


def _outer_only(n: Node, m: Maker) -> Found:
    inner = _inner(n)
    return None if inner is None else m.make(n.op, inner.operands, **n.params)


def _transposed_back(n: Node, m: Maker) -> Found:
    axes = n.params["axes"]
    return (n.operands[0],) if axes == tuple(range(len(axes))) else None


def _transpose_twice(n: Node, m: Maker) -> Found:
    inner = _inner(n)
    if inner is None:
        return None
    axes = tuple(inner.params["axes"][a] for a in n.params["axes"])
    return m.make(n.op, inner.operands, axes=axes)


def _flip_nothing(n: Node, m: Maker) -> Found:
    x = n.operands[0]
    return (x,) if all(x.shape[a] == 1 for a in n.params["axes"]) else None


def _flip_twice(n: Node, m: Maker) -> Found:
    inner = _inner(n)
    if inner is None:
        return None
    left = tuple(sorted(set(n.params["axes"]) ^ set(inner.params["axes"])))
    return m.make(n.op, inner.operands, axes=left)


def _slice_all(n: Node, m: Maker) -> Found:
    p, x = n.params, n.operands[0]
    whole = x.type is n.results[0].type and all(s == 1 for s in p["step"])
    return (x,) if whole and all(a == 0 for a in p["start"]) else None


def _slice_of_slice(n: Node, m: Maker) -> Found:
    inner = _inner(n)
    if inner is None:
        return None
    p, q, out = inner.params, n.params, n.results[0].shape
    start, stop, step = [], [], []
    for a, s, b, t, size in zip(p["start"], p["step"], q["start"], q["step"], out, strict=True):
        if s * t != 1 and (isinstance(size, Dim) or size == 0):
            return None  # where the last element lies depends on the call
        start.append(a + b * s)
        step.append(s * t)
        stop.append(start[-1] + (size - 1) * s * t + 1)
    return m.make(n.op, inner.operands, start=tuple(start), stop=tuple(stop), step=tuple(step))


def _concat_one(n: Node, m: Maker) -> Found:
    return n.operands if len(n.operands) == 1 else None


def _concat_empty(n: Node, m: Maker) -> Found:
    axis = n.params["axis"]
    left = tuple(v for v in n.operands if v.shape[axis] != 0) or n.operands[:1]
    return m.make(n.op, left, **n.params) if len(left) < len(n.operands) else None


def _concat_of_concat(n: Node, m: Maker) -> Found:
    parts: list[Value] = []
    for i, v in enumerate(n.operands):
        joined = v.node is not None and v.node.op is n.op and v.node.params == n.params
        inner = v.node.operands if joined and v.node is not None else (v,)
        left = len(n.operands) - i - 1
        parts += inner if len(parts) + len(inner) + left <= MOST_JOINED else (v,)
    return m.make(n.op, tuple(parts), **n.params) if len(parts) > len(n.operands) else None


def _pad_nothing(n: Node, m: Maker) -> Found:
    p: Any = n.params
    nothing = all(w == 0 for side in ("low", "high", "inner") for w in p[side])
    return (n.operands[0],) if nothing else None


def _fold_single(n: Node, m: Maker) -> Found:
    """Not for float sums and products: NumPy starts those from 0 and 1, and -0.0 + 0 is 0.0."""
    x, axes = n.operands[0], n.params["axes"]
    if n.op.combine in ("add", "mul") and x.dtype.kind not in "ui":
        return None
    if not all(x.shape[a] == 1 for a in axes) or x.type.dtype is not n.results[0].dtype:
        return None
    return m.apply("reshape", x, shape=n.results[0].shape)


LAYOUTS: tuple[Rule[Node, Value], ...] = (
    Rule("reshape_same", "reshape(x, shape of x) -> x", ("reshape", "broadcast_to"), _same_type),
    Rule("reshape_reshape", "reshape(reshape(x, s), t) -> reshape(x, t)",
         ("reshape", "broadcast_to"), _outer_only),
    Rule("transpose_none", "transpose(x, (0, 1)) -> x", ("transpose",), _transposed_back),
    Rule("transpose_transpose", "transpose(transpose(x)) -> transpose(x, both)", ("transpose",),
         _transpose_twice),
    Rule("flip_none", "flip(x, ()) -> x", ("flip",), _flip_nothing),
    Rule("flip_flip", "flip(flip(x, a), b) -> flip(x, a xor b)", ("flip",), _flip_twice),
    Rule("slice_all", "x[:] -> x", ("slice",), _slice_all),
    Rule("slice_slice", "x[a:][b:] -> x[a + b:]", ("slice",), _slice_of_slice),
    Rule("concat_one", "concat(x) -> x", ("concat",), _concat_one),
    Rule("concat_empty", "concat(x, nothing) -> concat(x)", ("concat",), _concat_empty),
    Rule("concat_concat", "concat(concat(x, y), z) -> concat(x, y, z)", ("concat",),
         _concat_of_concat),
    Rule("pad_none", "pad(x, 0) -> x", ("pad",), _pad_nothing),
    Rule("fold_one", "max(x over axes of size 1) -> reshape(x)",
         ("max", "min", "any", "all", "sum", "prod"), _fold_single),
)  # fmt: skip
