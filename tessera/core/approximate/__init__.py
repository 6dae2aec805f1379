"""Tessera's own transcendental functions, written once over primitive operations.

Every target expands them with its own Algebra, so the bits of exp are the same in NumPy, in LLVM and
on a GPU.  The bounds are measured by benchmarks/ulp.py and listed in docs/approximations.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.core.approximate import exponential, gamma, logarithm, power, special, trigonometric
from tessera.core.approximate.algebra import F32, F64, Algebra, NumpyAlgebra, Real, V

Array = np.ndarray[Any, np.dtype[Any]]
FLOATS = {"f32": F32, "f64": F64}


@dataclass(frozen=True)
class Approximation:
    """A function of reals with the largest error, in units in the last place, for each format."""

    function: Callable[..., Real]
    f32: float
    f64: float
    arity: int = 1
    # Negative x are reflected, and zeros lie between poles: there errors count in units of the largest
    # of |f(x)|, |f(1 - x)| and 1.
    reflected: bool = False

    def build(self, algebra: Algebra[V], *operands: V) -> V:
        """The function on values of an algebra."""
        result: V = self.function(*(Real(algebra, x) for x in operands)).raw
        return result


FUNCTIONS = {
    "exp": Approximation(exponential.exp, 1, 1),
    "exp2": Approximation(exponential.exp2, 1, 1),
    "expm1": Approximation(exponential.expm1, 2, 2),
    "sigmoid": Approximation(exponential.sigmoid, 2.5, 2.5),
    "tanh": Approximation(exponential.tanh, 2, 2),
    "cosh": Approximation(exponential.cosh, 2, 2),
    "sinh": Approximation(exponential.sinh, 2, 2),
    "log": Approximation(logarithm.log, 1, 1),
    "log2": Approximation(logarithm.log2, 1, 1),
    "log10": Approximation(logarithm.log10, 1, 1),
    "log1p": Approximation(logarithm.log1p, 2, 2),
    "asinh": Approximation(logarithm.asinh, 2, 2),
    "acosh": Approximation(logarithm.acosh, 2, 2),
    "atanh": Approximation(logarithm.atanh, 2, 2),
    "sin": Approximation(trigonometric.sin, 2, 2),
    "cos": Approximation(trigonometric.cos, 2, 2),
    "tan": Approximation(trigonometric.tan, 3, 3),
    "asin": Approximation(trigonometric.asin, 2, 2),
    "acos": Approximation(trigonometric.acos, 2, 2),
    "atan": Approximation(trigonometric.atan, 2, 2),
    "atan2": Approximation(trigonometric.atan2, 2, 2, arity=2),
    "pow": Approximation(power.pow, 1, 1, arity=2),
    "cbrt": Approximation(power.cbrt, 1, 1),
    "rsqrt": Approximation(power.rsqrt, 1, 1),
    "hypot": Approximation(power.hypot, 1, 1, arity=2),
    "erf": Approximation(special.erf, 2, 2),
    "erfc": Approximation(special.erfc, 3.5, 3.5),
    "erfinv": Approximation(special.erfinv, 3, 3),
    "erfcinv": Approximation(special.erfcinv, 3, 3),
    "gamma": Approximation(gamma.gamma, 3.5, 3.5),
    "lgamma": Approximation(gamma.lgamma, 3, 2.5, reflected=True),
    "digamma": Approximation(gamma.digamma, 3, 3, reflected=True),
}


def evaluate(name: str, *arrays: Array) -> Array:
    """A function of FUNCTIONS on arrays of f32 or of f64."""
    algebra = NumpyAlgebra(F32 if arrays[0].dtype == np.float32 else F64)
    with np.errstate(all="ignore"):
        operands = np.broadcast_arrays(*arrays) if len(arrays) > 1 else arrays
        return np.asarray(FUNCTIONS[name].build(algebra, *operands))
