"""The lowering inspector: one page that shows a program at every level.

The page is one file that needs no network.  What is large is kept as text in it, and read when somebody looks
at it, so a page of thousands of nodes opens at once.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from tessera.algebra.laws.log import Rewrite
from tessera.compile.cpu.build import schedule_of
from tessera.compile.cpu.executable import MachineExecutable
from tessera.compile.executable import Step
from tessera.compile.gpu.executable import GpuExecutable
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
from tessera.inspect.profile import profile
from tessera.ir.graph.ir import Array
from tessera.ir.schedule.ir import HostCall
from tessera.ir.target.cpu.machine import architecture
from tessera.runtime.threads import thread_count
from tessera.tune.roofline import peaks_here

Shown = tuple[dict[str, Any], dict[str, Any]]  # at once, and when it is looked at
_RUNS, _LONGEST = 5, 1.0  # of the program whose kernels are timed, and the seconds for all runs


def write_page(
    e: MachineExecutable | GpuExecutable,
    inputs: Sequence[Any],
    path: str | os.PathLike[str] | None,
    log: Sequence[Rewrite] = (),
    gpu: Sequence[str] = (),
) -> Path:
    """Write the page of a program that runs on these inputs; unless given, the path is that of its name."""
    where = Path(path if path is not None else f"{e.graph.name}.html")
    _demand_folder(where)
    demand_architectures(gpu)
    text = page_of(e, inputs, log, gpu)
    try:
        write_whole(where, text)
    except OSError as error:
        raise OperandError(f"inspect: {where} cannot be written ({error.strerror})") from None
    return where


def _demand_folder(where: Path) -> None:
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
    e: MachineExecutable | GpuExecutable,
    inputs: Sequence[Any],
    log: Sequence[Rewrite] = (),
    gpu: Sequence[str] = (),
) -> str:
    """The page of a program as HTML, with the operators that were simplified while it was traced."""
    if isinstance(e, GpuExecutable):
        gpu = gpu or (architecture_of(e),)
        e, inputs = on_the_host(e, inputs)
    return render(programs_of(e, inputs, log, gpu))


def render(programs: Sequence[Shown]) -> str:
    """The page that shows these data."""
    scripts = []
    for i, (data, texts) in enumerate(programs):
        prefix = f"{i}." if i else ""
        scripts += [_script(prefix + k, x) for k, x in {"data": data, **texts}.items()]
    template = files("tessera.inspect").joinpath("page.html").read_text(encoding="utf-8")
    # The data come last: nothing in them can be taken for a mark of the template.
    head, tail = template.replace("@NAME@", escape(programs[0][0]["name"])).split("@DATA@")
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
    seconds = _seconds(e, inputs)
    out = []
    for i, x in enumerate(found):
        # Times are known by name: regions of the same name cannot be told apart.
        own = seconds.get(names[i], {}) if names.count(names[i]) == 1 else {}
        data, texts = _shown(x, sizes, own, () if i else log)
        for step, s in zip(data["steps"], x.schedule.steps, strict=True):
            inner = s.node.regions if isinstance(s, HostCall) else ()
            step["regions"] = [numbers[r] for r in inner]
        out.append((data | every, texts))
    for n in gpu:
        data, texts = gpu_data(e.written, sizes, n)
        out.append((data | every, texts))
    return out


def _with_regions(e: MachineExecutable) -> list[MachineExecutable]:
    return [e, *(x for r in e.regions.values() for x in _with_regions(r))]


def _shown(
    e: MachineExecutable,
    sizes: Mapping[str, int],
    seconds: Mapping[str, float],
    log: Sequence[Rewrite],
) -> Shown:
    """What the page shows at once, and what it reads when it is looked at, by name."""
    record = e.record or (Step("lowered", 0.0, e.graph),)
    c = Collector(record, lambda: schedule_of(e.graph, sizes, e.numerics))
    data = {
        "name": e.graph.name, "sizes": dict(sizes), "threads": thread_count(),
        "machine": architecture().split(" +")[0],
        "passes": c.passes(), "nodes": c.nodes(), "schedule": c.schedule(),
        "steps": c.steps(sizes, seconds), "kernels": c.kernels(), "lower": c.lower,
        "memory": memory_data(e.at(sizes).plan), "peaks": peaks_data(peaks_here()),
        "rewrites": rewrites_data(log, c.places),
    }  # fmt: skip
    return data | c.places.data(), c.texts


def _seconds(e: MachineExecutable, inputs: Sequence[Array]) -> dict[str, dict[str, float]]:
    """The usual time of each kernel of each program, over a few runs."""
    e.run(inputs)
    with profile() as p:
        begin = time.perf_counter()
        for _ in range(_RUNS):
            e.run(inputs)
            if time.perf_counter() - begin > _LONGEST:
                break
    out: dict[str, dict[str, float]] = {}
    for r in p.kernels:
        if r.kind == "kernel":
            out.setdefault(r.program, {})[r.name] = r.usual
    return out


def _script(name: str, x: Any) -> str:
    """Data in a page; `<` is written so that no text in it ends the script."""
    text = json.dumps(x, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>\n'
