"""What 60 programs of the corpus cost, in counts that are the same on every machine: none of them may grow
unnoticed.

nodes     of the graph that is lowered          launches  of kernels in a run
passes    that changed the graph                host      calls that leave machine code
kernels   that differ                           flops     and bytes, counted from the schedule
peak      bytes of memory beside the inputs     code      lines of LLVM IR
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from tessera.compile import passes_of
from tessera.compile.artifact import KernelCall
from tessera.compile.cpu.bound_program import Prepared
from tessera.compile.cpu.build import image_of, schedule_of
from tessera.core import processor
from tessera.inspect.work import StepWork, work_of
from tessera.ir.schedule.ir import HostCall
from tessera.runtime.kernel import CompiledKernel
from tests.golden.programs import PROGRAMS, Program
from tests.golden.record import FOLDER, PROCESSORS, pinned

FILE = FOLDER / "counts.json"
NAMES = list(PROGRAMS)[::3][:60]
ALLOWED = {"code": 0.02}  # share that a count may grow: of lines a few may change hands
Counts = dict[str, float]


class _Lines:
    """Takes the place of what builds: it counts lines."""

    def __init__(self) -> None:
        self.lines = 0

    def add(self, source: Any) -> bytes:
        self.lines += source.text.count("\n")
        return b""


def counts_of(p: Program) -> Counts:
    """The counts of a program on a processor that is fixed."""
    with pinned(PROCESSORS["avx512"]):
        g = p.trace()
        changed = 0
        for step in passes_of("cpu"):
            before, g = g, step.run(g)
            changed += before.text != g.text
        schedule = schedule_of(g, None, p.numerics)
        lines = _Lines()
        image = image_of(schedule, lines)
        types = {n: b.type for n, b in schedule.buffers.items()}
        work = sum((work_of(s, types, p.sizes) for s in schedule.steps), StepWork())
        nowhere: Any = SimpleNamespace(address=0)
        kernels = [CompiledKernel(e, code=nowhere) for e in image.kernels]
        names = frozenset(image.inputs[i] for i in p.donated)
        made = Prepared(
            g.name,
            image,
            kernels,
            p.sizes,
            processor.expected_threads(),
            lambda *_: (print, 0),
            names,
        )
        return {
            "nodes": len(g.nodes), "passes": changed, "kernels": len(image.kernels),
            "launches": sum(isinstance(s, KernelCall) for s in image.steps),
            "host": sum(isinstance(s, HostCall) for s in image.steps),
            "flops": round(work.flops), "bytes": round(work.bytes), "peak": made.peak, "code": lines.lines,
        }  # fmt: skip


def recorded() -> dict[str, Counts]:
    """What the record says."""
    found: dict[str, Counts] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def write(rows: dict[str, Counts]) -> None:
    """Write the record."""
    lines = ",\n".join(f"{json.dumps(n)}: {json.dumps(r)}" for n, r in rows.items())
    FILE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def grown(before: Counts, now: Counts) -> dict[str, str]:
    """The counts that are larger than the record allows."""
    return {
        n: f"{before[n]:.0f} -> {x:.0f}"
        for n, x in now.items()
        if n != "passes" and x > before[n] * (1 + ALLOWED.get(n, 0.0))
    }
