"""simplify: fold constants, apply identities, merge equal nodes, drop dead ones.

    %1 = neg(%0); %2 = neg(%1); %3 = exp(%2); %4 = exp(%0); %5 = add(%3, %4)
->  %1 = exp(%0); %2 = add(%1, %1)

The result has the same bits for every input (tessera.transform.identities says what is exact).
Nodes with effects are merged, replaced and dropped only as these allow (tessera.ir.graph.op.EFFECTS).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Hashable
from operator import is_
from typing import Any

from tessera.core.constraints import Scope, current_scope, scope
from tessera.core.dtype import DType
from tessera.core.rewrite import Rewriter, Rule, RuleTable, live, replaced
from tessera.ir.graph.ir import Graph, Node, Value
from tessera.ir.graph.op import forbidden
from tessera.transform.fold import fold
from tessera.transform.identities import ARITHMETIC, CASTS, LOGIC
from tessera.transform.layouts import LAYOUTS
from tessera.transform.maker import Maker

FOLD: Rule[Node, Value] = Rule("fold", "f(constants) -> constant", (), fold)
RULES: RuleTable[Node, Value] = RuleTable((FOLD, *ARITHMETIC, *LOGIC, *CASTS, *LAYOUTS))


def simplify(
    g: Graph, fired: Counter[str] | None = None, table: RuleTable[Node, Value] = RULES
) -> Graph:
    """g in the normal form of a table of rules; `fired` counts the rules that applied."""
    with scope(Scope.of(g.guards, around=current_scope())):
        return _simplified(g, fired, table)


def _simplified(g: Graph, fired: Counter[str] | None, table: RuleTable[Node, Value]) -> Graph:
    maker = Maker()
    rewriter = Rewriter[Node, Value](table, _head, _key, _fits, maker)
    maker.settle = rewriter.settle
    env: dict[Value, Value] = {}
    for n in g.nodes:
        regions = tuple(_simplified(r, fired, table) for r in n.regions) if n.regions else ()
        new = _with_operands(n, env, regions, maker)
        maker.location = n.location
        pinned = forbidden(effects(new), "merge")
        results = rewriter.keep(new) if pinned else rewriter.settle(new)
        for old, value in zip(n.results, results, strict=True):
            if old is not value:
                env[old] = value
    if fired is not None:
        fired.update(rewriter.fired)
    outputs = replaced(g.outputs, env)
    nodes = live(rewriter.nodes, outputs, _lasting)
    if len(nodes) == len(g.nodes) and all(map(is_, nodes, g.nodes)):
        return g
    return Graph(g.inputs, nodes, outputs, g.name, g.input_names, g.captured, g.guards)


def _with_operands(
    n: Node, env: dict[Value, Value], regions: tuple[Graph, ...], maker: Maker
) -> Node:
    """n itself, or a copy of it on what its operands and regions have become."""
    operands = replaced(n.operands, env) if env else n.operands
    if all(map(is_, operands, n.operands)) and all(map(is_, regions, n.regions)):
        return n
    types = [v.type for v in n.results]
    return maker.builder.node(n.op, operands, n.params, regions, types, n.location)


def _fits(new: Value, old: Value) -> bool:
    return new.type is old.type


def _head(n: Node) -> str:
    return n.op.name


def effects(n: Node) -> frozenset[str]:
    """What a node does besides computing its results, in its regions too."""
    if not n.regions:
        return n.op.effects
    return n.op.effects.union(*(effects(m) for r in n.regions for m in r.nodes))


def _lasting(n: Node) -> bool:
    """Whether the node must stay even if nothing uses it; a draw need not."""
    return bool(n.op.effects or n.regions) and bool(forbidden(effects(n), "drop"))


def _key(n: Node) -> Hashable:
    """Equal for nodes that compute the same bits."""
    ids = tuple([id(v) for v in n.operands])
    if not n.params and not n.regions:
        return n.op, ids
    params = tuple([(k, _exact(n.params[k])) for k in sorted(n.params)])
    return n.op, ids, params, tuple([r.hash for r in n.regions])


def _exact(x: Any) -> Hashable:
    """x so that 1, 1.0 and True differ, 0.0 and -0.0 differ, and equal NaNs are equal."""
    kind = type(x)
    if kind is int or kind is str or kind is DType:
        return x  # type: ignore[no-any-return]
    if kind is tuple:
        return tuple([_exact(v) for v in x])
    if kind is float:
        return "float", struct.pack("<d", x)
    if kind is complex:
        return "complex", struct.pack("<2d", x.real, x.imag)
    return kind, x
