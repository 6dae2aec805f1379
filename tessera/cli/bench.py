"""tessera bench: how long the functions of a file take, beside what the machine allows."""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tessera.cli.programs import arguments_of
from tessera.cli.show import (
    Table,
    UsageError,
    check_place,
    complain,
    console,
    escape,
    split,
    table_of,
    write_file,
)
from tessera.cli.subjects import Subject, subjects_of
from tessera.core import tree
from tessera.core.errors import OperandError
from tessera.inspect.profile_facts import roof_of
from tessera.inspect.work import StepWork, work_of
from tessera.lang.tensor import Tensor
from tessera.runtime.cuda.memory import DeviceArray
from tessera.tune.measure import Timed
from tessera.tune.roofline import peaks_here

VERSION = 1  # of the file of figures
_SAMPLE = 1e-3  # seconds that a sample takes at least


@dataclass(frozen=True)
class BenchTimes:
    """The times of one function, in seconds of a call."""

    function: str
    median: float
    best: float
    spread: float  # the middle half of the samples, as a part of the median
    samples: int
    first: float  # the first call, which compiles
    flops: float
    bytes: float
    least: float  # what the machine needs; 0 where it is not known


def bench_file(args: argparse.Namespace) -> int:
    """Measure how long the annotated functions of a file take, beside what the machine allows."""
    if not args.budget > 0 or args.limit < 0:
        raise UsageError("--budget is above 0, and --limit is not below 0")
    check_place(args.save)
    earlier = {} if args.compare is None else _earlier(args.compare)
    path, name = split(args.file)
    draw = functools.partial(arguments_of, rng=np.random.default_rng(0))
    subjects = subjects_of(path, name, args.size, "bench", draw, args.rest, every=True)
    found = [_measured(s, args.budget / 1e3) for s in subjects]
    if args.save:
        whole = {"version": VERSION, "functions": [asdict(m) for m in found]}
        write_file(args.save, json.dumps(whole, indent=1) + "\n")
    if args.json:
        print(json.dumps([{**asdict(m), "before": earlier.get(m.function)} for m in found]))
    else:
        console().print(_shown(found, earlier))
    limit = 1 + args.limit / 100
    slower = [m for m in found if m.best > limit * earlier.get(m.function, float("inf"))]
    for m in slower:
        times = m.best / earlier[m.function]
        complain(f"{m.function} takes {times:.2f} times as long as in {args.compare}", 1)
    return 1 if slower else 0


def _measured(subject: Subject, budget: float) -> BenchTimes:
    def call() -> Any:
        return subject.function(*subject.args, **subject.kwargs)

    start = time.perf_counter()
    _wait(call())
    first = time.perf_counter() - start
    timed = Timed(call, _SAMPLE, _wait)
    timed.sampled(budget)
    times = timed.times
    quarter, middle, three = statistics.quantiles(times, n=4, method="inclusive")
    work, least = _work(subject)
    name = getattr(subject.function, "__name__", "function")
    return BenchTimes(name, middle, min(times), (three - quarter) / middle, len(times), first,
                    work.flops, work.bytes, least)  # fmt: skip


def _wait(made: Any) -> None:
    """Until a GPU has done what it was told to."""
    for x in tree.leaves(made):
        data: Any = x.storage if isinstance(x, Tensor) else None
        if isinstance(data, DeviceArray):
            data.gpu.synchronize()


def _work(s: Subject) -> tuple[StepWork, float]:
    """What a call does, and the least seconds that it takes; nothing where there are no kernels."""
    data = [getattr(x, "storage", None) for x in tree.leaves((s.args, dict(s.kwargs)))]
    gpus = [x.gpu for x in data if isinstance(x, DeviceArray)]
    if s.function.target != "cpu" and not gpus:
        return StepWork(), 0.0
    lowered, peaks = s.function.lower(*s.args, **s.kwargs), peaks_here()
    types = {n: b.type for n, b in lowered.schedule.buffers.items()}
    works = [work_of(s, types, lowered.sizes) for s in lowered.schedule.steps]
    if not gpus:
        return sum(works, StepWork()), sum(w.least(*peaks.roof(w)) for w in works)
    roof = roof_of(gpus[0].name)
    return sum(works, StepWork()), sum(w.least(*roof) for w in works) if roof else 0.0


def _shown(found: list[BenchTimes], earlier: Mapping[str, float]) -> Table:
    table = table_of(
        "function", "median ms", "best ms", "spread", "GF/s", "GB/s", "roof", "before ms"
    )
    for m in found:
        counted = m.least > 0
        before = earlier.get(m.function)
        table.add_row(
            escape(m.function), f"{m.median * 1e3:.4f}", f"{m.best * 1e3:.4f}", f"{m.spread:.1%}",
            f"{m.flops / m.best / 1e9:.1f}" if counted else "",
            f"{m.bytes / m.best / 1e9:.1f}" if counted else "",
            f"{m.least / m.best:.0%}" if counted else "",
            "" if before is None else f"{before * 1e3:.4f}",
        )  # fmt: skip
    return table


def _earlier(path: str) -> dict[str, float]:
    """The best times of a file that --save wrote, by function."""
    try:
        whole = json.loads(Path(path).read_text())
        if whole["version"] != VERSION:
            raise ValueError(whole["version"])
        return {str(m["function"]): float(m["best"]) for m in whole["functions"]}
    except OSError as e:
        raise OperandError(f"bench: {path} cannot be read ({e.strerror})") from None
    except (ValueError, KeyError, TypeError):
        raise OperandError(f"bench: {path} is no file that bench has saved") from None
