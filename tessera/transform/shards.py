"""Values of a program on whole tensors, as one shard holds them, while it is partitioned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tessera.core.factors import Factors
from tessera.core.layout import Layout
from tessera.core.mesh import Mesh
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Builder, Graph, Node, Value, building
from tessera.ir.graph.op import Params


@dataclass(frozen=True)
class Shard:
    """A value of the program on whole tensors, as one shard holds it."""

    value: Value
    type: TensorType
    layout: Layout
    source: SizedNode | None = None  # how to make it in another layout without moving anything

    @property
    def is_zero(self) -> bool:
        """Whether it is zero in any layout, so that it may also stand for partial sums."""
        if self.source is None:
            return False
        if self.source.operands:
            return self.source.operands[0].is_zero
        return bool(self.source.params.get("value") == 0)


@dataclass(frozen=True)
class SizedNode:
    """A node at the sizes of a call."""

    node: Node
    types: tuple[TensorType, ...]
    outs: tuple[TensorType, ...]
    params: Params
    factors: Factors | None
    operands: tuple[Shard, ...] = ()

    @property
    def combine(self) -> str | None:
        """The scalar op that folds factors which results do not have."""
        if self.factors is not None and (self.factors.added or self.factors.places):
            return "add"
        return self.node.op.combine


class ShardWalk(Protocol):
    """What writes the program of one shard, as the rules of single ops see it."""

    mesh: Mesh
    sizes: dict[str, int]

    def graph(self, g: Graph, env: dict[Value, Shard]) -> None:
        """Write the nodes of a graph."""

    def asked(self, s: Shard, layout: Layout, user: str, n: Node | None) -> Value:
        """A value in a layout."""

    def inside(self, times: int) -> ShardWalk:
        """One for a region, whose collectives run so many times."""

    def note_permute(self, x: Value, axis: str, s: Shard, n: Node) -> None:
        """List a permute of x, a part of a shard, that a node needs."""

    def trial(self) -> ShardWalk:
        """One whose collectives are not listed."""


def as_graph(
    walk: ShardWalk, n: Node, operands: Sequence[Shard], f: Callable[..., Value]
) -> list[Shard]:
    """What a function of whole tensors gives, partitioned in place of a node."""
    b = Builder(location=n.location)
    with building(b):
        ins = [b.input(s.type) for s in operands]
        g, outer = b.finish([f(*ins)], n.op.name)
    assert not outer, n
    env = dict(zip(g.inputs, operands, strict=True))
    walk.graph(g, env)
    return [env[v] for v in g.outputs]
