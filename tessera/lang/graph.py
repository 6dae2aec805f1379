"""Named operator graphs: @graph.module("attention")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.core.blame import blames_arguments, constructor_blames_arguments
from tessera.core.modules import answer
from tessera.lang.jit import Jitted


@constructor_blames_arguments
class GraphModule(Jitted):
    """A function that is one named graph: compiled on its own, a call node inside others."""

    def __init__(self, name: str, f: Callable[..., Any]):
        super().__init__(f)
        self._name = name

    @property
    def name(self) -> str:
        """The module's name."""
        return self._name


@blames_arguments
def module(name: str) -> Callable[[Callable[..., Any]], GraphModule]:
    """Decorator: capture a function as a named operator graph."""
    return lambda f: GraphModule(name, f)


answer(__name__, "graph")
