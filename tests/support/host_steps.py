"""Which ops of the catalogue the host runs inside programs for CPUs, by NumPy, called from Python.

Every sample of every op is lowered for f32 and for c64; what the host runs is recorded, by dtype and op.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tessera.compile.passes import GRAPH, SCHEDULE
from tessera.compile.pipeline import passes_of
from tessera.core.dtype import DType, c64, f32
from tessera.core.errors import TesseraError
from tessera.ir.graph.ir import Graph, concrete
from tessera.ir.schedule.ir import HostCall, Program
from tessera.ir.schedule.lower import lower
from tessera.ir.tile.cpu.loops import loop_kernel
from tests.support.cases.op_cases import Case, all_cases

FILE = Path(__file__).parent / "data" / "host_steps.json"
_PASSES = ("fuse", "fuse_contractions", "fuse_fft", "fuse_epilogues")
Record = dict[str, list[str]]


def host_steps(g: Graph) -> list[str]:
    """The ops that the host runs in the program of a graph, in its loops and branches too."""
    made: Any = g
    for p in passes_of("cpu", GRAPH):
        made = p.run(made)
    for p in passes_of("cpu", SCHEDULE):
        if p.name in _PASSES:
            made = p.run(made)
    return list(_hosted(made))


def _hosted(p: Program) -> Iterator[str]:
    for s in p.steps:
        if not isinstance(s, HostCall) or _is_free(s):
            continue
        if not s.node.regions:
            yield s.node.op.name
        elif loop_kernel(s) is None:
            if not s.node.op.control:
                yield s.node.op.name
            for r in s.node.regions:
                yield from _hosted(lower(r))


def _is_free(s: HostCall) -> bool:
    """A view, a barrier, a tensor of constants, which is made once, or nothing to do."""
    if any(0 in v.shape for v in (*s.node.operands, *s.node.results)):
        return True
    return s.node.op.view is not None or s.node.op.call == "barrier" or bool(s.node.op.makes)


def survey() -> Record:
    """The hosted ops for each dtype."""
    found: dict[str, set[str]] = {"f32": set(), "c64": set()}
    for case in all_cases():
        for dtype in (f32, c64):
            g = _traced(case, dtype)
            if g is not None:
                found[dtype.name].update(host_steps(g))
    return {name: sorted(ops) for name, ops in found.items()}


def _traced(case: Case, dtype: DType) -> Graph | None:
    """The graph of a case; None where it takes no such operands, or is the host's by its meaning."""
    if case.op is not None and case.op.effects:
        return None
    xs = case.draw(dtype)
    if dtype is c64 and not any(np.asarray(x).dtype.kind == "c" for x in xs):
        return None
    try:
        return case.trace([concrete(x).type for x in xs])
    except TesseraError:
        return None


def recorded() -> Record:
    """What the record says."""
    found: Record = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def write(found: Record) -> None:
    """Write the record."""
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
