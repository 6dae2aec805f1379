"""Repeat a recorded run, and find the first call and the first op that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.compile import compile_graph
from tessera.compile.executable import Executable
from tessera.core.errors import FileError
from tessera.ir.graph.ir import Graph, Node, on_host
from tessera.ir.graph.text import parse_graph
from tessera.replay.file import Array, Called, RecordReader, Told, places
from tessera.replay.ops import op_by_op, outputs_of, together, ways_of

Report = Callable[[int, int, str], None]  # call, number of calls, what came of it
_SHOWN = 3  # elements that a difference shows


@dataclass(frozen=True)
class Difference:
    """The first place where a replay gave other bits."""

    call: int  # from 0
    function: str
    what: str  # "output 0", or the op
    op: str  # its name; "" where no op was recorded, or none differs by itself
    where: str  # the user's line
    values: str  # recorded and replayed, side by side
    how: str  # by itself, or inside a compiled program

    def __str__(self) -> str:
        place = f"\n  at {self.where}" if self.where else ""
        return f"call {self.call + 1}, {self.function}: {self.what} differs {self.how}: {self.values}{place}"


@dataclass(frozen=True)
class ReplayOutcome:
    """What a replay found."""

    calls: int
    skipped: int
    difference: Difference | None

    def __str__(self) -> str:
        if self.difference is not None:
            return str(self.difference)
        left = f"; {self.skipped} that call the host were not repeated" if self.skipped else ""
        return f"{self.calls - self.skipped} calls repeated with the recorded bits{left}"


def replay(path: str, target: str | None = None, report: Report | None = None) -> ReplayOutcome:
    """Repeat the calls of a record, on the target that they ran on unless another is named."""
    return _Replay(RecordReader(path), target).run(report or (lambda *_: None))


class _Replay:
    def __init__(self, file: RecordReader, target: str | None):
        self.file, self.target = file, target
        self.calls = file.record.calls
        self.made: dict[str, Array] = {}  # outputs of calls that later ones take, by their digests
        self.last = {t.digest: i for i, c in enumerate(self.calls) for t in c.inputs}
        self._programs: dict[tuple[str, str, str], tuple[Graph, Executable]] = {}

    def run(self, report: Report) -> ReplayOutcome:
        skipped = 0
        for i, c in enumerate(self.calls):
            if not c.program:
                skipped += 1
                continue
            report(i, len(self.calls), c.function)
            found = self.repeat(i, c)
            if found is not None:
                return ReplayOutcome(len(self.calls), skipped, found)
            self.made = {d: x for d, x in self.made.items() if self.last.get(d, -1) > i}
        return ReplayOutcome(len(self.calls), skipped, None)

    def repeat(self, i: int, c: Called) -> Difference | None:
        """Repeat a call; the first difference, if there is one."""
        target = self.target or c.target
        g, program = self.program(c, target)
        inputs = [self.input(t) for t in c.inputs]
        outs = [np.asarray(on_host(x)) for x in program.run([x.copy() for x in inputs])]
        told = list(map(Told.of, outs))
        self.made |= {t.digest: x for t, x in zip(told, outs, strict=True)}
        wrong = next(
            (
                k
                for k, (a, b) in enumerate(zip(told, c.outputs, strict=True))
                if a.digest != b.digest
            ),
            None,
        )
        if wrong is None:
            return None
        output = self.difference(i, c, f"output {wrong}", "", "", c.outputs[wrong], outs[wrong], "")
        if not c.ops:
            return output
        return self.located(i, c, g, inputs, target) or output

    def program(self, c: Called, target: str) -> tuple[Graph, Executable]:
        key = (c.program, target, c.numerics)
        if key not in self._programs:
            g = parse_graph(self.file.text(f"programs/{c.program}.mlir"))
            if g.hash != c.program:
                raise FileError(f"replay: the program of {c.function} is damaged")
            self._programs[key] = g, compile_graph(g, target, c.numerics)
        return self._programs[key]

    def input(self, t: Told) -> Array:
        found = self.made.get(t.digest)
        if found is None:
            found = self.file.array(t)
            if self.last.get(t.digest, 0) > 0:
                self.made[t.digest] = found
        return found

    def located(
        self, i: int, c: Called, g: Graph, inputs: Sequence[Array], target: str
    ) -> Difference | None:
        """The first op whose results differ: by itself, then among others, then at the end of a part of the
        program.
        """
        ways: list[tuple[Any, str]] = [
            (ways_of(target), "by itself"),
            (together, "in a compiled program"),
        ]
        for way, how in ways if ways_of(target) is op_by_op else ways[1:]:
            for k, (n, results) in enumerate(way(g, inputs, target, c.numerics)):
                found = self.op(i, c, k, n, results, how)
                if found is not None:
                    return found
        return self.by_parts(i, c, g, inputs, target)

    def by_parts(
        self, i: int, c: Called, g: Graph, inputs: Sequence[Array], target: str
    ) -> Difference | None:
        """The first op that is wrong where a program ends with it: the fault is in a kernel that joins it
        with others.
        """
        for k, n in _with_results(g):
            results = outputs_of(g, n.results, inputs, target, c.numerics)
            found = self.op(i, c, k, n, results, "where it is fused with the ops before it")
            if found is not None:
                return found
        return None

    def op(
        self, i: int, c: Called, k: int, n: Node, results: Sequence[Array], how: str
    ) -> Difference | None:
        for t, x in zip(c.ops[k].results, results, strict=True):
            if Told.of(x).digest != t.digest:
                return self.difference(
                    i, c, f"op {k} ({n.op.name})", n.op.name, c.ops[k].where, t, x, how
                )
        return None

    def difference(
        self, i: int, c: Called, what: str, op: str, where: str, told: Told, now: Array, how: str
    ) -> Difference:
        return Difference(
            i, c.function, what, op, where, self.values(told, now), how or "from the record"
        )

    def values(self, told: Told, now: Array) -> str:
        """Recorded and replayed elements, the first that differ."""
        if Told.of(now).shape != told.shape or Told.of(now).dtype != told.dtype:
            return f"recorded {told}, now {Told.of(now)}"
        kept = self.file.kept(told)
        if kept is None:
            return f"recorded {told} {told.digest[:12]}, now {Told.of(now).digest[:12]}"
        at = places(now.size)
        mine = np.ascontiguousarray(now).reshape(-1)[at]
        bad = [j for j in range(len(at)) if mine[j].tobytes() != kept[j].tobytes()]
        if not bad:
            return (
                f"recorded {told} {told.digest[:12]}, now {Told.of(now).digest[:12]}, at elements that "
                "were not kept"
            )
        shown = [f"{_place(now, int(at[j]))} was {kept[j]!s}, is {mine[j]!s}" for j in bad[:_SHOWN]]
        return f"{told}, {len(bad)} of {len(at)} elements: {'; '.join(shown)}"


def _with_results(g: Graph) -> Iterator[tuple[int, Node]]:
    return ((k, n) for k, n in enumerate(g.nodes) if n.results)


def _place(x: Array, k: int) -> str:
    return f"[{', '.join(str(int(j)) for j in np.unravel_index(k, x.shape))}]"
