"""The levels as lines for people to read, each with what it stands for.

%11 = "tessera.max"(%10) {axes = [1]} : (tensor<8x64xf32>) -> tensor<8xf32>  becomes
%11 = max(%10, axes=[1]): f32[8]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tessera.core.constant import Constant
from tessera.core.source import Location
from tessera.core.text import attribute_text
from tessera.ir.graph.ir import Graph, Node, Value
from tessera.ir.schedule.ir import Group, HostCall, Kernel, Primitive, Program
from tessera.ir.tile import ir as tile

_LONG = 60  # characters of a parameter that are shown
_TESSERA_DIM = re.compile(r'#tessera\.dim<"([^"]*)">')
_GEP = re.compile(r"(%\w+) = getelementptr \w+, ptr %parameters, i64 (\d+)")
_NAME = re.compile(r"%\w+")


@dataclass(frozen=True)
class PageLine:
    """A line of a level."""

    text: str
    node: Node | None = None  # of Graph IR
    input: int = -1  # of a graph
    step: int = -1  # of Schedule IR
    names: tuple[str, ...] = ()  # stages and buffers
    location: Location | None = None
    operation: tile.Operation | None = None  # of Tile IR


def graph_lines(g: Graph) -> list[PageLine]:
    """Graph IR, a line for each node; regions stand below their node."""
    names = dict(zip(g.inputs, map("%{}".format, input_names(g)), strict=True))
    inputs = [PageLine(f"  {x}: {v.type}", input=i) for i, (v, x) in enumerate(names.items())]
    return [PageLine(f"graph {g.name}"), *inputs, *_body(g, names, "  ", None)]


def input_names(g: Graph) -> list[str]:
    """What the inputs are called; those that were captured may have no name."""
    named = g.input_names
    return [named[i] if i < len(named) else f"x{i}" for i in range(len(g.inputs))]


def _body(g: Graph, names: dict[Value, str], indent: str, owner: Node | None) -> Iterator[PageLine]:
    for n in g.nodes:
        number = len(names)
        many = len(n.results) > 1
        for i, v in enumerate(n.results):
            names[v] = f"%{number}.{i}" if many else f"%{number}"
        made = ", ".join(names[v] for v in n.results)
        given = [*(names.get(v, "%?") for v in n.operands), *params_of(n)]
        types = ", ".join(str(v.type) for v in n.results)
        text = f"{indent}{made} = {n.op.name}({', '.join(given)}): {types}"
        yield PageLine(text, owner or n, location=n.location)
        for r in n.regions:
            inner = {v: f"%{len(names)}.in{i}" for i, v in enumerate(r.inputs)}
            names.update(inner)
            yield PageLine(f"{indent}  region ({', '.join(inner.values())})", owner or n)
            yield from _body(r, names, indent + "    ", owner or n)
    yield PageLine(f"{indent}return {', '.join(names.get(v, '%?') for v in g.outputs)}", owner)


def params_of(n: Node) -> list[str]:
    """The parameters of a node, those that are long cut short."""
    return [f"{k}={_shown(v)}" for k, v in sorted(n.params.items())]


def _shown(x: Any) -> str:
    if isinstance(x, Constant):
        text = str(x)
    elif isinstance(x, tuple | list):
        text = f"[{', '.join(map(_shown, x))}]"
    else:
        text = " ".join(str(x).split())  # a kernel is a text of many lines
    return text if len(text) <= _LONG else text[: _LONG - 1] + "…"


def schedule_lines(p: Program) -> list[PageLine]:
    """Schedule IR, with the step and the stage of every line."""
    out = [PageLine(f"program {p.name}")]
    out += [PageLine(f"  {b.name}: {b.type}", names=(b.name,)) for b in p.buffers.values()]
    for i, s in enumerate(p.steps):
        if isinstance(s, HostCall):
            out.append(PageLine(f"  {s}", step=i, names=s.results, location=s.node.location))
        elif isinstance(s, Primitive):
            out.append(PageLine(f"  {s}", step=i, names=s.results, location=s.location))
        else:
            out += _step_lines(s, i, "  ")
    return [*out, PageLine(f"  returns {', '.join(p.outputs)}")]


def _step_lines(s: Kernel | Group, i: int, indent: str) -> Iterator[PageLine]:
    yield PageLine(indent + str(s).split("\n", 1)[0], step=i)
    if isinstance(s, Group):
        for k in s.kernels:
            yield from _step_lines(k, i, indent + "  ")
        return
    if s.nest is not None:
        yield PageLine(f"{indent}  nest {s.nest}", step=i)
    for t in s.stages:
        yield PageLine(f"{indent}  {t}", step=i, names=(t.name,), location=t.location)


def tile_lines(name: str, k: tile.Kernel, buffers: Mapping[str, str]) -> list[PageLine]:
    """Tile IR; a line that touches memory has the buffer's name."""
    called = [(buffers.get(m.name, m.name), m) for m in k.parameters]
    parameters = [
        PageLine(f"  {'writes' if m.writable else 'reads'} {x}: {m.type}", names=(x,))
        for x, m in called
    ]
    grid = ", ".join(f"{variable}<{n}" for variable, n in k.grid)
    return [
        PageLine(f"kernel {name} on grid ({grid})"),
        *parameters,
        *_tile_block(k.body, {}, buffers, "  "),
    ]


def _tile_block(
    b: tile.Block, names: dict[tile.Tile, str], buffers: Mapping[str, str], indent: str
) -> Iterator[PageLine]:
    for op in b.operations:
        operands = [names.get(t, "%?") for t in op.operands]
        for t in op.results:
            names[t] = f"%{len(names)}"
        made = ", ".join(names[t] for t in op.results)
        types = ", ".join(str(t.type) for t in op.results)
        left, right = f"{made} = " if made else "", f": {types}" if types else ""
        if op.block is not None:
            a = op.attributes
            loop = f"for {a.get('variable')} from {a.get('start')} to {a.get('stop')} by {a.get('step')}"
            for t in op.block.arguments:
                names[t] = f"%{len(names)}"
            carried = [
                f"{names[t]} = {x}" for t, x in zip(op.block.arguments, operands, strict=False)
            ]
            given = f"({', '.join(carried)})" if carried else ""
            text = f"{left}{loop}{given}{right}"
            yield PageLine(indent + text, location=op.location, operation=op)
            yield from _tile_block(op.block, names, buffers, indent + "  ")
            continue
        yield _tile_operation(op, operands, buffers, indent + left, right)
    if b.outputs:
        yield PageLine(f"{indent}yield {', '.join(names.get(t, '%?') for t in b.outputs)}")


def _tile_operation(
    op: tile.Operation, operands: Sequence[str], buffers: Mapping[str, str], left: str, right: str
) -> PageLine:
    memory = () if op.memory is None else (buffers.get(op.memory.name, op.memory.name),)
    given = [*memory, *operands]
    given += [f"{k}={_attribute(v)}" for k, v in op.attributes.items() if v not in ((), None)]
    stated = f": {op.memory.type}" if op.name == "alloc" and op.memory is not None else right
    text = f"{left}{op.name}({', '.join(given)}){stated}"
    return PageLine(text, names=memory, location=op.location, operation=op)


def _attribute(x: Any) -> str:
    return _TESSERA_DIM.sub(r"\1", attribute_text(x)).split(" : ")[0]


def llvm_lines(text: str, parameters: Sequence[str]) -> list[PageLine]:
    """LLVM IR; lines that address, read or write a parameter have its buffer's name."""
    held: dict[str, str] = {}  # what a name of LLVM IR is, or points into
    out = []
    for line in text.rstrip().split("\n"):
        begin = _GEP.search(line)
        if begin is not None:
            held[begin[1]] = parameters[int(begin[2])]
        found = _NAME.findall(line)
        is_address = " getelementptr " in line or " load ptr" in line
        touched = {held[x]: None for x in found if x in held}
        if touched and is_address and " = " in line:
            held[found[0]] = next(iter(touched))
        out.append(PageLine(line, names=tuple(touched)))
    return out
