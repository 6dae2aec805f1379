"""parse: text of any level to the program that it describes."""

from __future__ import annotations

from collections.abc import Callable

from tessera.core.operation import Operation, parse_module
from tessera.core.text import Reader
from tessera.ir.graph.ir import Graph
from tessera.ir.graph.text import LEVEL, graph_of

LEVELS: dict[str, Callable[[Reader, Operation], Graph]] = {LEVEL: graph_of}


def parse(text: str) -> Graph:
    """The program that a text describes, at the level that it states."""
    reader, op = parse_module(text)
    level = op.attributes.get("level")
    if level not in LEVELS:
        reader.fail(f"level {level!r} is unknown; levels are {', '.join(LEVELS)}", op.at)
    return LEVELS[level](reader, op)
