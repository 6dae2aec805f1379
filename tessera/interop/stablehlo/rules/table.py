"""The table of rules: how ops that are neither scalar expressions nor decompositions are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tessera.interop.stablehlo.writer import Ssa, StableHloWriter
from tessera.ir.graph.ir import Node

Inside = Callable[[StableHloWriter, Sequence[Node]], None]  # writes the nodes of a region
Rule = Callable[[StableHloWriter, Node, list[Ssa], Inside], Any]  # None: as if there were no rule
RULES: dict[str, Rule] = {}
STANDS_FOR: dict[str, Callable[..., Any]] = {}  # ops written as these functions of other ops


def rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: how ops of these names are written, f(writer, node, *operands)."""

    def enter(f: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            RULES[name] = lambda w, n, xs, inside: f(w, n, *xs)
        return f

    return enter


def region_rule(*names: str) -> Callable[[Rule], Rule]:
    """Decorator: how ops with regions are written."""

    def enter(f: Rule) -> Rule:
        for name in names:
            RULES[name] = f
        return f

    return enter


def stands_for(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the function of other ops that ops of these names are written as."""

    def enter(f: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            STANDS_FOR[name] = f
        return f

    return enter
