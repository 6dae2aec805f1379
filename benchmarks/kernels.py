"""Where the time of a training step goes: its kernels, beside what the machine could do.

    python benchmarks/kernels.py gpt [--top 30] [--rounds 5] [--threads 1]

Each step of the prepared program is timed by itself, and the least of the rounds counts.  On one thread the
clock is that of the thread, so that a busy machine disturbs little.  `least` is the roofline: operations
or bytes at the rates that this machine reached in a product of matrices and in a copy.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

from training.start import WORKLOADS
from training.with_tessera import step_of

import tessera as ts
from tessera.compile.cpu.bound_program import Prepared
from tessera.core import tree
from tessera.ir.schedule.ir import Group, HostCall, Kernel
from tessera.runtime.kernel import cells_of
from tessera.runtime.pool import Job, Series, pool
from tessera.runtime.threads import thread_count
from tessera.tune.roofline import KernelWork, peaks_here, work_of


class Steps(Prepared):
    """A prepared program whose steps run one by one."""

    def _segmented(self, steps: Sequence[tuple[Any, Any]]) -> list[Any]:
        self.named: list[tuple[str, Any]] = []
        for access, what in steps:
            if isinstance(what, Job):
                places = [self._place(n) for n in (*access.reads, *access.writes)]
                self.named.append((access.name, Series([[(what, places)]], self.threads)))
            elif what is None:
                self.named.append((access.name, self._copy(access.writes[0])))
            else:
                self.named.append((f"host {access.name}", self._hosted(access, what)))
        return []

    def _quick(self) -> None:
        return None

    def timed(self, inputs: Sequence[Any], clock: Callable[[], float]) -> list[tuple[str, float]]:
        """The seconds of each step in one run."""
        cells, found = self._cells(inputs), []
        for name, what in self.named:
            packed = self._pack(*cells_of(cells))
            start = clock()
            if isinstance(what, Series):
                pool().run_series(what, packed)
            else:
                what(cells)
            found.append((name, clock() - start))
        return found


def prepared(name: str) -> tuple[Any, Steps, list[Any]]:
    """The executable of a workload, its steps, and its inputs."""
    w = WORKLOADS[name]
    step, optimizer = step_of(name, w.adam, w.rate)
    params, data = ({k: ts.tensor(x) for k, x in a.items()} for a in w.start("float32"))
    state = optimizer.init(params)
    e = step.lower(params, state, data)._executable
    inputs = [t.numpy() for t in tree.leaves((params, state, data))]
    inputs += e._captured
    made = Steps(name, e.image, e._kernels, {}, thread_count(), e._host)
    return e, made, inputs


def work_at(s: Any, types: Any) -> KernelWork:
    """What a step must do."""
    if isinstance(s, Kernel):
        return work_of(s, types, {})
    if not isinstance(s, Group):
        return KernelWork(
            0,
            sum(
                t.dtype.itemsize * _count(t) for t in (types[n] for n in (*s.operands, *s.results))
            ),
        )
    inner = {**types, **s.local}
    flops = sum(work_of(k, inner, {}).flops for k in s.kernels)
    moved = sum(types[n].dtype.itemsize * _count(types[n]) for n in (*s.inputs(), *s.outputs))
    return KernelWork(flops, moved)


def _count(t: Any) -> int:
    total = 1
    for n in t.shape:
        total *= n
    return total


def described(s: Any) -> str:
    """A step in a few words."""
    if isinstance(s, HostCall):
        return str(s)
    if not isinstance(s, Kernel | Group):
        return s.primitive
    first = s.stages[0]
    sizes = "x".join(str(a.size) for a in first.axes)
    over = "x".join(str(a.size) for a in first.reduced)
    kind = "group" if isinstance(s, Group) else "contraction" if s.contracts else "rows"
    return f"{kind} {sizes}{f' over {over}' if over else ''}, {len(s.stages)} stages, writes {len(s.outputs)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=tuple(WORKLOADS))
    parser.add_argument("--top", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    with ts.threads(given.threads):
        show(given)


def show(given: argparse.Namespace) -> None:
    """Measure, and print the steps that take longest."""
    e, steps, inputs = prepared(given.workload)
    clock = time.thread_time if given.threads == 1 else time.perf_counter
    runs = [steps.timed(inputs, clock) for _ in range(given.rounds)]
    best = [(names[0][0], min(t for _, t in names)) for names in zip(*runs, strict=True)]
    peaks, types = peaks_here(), {n: b.type for n, b in e.schedule.buffers.items()}
    print(f"{sum(t for _, t in best) * 1e3:.1f} ms in {len(best)} steps; "
          f"peaks {peaks.flops / 1e9:.0f} GF/s, {peaks.bandwidth / 1e9:.1f} GB/s")  # fmt: skip
    known = {s.name: s for s in e.schedule.steps if not isinstance(s, HostCall)}
    rows = []
    for name, seconds in best:
        s = known.get(name) or known.get(name.rsplit("_", 1)[0])
        w = work_at(s, types) if s is not None else KernelWork(0, 0)
        rows.append((seconds, name, w, "" if s is None else described(s)))
    print(f"{'ms':>9}{'least':>9}{'GF/s':>8}{'GB/s':>8}  step")
    for seconds, name, w, text in sorted(rows, key=lambda r: -r[0])[: given.top]:
        print(f"{seconds * 1e3:9.3f}{w.seconds(peaks) * 1e3:9.3f}{w.flops / seconds / 1e9:8.1f}"
              f"{w.bytes / seconds / 1e9:8.1f}  {name}  {text}")  # fmt: skip


if __name__ == "__main__":
    main()
