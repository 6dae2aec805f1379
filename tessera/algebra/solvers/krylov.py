"""The processes of Lanczos and Arnoldi as users call them."""

from __future__ import annotations

from typing import Any

from tessera.algebra.apply import applied, square
from tessera.algebra.operator import Operator, function
from tessera.algebra.solvers.closed import Apply
from tessera.algebra.solvers.long import Arnoldi, Lanczos, arnoldi_process, lanczos_process
from tessera.core.errors import OperandError, ShapeError
from tessera.core.promotion import promote
from tessera.ir.graph.ir import Value
from tessera.ops.define import as_value_of, cast_to, floating


def steps_of(user: str, n: Any, most: int, what: str = "steps") -> int:
    """A number of steps, at most the size of the space."""
    if isinstance(n, bool) or not hasattr(n, "__index__") or int(n) < 1:
        raise OperandError(f"{user}: {what} is {n!r:.40}, expected a positive integer")
    return min(int(n), most)


def _given(user: str, a: Any, v: Any, steps: Any) -> tuple[Apply, Value, int]:
    found: Operator = square(user, a)
    start = floating(as_value_of(found.dtype, v, user), found.dtype)
    if start.shape != found.shape[:1]:
        raise ShapeError(f"{user}: v is {start.type}, expected {found.dtype}[{found.shape[0]}]")
    start = cast_to(start, promote(found.dtype, start.dtype))
    return lambda x: applied(user, found, x), start, steps_of(user, steps, found.shape[0])


@function
def lanczos(a: Any, v: Any, steps: int) -> Lanczos:
    """Steps of Lanczos from v for a self-adjoint A: basis, diagonal, and what is beside it."""
    return lanczos_process(*_given("lanczos", a, v, steps))


@function
def arnoldi(a: Any, v: Any, steps: int) -> Arnoldi:
    """Steps of Arnoldi from v for any square A: basis, Hessenberg matrix, length of the rest."""
    return arnoldi_process(*_given("arnoldi", a, v, steps))
