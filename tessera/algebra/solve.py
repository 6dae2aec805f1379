"""A.solve(b): the structure decides how; what has none is solved densely, or by iteration when large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.algebra.apply import as_operator, columns, dense_of, diagonal_of, on_columns
from tessera.algebra.constructors.basic import column, refuse_zeros
from tessera.algebra.operator import Operator, function
from tessera.algebra.waves import Spectrum, spectrum_of
from tessera.core.constraints import same
from tessera.core.errors import NumericalError, ShapeError
from tessera.core.host import scipy
from tessera.core.promotion import promote
from tessera.core.provided import Provided
from tessera.ir.graph.ir import Value, host_data
from tessera.ops.creation import constant
from tessera.ops.define import cast_to
from tessera.ops.elementwise import div
from tessera.ops.solve import solve as solve_matrix
from tessera.ops.solve import triangular_solve

DENSE_LIMIT = 2048  # up to this size a matrix without structure is factorised
Iterative = Callable[..., Value]


ITERATIVE: Provided[Iterative] = Provided(
    "iterative solver",
    "how A X = B is solved by iteration: f(A, B, **options), B a matrix of columns",
)


@function
def solve(a: Any, b: Any, **options: Any) -> Value:
    """The x with A @ x = b; options (tolerance, method ...) ask for a solution by iteration."""
    found = as_operator("solve", a)
    if same(*found.shape) is False:
        m, n = found.shape
        raise ShapeError(
            f"solve: {found} is not square: its sizes are {m} and {n}; the solution of least squares is "
            "op.pseudoinverse(A) @ b"
        )
    refuse_non_finite("solve", found)
    return on_columns("solve", found, b, lambda x: solve_columns(found, x, **options))


def solve_columns(a: Operator, b: Value, **options: Any) -> Value:
    """A X = B for the columns of B."""
    b = cast_to(b, promote(a.dtype, b.dtype))
    refuse_low_rank("solve", a)
    if options:
        return _iterated(a, b, options)
    if "unitary" in a.flags:
        return columns(a.H, b)
    found = None if a.record.solve is None else a.record.solve(a, b)
    if found is None and "diagonal" in a.flags:
        d = diagonal_of(a)
        refuse_zeros("solve", a, d)
        found = div(b, column(d))
    if found is None and (known := spectrum_of(a)) is not None:
        found = _solve_by_waves(a, known, b)
    if found is None and a.flags & {"triangular_lower", "triangular_upper"}:
        found = triangular_solve(dense_of(a), b, lower="triangular_lower" in a.flags)
    if found is None and ITERATIVE.value is not None and _is_large(a):
        found = ITERATIVE.value(a, b)
    return _solve_dense(a, b) if found is None else found


def _solve_by_waves(a: Operator, known: Spectrum, b: Value) -> Value:
    """Divided by the eigenvalues that the structure tells."""
    if np.any(known.zeros()):
        raise NumericalError(f"solve: {a} is singular: an eigenvalue is 0; use pseudoinverse")
    return known.function(constant((1 / known.values).astype(a.dtype.real.np)), b)


def _solve_dense(a: Operator, b: Value) -> Value:
    return solve_small(a, dense_of(a), b)


def solve_small(a: Operator, m: Value, b: Value) -> Value:
    """M X = B for a matrix in the name of an operator."""
    x = named(a, lambda: solve_matrix(m, b))
    _refuse_imprecise(a, m)
    return x


def _refuse_imprecise(a: Operator, m: Value) -> None:
    """A matrix whose condition is beyond the precision gives solutions without a right digit.

    Its rows are scaled to one size first, since elimination does not mind their sizes.
    """
    if m.storage is None or not host_data(m).size:
        return
    if "closeness" not in a.memo:
        a.memo["closeness"] = _closeness(host_data(m))
    if a.memo["closeness"] < np.finfo(_wide(host_data(m)).dtype).eps:
        raise NumericalError(
            f"solve: {a} is singular to the precision of {a.dtype}; use op.pseudoinverse(A) @ b"
        )


def _closeness(m: Any) -> float:
    """How close a matrix is to a singular one: the reciprocal of its condition, as LAPACK estimates it."""
    wide = _wide(m)
    scaled = wide / np.sum(np.abs(wide), axis=1, keepdims=True)
    getrf, gecon = scipy("linalg").get_lapack_funcs(("getrf", "gecon"), (scaled,))
    factors, _, _ = getrf(scaled)
    found, _ = gecon(factors, 1.0, norm="I")
    return float(found)


def _wide(m: Any) -> Any:
    """Numbers in the dtype that they are solved in."""
    return m if m.dtype.itemsize >= 4 else m.astype(np.float32)


def named(a: Operator, run: Callable[[], Value]) -> Value:
    """A solution by an op, whose failure speaks of the operator."""
    try:
        return run()
    except NumericalError:
        error = NumericalError(f"solve: {a} is singular; use op.pseudoinverse(A) @ b")
    raise error


def refuse_low_rank(user: str, a: Operator) -> None:
    """An operator whose structure bounds its rank below its size has no inverse."""
    if "low_rank" in a.flags and a.rank < a.shape[0]:
        raise NumericalError(
            f"{user}: {a} is singular: its rank is at most {a.rank}; use op.pseudoinverse(A)"
        )


def _is_large(a: Operator) -> bool:
    return isinstance(a.shape[0], int) and a.shape[0] > DENSE_LIMIT


def _iterated(a: Operator, b: Value, options: dict[str, Any]) -> Value:
    assert ITERATIVE.value is not None, "the solvers enter themselves when tessera is imported"
    return ITERATIVE.value(a, b, **options)


def refuse_non_finite(user: str, a: Operator) -> None:
    """Operators with infinities or NaN are refused where the numbers are known."""
    for i, v in enumerate(a.data):
        if v.storage is not None and v.dtype.kind in "fc" and not np.all(np.isfinite(host_data(v))):
            raise NumericalError(
                f"{user}: tensor {i} of {a} is {v.type} and holds numbers that are not finite"
            )
    for p in a.parts:
        refuse_non_finite(user, p)
