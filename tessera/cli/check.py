"""tessera check: the safety and performance tools on the kernels of a file."""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tessera
from tessera.checks.findings import Report
from tessera.checks.roofline import MACHINES
from tessera.cli.programs import example, execute, size_of, specs_of
from tessera.cli.show import UsageError, split
from tessera.cli.subjects import calls_of, could_make, full_name, is_of, own_name
from tessera.ir.tile.ir import Kernel
from tessera.lang.annotation import TensorSpec
from tessera.lang.checks import check
from tessera.lang.compilations import Compilation
from tessera.lang.jit import Jitted
from tessera.lang.kernel.decorate import KernelFunction
from tessera.lang.verify import Verified


def check_file(args: argparse.Namespace) -> int:
    """Run every tool on the kernels and jitted functions of a file; findings give exit status 1."""
    if args.machine is not None and args.machine not in MACHINES:
        raise UsageError(f"--machine is {args.machine!r}, expected one of {', '.join(MACHINES)}")
    path, name = split(args.file)
    sizes = dict(map(size_of, args.size))
    verdicts, calls = [], functools.cache(lambda: calls_of(path, args.rest))
    for f in _targets(path, name, calls):
        verdicts += _checked(f, sizes, args, calls)
    report = Report(verdicts)
    if args.json:
        print(json.dumps(report.json(), default=str))
    else:
        print("\n".join([_summary(report), *map(str, report)]))
    return 0 if report.ok else 1


def _summary(report: Report) -> str:
    """How many kernels were looked at, and what came of it."""
    kernels = len({v.kernel for v in report})
    if not kernels:
        return "no kernel to check: every step of the file runs on the host"
    proved, found = sum(v.proved for v in report), len(report.findings)
    asked = proved + sum(len(v.unproved) for v in report)
    said = f"{found} finding{'s' * (found != 1)}" if found else "nothing found"
    what = f"{kernels} kernel{'s' * (kernels > 1)}, {len(report)} checks"
    return f"{what}: {said}, {proved} of {asked} facts proved"


Calls = Callable[[], Sequence[Compilation]]  # those of the program, which runs when it is asked


def _targets(path: str, name: str, calls: Calls) -> list[Any]:
    """What a file defines that can be checked; a file of IR is one kernel."""
    if Path(path).is_file() and path.endswith((".mlir", ".tile")):
        return [tessera.ir.parse(Path(path).read_text())]
    defined = execute(path, "<tessera check>", [])
    kinds = (Kernel, Jitted, KernelFunction, Verified)
    found = {k: v for k, v in defined.items() if isinstance(v, kinds)}
    if not found or (name and name not in found and could_make(path, name, defined)):
        name = own_name(defined, name)
        called = [c for c in calls() if c.function is not None]
        found = {name if is_of(c, name) else full_name(c): c.function for c in called}
    if name and name not in found:
        raise UsageError(f"{path} has no kernel '{name}'; it has {', '.join(found) or 'none'}")
    if not found:
        raise UsageError(f"{path} has no kernel and no jitted function")
    return [found[name]] if name else list(found.values())


def _checked(f: Any, sizes: Mapping[str, int], args: argparse.Namespace, calls: Calls) -> list[Any]:
    if isinstance(f, Kernel):
        return list(check(f, machine=args.machine, warps=args.warps))
    inner = f.function if isinstance(f, Verified) else f
    given, examples = _given(inner, sizes, calls)
    if isinstance(inner, Jitted):
        inner = inner.keeping("cpu")
    found = list(check(inner, *given, machine=args.machine, warps=args.warps, **examples))
    return found + (list(f.report(*given, **examples)) if isinstance(f, Verified) else [])


def _given(
    f: Any, sizes: Mapping[str, int], calls: Calls
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Arguments that fit the annotations, or those of the first call in the program."""
    try:
        return (), _examples(f, sizes)
    except UsageError:
        name = f.name if isinstance(f, Jitted) else f.signature.name
        called = [c for c in calls() if c.name == name and c.function is not None]
        if not called:
            raise
        return called[0].args, called[0].kwargs


def _examples(f: Any, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Arguments that fit the annotations."""
    if isinstance(f, Jitted):
        return {n: example(s, sizes) for n, s in specs_of(f).items()}
    out = {}
    for name, p in f.signature.signature.parameters.items():
        spec = getattr(f.signature.annotations.get(name), "spec", f.signature.annotations.get(name))
        if isinstance(spec, TensorSpec):
            out[name] = example(spec, sizes)
        elif p.default is p.empty:
            raise UsageError(
                f"{f.signature.name} has a parameter without an annotation: {name}; write "
                f'{name}: KTile["M", "N", f32], or call ts.check(kernel, ...) in Python'
            )
    return out
