"""All checks of a kernel, one line each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from tessera.checks.banks import BankLayout, check_banks
from tessera.checks.barriers import check_barriers
from tessera.checks.bounds import check_bounds
from tessera.checks.concrete import Array
from tessera.checks.findings import Report, Verdict
from tessera.checks.initial import check_initial
from tessera.checks.races import check_races
from tessera.checks.registers import check_registers
from tessera.checks.results import check_results
from tessera.checks.roofline import RooflineMachine, check_roofline
from tessera.checks.watched import check_run
from tessera.core.errors import OperandError
from tessera.ir.tile.ir import Kernel

TOOLS = (
    "races",
    "barriers",
    "bounds",
    "initial",
    "banks",
    "registers",
    "roofline",
    "results",
    "run",
    "hints",
)
_EXAMPLE = 64  # for sizes that nobody gives, where a number is needed


def check_kernel(
    kernel: Kernel,
    sizes: Mapping[str, int] | None = None,
    arrays: Sequence[Array] | None = None,
    tools: Sequence[str] = TOOLS,
    layouts: Mapping[str, BankLayout] | BankLayout | None = None,
    warps: int = 4,
    machine: RooflineMachine | str | None = None,
    made: Collection[str] | None = None,
    hints: str = "none given",
    call: Sequence[Array] | None = None,
) -> Report:
    """The verdicts of the tools on a kernel.

    Races, bounds and scratch are looked at for all sizes; `sizes` are where the roofline stands.  Data
    is what positions are read from, where they are.  `made` are the parameters that
    must be written whole; `hints` says which of the author's hints are used.  `call` are arrays
    for all parameters, at `sizes`, on which the kernel is run.
    """
    some = dict.fromkeys(kernel.sizes, _EXAMPLE) | dict(sizes or {})
    promised = call is not None and "run" in tools  # which looks at the indices that there are
    run: dict[str, Callable[[], Verdict]] = {
        "races": lambda: check_races(kernel, None, arrays, promised),
        "barriers": lambda: check_barriers(kernel),
        "bounds": lambda: check_bounds(kernel, None, arrays, promised),
        "initial": lambda: check_initial(kernel, None, arrays),
        "banks": lambda: check_banks(kernel, None, layouts),
        "registers": lambda: check_registers(kernel, warps),
        "roofline": lambda: check_roofline(kernel, some, machine),
        "results": lambda: check_results(kernel, made, None),
        "run": lambda: check_run(kernel, made or (), some, call),
        "hints": lambda: Verdict("hints", kernel.name, note=hints),
    }
    for t in tools:
        if t not in run:
            raise OperandError(f"check: there is no tool {t!r}; there are {', '.join(run)}")
    return Report(_once([run[t]() for t in tools]))


def _once(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """What a run finds again, which another tool has found for all sizes, is left out."""
    known = {(f.tool, f.operation) for v in verdicts if v.tool != "run" for f in v.findings}
    return [
        replace(v, findings=kept, note=v.note or ("" if kept else "as above"))
        if v.tool == "run"
        else v
        for v in verdicts
        for kept in [tuple(f for f in v.findings if (f.tool, f.operation) not in known)]
    ]
