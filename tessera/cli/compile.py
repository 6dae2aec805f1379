"""tessera compile: the IR of a function after a pass, or at a level."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from tessera.cli.programs import example, specs_of
from tessera.cli.show import UsageError, split
from tessera.cli.subjects import subjects_of
from tessera.compile import PASSES, demand_target, lower_to, stop_pass, target_of
from tessera.compile.passes import GRAPH
from tessera.core.constraints import solve
from tessera.ir.graph.ir import Graph


def compile_file(args: argparse.Namespace) -> int:
    """Print the IR of a jitted function for arguments that fit its annotations, or that it is called with."""
    (s,) = subjects_of(
        *split(args.file),
        args.size,
        "compile",
        lambda f, sizes: {n: example(x, sizes) for n, x in specs_of(f).items()},
        args.rest,
    )
    t, call = s.function.traced_call(*s.args, **s.kwargs)
    target = args.target or ("cpu" if s.function.target == "numpy" else s.function.target)
    demand_target(target)
    tensors = [*call.tensors, *t.outer]
    given = [(str(v), v.shape, x.shape) for v, x in zip(t.graph.inputs, tensors, strict=False)]
    print(stopped(t.graph, target, args.stop_at, solve(given, t.graph.guards)))
    return 0


def stopped(traced: Graph, target: str, stop: str, sizes: Mapping[str, int]) -> str:
    """The text of a program after a pass, or at a level."""
    if stop == GRAPH:
        stop = PASSES[-1].name
    last = stop_pass(target, stop)
    names = [p.name for p in target_of(target)[0].passes]
    if last != "trace" and last not in names:
        raise UsageError(
            f"--stop-at is {stop}: {target} has no such pass; it has {', '.join(names)}"
        )
    if last == "build":
        raise UsageError("--stop-at build: what is built is no text; stop at emit")
    record = lower_to(traced, target, last, sizes)
    found = [s for s in record if s.name == last]
    if not found:
        raise UsageError(f"--stop-at {stop}: the pass does not run for this program on {target}")
    return found[0].text
