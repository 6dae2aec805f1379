"""sink: simplify, open the bodies of ops, and let broadcasts and reshapes move behind elementwise ops.

    %1 = broadcast_to(%0); %2 = rsqrt(%1)              ->  %1 = rsqrt(%0); %2 = broadcast_to(%1)
    %1 = reshape(%0); %2 = broadcast_to(%b); %3 = add(%1, %2)
->  %2 = broadcast_to(%b); %3 = add(%0, %2); %4 = reshape(%3)

A number of a row is computed once for the row, and what follows a product of matrices keeps the
product's axes, so that the two can share a kernel.  Each element is computed from the same elements by
the same op, so no bit changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from tessera.core.dims import Size, product
from tessera.core.evaluate import is_portable
from tessera.core.rewrite import Rule, RuleTable
from tessera.core.scalar import Expr, arg
from tessera.ir.graph.ir import Graph, Node, Value
from tessera.ir.graph.op import REGISTRY, Op
from tessera.ops.creation import iota
from tessera.ops.elementwise import cast
from tessera.ops.shape import broadcast_to, reshape
from tessera.transform.counts import COUNTS
from tessera.transform.draws import DRAWS
from tessera.transform.gemv_to_row import TURNS
from tessera.transform.identities import plain
from tessera.transform.joins import JOINS
from tessera.transform.maker import Found, Maker
from tessera.transform.simplify import RULES, simplify

Shape = tuple[Size, ...]


def sink_on_cpu(g: Graph, fired: Counter[str] | None = None) -> Graph:
    """g in normal form, with broadcasts and reshapes as late as possible; `fired` counts the rules."""
    return simplify(g, fired, ON_CPU)


def sink_on_gpu(g: Graph, fired: Counter[str] | None = None) -> Graph:
    """The same, with casts between reshapes and products, which reads and writes of products then do."""
    return simplify(g, fired, ON_GPU)


def sink(g: Graph, fired: Counter[str] | None = None) -> Graph:
    """The same, with what every target takes alone."""
    return simplify(g, fired, ON_ANY)


def _is_elementwise(n: Node) -> bool:
    op = n.op
    if len(n.results) != 1 or op.combine is not None or op.pick is not None or not n.operands:
        return False
    if op.expr(n.params) is None and not op.casts:
        return False
    shape = n.results[0].shape
    return 0 not in shape and all(v.shape == shape and plain(v.dtype) for v in n.operands)


def _has_made(op: object, n: Node) -> bool:
    """Whether an operand of n comes from a node of this op."""
    return any(v.node is not None and v.node.op is op for v in n.operands)


def _made_by(v: Value, op: object) -> Value | None:
    """The operand of the node of this op that made v."""
    return v.node.operands[0] if v.node is not None and v.node.op is op else None


def _padded(shape: Shape, rank: int) -> Shape:
    return (*(1,) * (rank - len(shape)), *shape)


# Broadcasts


def _broadcast_later(n: Node, m: Maker) -> Found:
    if not _has_made(broadcast_to.op, n) or not _is_elementwise(n):
        return None
    shape = n.results[0].shape
    sources = [_made_by(v, broadcast_to.op) for v in n.operands]
    known = [m.splat(v) is not None for v in n.operands]
    if all(known) or not all(s is not None or k for s, k in zip(sources, known, strict=True)):
        return None
    padded = [_padded(s.shape, len(shape)) for s in sources if s is not None]
    small = tuple(b if any(p[i] != 1 for p in padded) else 1 for i, b in enumerate(shape))
    if small == shape:
        return None
    return _computed(n, m, sources, small, broadcast_to.op.name)


def _computed(n: Node, m: Maker, sources: Sequence[Value | None], shape: Shape, back: str) -> Found:
    """n on operands of another shape, those without a source being numbers, and brought back."""
    operands: list[Value] = []
    for v, s in zip(n.operands, sources, strict=True):
        if s is None:
            found = m.full(v.type.with_shape(shape), _number(v))
        else:
            found = (s,) if s.shape == shape else m.apply("broadcast_to", s, shape=shape)
        if found is None:
            return None
        operands += found
    made = m.make(n.op, tuple(operands), **n.params)
    return None if made is None else m.apply(back, made[0], shape=n.results[0].shape)


def _number(v: Value) -> Any:
    """The number that a `full` was given, which may have more digits than its dtype."""
    assert v.node is not None, v
    return v.node.params["value"]


# Reshapes


def groups(shape: Shape, merged: Shape) -> list[list[int]] | None:
    """The axes of a shape that each axis of another one is the product of; None if it is not one."""
    out: list[list[int]] = []
    i = 0
    for size in merged:
        if i == len(shape):
            return None
        own, count = [i], shape[i]
        i += 1
        while count != size and i < len(shape):
            own.append(i)
            count = count * shape[i]
            i += 1
        if count != size:
            return None
        out.append(own)
    if not out or any(s != 1 for s in shape[i:]):
        return None
    out[-1] += range(i, len(shape))
    return out


def _reshape_later(n: Node, m: Maker) -> Found:
    if not _has_made(reshape.op, n) or not _is_elementwise(n):
        return None
    shape = n.results[0].shape
    inner = [_reshaped(v) for v in n.operands]
    merged = {s.shape for s in inner if s is not None and s.ndim < len(shape)}
    if len(merged) != 1:
        return None
    (small,) = merged
    parts = groups(shape, small)
    if parts is None:
        return None
    sources: list[Value | None] = []
    for v, s in zip(n.operands, inner, strict=True):
        if m.splat(v) is not None:
            sources.append(None)
            continue
        source = s if s is not None and s.shape == small else _merged(v, parts, small, m)
        if source is None:
            return None
        sources.append(source)
    return _computed(n, m, sources, small, reshape.op.name)


def _reshaped(v: Value) -> Value | None:
    """What v is a reshape of, but for numbers of places: these are made for any shape."""
    source = _made_by(v, reshape.op)
    counts = source is not None and source.node is not None and source.node.op is iota.op
    return None if counts else source


def _merged(v: Value, parts: Sequence[Sequence[int]], small: Shape, m: Maker) -> Value | None:
    """v with its axes merged: a tensor as it is, a broadcast when it repeats whole groups of axes."""
    source = _made_by(v, broadcast_to.op)
    if source is None:
        found = m.apply("reshape", v, shape=small)
        return None if found is None else found[0]
    padded = _padded(source.shape, v.ndim)
    sizes: list[Size] = []
    for own in parts:
        repeated = {padded[i] == 1 for i in own if v.shape[i] != 1}
        if len(repeated) > 1:
            return None
        sizes.append(product(tuple(padded[i] for i in own)))
    found = m.apply("reshape", source, shape=tuple(sizes))
    found = None if found is None else m.apply("broadcast_to", found[0], shape=small)
    return None if found is None else found[0]


def _fold_before_reshape(n: Node, m: Maker) -> Found:
    """Only over axes that the reshape leaves alone: the order of a fold follows from its axes."""
    if n.op.combine is None or n.op.body != arg(0) or len(n.operands) != 1:
        return None
    v, axes = n.operands[0], n.params.get("axes", ())
    source = _made_by(v, reshape.op)
    if source is None or source.ndim >= v.ndim or not axes or 0 in v.shape:
        return None
    parts = groups(v.shape, source.shape)
    places = {own[0]: j for j, own in enumerate(parts or ()) if len(own) == 1}
    last = (v.ndim - 1, source.ndim - 1)
    if not all(a in places and (a == last[0]) == (places[a] == last[1]) for a in axes):
        return None
    params = {**n.params, "axes": tuple(places[a] for a in axes)}
    made = m.make(n.op, (source,), **params)
    return None if made is None else m.apply("reshape", made[0], shape=n.results[0].shape)


_WIDE = 1024  # elements of a last axis that blocks of threads fold well by themselves


def _merge_folded(n: Node, m: Maker) -> Found:
    """Only over the last axes, and where what is folded follows from tensors as they lie."""
    if n.op.combine is None or n.op.body != arg(0) or len(n.operands) != 1:
        return None
    v, axes = n.operands[0], sorted(n.params.get("axes", ()))
    first = v.ndim
    while first - 1 in axes:
        first -= 1
    last = v.shape[-1] if v.ndim else 1
    if v.ndim - first < 2 or 0 in v.shape or not isinstance(last, int) or last >= _WIDE:
        return None
    parts = [*([i] for i in range(first)), list(range(first, v.ndim))]
    small = tuple(product(tuple(v.shape[i] for i in own)) for own in parts)
    flat = _flattened(v, parts, small, m)
    if flat is None:
        return None
    kept = tuple(a for a in axes if a <= first)
    return m.make(n.op, (flat,), **{**n.params, "axes": kept})


def _flattened(v: Value, parts: Sequence[Sequence[int]], small: Shape, m: Maker) -> Value | None:
    """v with its axes merged, computed from tensors with merged axes."""
    made = v.node
    if m.splat(v) is not None:
        found = m.full(v.type.with_shape(small), _number(v))
        return None if found is None else found[0]
    if made is not None and made.op is not broadcast_to.op:
        if _is_elementwise(made):
            inner = [_flattened(o, parts, small, m) for o in made.operands]
            operands = tuple(o for o in inner if o is not None)
            found = (
                m.make(made.op, operands, **made.params) if len(operands) == len(inner) else None
            )
            return None if found is None else found[0]
        if made.op.combine is not None or made.op.view is not None or made.op.pick is not None:
            return None
    return _merged(v, parts, small, m)


def _cast_after_reshape(n: Node, m: Maker) -> Found:
    """Of casts to more bits, where the reshape stays before elementwise ops: products read what is narrow."""
    v = n.operands[0]
    source = _made_by(v, cast.op)
    if source is None or source.ndim < len(n.params["shape"]) or not _is_wider(v, source):
        return None
    found = m.apply("reshape", source, shape=n.params["shape"])
    return None if found is None else m.make(cast.op, found, **v.node.params)  # type: ignore[union-attr]


def _cast_before_reshape(n: Node, m: Maker) -> Found:
    """Of casts to fewer bits: a product writes the narrow numbers."""
    v = n.operands[0]
    source = _made_by(v, reshape.op)
    if source is None or not _is_wider(v, n.results[0]):
        return None
    found = m.make(cast.op, (source,), **n.params)
    return None if found is None else m.apply("reshape", found[0], shape=v.shape)


def _is_wider(v: Value, w: Value) -> bool:
    return (
        all(plain(x.dtype) and x.dtype.kind == "f" for x in (v, w)) and v.dtype.bits > w.dtype.bits
    )


# Bodies


@cache
def _scalar_ops() -> dict[str, Op]:
    """The op that applies a scalar op and nothing else."""
    found: dict[str, Op] = {}
    for op in REGISTRY.values():
        body = op.body
        if isinstance(body, Expr) and body.op not in ("arg", "const") and op.combine is None:
            if body.operands == tuple(arg(i) for i in range(len(body.operands))):
                found.setdefault(body.op, op)
    return found


def _opened(n: Node, m: Maker) -> Found:
    """So that what a derivative computes again, such as the sigmoid in gelu, is one node."""
    body = n.op.expr(n.params)
    if body is None or all(e.op in ("arg", "const") for e in body.operands):
        return None
    if not _is_elementwise(n):
        return None
    dtypes = [v.dtype for v in (*n.operands, *n.results)]
    if any(d.compute is not d for d in dtypes) or not is_portable(body, dtypes[-1]):
        return None  # the whole body is computed in a wider format, or by the host
    found = _of_body(body, n, m)
    return None if found is None else (found,)


def _of_body(e: Expr, n: Node, m: Maker) -> Value | None:
    if e.op == "arg":
        return n.operands[e.index]
    if e.op == "const":
        made = m.full(n.operands[0].type, e.value)
    else:
        inner = [_of_body(o, n, m) for o in e.operands]
        op = _scalar_ops().get(e.op)
        if op is None or any(v is None for v in inner):
            return None
        made = m.make(op, tuple(v for v in inner if v is not None))
    return None if made is None else made[0]


def _square(n: Node, m: Maker) -> Found:
    x, y = n.operands
    return m.apply("square", x) if x is y and x.dtype.kind in "uif" and plain(x.dtype) else None


SINKS: tuple[Rule[Node, Value], ...] = (
    Rule("open", "silu(x) -> x * sigmoid(x)", (), _opened),
    Rule("square", "x * x -> square(x)", ("mul",), _square),
    Rule("broadcast_later", "f(broadcast_to(x)) -> broadcast_to(f(x))", (), _broadcast_later),
    Rule("reshape_later", "f(reshape(x)) -> reshape(f(x))", (), _reshape_later),
    Rule("fold_before_reshape", "sum(reshape(x), -1) -> reshape(sum(x, -1))", (), _fold_before_reshape),
)  # fmt: skip
TABLE: RuleTable[Node, Value] = RuleTable((*RULES.rules, *JOINS, *SINKS))
ON_CPU: RuleTable[Node, Value] = RuleTable((*TABLE.rules, *TURNS))
CASTS: tuple[Rule[Node, Value], ...] = (
    Rule("cast_after_reshape", "reshape(f32(x)) -> f32(reshape(x))", ("reshape",), _cast_after_reshape),
    Rule("cast_before_reshape", "bf16(reshape(x)) -> reshape(bf16(x))", ("cast",), _cast_before_reshape),
)  # fmt: skip
FOLDS: tuple[Rule[Node, Value], ...] = (
    Rule("merge_folded", "sum(x, (1, 2)) -> sum(reshape(x), 1)", (), _merge_folded),
)
ON_ANY: RuleTable[Node, Value] = RuleTable((*TABLE.rules, *CASTS))
ON_GPU: RuleTable[Node, Value] = RuleTable((*ON_ANY.rules, *FOLDS, *DRAWS, *COUNTS))
