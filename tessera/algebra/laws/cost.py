"""What operators cost: scalar operations, bytes moved and launches of kernels, and seconds from these."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tessera.algebra.apply import cost_of
from tessera.algebra.kind import Cost
from tessera.algebra.laws.datum import Datum, closure, elements, flops, size
from tessera.algebra.operator import Operator

# One core of a common machine; only ratios matter for a choice.
FLOPS = 3e10  # a second
BANDWIDTH = 2e10  # bytes a second
LAUNCH = 3e-6  # seconds (benchmarks/representations.py)


def seconds(c: Cost) -> float:
    """About how long a cost takes."""
    return c.flops / FLOPS + c.bytes / BANDWIDTH + c.launches * LAUNCH


_VIEWS = {"leaf", "number", "transpose", "cut", "place", "join", "beside", "reflect", "ones"}


def datum_cost(d: Datum) -> Cost:
    """What computing one datum from its arguments costs."""
    if d.fn in _VIEWS or d.weak:
        return Cost()
    moved = sum(elements(x.shape) * x.dtype.bits / 8 for x in (d, *d.args))
    work = (4.0 if d.dtype.kind == "c" else 1.0) * flops(d)
    return Cost(work, moved, 1)


def data_cost(data: Iterable[Any]) -> Cost:
    """What computing data costs; what is shared counts once."""
    needed = [d for d in data if isinstance(d, Datum) and d.args]
    return Cost().plus(*(datum_cost(d) for d in closure(needed))) if needed else Cost()


class PartUse(NamedTuple):
    """How often a part is applied, and to how many columns."""

    times: float
    columns: float


def _kron_uses(a: Operator, k: float) -> list[PartUse]:
    """The factor that shrinks more is applied first."""
    (m, n), (p, q) = ((size(s) for s in part.shape) for part in a.parts)
    if p * n <= q * m:
        return [PartUse(1, p * k), PartUse(1, n * k)]
    return [PartUse(1, q * k), PartUse(1, m * k)]


_EASY = {"eye", "diag", "permutation", "triangular", "tridiagonal", "circulant"}  # to solve


def _solve_uses(a: Operator, k: float) -> list[PartUse]:
    """A part that is easy to solve is not applied; of any other the matrix is made."""
    return [PartUse(0, 1) if a.parts[0].kind in _EASY | {"dense"} else PartUse(1, size(a.shape[1]))]


def _solve_cost(a: Operator, k: float) -> Cost:
    """A solution costs as an application for easy parts, else a factorisation and substitutions."""
    if a.parts[0].kind in _EASY:
        return cost_of(a.parts[0], k)  # type: ignore[arg-type]
    n = size(a.shape[0])
    work = 4.0 if a.dtype.kind == "c" else 1.0
    width = a.dtype.bits / 8
    return Cost(work * (2 / 3 * n**3 + 2 * n * n * k), width * (2 * n * n + 2 * n * k), 2)


# Kinds that apply their parts to other columns than their own.
OWN: dict[str, Callable[[Operator, float], Cost]] = {"inverse": _solve_cost}
USES: dict[str, Callable[[Operator, float], list[PartUse]]] = {
    "kronecker": _kron_uses,
    "inverse": _solve_uses,
    "power": lambda a, k: [PartUse(a.static[0], k)],
    "function": lambda a, k: [PartUse(1, size(a.shape[1]))],
    "kronsum": lambda a, k: [PartUse(1, size(a.parts[1].shape[1]) * k),
                             PartUse(1, size(a.parts[0].shape[1]) * k)],
}  # fmt: skip


def uses(a: Operator, columns: float) -> list[PartUse]:
    """How the parts of an operator are used when it is applied to columns."""
    rule = USES.get(a.kind)
    return [PartUse(1, columns)] * len(a.parts) if rule is None else rule(a, columns)


def own_cost(a: Operator, columns: float) -> Cost:
    """What an operator costs besides its parts: parts that are zero cost nothing."""
    data: tuple[Datum, ...] = a.data  # type: ignore[assignment]
    rule = OWN.get(a.kind)
    if rule is not None:
        return rule(a, columns)
    if a.parts:
        hollow = [Operator("zero", static=(*p.shape, p.dtype)) for p in a.parts]
        a = Operator(a.kind, hollow, a.data, a.static)
    return cost_of(a, columns).plus(data_cost(data))  # type: ignore[arg-type]


def total_cost(a: Operator, columns: float = 1) -> Cost:
    """What a symbolic operator costs on columns, with the data it needs."""
    total = own_cost(a, columns)
    for part, use in zip(a.parts, uses(a, columns), strict=True):
        c = total_cost(part, use.columns)
        total = total.plus(*[c] * int(use.times))
    return total
