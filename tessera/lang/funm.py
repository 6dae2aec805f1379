"""op.funm and op.singular_map: functions of a matrix through its eigenvalues or singular values, with
derivatives that are right where those repeat or vanish (transform/funm.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.ir.graph.ir import Value
from tessera.ops.define import ArrayLike, public
from tessera.ops.matrix import as_matrix, square_matrix
from tessera.transform.funm import singular_function, spectral_function

Function = Callable[[Any], Any]


@public
def funm(x: ArrayLike, f: Function) -> Value:
    """V diag(f(w)) V^H for the Hermitian part of x, whose eigenvalues are w and eigenvectors V.

    f works on each element of a tensor of real numbers.  The derivative is right at equal eigenvalues.
    """
    return spectral_function("funm", square_matrix("funm", x), f)


@public
def singular_map(x: ArrayLike, f: Function) -> Value:
    """U diag(f(s)) Vh for x = U diag(s) Vh, where f(0) is 0.

    f works on each element of a tensor.  The derivative is right at equal singular values and at zeros.
    """
    return singular_function("singular_map", as_matrix("singular_map", x), f)
