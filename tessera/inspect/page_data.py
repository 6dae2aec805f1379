"""What the page of the inspector shows: every level of a program and what is known about
it, as plain data.
"""

from __future__ import annotations

import ast
import linecache
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any, NamedTuple, TypeVar

from tessera.compile.artifact import KernelCall
from tessera.compile.cpu.build import identity, sizes_of
from tessera.compile.executable import PassResult as PassRecord
from tessera.compile.executable import last_of
from tessera.compile.passes import GRAPH, TARGET, TILE
from tessera.core.source import Location
from tessera.core.types import TensorType
from tessera.inspect.page_groups import groupings
from tessera.inspect.page_kernels import launch_of, work_by_hand, written_kernel
from tessera.inspect.page_labels import label_of, written_ops
from tessera.inspect.page_layout import layered
from tessera.inspect.page_lines import located_assembly, tile_numbers, written_for
from tessera.inspect.page_links import ValueLink, links_of, made_by, read_by, written_by
from tessera.inspect.page_mix import mix_of
from tessera.inspect.page_text import (
    PageLine,
    graph_lines,
    input_names,
    llvm_lines,
    params_of,
    schedule_lines,
    tile_lines,
)
from tessera.inspect.work import StepWork, work_of
from tessera.ir.graph.ir import Node, Value
from tessera.ir.schedule.ir import Group, HostCall, Kernel, Primitive, Program, Step
from tessera.ir.schedule.memory import MemoryPlan
from tessera.ir.schedule.nests.choose import default_nest
from tessera.ir.target.cpu.emit import emit
from tessera.ir.tile.ir import Kernel as TileKernel
from tessera.lang.kernel.lowered import prepared
from tessera.runtime import tuned
from tessera.tune.roofline import Peaks

Data = dict[str, Any]
T = TypeVar("T")
_PHASES = ("", "backward", "update")  # of a training step; the rest is forward
_LETTER, _SIDE = 7.2, 18.0  # width of a letter, and of a node beside its letters


class SourcePlaces:
    """The lines of the user's source that something comes from, numbered."""

    def __init__(self) -> None:
        self._numbers: dict[Location, int] = {}

    def number(self, where: Location | None) -> int:
        """The number of a line; -1: it is not known."""
        return -1 if where is None else self._numbers.setdefault(where, len(self._numbers))

    def data(self) -> Data:
        """The places, and the files whole."""
        files = dict.fromkeys(w.file for w in self._numbers)
        numbers = {f: i for i, f in enumerate(files)}
        inside = {f: functions_in(f) for f in files}
        return {
            "places": [[numbers[w.file], w.line] for w in self._numbers],
            "functions": [inside[w.file].get(w.line, "") for w in self._numbers],
            "files": [
                {"path": f, "lines": [x.rstrip("\n") for x in linecache.getlines(f)]} for f in files
            ],
        }


def functions_in(file: str) -> dict[int, str]:
    """The innermost function or class that each line of a Python file belongs to."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # lines of a notebook, or of a file that has changed since
        return {}
    found: dict[int, str] = {}

    def visit(node: ast.AST, name: str) -> None:
        for n in ast.iter_child_nodes(node):
            own = name
            if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                own = f"{name}.{n.name}" if name else n.name
                found.update(dict.fromkeys(range(n.lineno, (n.end_lineno or n.lineno) + 1), own))
            visit(n, own)

    visit(tree, "")
    return found


class Words:
    """Texts that many nodes share, numbered; 0 is the empty one."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {"": 0}

    def number(self, text: str) -> int:
        """The number of a text."""
        return self.known.setdefault(text, len(self.known))


class Collector:
    """Takes a program apart, level by level, and times what lowers it."""

    on_gpu = False  # which values exist depends on it

    def __init__(
        self,
        record: Sequence[PassRecord],
        program: Program,
        calls: Sequence[KernelCall | HostCall] = (),
    ):
        self.record = [s for s in record if s.level == GRAPH]
        self.graph, self.calls = self.record[-1].graph, calls
        self.places, self.words = SourcePlaces(), Words()
        self.lower: list[Data] = [  # what the passes below Graph IR took
            {"name": s.name, "seconds": s.seconds, "level": s.level}
            for s in record
            if s.level != GRAPH
        ]
        self.tiles, self.codes = last_of(record, TILE), last_of(record, TARGET)
        self._prepared: dict[int, TileKernel] = {}  # of kernels that the user wrote
        self.texts: dict[str, Any] = {}  # what the page reads when it is looked at
        self.program = program
        self.types: dict[str, TensorType] = {n: b.type for n, b in self.program.buffers.items()}
        self.links = links_of(self.graph, self.program, self.on_gpu)
        self.numbers = {n: i for i, n in enumerate(self.graph.nodes)}

    def _timed(self, name: str, make: Callable[[], T]) -> T:
        begin = time.perf_counter()
        made = make()
        self.lower.append({"name": name, "seconds": time.perf_counter() - begin, "level": TARGET})
        return made

    # Graph IR

    def passes(self) -> list[Data]:
        """Every pass with its time; lines and differences are read when they are looked at."""
        out: list[Data] = []
        before: list[PageLine] = []
        for i, s in enumerate(self.record):
            lines = graph_lines(s.graph)
            last = i == len(self.record) - 1
            self.texts[f"pass{i}"] = {
                "lines": [x.text for x in lines],
                "places": [self.places.number(x.location) for x in lines],
                "nodes": [self._node(x) if last else -1 for x in lines],
                "diff": difference(before, lines) if i else [],
            }
            changed = sum(x[0] != "e" for x in self.texts[f"pass{i}"]["diff"])
            out.append(
                {"name": s.name, "seconds": s.seconds, "nodes": len(s.graph.nodes), "changes": changed}
            )  # fmt: skip
            before = lines
        return out

    def _node(self, x: PageLine) -> int:
        return x.input if x.node is None else self.numbers[x.node] + len(self.graph.inputs)

    def nodes(self) -> list[Data]:
        """The inputs and nodes of the graph that is lowered, with their places in the picture."""
        g = self.graph
        index: dict[Value, int] = {v: i for i, v in enumerate(g.inputs)}
        labels = input_names(g)
        nodes: list[Node | None] = [*(None for _ in g.inputs), *g.nodes]
        operands: list[list[int]] = [[] for _ in g.inputs]
        for i, n in enumerate(g.nodes):
            index.update(dict.fromkeys(n.results, i + len(g.inputs)))
            operands.append([index[v] for v in n.operands])
            labels.append(n.op.name)
        widths = [_LETTER * len(x) + _SIDE for x in labels]
        free = [kind_of(n) in ("input", "constant", "move") for n in nodes]
        spots = layered(operands, widths, free)
        out = []
        for i, (label, given, (x, layer)) in enumerate(zip(labels, operands, spots, strict=True)):
            node = nodes[i]
            values: Sequence[Value] = (g.inputs[i],) if node is None else node.results
            steps, names = self._linked(values)
            out.append({
                "op": label, "kind": kind_of(node), "type": ", ".join(str(v.type) for v in values),
                "params": "" if node is None else ", ".join(params_of(node)), "in": given,
                "place": self.places.number(where := None if node is None else node.location),
                "module": self.words.number(getattr(where, "module", "")),
                "phase": 0 if node is None else _PHASES.index(getattr(where, "phase", "")),
                "steps": steps, "names": names, "x": round(x, 1), "y": layer, "w": round(widths[i], 1),
            })  # fmt: skip
        return out

    def _linked(self, values: Sequence[Value]) -> tuple[list[int], list[str]]:
        found = [self.links.get(v, ValueLink()) for v in values]
        steps = dict.fromkeys(s for x in found for s in x.steps)
        return list(steps), list(dict.fromkeys(n for x in found for n in x.names))

    def grouped(self, data: Data, functions: Sequence[str]) -> Data:
        """By what the picture of the graph can be grouped; the groups are read when it is looked at."""
        modules, steps = list(self.words.known), [s["label"] or s["name"] for s in data["steps"]]
        found = self.texts["groups"] = groupings(data["nodes"], functions, modules, steps)
        return {"grouped": list(found), "modules": modules}

    # Schedule IR

    def schedule(self) -> Data:
        """The lines of Schedule IR."""
        lines = schedule_lines(self.program)
        return {
            "lines": [x.text for x in lines],
            "steps": [x.step for x in lines],
            "names": [list(x.names) for x in lines],
            "places": [self.places.number(x.location) for x in lines],
        }

    def steps(self, sizes: Mapping[str, int], seconds: Mapping[str, float]) -> list[Data]:
        """Every step: its parameters, its work, its time, and a name that says what it is."""
        out = []
        labels = self._labels()
        tried = tried_nests()
        for i, s in enumerate(self.program.steps):
            # A view is an offset: nothing moves.
            w = StepWork() if step_kind(s) == "view" else work_of(s, self.types, sizes)
            name = s.node.op.name if isinstance(s, HostCall) else s.name
            own = written_kernel(s)
            nests, lines = nests_of(s), _locations(s)
            if own is not None and isinstance(s, HostCall):
                x = launch_of(s, own)
                known = [self.types[b].substitute(sizes) for b in (*x.inputs, *x.outputs)]
                w = work_by_hand(own, known, w)
                grid = ", ".join(f"{v}<{n}" for v, n in own.grid)
                nests = [{"kernel": own.name, "nest": f"grid ({grid})", "chosen": False}]
                lines = [y.location for y in tile_lines("", own, {})]
            out.append({
                "name": name if own is None else own.name, "kind": step_kind(s), "nests": nests,
                "label": labels.get(i, "") if own is None else "",
                "trials": tried.get(self._known_as(s, sizes), []),
                "reads": read_by(s), "writes": written_by(s), "makes": made_by(s),
                "places": sorted({self.places.number(x) for x in lines} - {-1}),
                "flops": w.flops, "cost": w.cost, "bytes": w.bytes, "wide": w.wide,
                "seconds": seconds_of(s, seconds),
            })  # fmt: skip
        return out

    def _known_as(self, s: Step, sizes: Mapping[str, int]) -> tuple[str, str]:
        """What the tuner's store calls a step and its sizes; it tunes kernels of the CPU that stand alone."""
        if self.on_gpu or not isinstance(s, Kernel):
            return "", ""
        own = {n: sizes[n] for n in sizes_of(s, self.types)}
        return identity(replace(s, nest=None), self.types), tuned.size_class(own)

    def _labels(self) -> dict[int, str]:
        """What each step computes, by its number."""
        nodes: dict[int, list[Node]] = {}
        for n in self.graph.nodes:
            found = [self.links.get(v, ValueLink()) for v in n.results]
            for step in dict.fromkeys(s for x in found for s in x.steps):
                nodes.setdefault(step, []).append(n)
        written = written_ops(self.record[0].graph, self.graph)
        return {i: label_of(ns, written) for i, ns in nodes.items()}

    # Tile IR and target

    def kernels(self) -> list[Data]:
        """The kernels; Tile IR, LLVM IR and assembly are read when they are looked at."""
        launches = self._launches()
        texts = [self._text(x) for x in launches]
        numbers = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        made = self._timed("assembly", lambda: {t: located_assembly(t) for t in numbers})
        first = {text: x for x, text in reversed(list(zip(launches, texts, strict=True)))}
        for text, i in numbers.items():
            parameters = [str(p) for p in range(_most_parameters(launches))]
            lines = llvm_lines(text, parameters)
            code, from_lines = made[text]
            ops = written_for(self._written(first[text]), text)[: len(lines)]
            self.texts[f"target{i}"] = {
                "lines": [x.text for x in lines],
                "touch": [int(x.names[0]) if x.names else -1 for x in lines],
                "assembly": code, "mix": mix_of(code), "from": from_lines,
                "tile": tile_numbers(ops, tile_lines("", self._written(first[text]), {})),
            }  # fmt: skip
        out = []
        for i, (x, text) in enumerate(zip(launches, texts, strict=True)):
            names = {m.name: b for m, b in zip(x.kernel.parameters, x.buffers, strict=True)}
            lines = tile_lines(x.name, self._written(x), names)
            self.texts[f"tile{i}"] = {
                "lines": [y.text for y in lines],
                "names": [list(y.names) for y in lines],
                "places": [self.places.number(y.location) for y in lines],
            }
            out.append(
                {"name": x.name, "step": x.step, "target": numbers[text], "buffers": x.buffers}
            )
        return out

    def _launches(self) -> list[Launched]:
        """The launches of the program that runs, and those of kernels that the user wrote."""
        calls, out = list(self.calls), []
        for i, s in enumerate(self.program.steps):
            if isinstance(s, HostCall):
                calls = calls[1:]
                own = written_kernel(s)
                if own is not None:
                    x = launch_of(s, own)
                    out.append(Launched(i, own.name, own, [*x.inputs, *x.outputs]))
                continue
            while calls and isinstance(c := calls[0], KernelCall) and _is_of(c.name, s.name):
                out.append(Launched(i, c.name, self.tiles[c.name], [*c.inputs, *c.outputs]))
                calls = calls[1:]
        return out

    def _text(self, x: Launched) -> str:
        """The LLVM IR of a kernel; one that the user wrote is a program of its own."""
        found: str | None = self.codes.get(x.name)
        return emit(self._written(x)) if found is None else found

    def _written(self, x: Launched) -> TileKernel:
        """The kernel as LLVM IR is written from it."""
        if x.name in self.codes:
            return x.kernel
        return self._prepared.setdefault(id(x.kernel), prepared(x.kernel))


class Launched(NamedTuple):
    """A launch: the step it belongs to, its name, its kernel and the buffers of its parameters."""

    step: int
    name: str
    kernel: TileKernel
    buffers: list[str]


def _is_of(name: str, step: str) -> bool:
    """Whether a launch is one of a step: it has its name, and a number where there are several."""
    return name == step or (name.startswith(f"{step}_") and name[len(step) + 1 :].isdecimal())


def difference(before: Sequence[PageLine], after: Sequence[PageLine]) -> list[Sequence[Any]]:
    """[what, i, j, k, l]: lines i to j before are lines k to l after; numbers of values do not count."""
    old, new = [_key(x) for x in before], [_key(x) for x in after]
    found = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [(what[0], *ends) for what, *ends in found]


def _key(x: PageLine) -> tuple[str, Location | None]:
    words = x.text.split("%")
    return "%".join([words[0], *(w.lstrip("0123456789.in") for w in words[1:])]), x.location


def kind_of(n: Node | None) -> str:
    """What a node is to somebody who looks at a picture."""
    if n is None:
        return "input"
    if n.regions:
        return "control"
    if n.op.combine is not None:
        return "contraction" if len(n.operands) > 1 else "fold"
    if n.op.view is not None or n.op.moves or n.op.pick is not None:
        return "move"
    if not n.operands:
        return "constant"
    return "elementwise" if n.op.body is not None else "whole"


def step_kind(s: Step) -> str:
    if isinstance(s, HostCall):
        plain = "host" if written_kernel(s) is None else "kernel"
        return plain if s.node.op.view is None else "view"
    if isinstance(s, Primitive):
        return "primitive"
    return "group" if isinstance(s, Group) else "kernel"


def kernels_of(s: Step) -> Sequence[Kernel]:
    """The kernels of a step."""
    if not isinstance(s, Kernel | Group):
        return ()
    return s.kernels if isinstance(s, Group) else (s,)


def nests_of(s: Step) -> list[Data]:
    """The loops of each kernel of a step, and whether somebody has chosen them."""
    return [
        {"kernel": k.name, "nest": str(k.nest or default_nest(k)), "chosen": k.nest is not None}
        for k in kernels_of(s)
    ]


def tried_nests() -> dict[tuple[str, str], list[list[Any]]]:
    """The nests that the tuner has measured on this machine with their seconds, by kernel and sizes."""
    found: dict[tuple[str, str], list[list[Any]]] = {}
    with tuned.tolerant():
        for m in tuned.measurements():
            found.setdefault((m.kernel, m.sizes), []).append([m.nest, m.seconds])
    return found


def _locations(s: Step) -> list[Location | None]:
    if isinstance(s, HostCall):
        return [s.node.location]
    return [s.location] if isinstance(s, Primitive) else [t.location for t in s.stages]


def _most_parameters(launches: Sequence[Launched]) -> int:
    return max((len(x.kernel.parameters) for x in launches), default=0)


def memory_data(plan: MemoryPlan) -> Data:
    """The memory plan."""
    return {
        "peak": plan.peak, "arena": plan.arena, "results": plan.results, "beside": plan.beside,
        "steps": [{"name": a.name, "temporary": a.temporary} for a in plan.steps],
        "storages": [
            {"kind": s.kind, "space": s.space, "offset": s.offset, "size": s.size, "first": s.first,
             "last": s.last, "lives": [[b, str(plan.types[b]), *ends] for b, ends in s.lives.items()]}
            for s in plan.storages
        ],
    }  # fmt: skip


def seconds_of(s: Step, seconds: Mapping[str, float]) -> float:
    """The time of a step: of its launch, of all of its launches, or of a host call by what it writes."""
    if isinstance(s, HostCall):
        return seconds.get(f"={s.results[0]}", 0.0) if s.results else 0.0
    return seconds.get(s.name, 0.0) or sum(t for n, t in seconds.items() if _is_of(n, s.name))


def peaks_data(p: Peaks, steps: Sequence[Data] = ()) -> Data:
    """What the machine reaches, never less than a step of the page has reached; each step gets its share of
    it, and the cache or memory that its data come from.
    """
    timed = [
        (s, StepWork(s["flops"], s["cost"], s["bytes"], s["wide"]))
        for s in steps
        if s["seconds"] > 0
    ]
    p = p.raised((w, s["seconds"]) for s, w in timed if s["kind"] != "host")
    for s, w in timed:
        s["roof"] = w.least(*p.roof(w)) / s["seconds"]
        s["level"] = p.level(w.bytes).name
    return {
        "flops": p.flops, "wide": p.wide, "bandwidth": p.bandwidth, "threads": p.threads,
        "levels": [[x.name, x.bytes, x.bandwidth] for x in p.levels],
    }  # fmt: skip
