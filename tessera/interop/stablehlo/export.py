"""ts.stablehlo.export: a function as the text of a StableHLO module.

The function is traced to Graph IR.  An op is written by its rule, by its scalar expression and fold,
as a gather of places when it is a view, or by the ops that it stands for.  Tensors that the function
holds become constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.blame import blames_arguments
from tessera.core.constraints import Scope, scope
from tessera.core.dtype import DType
from tessera.interop.stablehlo.rules import RULES, STANDS_FOR
from tessera.interop.stablehlo.rules.contraction import contracted
from tessera.interop.stablehlo.rules.places import gathered
from tessera.interop.stablehlo.scalars import HloScalars, fold_start
from tessera.interop.stablehlo.writer import Ssa, StableHloError, StableHloWriter, type_text
from tessera.ir.graph.interp import wide
from tessera.ir.graph.ir import Builder, Graph, Node, Value, building, host_data
from tessera.lang.shapes import trace
from tessera.ops.define import cast_to

VERSION = "1.4.0"  # of StableHLO: the newest op that the rules write, tan, came with it


@blames_arguments
def export(f: Any, *args: Any, **kwargs: Any) -> str:
    """The text of f, traced on these arguments, as a StableHLO module."""
    return module_text(trace(f, *args, **kwargs))


def module_text(g: Graph) -> str:
    """A graph as the text of a module whose function is main."""
    if not g.static:
        raise StableHloError(
            f"stablehlo: {g.name} has symbolic sizes; export it on arrays or on types with known sizes"
        )
    w = StableHloWriter()
    own = len(g.inputs) - len(g.captured)
    inputs = [w.fresh(v.dtype, v.shape) for v in g.inputs[:own]]
    w.values.update(zip(g.inputs, inputs, strict=False))
    for v, data in zip(g.inputs[own:], g.captured, strict=True):
        w.values[v] = w.constant(np.asarray(host_data(data), order="C"), v.dtype)
    with scope(Scope.of(g.guards)):
        write_nodes(w, g.nodes)
    outs = [w.values[v] for v in g.outputs]
    w.line(f'"func.return"({", ".join(v.name for v in outs)}) : ({_types(outs)}) -> ()')
    head = ", ".join(f"{v.name}: {v.type}" for v in inputs)
    kind = f"({_types(inputs)}) -> ({', '.join(type_text(v.dtype, v.shape) for v in g.outputs)})"
    name = "".join(c if c.isalnum() or c == "_" else "_" for c in g.name) or "graph"
    lines = [
        '"builtin.module"() <{sym_name = "' + name + '"}> ({',
        f'  "func.func"() <{{function_type = {kind}, sym_name = "main", sym_visibility = "public"}}> ({{',
        f"  ^bb0({head}):",
        *w.lines,
        "  }) : () -> ()",
        f'}}) {{stablehlo.version = "{VERSION}"}} : () -> ()',
    ]
    return "\n".join(lines)


def _types(values: Sequence[Ssa]) -> str:
    return ", ".join(v.type for v in values)


def write_nodes(w: StableHloWriter, nodes: Sequence[Node]) -> None:
    """Write nodes in order."""
    for n in nodes:
        try:
            found = _written(w, n)
        except StableHloError as e:
            raise e.at(n.location) from None
        results = found if isinstance(found, list | tuple) else [found]
        w.values.update(zip(n.results, results, strict=True))


def _written(w: StableHloWriter, n: Node) -> Any:
    for t in (*n.operands, *n.results):
        _check_policy(n, t.dtype)
    xs = [w.values[v] for v in n.operands]
    rule = RULES.get(n.op.name)
    found = None if rule is None else rule(w, n, xs, write_nodes)
    if found is not None:
        return found
    stands_for = STANDS_FOR.get(n.op.name)
    if stands_for is not None:
        return _decomposed(w, n, stands_for)
    body = n.op.expr(n.params)
    if body is not None and n.op.signature is not None:
        return contracted(w, n, xs) if len(xs) > 1 and n.op.combine else _nest(w, n, xs)
    if n.op.view is not None:
        return _by_places(w, n, xs[0])
    if n.op.decompose is not None:
        return _decomposed(w, n, n.op.decompose)
    raise StableHloError(f"stablehlo: {n.op.name} has no StableHLO form")


def _check_policy(n: Node, dtype: DType) -> None:
    p = dtype.policy
    if p.stochastic_round or p.saturate:
        raise StableHloError(
            f"stablehlo: {n.op.name} computes in {dtype}, but StableHLO has no rounding nor clamping "
            f"of its own; cast to {dtype.base} first"
        )


def _nest(w: StableHloWriter, n: Node, xs: Sequence[Ssa]) -> Ssa:
    """An op that is a scalar expression over an index space, folded over the axes that it drops."""
    sig = n.op.sig(n.types, n.params)
    assert sig is not None
    sig, sizes = sig.bind(n.op.name, n.types)
    sizes = {**dict(n.params.get("sizes", ())), **sizes}
    axes = [*sig.out, *sig.reduced]
    shape = [int(sizes[a]) for a in axes]
    spread = []
    for x, v, own in zip(xs, n.operands, sig.ins, strict=True):
        x = w.cast(x, wide(n.op, v.dtype)) if v.dtype.kind != "b" else x
        order = sorted(range(len(own)), key=lambda k: axes.index(own[k]))
        x = w.transpose(x, order)
        spread.append(w.broadcast(x, shape, [axes.index(own[k]) for k in order]))
    first = next((x.dtype for x in spread if x.dtype.kind != "b"), None)
    at = spread[0].dtype if first is None else first
    body = n.op.expr(n.params)
    assert body is not None
    y = HloScalars(w, at, shape).write(body, spread)
    if n.op.combine is not None:
        folded = range(len(sig.out), len(axes))
        s = HloScalars(w, y.dtype, ())
        y = w.reduce(
            y,
            folded,
            fold_start(n.op.combine, y.dtype),
            lambda a, b: s.apply(str(n.op.combine), a, b),
        )
    return w.cast(y, n.results[0].dtype)


def _by_places(w: StableHloWriter, n: Node, x: Ssa) -> Ssa:
    """A view: each element is gathered from the flat operand."""
    assert n.op.numpy is not None
    at = np.arange(math.prod(x.shape)).reshape(x.shape)
    found = np.array(n.op.numpy(at, **n.params))
    flat = w.reshape(x, (math.prod(x.shape),))
    return gathered(w, flat, [w.constant(found)], (0,))


def _decomposed(w: StableHloWriter, n: Node, meaning: Any) -> Any:
    """The ops that an op stands for."""
    builder = Builder()
    inner = [builder.input(v.type, v.device) for v in n.operands]
    with building(builder):
        wider = [
            cast_to(v, v.dtype.compute) if v.dtype.kind == "f" and not n.op.moves else v
            for v in inner
        ]
        out = meaning(*wider, **n.params)
        results = [
            cast_to(v, r.dtype) if v.dtype is not r.dtype else v
            for v, r in zip(out if n.op.multiple else (out,), n.results, strict=True)
        ]
        results = [builder.lift(v) for v in results]
    w.values.update(zip(inner, [w.values[v] for v in n.operands], strict=True))
    for outer, captured in builder.captured():
        w.values[captured] = w.constant(np.asarray(host_data(outer), order="C"), captured.dtype)
    write_nodes(w, builder.nodes)
    return [_value(w, v) for v in results]


def _value(w: StableHloWriter, v: Value) -> Ssa:
    return w.values[v] if v in w.values else w.constant(host_data(v), v.dtype)
