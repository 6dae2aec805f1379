"""tessera tune: find the fastest nests of a file's kernels, with live progress."""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from typing import Any

import tessera
from tessera import cache
from tessera.cli.programs import example, size_of, specs_of
from tessera.cli.show import Live, Table, UsageError, console, escape, split, table_of
from tessera.cli.subjects import subjects_of
from tessera.lang.tuning import Tuning


def tune_file(args: argparse.Namespace) -> int:
    """Find the fastest nests of a file's kernels on this machine, and keep them."""
    if args.file is None and not (args.load or args.export):
        raise UsageError("name a file to tune, or give --import or --export")
    if not args.budget > 0:
        raise UsageError(f"--budget is {args.budget:g}, expected more than 0")
    for size in args.size:
        size_of(size)
    if args.load:
        _say(args, f"{cache.load(args.load)} kernels taken over from {args.load}")
    found = _tune_all(args) if args.file else []
    if args.export:
        _say(args, f"{cache.export(args.export)} kernels written to {args.export}")
    if args.json:
        print(json.dumps([_outcome(t, o) for t in found for o in t]))
    return 0


def _say(args: argparse.Namespace, text: str) -> None:
    if not args.json:
        print(text)


def _tune_all(args: argparse.Namespace) -> list[Tuning]:
    found: list[Tuning] = []
    subjects = subjects_of(
        *split(args.file),
        args.size,
        "tune",
        lambda f, sizes: {n: example(x, sizes) for n, x in specs_of(f).items()},
        args.rest,
        every=True,
    )
    screen = console()
    for s in subjects:
        shown = screen.is_terminal and not args.json
        with Live(console=screen, transient=True) if shown else nullcontext() as live:
            report = (lambda p, live=live: live.update(_candidates(p))) if live else None
            found.append(tessera.tune(s.function, *s.args, budget_ms=args.budget / len(subjects),
                                      again=args.again, report=report, **s.kwargs))  # fmt: skip
        if not args.json:
            screen.print(_outcomes(found[-1]))
    return found


def _candidates(p: Any) -> Table:
    """The candidates of a kernel while it is tuned, the fastest first."""
    table = table_of("ms", "samples", "nest")
    table.title = f"{p.kernel}: {len(p.candidates)} of {p.space} nests, {p.spent:.0%} of its time"
    for c in p.candidates[:12]:
        table.add_row(f"{c.seconds * 1e3:.3f}", str(len(c.times)), escape(str(c.nest)))
    return table


def _outcomes(t: Tuning) -> Table:
    table = table_of("kernel", "default ms", "best ms", "gain", "tried", "nest")
    for o in t:
        nest = str(o.best) if o.best != o.default else "the default"
        tried = "known" if o.known else str(o.tried)
        cells = (f"{o.before * 1e3:.3f}", f"{o.seconds * 1e3:.3f}", f"{o.gain:.2f}x", tried, nest)
        table.add_row(escape(o.kernel), *map(escape, cells))
    return table


def _outcome(t: Tuning, o: Any) -> dict[str, Any]:
    return {
        "function": t.function, "kernel": o.kernel, "default": str(o.default), "nest": str(o.best),
        "default_ms": o.before * 1e3, "best_ms": o.seconds * 1e3, "gain": o.gain, "tried": o.tried,
        "known": o.known,
    }  # fmt: skip
