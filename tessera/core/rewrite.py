"""The rewrite driver: nodes in order, each through a table of rules, then merged with its equals.

A rule looks at a node and at what made its operands, which are already in normal form, and gives
values in place of the node's results.  Nodes that a rule makes go through the table themselves, so
one pass from front to back reaches the fixpoint.  Programs are never changed: the driver makes new
nodes where operands changed and keeps the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar


class NodeLike(Protocol):
    """What the driver needs of a node: the values that it uses and those that it defines."""

    operands: tuple[Any, ...]
    results: tuple[Any, ...]


V = TypeVar("V")
N = TypeVar("N", bound=NodeLike)


@dataclass(frozen=True, slots=True)
class Rule(Generic[N, V]):
    """A named law: `apply(node, maker)` gives values in place of the results, or None.

    `heads` are the names of the ops whose nodes the rule looks at; none means all.
    """

    name: str
    law: str  # before -> after
    heads: tuple[str, ...]
    apply: Callable[[N, Any], tuple[V, ...] | None]


class RuleTable(Generic[N, V]):
    """Rules by the op that they look at, in the order in which they are tried."""

    def __init__(self, rules: Iterable[Rule[N, V]]):
        self.rules = tuple(rules)
        names = [r.name for r in self.rules]
        assert len(set(names)) == len(names), [n for n in names if names.count(n) > 1]
        self.general: list[Rule[N, V]] = [r for r in self.rules if not r.heads]
        heads = dict.fromkeys(h for r in self.rules for h in r.heads)
        self._by_head: dict[str, list[Rule[N, V]]] = {
            h: [r for r in self.rules if not r.heads or h in r.heads] for h in heads
        }

    def of(self, head: str) -> Sequence[Rule[N, V]]:
        """The rules for nodes of this op."""
        return self._by_head.get(head, self.general)


class Rewriter(Generic[N, V]):
    """One pass over a program; `nodes` is the new program, `fired` counts the rules that applied."""

    def __init__(
        self,
        table: RuleTable[N, V],
        head: Callable[[N], str],
        key: Callable[[N], Hashable | None],
        fits: Callable[[V, V], bool],
        maker: Any,
    ):
        self._table, self._head, self._key, self._fits = table, head, key, fits
        self._maker = maker  # what rules build nodes with
        self._seen: dict[Hashable, tuple[V, ...]] = {}
        self.nodes: list[N] = []
        self.fired: Counter[str] = Counter()

    def settle(self, node: N) -> tuple[V, ...]:
        """Add a node, unless a rule or an equal node gives its results; the results."""
        for rule in self._table.of(self._head(node)):
            found = rule.apply(node, self._maker)
            if found is not None and all(map(self._fits, found, node.results)):
                self.fired[rule.name] += 1
                return found
        key = self._key(node)
        if key is not None:
            equal = self._seen.setdefault(key, node.results)
            if equal is not node.results:
                self.fired["merge"] += 1
                return equal
        return self.keep(node)

    def keep(self, node: N) -> tuple[V, ...]:
        """Add a node as it is; its results."""
        self.nodes.append(node)
        results: tuple[V, ...] = node.results
        return results


def live(nodes: Sequence[N], outputs: Iterable[Any], keep: Callable[[N], bool]) -> tuple[N, ...]:
    """The nodes that outputs or nodes to keep depend on, in order."""
    needed = set(map(id, outputs))
    kept: list[N] = []
    for n in reversed(nodes):
        if any(id(v) in needed for v in n.results) or keep(n):
            needed.update(map(id, n.operands))
            kept.append(n)
    return tuple(kept[::-1])


def replaced(values: Sequence[V], env: Mapping[V, V]) -> tuple[V, ...]:
    """Values with those of env replaced."""
    return tuple([env.get(v, v) for v in values])
