"""What can be asked of an operator: trace, determinant, diagonal, elements and parts."""

from __future__ import annotations

from typing import Any

from tessera.algebra.apply import as_operator, dense_of, diagonal_of, square, trace_of
from tessera.algebra.constructors.basic import slogdet_of_diagonal
from tessera.algebra.operator import Operator, function
from tessera.ir.graph.ir import Value
from tessera.ops.define import cast_to, full_of
from tessera.ops.linalg import slogdet as slogdet_matrix


@function
def diagonal(a: Any) -> Value:
    """The elements at (i, i) of an operator."""
    return diagonal_of(as_operator("diagonal", a))


@function
def trace(a: Any) -> Value:
    """The sum of the diagonal of a square operator."""
    return trace_of(square("trace", a))


@function
def slogdet(a: Any) -> tuple[Value, Value]:
    """The sign (or phase) of the determinant and the logarithm of its absolute value."""
    return signed_logdet(square("slogdet", a))


@function
def logdet(a: Any) -> Value:
    """The logarithm of the absolute value of the determinant; -inf when it is zero."""
    return signed_logdet(square("logdet", a))[1]


def signed_logdet(a: Operator) -> tuple[Value, Value]:
    """Sign and logarithm, by structure, else from the dense matrix."""
    if a.flags & {"triangular_lower", "triangular_upper"}:
        s, size = slogdet_of_diagonal(diagonal_of(a))
    elif a.record.slogdet is not None:
        s, size = a.record.slogdet(a)
    elif {"positive", "unitary"} <= a.flags:
        s, size = full_of((), 1, a.dtype), full_of((), 0, a.dtype.real)
    else:
        s, size = slogdet_matrix(dense_of(a))
    return cast_to(s, a.dtype), cast_to(size, a.dtype.real)
