"""The lowering inspector: one page that shows a program at every level.

The page is one file that needs no network.  What is large is kept as text in it, and read when it is looked
at, so a page of thousands of nodes opens at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from tessera.algebra.laws.log import Rewrite
from tessera.compile.cpu.executable import MachineExecutable
from tessera.compile.executable import PassResult, last_of
from tessera.compile.fallback import PlainExecutable, failed
from tessera.compile.gpu.compilation import GpuCompilation
from tessera.compile.passes import GRAPH, SCHEDULE
from tessera.core.errors import OperandError
from tessera.inspect.files import write_whole
from tessera.inspect.page_data import Collector, memory_data, peaks_data
from tessera.inspect.page_gpu import (
    architecture_of,
    demand_architectures,
    gpu_data,
    on_the_host,
)
from tessera.inspect.page_rewrites import rewrites_data
from tessera.inspect.page_runs import runs_of, timed_runs
from tessera.inspect.page_timeline import numbers_of, timeline_of
from tessera.inspect.profile_record import Noted
from tessera.ir.graph.ir import Array, data_of
from tessera.ir.schedule.ir import HostCall
from tessera.ir.target.cpu.machine import architecture
from tessera.lang.compilations import Compilation
from tessera.lang.jit import jit
from tessera.lang.watching import Watched, watching
from tessera.runtime.threads import thread_count
from tessera.tune.roofline import peaks_here

Shown = tuple[dict[str, Any], dict[str, Any]]  # at once, and when it is looked at
_TURNS = 10  # of a loop whose turns are not known before it runs


def write_page(
    e: MachineExecutable | GpuCompilation[Any],
    inputs: Sequence[Any],
    path: str | os.PathLike[str] | None,
    log: Sequence[Rewrite] = (),
    gpu: Sequence[str] = (),
) -> Path:
    """Write the page of a program that runs on these inputs; unless given, the path is that of its name."""
    where = Path(path if path is not None else f"{e.graph.name}.html")
    demand_folder(where)
    demand_architectures(gpu)
    if isinstance(e, PlainExecutable):
        raise failed("inspect", "levels to show")
    text = page_of(e, inputs, log, gpu)
    try:
        write_whole(where, text)
    except OSError as error:
        raise OperandError(f"inspect: {where} cannot be written ({error.strerror})") from None
    return where


def demand_folder(where: Path) -> None:
    """Raise before the work when a page could not be written."""
    folder = where.absolute().parent
    if where.is_dir():
        raise OperandError(
            f"inspect: {where} is a folder; name a file in it, like {where}/page.html"
        )
    if not folder.is_dir():
        raise OperandError(f"inspect: there is no folder {folder} for {where.name}")
    if not os.access(where if where.exists() else folder, os.W_OK):
        raise OperandError(f"inspect: {where} cannot be written (Permission denied)")


def page_of(
    e: MachineExecutable | GpuCompilation[Any],
    inputs: Sequence[Any],
    log: Sequence[Rewrite] = (),
    gpu: Sequence[str] = (),
) -> str:
    """The page of a program as HTML, with the operators that were simplified while it was traced."""
    if isinstance(e, GpuCompilation):
        gpu = gpu or (architecture_of(e),)
        e, inputs = on_the_host(e, inputs)
    return render(programs_of(e, inputs, log, gpu))


def run_page(
    compilations: Sequence[Compilation],
    title: str,
    tell: Callable[[str], None],
    watched: Watched | None = None,
) -> str:
    """One page of a run: every compilation in it, and the largest program of each function or kernel at
    every level.
    """
    largest: dict[str, Compilation] = {}
    for c in compilations:
        known = largest.get(c.name)
        if isinstance(c.executable, MachineExecutable) and (not known or _size(c) > _size(known)):
            largest[c.name] = c
        if c.kernel is not None and not known:
            e, given = jit(c.kernel, target="cpu").program(*c.args, **c.kwargs)
            largest[c.name] = replace(c, executable=e, data=[data_of(v, c.name) for v in given])
    programs: list[Shown] = []
    first: dict[str, int] = {}
    for name, c in sorted(largest.items(), key=lambda x: -_weight(x[1].executable)):
        tell(f"timing {name} ({len(first) + 1} of {len(largest)})")
        first[name] = len(programs)
        shown = programs_of(c.executable, c.data)
        for data, _ in shown:
            for step in data["steps"]:
                step["regions"] = [r + len(programs) for r in step.get("regions", ())]
            for row in data.get("timeline", {}).get("rows", ()):
                row["program"] += len(programs)
        programs += shown
    if not programs:
        if any(isinstance(c.executable, PlainExecutable) for c in compilations):
            raise failed("inspect", "levels to show")
        raise OperandError(
            f"inspect: {title} compiled nothing for this machine; call a jitted function or a kernel in it"
        )
    rows = [
        {"name": c.name, "why": c.why, "how": c.how, "seconds": c.seconds, "program": first.get(c.name, -1),
         "nodes": _size(c)}
        for c in compilations
    ]  # fmt: skip
    names = [data["name"] for data, _ in programs]
    whole = {"programs": names, "run": {"file": title, "compilations": rows}}
    if watched is not None:
        whole["watched"] = watched.data()
    return render([(data | whole, texts) for data, texts in programs])


def _weight(e: MachineExecutable) -> int:
    """Which program is shown first: the one of most ops, those of loops counted as ten turns."""
    return len(e.graph.nodes) + sum(_TURNS * _weight(r) for r in e.regions.values())


def _size(c: Compilation) -> int:
    return len(c.executable.graph.nodes) if c.executable is not None else 1


def render(programs: Sequence[Shown]) -> str:
    """The page that shows these data."""
    scripts = []
    for i, (data, texts) in enumerate(programs):
        prefix = f"{i}." if i else ""
        scripts += [_script(prefix + k, x) for k, x in {"data": data, **texts}.items()]
    template = files("tessera.inspect").joinpath("page.html").read_text(encoding="utf-8")
    # The data come last: nothing in them can be taken for a mark of the template.
    first = programs[0][0]
    title = first["run"]["file"] if "run" in first else first["name"]
    head, tail = template.replace("@NAME@", escape(title)).split("@DATA@")
    return "".join([head, *scripts, tail])


def programs_of(
    e: MachineExecutable, inputs: Sequence[Array], log: Sequence[Rewrite] = (), gpu: Sequence[str] = ()
) -> list[Shown]:  # fmt: skip
    """What the page shows of a program, then of the regions in it, and of the same program on GPUs."""
    sizes = e.sizes_at([x.shape for x in inputs])
    found = _with_regions(e)
    names = [x.graph.name for x in found]
    every = {"programs": [*names, *(f"{names[0]} for {n}" for n in gpu)]}
    numbers = {x.graph: i for i, x in enumerate(found)}
    with watching() as seen:
        e.run(inputs)
    with watching():  # runs that are timed tell nothing new
        ran = timed_runs(e, inputs)
    seconds, noted = ran.steps, ran.noted
    timeline = timeline_of(
        ran,
        e,
        {id(x): i for i, x in enumerate(found)},
        [numbers_of(x.schedule.steps) for x in found],
    )
    out: list[Shown] = []
    for i, x in enumerate(found):
        data, texts = _shown(x, sizes, seconds.get(id(x), {}), () if i else log)
        for step, s in zip(data["steps"], x.schedule.steps, strict=True):
            inner = s.node.regions if isinstance(s, HostCall) else ()
            step["regions"] = [numbers[r] for r in inner]
        own = {} if i else {"timeline": timeline, "watched": seen.data()}
        out.append((data | every | own, texts))
    _count_loops([data["steps"] for data, _ in out], found, noted)
    for n in gpu:
        data, texts = gpu_data(e.written, sizes, n)
        out.append((data | every, texts))
    return out


def _count_loops(
    steps: Sequence[list[dict[str, Any]]],
    found: Sequence[MachineExecutable],
    noted: Sequence[Noted],
) -> None:
    """Give a step on the host that runs programs, such as a loop, their work, as often as they ran."""
    runs = runs_of(noted)
    for own, program in zip(reversed(steps), reversed(found), strict=True):  # inner ones first
        whole = runs[id(program)]
        for s in own:
            for r in s["regions"] if whole else ():
                times = runs[id(found[r])] / whole
                if not times:  # a loop that one call drives, whose turns nothing notes
                    continue
                s.setdefault("ran", []).append(round(times, 2))
                for what in ("flops", "cost", "bytes"):
                    s[what] += times * sum(x[what] for x in steps[r])
                if s["seconds"]:
                    inner = sum(x.get("roof", 0.0) * x["seconds"] for x in steps[r])
                    s["roof"] = s.get("roof", 0.0) + times * inner / s["seconds"]


def _with_regions(e: MachineExecutable) -> list[MachineExecutable]:
    return [e, *(x for r in e.regions.values() for x in _with_regions(r))]


def _shown(
    e: MachineExecutable,
    sizes: Mapping[str, int],
    seconds: Mapping[str, float],
    log: Sequence[Rewrite],
) -> Shown:
    """What the page shows at once, and what it reads when it is looked at, by name."""
    record = e.record_for(sizes)
    if not any(
        s.level == GRAPH for s in record
    ):  # of a region, whose passes were those of the whole
        record = (PassResult("lowered", 0.0, e.graph), *record)
    made = e.at(sizes)
    c = Collector(record, last_of(record, SCHEDULE), made.image.steps)
    steps = c.steps(sizes, seconds)
    data: dict[str, Any] = {
        "name": e.graph.name, "sizes": dict(sizes), "threads": thread_count(),
        "machine": architecture().split(" +")[0],
        "passes": c.passes(), "nodes": c.nodes(), "schedule": c.schedule(),
        "steps": steps, "kernels": c.kernels(), "lower": c.lower,
        "memory": memory_data(made.plan), "peaks": peaks_data(peaks_here(), steps),
        "rewrites": rewrites_data(log, c.places),
    }  # fmt: skip
    places = c.places.data()
    return data | places | c.grouped(data, places["functions"]), c.texts


def _script(name: str, x: Any) -> str:
    """Data in a page; `<` is written so that no text in it ends the script."""
    text = json.dumps(x, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>\n'
