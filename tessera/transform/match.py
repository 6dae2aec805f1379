"""match: refuse programs in which shards could run different sequences of collectives.

    cond(axis_index("dp") == 0, lambda x: psum(x, "dp"), lambda x: x, x)      refused: shards along dp may
    part here

A value varies along the mesh axes on which shards may hold different ones: those that cut an input, those
whose index it is made of, those of data that varies.  A sum or a gather over an axis is the same along it.
Where a condition varies along an axis, both branches must run the same collectives over that axis; a loop
with such a condition must run none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tessera.core.errors import RankError
from tessera.core.source import Location
from tessera.ir.graph.ir import Graph, Node
from tessera.ops.collective import ALL_GATHER, ALONG, AXIS_INDEX, PART, PLACE, PMAX, PSUM
from tessera.ops.control import cond, scan, while_loop
from tessera.ops.remat import barrier

Axes = frozenset[str]
_NONE: Axes = frozenset()
_EVEN = frozenset((PSUM, PMAX, ALL_GATHER))  # the same along their axis, whatever they get
_STILL = frozenset((AXIS_INDEX, PART, PLACE))  # exchange nothing


@dataclass(frozen=True)
class SharedCollective:
    """A collective that shards run together."""

    kind: str
    axis: str
    type: str
    location: Location | None
    often: str = ""  # how often a loop or a branch around it runs it

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What must agree."""
        return self.kind, self.axis, self.type, self.often

    def __str__(self) -> str:
        return f"{self.kind} over '{self.axis}' of {self.type}{_at(self.location)}"


def _at(location: Location | None) -> str:
    return f" ({location.file}:{location.line})" if location else ""


def collectives(g: Graph) -> list[SharedCollective]:
    """The collectives of a graph and its regions, in order."""
    return [c for n in g.nodes for c in _of_node(n)]


def _of_node(n: Node) -> list[SharedCollective]:
    if n.op in ALONG and n.op not in _STILL:
        shown = str(n.operands[0].type)
        return [SharedCollective(n.op.name, n.params["axis"], shown, n.location)]
    inside = [collectives(r) for r in n.regions]
    if n.op is scan.op and any(inside):
        return [replace(c, often=f"{n.params['length']} times {c.often}") for c in inside[0]]
    if n.op is cond.op and [c.key for c in inside[0]] == [c.key for c in inside[1]]:
        return inside[0]
    if n.op in (cond.op, while_loop.op):  # how often is not known: no other branch runs the same
        return [replace(c, often=f"as {id(n)} says {c.often}") for part in inside for c in part]
    return [c for part in inside for c in part]


def check_matched(g: Graph, varying: Sequence[Axes]) -> list[Axes]:
    """The axes along which each output varies, for inputs that vary along these; raises where shards could
    part.
    """
    env = dict(zip(g.inputs, varying, strict=True))
    for n in g.nodes:
        env.update(zip(n.results, _node(n, [env[v] for v in n.operands]), strict=True))
    return [env[v] for v in g.outputs]


def _node(n: Node, axes: Sequence[Axes]) -> Sequence[Axes]:
    if n.op is cond.op:
        return _cond(n, axes)
    if n.op is while_loop.op:
        return _while(n, axes)
    if n.op is scan.op:
        return _scan(n, axes)
    if n.regions:
        return check_matched(n.regions[0], axes)
    if n.op is barrier.op:
        return axes
    union = _NONE.union(*axes)
    if n.op in ALONG:
        union = (union - {n.params["axis"]}) if n.op in _EVEN else (union | {n.params["axis"]})
    return [union] * len(n.results)


def _cond(n: Node, axes: Sequence[Axes]) -> list[Axes]:
    pred, *rest = axes
    yes, no = ([c for c in collectives(g) if c.axis in pred] for g in n.regions)
    if [c.key for c in yes] != [c.key for c in no]:
        k = next(
            (i for i, (a, b) in enumerate(zip(yes, no, strict=False)) if a.key != b.key),
            min(len(yes), len(no)),
        )
        sides = [str(side[k]) if k < len(side) else "no collective" for side in (yes, no)]
        raise _parting(n, pred, f"one branch runs {sides[0]}, the other {sides[1]}")
    sides_ = [check_matched(g, rest) for g in n.regions]
    return [a | b | pred for a, b in zip(*sides_, strict=True)]


def _grown(body: Graph, axes: list[Axes], count: int) -> list[Axes]:
    """The axes of a loop's inputs when they no longer grow, and of its outputs."""
    while True:
        outs = check_matched(body, axes)
        more = [a | b for a, b in zip(axes[:count], outs[:count], strict=True)]
        if more == axes[:count]:
            return outs
        axes[:count] = more


def _while(n: Node, axes: Sequence[Axes]) -> list[Axes]:
    test, body = n.regions
    now = list(axes)
    outs = _grown(body, now, len(body.outputs))
    (pred,) = check_matched(test, now)
    found = [c for g in n.regions for c in collectives(g) if c.axis in pred]
    if found:
        raise _parting(n, pred, f"the loop runs {found[0]} as often as each of them decides")
    return [a | b | pred for a, b in zip(outs, now, strict=False)]


def _scan(n: Node, axes: Sequence[Axes]) -> list[Axes]:
    count, now = n.params["carry"], list(axes)
    outs = _grown(n.regions[0], now, count)
    return [*now[:count], *outs[count:]]


def _parting(n: Node, pred: Axes, what: str) -> RankError:
    along = " and ".join(f"'{a}'" for a in sorted(pred))
    return RankError(
        f"{n.op.name}{_at(n.location)}: the condition differs between shards along {along}, and {what}; "
        "make the condition "
        f"the same on all of them, as in op.pmax(condition, {sorted(pred)[0]!r}), or run the same "
        "collectives either way"
    )
