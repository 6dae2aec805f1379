"""All checks of a kernel, one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tessera.checks.banks import Layout, check_banks
from tessera.checks.barriers import check_barriers
from tessera.checks.bounds import check_bounds
from tessera.checks.concrete import Array
from tessera.checks.findings import Report, Verdict
from tessera.checks.initial import check_initial
from tessera.checks.races import check_races
from tessera.checks.registers import check_registers
from tessera.checks.results import check_results
from tessera.checks.roofline import Machine, check_roofline
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
    "hints",
)
_EXAMPLE = 64  # for sizes that nobody gives, where a number is needed


def check_kernel(
    kernel: Kernel,
    sizes: Mapping[str, int] | None = None,
    arrays: Sequence[Array] | None = None,
    tools: Sequence[str] = TOOLS,
    layouts: Mapping[str, Layout] | Layout | None = None,
    warps: int = 4,
    machine: Machine | str | None = None,
    operands: int | None = None,
    hints: str = "none given",
) -> Report:
    """The verdicts of the tools on a kernel.

    Races, bounds and scratch are looked at for all sizes; `sizes` are where the roofline stands.  Data
    is what positions are read from, where they are.  The first `operands` parameters are what a call
    brings, the others what it makes; `hints` says which of the author's hints are used.
    """
    some = dict.fromkeys(kernel.sizes, _EXAMPLE) | dict(sizes or {})
    run: dict[str, Callable[[], Verdict]] = {
        "races": lambda: check_races(kernel, None, arrays),
        "barriers": lambda: check_barriers(kernel),
        "bounds": lambda: check_bounds(kernel, None, arrays),
        "initial": lambda: check_initial(kernel, None, arrays),
        "banks": lambda: check_banks(kernel, None, layouts),
        "registers": lambda: check_registers(kernel, warps),
        "roofline": lambda: check_roofline(kernel, some, machine),
        "results": lambda: check_results(kernel, operands, None),
        "hints": lambda: Verdict("hints", kernel.name, note=hints),
    }
    for t in tools:
        if t not in run:
            raise OperandError(f"check: there is no tool {t!r}; there are {', '.join(run)}")
    return Report(run[t]() for t in tools)
