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

from tessera.build import schedule_of
from tessera.core.errors import OperandError
from tessera.inspect.page_data import Collector, memory_data, peaks_data
from tessera.inspect.profile import profile
from tessera.ir.graph.ir import Array
from tessera.ir.target.cpu.machine import architecture
from tessera.machine import MachineExecutable
from tessera.runtime.threads import thread_count
from tessera.tune.roofline import peaks_here

_RUNS, _LONGEST = 5, 1.0  # of the program whose kernels are timed, and the seconds for all runs


def write_page(
    e: MachineExecutable, inputs: Sequence[Array], path: str | os.PathLike[str] | None
) -> Path:
    """Write the page of a program that runs on these inputs; unless given, the path is that of its name."""
    where = Path(path if path is not None else f"{e.graph.name}.html")
    _demand_folder(where)
    text = page_of(e, inputs)
    try:
        where.write_text(text, encoding="utf-8")
    except OSError as error:
        if where.is_file():  # half a page is none
            where.unlink()
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


def page_of(e: MachineExecutable, inputs: Sequence[Array]) -> str:
    """The page of a program as HTML."""
    return render(*data_of(e, inputs))


def render(data: Mapping[str, Any], texts: Mapping[str, Any]) -> str:
    """The page that shows these data."""
    scripts = [_script("data", data), *(_script(k, x) for k, x in texts.items())]
    template = files("tessera.inspect").joinpath("page.html").read_text(encoding="utf-8")
    # The data come last: nothing in them can be taken for a mark of the template.
    head, tail = template.replace("@NAME@", escape(data["name"])).split("@DATA@")
    return "".join([head, *scripts, tail])


def data_of(e: MachineExecutable, inputs: Sequence[Array]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the page shows at once, and what it reads when it is looked at, by name."""
    shapes = [x.shape for x in inputs]
    sizes = e.sizes_at(shapes)
    c = Collector(e.record, lambda: schedule_of(e.graph, sizes))
    seconds = _seconds(e, inputs)
    data = {
        "name": e.graph.name, "sizes": sizes, "threads": thread_count(),
        "machine": architecture().split(" +")[0],
        "inputs": [[str(v.type), list(s)] for v, s in zip(e.graph.inputs, shapes, strict=False)],
        "passes": c.passes(), "nodes": c.nodes(), "schedule": c.schedule(),
        "steps": c.steps(sizes, seconds), "kernels": c.kernels(), "lower": c.lower,
        "memory": memory_data(e.memory_plan(shapes)), "peaks": peaks_data(peaks_here()),
    }  # fmt: skip
    return data | c.places.data(), c.texts


def _seconds(e: MachineExecutable, inputs: Sequence[Array]) -> Mapping[str, float]:
    """The usual time of each kernel, over a few runs."""
    e.run(inputs)
    with profile() as p:
        begin = time.perf_counter()
        for _ in range(_RUNS):
            e.run(inputs)
            if time.perf_counter() - begin > _LONGEST:
                break
    return {r.name: r.usual for r in p.kernels if r.program == e.graph.name and r.kind == "kernel"}


def _script(name: str, x: Any) -> str:
    """Data in a page; `<` is written so that no text in it ends the script."""
    text = json.dumps(x, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>\n'
