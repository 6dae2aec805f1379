"""Which steps and stages compute a node: what the highlighting of the inspector follows.

A value that exists on its own is a buffer or a stage of the same name.  Every other value is computed inside
of those that read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.ir.graph.ir import Graph, Value
from tessera.ir.schedule.ir import HostCall, Primitive, Program, Step
from tessera.ir.schedule.lower import names_of


@dataclass(frozen=True)
class ValueLink:
    """What computes a value."""

    steps: tuple[int, ...] = ()  # numbers of steps
    names: tuple[str, ...] = ()  # of stages, or of buffers that a step makes


def made_by(s: Step) -> list[str]:
    """The stages of a step, or the buffers that it writes."""
    return list(s.results) if isinstance(s, HostCall | Primitive) else [t.name for t in s.stages]


def read_by(s: Step) -> list[str]:
    """The buffers that a step reads."""
    return list(s.operands) if isinstance(s, HostCall | Primitive) else s.inputs()


def written_by(s: Step) -> list[str]:
    """The buffers that a step writes."""
    return list(s.results if isinstance(s, HostCall | Primitive) else s.outputs)


def links_of(g: Graph, p: Program, on_gpu: bool = False) -> dict[Value, ValueLink]:
    """What computes each value of the graph that a program was made of; inputs have their readers."""
    names = names_of(g, on_gpu)
    makers = {name: i for i, s in enumerate(p.steps) for name in made_by(s)}
    found: dict[Value, ValueLink] = {}
    for n in g.nodes:
        found.update({v: _link(names.get(v), makers) for v in n.results})
    readers: dict[str, list[int]] = {}
    for i, s in enumerate(p.steps):
        for name in read_by(s):
            readers.setdefault(name, []).append(i)
    _fill(g, found)
    for v in g.inputs:
        found[v] = ValueLink(tuple(readers.get(names[v], ())), (names[v],))
    return found


def _link(name: str | None, makers: dict[str, int]) -> ValueLink:
    if name is None or name not in makers:
        return ValueLink()
    return ValueLink((makers[name],), (name,))


def _fill(g: Graph, found: dict[Value, ValueLink]) -> None:
    """Give values that exist nowhere the links of those that read them."""
    users: dict[Value, list[ValueLink]] = {}
    for n in reversed(g.nodes):
        for v in n.results:
            if not found[v].steps:
                found[v] = _union(users.get(v, ()))
        whole = _union([found[v] for v in n.results])
        for v in n.operands:
            users.setdefault(v, []).append(whole)


def _union(links: Sequence[ValueLink]) -> ValueLink:
    steps = dict.fromkeys(s for x in links for s in x.steps)
    return ValueLink(tuple(steps), tuple(dict.fromkeys(n for x in links for n in x.names)))
