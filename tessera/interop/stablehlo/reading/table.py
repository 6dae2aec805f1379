"""The table of rules: what an op of StableHLO is in ops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from tessera.interop.stablehlo.tree import HloModule, HloRegion
from tessera.ir.graph.ir import Value

RULES: dict[str, Callable[..., Any]] = {}  # (frame, op, *values) -> value or list of values


class OpFrame(ABC):
    """Where an op stands: regions and functions are run from there."""

    module: HloModule

    @abstractmethod
    def find(self, name: str) -> Value:
        """The value of a name."""

    @abstractmethod
    def run(self, region: HloRegion, args: Sequence[Any]) -> list[Value]:
        """What a region gives for arguments."""

    @abstractmethod
    def call(self, name: str, args: Sequence[Any]) -> list[Value]:
        """What a function of the module gives for arguments."""


def rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: what ops of these names are, of the dialect stablehlo unless they name one."""

    def enter(f: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            RULES[name if "." in name else f"stablehlo.{name}"] = f
        return f

    return enter
