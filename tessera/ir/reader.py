"""parse: text of any level to the program that it describes."""

from __future__ import annotations

from collections.abc import Callable

from tessera.core.errors import ParseError
from tessera.core.kernels import Kernels, line_of, parts
from tessera.core.operation import Operation, parse_module
from tessera.core.text import Reader
from tessera.ir.graph import text as graph
from tessera.ir.graph.ir import Graph
from tessera.ir.schedule import ir as schedule_ir
from tessera.ir.schedule import text as schedule
from tessera.ir.tile import text as tile
from tessera.ir.tile.ir import Kernel

Level = Graph | schedule_ir.Program | Kernel  # a program at the level that its text states
Program = Level | Kernels[Level | str]
LEVELS: dict[str, Callable[[Reader, Operation], Level]] = {
    graph.LEVEL: graph.graph_of,
    schedule.LEVEL: schedule.program_of,
    tile.LEVEL: tile.kernel_of,
}


def parse(text: str) -> Program:
    """The program that a text describes, at the level that it states; kernels under names are several.

    The kernels of a target are texts of another language, which is what they are parsed to.
    """
    if not isinstance(text, str):
        raise ParseError(f"parse: got {type(text).__name__}, expected the text of a module")
    found = parts(text)
    if not found:
        return _module(text)
    return Kernels({name: _kernel(text, part) for name, part in found.items()})


def _kernel(text: str, part: str) -> Level | str:
    if not part.lstrip().startswith('"'):
        return part
    return _module("\n" * line_of(text, part) + part)


def _module(text: str) -> Level:
    try:
        reader, op = parse_module(text)
    except RecursionError:
        raise ParseError("parse: the text is nested deeper than Python's recursion limit") from None
    level = op.attributes.get("level")
    if level not in LEVELS:
        reader.fail(f"level {level!r} is unknown; levels are {', '.join(LEVELS)}", op.at)
    return LEVELS[level](reader, op)
