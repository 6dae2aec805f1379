"""Truncation: operators of lower rank within an error budget, with a certified residual.

A matrix inside an expression may be replaced by one of lower rank when that changes the whole by little.
How much a change of one matrix moves the whole is bounded by the norms of what stands around it: in
A @ X @ B it is |A| |B|.  Matrices are taken one after the other, and norms anew each time, so that the
changes add up to at most the budget.  Each change is measured: the Frobenius norm of the difference,
which bounds the spectral norm, computed in double precision from the factors that are returned, plus
what rounding can do to that computation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np

from tessera.algebra.apply import cost_of, dense_of
from tessera.algebra.kind import Cost
from tessera.algebra.laws.cost import seconds
from tessera.algebra.laws.derivation import part, replaced
from tessera.algebra.laws.form import TURNED
from tessera.algebra.operator import Operator
from tessera.ir.graph.ir import concrete, host_data
from tessera.ir.graph.place import known_data

Path = tuple[int, ...]
LARGEST = 1024  # sizes up to which the whole operator is looked at as one matrix
UNIT = 2.0**-53  # unit roundoff of f64
NARROW = 1.3  # two narrow products run slower than a wide one of as much work (benchmarks/representations.py)


@dataclass(frozen=True)
class Truncated:
    """An operator near another, with a bound of the spectral norm of the difference."""

    operator: Operator
    residual: float
    ranks: tuple[int, ...]  # of the matrices that were replaced


def truncated(a: Operator, eps: float, columns: float) -> Truncated:
    """The cheapest of the operators within a budget."""
    return min(choices(a, eps, columns), key=lambda t: _price(t.operator, columns))


def _price(a: Operator, columns: float) -> float:
    c = cost_of(a, columns)  # type: ignore[arg-type]
    if a.kind == "low_rank":
        c = Cost(NARROW * c.flops, NARROW * c.bytes, c.launches)
    return seconds(c)


def choices(a: Operator, eps: float, columns: float) -> list[Truncated]:
    """A, A with factors of lower rank, A as one matrix, and that as one factor of low rank."""
    found = [Truncated(a, 0.0, ()), _inside(a, eps, columns)]
    if not is_known(a) or not all(isinstance(n, int) and n <= LARGEST for n in a.shape):
        return found
    matrix = dense_of(a)
    if eps > 0:  # else nothing may change, not even the rounding
        found.append(Truncated(Operator("dense", data=(matrix,)), 0.0, ()))
    low = low_rank(host_data(matrix), eps, a)
    return found if low is None else [*found, Truncated(*low, (low[0].data[0].shape[1],))]


def _inside(a: Operator, eps: float, columns: float) -> Truncated:
    """Replace matrices one after the other, sharing what is left of the budget."""
    places = [path for path, leaf in _matrices(a, ()) if leaf.data[0].storage is not None]
    spent, ranks = 0.0, []
    for i, path in enumerate(places):
        reach = _reach(a, path)
        if not 0 < reach < math.inf:
            continue
        share = (eps - spent) / (len(places) - i)
        leaf = part(a, path)
        found = low_rank(host_data(leaf.data[0]), share / reach, leaf)
        if found is None or _price(found[0], columns) >= _price(leaf, columns):
            continue
        a = replaced(a, path, found[0])
        spent += found[1] * reach
        ranks.append(found[0].data[0].shape[1])
    return Truncated(_turned(a), spent, tuple(ranks))


def _turned(a: Operator) -> Operator:
    """A with adjoints of what has an adjoint of its own kind, as low rank has, written as that."""
    parts = [_turned(p) for p in a.parts]
    if a.kind in TURNED:
        return TURNED[a.kind](parts[0]).assume(*a.assumed)
    if all(map(is_, parts, a.parts)):
        return a
    return Operator(a.kind, parts, a.data, a.static).assume(*a.assumed)


def _matrices(a: Operator, path: Path) -> Iterator[tuple[Path, Operator]]:
    if a.kind == "dense":
        yield path, a
    for i, p in enumerate(a.parts):
        yield from _matrices(p, (*path, i))


def is_known(a: Operator) -> bool:
    """Whether the numbers of an operator are there, not traced."""
    return all(v.storage is not None for v in a.data) and all(map(is_known, a.parts))


def low_rank(x: Any, allowed: float, like: Operator) -> tuple[Operator, float] | None:
    """The operator of least rank within a distance of a matrix, and a bound of that distance."""
    if not x.size or not np.all(np.isfinite(x)):
        return None
    wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    u, s, vh = np.linalg.svd(wide, full_matrices=False)
    tail = np.sqrt(np.cumsum(s[::-1] ** 2))[::-1]  # Frobenius norms of what is cut off
    rank = int(np.sum(tail > allowed))
    for r in range(rank, len(s)):
        factors = [f.astype(x.dtype) for f in (u[:, :r] * s[:r], vh[:r].conj().T)]
        bound = distance(wide, *factors)
        if bound <= allowed:
            data = [concrete(np.ascontiguousarray(f)) for f in factors]
            return Operator("low_rank", data=data, static=(False, False)), bound
    return None


def distance(x: Any, u: Any, v: Any) -> float:
    """A bound of the Frobenius norm of X - U @ V.H that holds in spite of rounding."""
    wide_u, wide_v = u.astype(x.dtype), v.astype(x.dtype)
    rest = x - wide_u @ wide_v.conj().T
    sizes = np.linalg.norm(wide_u, axis=0) @ np.linalg.norm(wide_v, axis=0)
    terms = u.shape[1] + 4 + 2 * math.log2(max(x.size, 2))
    rounding = 4 * UNIT * terms * (float(sizes) + float(np.linalg.norm(x)))
    found: float = float(np.linalg.norm(rest)) * (1 + 1e-9) + rounding
    return found


# Norms ------------------------------------------------------------------------------------------


def _matrix_norm(a: Operator) -> float:
    x = known_data(a.data[0])
    if x is None:
        return math.inf
    wide = np.abs(np.asarray(x)).astype(np.float64)
    if not wide.size:
        return 0.0
    sums = math.sqrt(float(wide.sum(0).max()) * float(wide.sum(1).max()))
    return min(float(np.linalg.norm(wide)), sums) * (1 + 1e-9)


def _vector_norm(a: Operator) -> float:
    x = known_data(a.data[0])
    return math.inf if x is None else float(np.abs(np.asarray(x)).max(initial=0))


def _factor(a: Operator) -> float:
    if a.static:
        return float(abs(a.static[0]))
    return math.inf if a.data[0].storage is None else float(np.abs(host_data(a.data[0])))


def _low_rank_norm(a: Operator) -> float:
    if a.static[0] or any(v.storage is None for v in a.data):
        return math.inf
    u, v = (np.linalg.norm(host_data(x).astype(np.complex128)) for x in (a.data[0], a.data[-1]))
    return float(u * v) * (1 + 1e-9)


# Bounds of the spectral norm, from those of the parts.
NORMS: dict[str, Callable[[Operator], float]] = {
    "dense": _matrix_norm,
    "diag": _vector_norm,
    "low_rank": _low_rank_norm,
    "eye": lambda a: 1.0,
    "zero": lambda a: 0.0,
    "plus": lambda a: sum(map(norm_bound, a.parts)),
    "compose": lambda a: math.prod(map(norm_bound, a.parts)),
    "scale": lambda a: _factor(a) * norm_bound(a.parts[0]),
    "kronecker": lambda a: math.prod(map(norm_bound, a.parts)),
    "kronsum": lambda a: sum(map(norm_bound, a.parts)),
    "direct_sum": lambda a: max(map(norm_bound, a.parts)),
    "block": lambda a: math.hypot(*map(norm_bound, a.parts)),
    "power": lambda a: norm_bound(a.parts[0]) ** a.static[0],
    "adjoint": lambda a: norm_bound(a.parts[0]),
    "transpose": lambda a: norm_bound(a.parts[0]),
    "conj": lambda a: norm_bound(a.parts[0]),
}


def norm_bound(a: Operator) -> float:
    """A bound of the spectral norm; infinite when nothing is known."""
    rule = NORMS.get(a.kind)
    found = math.inf if rule is None else rule(a)
    unit = a.flags & {"unitary", "orthogonal_columns", "projector", "permutation"}
    return min(found, 1.0 + 1e-6) if unit else found


def _reach(a: Operator, path: Path) -> float:
    """How far the whole moves at most when the part at a place moves by one."""
    if not path:
        return 1.0
    first, *rest = path
    inner = _reach(a.parts[first], tuple(rest))
    others = [norm_bound(p) for i, p in enumerate(a.parts) if i != first]
    if a.kind in ("compose", "kronecker"):
        return inner * math.prod(others)
    if a.kind == "scale":
        return inner * _factor(a)
    if a.kind in ("plus", "kronsum", "direct_sum", "block", "adjoint", "transpose", "conj"):
        return inner
    return math.inf  # an inverse or another function of the part
