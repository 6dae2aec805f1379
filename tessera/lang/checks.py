"""ts.check: races, bounds, shared memory, registers and the roofline of kernels, in one report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import NoneType
from typing import Any

import numpy as np

from tessera.checks.banks import BankLayout, Swizzle
from tessera.checks.findings import Report, Verdict
from tessera.checks.kernel import TOOLS, check_kernel
from tessera.checks.roofline import MACHINES, RooflineMachine
from tessera.checks.specialise import specialise
from tessera.core.blame import blames_arguments
from tessera.core.constraints import solve
from tessera.core.dims import Size, substitute, symbols
from tessera.core.errors import OperandError, TesseraError, located
from tessera.core.parse_sizes import parse_dim
from tessera.ir.graph.ir import Value, data_of
from tessera.ir.tile.ir import Kernel
from tessera.lang.kernel.check_assembly import check_assembly
from tessera.lang.kernel.launch import owned
from tessera.lang.kernel.translate import known_sizes


@blames_arguments
def check(
    kernel: Any,
    *args: Any,
    tools: Sequence[str] = TOOLS,
    fixed: bool = False,
    given: Mapping[str, Size | str] | None = None,
    warps: int | None = None,
    machine: RooflineMachine | str | None = None,
    layouts: Mapping[str, BankLayout] | BankLayout | None = None,
    **kwargs: Any,
) -> Report:
    """The report of all tools on a kernel, a jitted function or Tile IR, for arguments of these types.

    Symbolic sizes may be anything unless `fixed` says that only those of the arguments matter, or
    `given` says what some are, such as {"B": "4*C"}: what the callers of a kernel see to.
    """
    try:
        _check_options(tools, given, warps, machine, layouts)
        schedule = getattr(kernel, "schedule", None)
        layouts = layouts or _layout(schedule)
        warps = warps or getattr(schedule, "warps", None) or 4
        verdicts: list[Verdict] = []
        hints = _hints_of(kernel, args, kwargs)
        for k, sizes, made, call in kernels_of(kernel, args, kwargs):
            if given:
                k = specialise(
                    k, {n: parse_dim(x) if isinstance(x, str) else x for n, x in given.items()}
                )
            k = specialise(k, sizes) if fixed else k
            verdicts += check_kernel(
                k, sizes, None, tools, layouts, warps, machine, made, hints, call
            )
            verdicts += check_assembly(k)
        return Report(verdicts)
    except TesseraError as e:
        error = located(e)
    raise error


def _check_options(tools: Any, given: Any, warps: Any, machine: Any, layouts: Any) -> None:
    """Raise OperandError at an option that check does not know."""
    for name, x, kinds, wanted in (
        ("tools", tools, (list, tuple), "a list of names of tools"),
        ("given", given, (Mapping, NoneType), "a dictionary from names of sizes to sizes"),
        ("warps", warps, (int, NoneType), "a number of warps"),
        ("machine", machine, (str, RooflineMachine, NoneType), "a Machine or its name"),
        ("layouts", layouts, (Mapping, BankLayout, NoneType), "a Layout, or one for each memory"),
    ):
        if not isinstance(x, kinds):
            raise OperandError(f"check: {name} is {x!r:.40}, expected {wanted}")
    if warps is not None and warps < 1:
        raise OperandError(f"check: warps is {warps}, expected at least 1")
    if isinstance(machine, str) and machine not in MACHINES:
        raise OperandError(f"check: machine is {machine!r}, expected one of {', '.join(MACHINES)}")


# With sizes, names of the results that must be whole, and arrays for all parameters where the arguments
# are data.
Checked = tuple[Kernel, Any, frozenset[str] | None, list[Any] | None]


def kernels_of(f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Checked]:
    """The Tile kernels of what a user has, with the sizes of the arguments."""
    if isinstance(f, Kernel):
        return [(f, _sizes(f, args), None, None)]
    if not hasattr(f, "lower"):
        raise OperandError(
            f"check: got {type(f).__name__}, expected a kernel, a jitted function or Tile IR"
        )
    if hasattr(f, "signature") and hasattr(f, "chosen"):
        return [_of_kernel(f, args, kwargs)]
    try:
        lowered = f.lower(*args, **kwargs)
    except _PYTHON as e:  # of the function itself, while it is traced
        raise OperandError(f"check: the function does not run: {type(e).__name__}: {e}") from e
    if isinstance(lowered, Kernel):
        return [(lowered, _sizes(lowered, args), None, None)]
    sizes = lowered.sizes
    return [(replace(k, name=name), sizes, None, None) for name, k in lowered.every_tile]


_PYTHON = (ArithmeticError, AttributeError, LookupError, NameError, TypeError, ValueError)


def _of_kernel(f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Checked:
    """A kernel of the kernel language; sizes that every call must find equal are one."""
    bound = f.signature.bind(args, kwargs)
    shapes = zip(bound.parameters, bound.shapes, strict=True)
    sizes = solve([(p.name, p.type.shape, shape) for p, shape in shapes], ())
    t = f.translated(bound, sizes, f.chosen(bound, sizes, None))
    same: dict[str, Size] = {}
    for left, right, _ in t.equations():
        for name, other in ((str(left), right), (str(right), left)):
            if name in t.kernel.sizes and name not in same and name not in symbols(other):
                same = {k: substitute(v, {name: other}) for k, v in same.items()}
                same[name] = substitute(other, same)
                break
    made = frozenset(m.name for m in t.kernel.parameters[len(t.inputs) :]) - t.partial
    return specialise(t.kernel, same), sizes, made, _arrays(t, bound, sizes)


_MOST_BYTES = 1 << 26  # of arguments that a kernel is run on


def _arrays(t: Any, bound: Any, sizes: Mapping[str, int]) -> list[Any] | None:
    """The arguments of a call and room for its results, or None where they are not data, or large."""
    try:
        given = [data_of(a, t.kernel.name) if isinstance(a, Value) else a for a in bound.arrays]
    except TesseraError:
        return None
    if (
        not all(isinstance(a, np.ndarray) for a in given)
        or sum(a.nbytes for a in given) > _MOST_BYTES
    ):
        return None
    known = known_sizes(t, sizes)
    own, made = owned(t.kernel, given, known)
    return [*own, *made]


def _sizes(k: Kernel, args: Sequence[Any]) -> dict[str, int]:
    """The sizes that arguments give, in the order of the parameters."""
    tensors = [a for a in args if hasattr(a, "shape")]
    shapes = [
        (m.name, m.type.shape, tuple(a.shape))
        for m, a in zip(k.parameters, tensors, strict=False)
        if len(m.type.shape) == len(a.shape)
    ]
    return solve(shapes, ()) if shapes else {}


def _hints_of(f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """What the targets make of the hints of a kernel of the kernel language."""
    if not hasattr(f, "hints"):
        return "none given"
    left = {target: f.hints(*args, target=target, **kwargs) for target in ("cpu", "cuda")}
    said = [f"refused on {t}: {', '.join(names)}" for t, names in left.items() if names]
    return "; ".join(said) or "all are used"


def _layout(schedule: Any) -> BankLayout | None:
    """How a schedule says that shared memory is laid out."""
    vector, swizzle = getattr(schedule, "vector", None), getattr(schedule, "swizzle", None)
    if vector is None and swizzle is None:
        return None
    wide = vector or 1
    return BankLayout(Swizzle(3, max(wide, 4)) if swizzle == "xor" else None, wide)
