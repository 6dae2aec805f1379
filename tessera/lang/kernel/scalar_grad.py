"""slopes: the derivatives of scalar ops on tiles, from those of the tensor ops that have them as body.

So a scalar op has one derivative: its record in tessera/ops, traced for one element and written as tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

from tessera.core.assembly import PREFIX, found
from tessera.core.dtype import DType
from tessera.core.errors import RuleError
from tessera.core.scalar import Expr, arg
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Builder as GraphBuilder
from tessera.ir.graph.ir import Graph, Node, Value, bind, building
from tessera.ir.graph.op import REGISTRY, Op
from tessera.ir.tile.ir import Builder, Tile
from tessera.ops.elementwise import add, mul
from tessera.transform.differentiate import linearize


def slopes(
    b: Builder, scalar: str, xs: Sequence[Tile], y: Tile, ct: Tile, wanted: Sequence[bool]
) -> list[Tile | None]:
    """The cotangents of the operands of a scalar op, each of the result's shape or of fewer elements."""
    scalar = _named(scalar)
    g, has = _pulled(scalar, tuple(x.dtype for x in xs), tuple(wanted))
    out = iter(_written(b, g, scalar, xs, y, [ct]))
    return [next(out) if h else None for h in has]


def pushes(b: Builder, scalar: str, xs: Sequence[Tile], y: Tile, ts: Sequence[Tile | None]) -> Tile:
    """The tangent of the result of a scalar op, of its shape or of fewer elements."""
    scalar = _named(scalar)
    g = _pushed(scalar, tuple(x.dtype for x in xs), tuple(t is not None for t in ts))
    made = _written(b, g, scalar, xs, y, [t for t in ts if t is not None])
    return made[0] if made else b.full(y.dtype, (), 0)


def _named(scalar: str) -> str:
    """The scalar op whose derivative an op has: inline assembly says like which one it is."""
    if not scalar.startswith(PREFIX):
        return scalar
    c = found(scalar)
    if c.like is None:
        raise RuleError(
            f"grad: assembly {c.name} has no derivative; say like=, the function of tile that it computes, "
            "or give the kernel one by ts.custom_vjp"
        )
    return c.like


def _written(
    b: Builder, g: Graph, scalar: str, xs: Sequence[Tile], y: Tile, more: Sequence[Tile]
) -> list[Tile]:
    """The outputs of a graph on tiles; what computes the scalar op again is its result."""
    tiles: dict[Value, Tile] = dict(zip(g.inputs, [*xs, *more], strict=True))
    place = {v: k for k, v in enumerate(g.inputs)}
    for n in g.nodes:
        same = [place.get(v) for v in n.operands] == list(range(len(xs)))
        if same and n.op.expr(n.params) == _body(scalar, len(xs)):
            tiles[n.results[0]] = y
        else:
            tiles[n.results[0]] = _node(b, n, [tiles[v] for v in n.operands], scalar)
    return [tiles[v] for v in g.outputs]


def _node(b: Builder, n: Node, xs: Sequence[Tile], scalar: str) -> Tile:
    t = n.results[0].type
    if n.op.makes == "number":
        return b.full(t.dtype, (), n.params["value"])
    if n.op.casts:
        return b.cast(xs[0], t.dtype)
    if n.op.spreads:
        return xs[0]
    body = n.op.expr(n.params)
    if body is None or n.op.combine is not None:
        raise RuleError(f"grad: {scalar} has no derivative in a kernel, which would be {n.op.name}")
    return _expr(b, body, xs)


def _expr(b: Builder, e: Expr, xs: Sequence[Tile]) -> Tile:
    if e.op == "arg":
        return xs[e.index]
    if e.op == "const":
        assert e.value is not None
        return b.full(xs[0].dtype, (), e.value)
    return b.apply(e.op, *(_expr(b, x, xs) for x in e.operands))


def _body(scalar: str, arity: int) -> Expr:
    return Expr(scalar, tuple(map(arg, range(arity))))


@cache
def _records() -> dict[Expr, Op]:
    """The elementwise ops by what they compute."""
    found: dict[Expr, Op] = {}
    for op in REGISTRY.values():
        if isinstance(op.body, Expr) and op.combine is None and isinstance(op.signature, str):
            found.setdefault(op.body, op)
    return found


@lru_cache(maxsize=512)
def _pulled(
    scalar: str, dtypes: tuple[DType, ...], wanted: tuple[bool, ...]
) -> tuple[Graph, list[bool]]:
    """(operands, cotangent) -> cotangents of the wanted operands that are not 0, and which those are."""
    types = [TensorType(d, ()) for d in dtypes]
    g = _graph(scalar, types)
    where = [k for k, w in enumerate(wanted) if w]
    builder = GraphBuilder()
    with building(builder):
        xs = [builder.input(t) for t in types]
        ct = builder.input(g.outputs[0].type)
        made = linearize(g, xs, where).pull_back([ct])
    has = [False] * len(types)
    for k, c in zip(where, made, strict=True):
        has[k] = c is not None
    out, _ = builder.finish([c for c in made if c is not None], scalar)
    return out, has


@lru_cache(maxsize=512)
def _pushed(scalar: str, dtypes: tuple[DType, ...], moved: tuple[bool, ...]) -> Graph:
    """(operands, tangents of the moved ones) -> tangent of the result, or nothing where it is 0."""
    types = [TensorType(d, ()) for d in dtypes]
    g = _graph(scalar, types)
    where = [k for k, m in enumerate(moved) if m]
    builder = GraphBuilder()
    with building(builder):
        xs = [builder.input(t) for t in types]
        ts = [builder.input(types[k]) for k in where]
        made = linearize(g, xs, where)
        found = made.apply(ts) if made.results[0] is not None else []
    out, _ = builder.finish(found, scalar)
    return out


def _graph(scalar: str, types: Sequence[TensorType]) -> Graph:
    builder = GraphBuilder()
    with building(builder):
        xs = [builder.input(t) for t in types]
        if scalar == "fma":
            y = add(mul(xs[0], xs[1]), xs[2])
        else:
            record = _records().get(_body(scalar, len(types)))
            if record is None:
                raise RuleError(f"grad: {scalar} has no derivative in a kernel")
            y = bind(record, *xs)
    out, _ = builder.finish([y], scalar)
    return out
