"""A.solve(b): the structure decides how; what has none is solved densely, or by iteration when large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.algebra.apply import columns, dense_of, diagonal_of, on_columns, square
from tessera.algebra.constructors.basic import column, refuse_zeros
from tessera.algebra.operator import Operator, function
from tessera.core.errors import NumericalError
from tessera.core.promotion import promote
from tessera.ir.graph.ir import Value
from tessera.ops.define import cast_to
from tessera.ops.elementwise import div
from tessera.ops.solve import solve as solve_matrix
from tessera.ops.solve import triangular_solve

DENSE_LIMIT = 2048  # up to this size a matrix without structure is factorised
Iterative = Callable[..., Value]


class _Iterative:
    """How large operators without structure are solved; the solvers enter themselves here."""

    run: Iterative | None = None


def set_iterative(f: Iterative) -> None:
    """Say how A X = B is solved by iteration: f(A, B, **options), with B a matrix of columns."""
    _Iterative.run = f


@function
def solve(a: Any, b: Any, **options: Any) -> Value:
    """The x with A @ x = b; options (tolerance, method ...) ask for a solution by iteration."""
    found = square("solve", a)
    refuse_non_finite("solve", found)
    return on_columns("solve", found, b, lambda x: solve_columns(found, x, **options))


def solve_columns(a: Operator, b: Value, **options: Any) -> Value:
    """A X = B for the columns of B."""
    b = cast_to(b, promote(a.dtype, b.dtype))
    if options:
        return _iterated(a, b, options)
    if "unitary" in a.flags:
        return columns(a.H, b)
    found = None if a.record.solve is None else a.record.solve(a, b)
    if found is None and "diagonal" in a.flags:
        d = diagonal_of(a)
        refuse_zeros("solve", a, d)
        found = div(b, column(d))
    if found is None and a.flags & {"triangular_lower", "triangular_upper"}:
        found = triangular_solve(dense_of(a), b, lower="triangular_lower" in a.flags)
    if found is None and _Iterative.run is not None and _is_large(a):
        found = _Iterative.run(a, b)
    return solve_matrix(dense_of(a), b) if found is None else found


def _is_large(a: Operator) -> bool:
    return isinstance(a.shape[0], int) and a.shape[0] > DENSE_LIMIT


def _iterated(a: Operator, b: Value, options: dict[str, Any]) -> Value:
    assert _Iterative.run is not None, "the solvers enter themselves when tessera is imported"
    return _Iterative.run(a, b, **options)


def refuse_non_finite(user: str, a: Operator) -> None:
    """Operators with infinities or NaN are refused where the numbers are known."""
    for i, v in enumerate(a.data):
        if v.data is not None and v.dtype.kind in "fc" and not np.all(np.isfinite(v.data)):
            raise NumericalError(
                f"{user}: tensor {i} of {a} is {v.type} and holds numbers that are not finite"
            )
    for p in a.parts:
        refuse_non_finite(user, p)
