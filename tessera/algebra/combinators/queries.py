"""What can be asked of an operator: trace, determinant, diagonal, elements and parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.algebra.apply import as_operator, dense_of, diagonal_of, square, trace_of
from tessera.algebra.constructors.basic import slogdet_of_diagonal
from tessera.algebra.operator import Operator, function
from tessera.algebra.waves import spectrum_of
from tessera.ir.graph.ir import Value
from tessera.ops.creation import constant
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


def _settled(a: Operator, w: Any) -> Any:
    """Eigenvalues of which as many are zero as the bound of the rank says."""
    lost = np.argsort(np.abs(w))[: a.shape[0] - a.rank]
    return np.where(np.isin(np.arange(len(w)), lost), 0.0, w)


def signed_logdet(a: Operator) -> tuple[Value, Value]:
    """Sign and logarithm, by structure, else from the dense matrix."""
    if a.flags & {"triangular_lower", "triangular_upper"}:
        s, size = slogdet_of_diagonal(diagonal_of(a))
    elif (known := spectrum_of(a)) is not None:
        s, size = slogdet_of_diagonal(constant(_settled(a, known.values)))
    elif a.record.slogdet is not None:
        s, size = a.record.slogdet(a)
    elif {"positive", "unitary"} <= a.flags:
        s, size = full_of((), 1, a.dtype), full_of((), 0, a.dtype.real)
    else:
        s, size = slogdet_matrix(dense_of(a))
    return cast_to(s, a.dtype), cast_to(size, a.dtype.real)
