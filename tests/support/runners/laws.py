"""The laws of the compiler on one program: every level gives what the level before it gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import tessera as ts
from tessera.compile import LOOP_PASSES, PASSES
from tessera.compile.cpu import build
from tessera.compile.cpu.executable import MachineExecutable
from tessera.core.flags import override
from tessera.ir.graph.interp import interpret
from tessera.ir.graph.ir import Graph
from tessera.ir.graph.verify import verify as verify_graph
from tessera.ir.schedule.ir import Program
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.verify import verify as verify_schedule
from tessera.ir.tile.launch import Expansion
from tessera.runtime.code import Loading
from tests.support.cases.random_graphs import same_bits
from tests.support.cases.random_programs import Case
from tests.support.runners.levels import by_graph, by_schedule, by_tile, expanded

# Units in the last place, of the largest number on the way, that two ways to compute may lie apart.
UNITS = {"float64": 1024, "float32": 1024, "float16": 24, "bfloat16": 24}
THREADS = (1, 2, 3)


class Broken(AssertionError):
    """A law does not hold for a program."""


def check_all(cases: Sequence[Case]) -> None:
    """Every law for every case; machine code of all of them is built side by side."""
    lowered = [_lowered(c) for c in cases]
    with Loading() as loading, override(verify=True):  # which verifies the kernels
        images = [build.image_of(p, loading) for _, p in lowered]
        loading.finish()
    for c, (g, p), image in zip(cases, lowered, images, strict=True):
        tiles = expanded(p)
        _check_text(c, g, p, tiles)
        machine = MachineExecutable(g, (), image)
        for inputs in c.inputs:
            _check_levels(c, g, p, tiles, machine, inputs)


def _lowered(c: Case) -> tuple[Graph, Program]:
    g = c.graph
    for step in (*PASSES, *LOOP_PASSES):
        g = step.run(g)
        verify_graph(g)
    p = lower(g)
    verify_schedule(p)
    return g, p


def _check_text(c: Case, g: Graph, p: Program, tiles: Sequence[Expansion]) -> None:
    """Text of every level reads back as what it was printed from."""
    made = [launch.kernel for e in tiles for launch in e.launches]
    for level in (g, p, *(made if c.seed % 4 == 0 else ())):  # the reader of tiles takes its time
        again: Any = ts.ir.parse(level.text)
        if again.text != level.text or again.hash != level.hash:
            raise Broken(f"text does not read back\n{c}\n{level.text}")


def _check_levels(
    c: Case, g: Graph, p: Program, tiles: Sequence[Expansion], machine: MachineExecutable,
    inputs: list[Any],
) -> None:  # fmt: skip
    plain = [np.array(x, order="C") for x in inputs]
    want = by_schedule(p, plain)
    if not any(v.dtype.kind == "c" for n in g.nodes for v in (*n.operands, *n.results)):
        _same(c, "graph in the order of folds", by_graph(g, plain), want)
    check_near(c, plain, want)
    _same(c, "tile", by_tile(p, inputs, tiles), want)
    for threads, xs in zip(THREADS, (plain, inputs, plain), strict=True):
        with override(threads=threads):
            got = [np.array(y) for y in machine.run(xs)]
        _same(c, f"machine code, {threads} threads", got, want)


def check_near(c: Case, inputs: Sequence[Any], got: Sequence[Any]) -> None:
    """Outputs as close to the references of the ops as the numbers on the way allow."""
    _near(c, _everything(c.graph, inputs), got)


def _same(c: Case, who: str, got: Sequence[Any], want: Sequence[Any]) -> None:
    if not same_bits(got, want):
        raise Broken(f"{who} differs from schedule\n{c}\n{got}\n{want}")


def _everything(g: Graph, inputs: Sequence[Any]) -> tuple[list[Any], float, float]:
    """The outputs by the references of the ops, the largest number on the way, the coarsest unit."""
    values = [v for n in g.nodes for v in n.results]
    whole = Graph(
        g.inputs, g.nodes, [*g.outputs, *values], g.name, g.input_names, g.captured, g.guards
    )
    with np.errstate(all="ignore"):
        found = interpret(whole, [*inputs, *(v.storage for v in g.captured)])
    peak, unit = 1.0, 0.0
    for x in (*inputs, *found):
        name = {"complex64": "float32", "complex128": "float64"}.get(x.dtype.name, x.dtype.name)
        if name in UNITS:
            unit = max(unit, UNITS[name] * _epsilon(name))
            sizes = np.abs(x.astype(np.complex128))
            peak = max(peak, float(np.max(sizes[np.isfinite(sizes)], initial=0.0)))
    return found[: len(g.outputs)], peak, unit


def _epsilon(name: str) -> float:
    return 2.0**-7 if name == "bfloat16" else float(np.finfo(name).eps)


def _near(c: Case, found: tuple[list[Any], float, float], got: Sequence[Any]) -> None:
    want, peak, unit = found
    for x, y in zip(got, want, strict=True):
        if x.dtype != y.dtype or x.shape != y.shape:
            raise Broken(f"schedule gives {x.dtype}{x.shape}, graph {y.dtype}{y.shape}\n{c}")
        if x.dtype.kind in "biu":
            close = np.array_equal(x, y)
        else:
            a, b = x.astype(np.complex128), y.astype(np.complex128)
            close = np.allclose(a, b, rtol=0, atol=unit * peak, equal_nan=True)
        if not close:
            raise Broken(f"schedule is far from graph, allowed {unit * peak}\n{c}\n{x}\n{y}")
