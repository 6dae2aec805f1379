"""Which iteration solves A X = B when the user does not say: the flags of A decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.algebra.operator import Operator
from tessera.algebra.solve import ITERATIVE
from tessera.algebra.solvers.least import lsmr
from tessera.algebra.solvers.linear import bicgstab, cg, chebyshev, gmres, minres
from tessera.core.errors import OperandError
from tessera.ir.graph.ir import Value

METHODS: dict[str, Callable[..., Any]] = {
    "cg": cg, "minres": minres, "gmres": gmres, "bicgstab": bicgstab, "chebyshev": chebyshev,
    "lsmr": lsmr,
}  # fmt: skip


def iterated(a: Operator, b: Value, *, method: str | None = None, **options: Any) -> Value:
    """The solution by a method; without one, cg for positive, minres for self-adjoint, else gmres."""
    chosen = method or _by_flags(a)
    if chosen not in METHODS:
        raise OperandError(f"solve: method is {chosen!r}, expected one of {', '.join(METHODS)}")
    try:
        x: Value = METHODS[chosen](a, b, **options)[0]
    except TypeError as e:
        if isinstance(e, OperandError) or "argument" not in str(e):
            raise
        raise OperandError(f"solve: {chosen} does not know these options: {e}") from None
    return x


def _by_flags(a: Operator) -> str:
    if "positive" in a.flags:
        return "cg"
    return "minres" if "self_adjoint" in a.flags else "gmres"


ITERATIVE.provide(iterated)
