"""The public functions of solvers."""

from tessera.algebra.solvers.least import lsmr
from tessera.algebra.solvers.linear import bicgstab, cg, chebyshev, gmres, minres

__all__ = ["bicgstab", "cg", "chebyshev", "gmres", "lsmr", "minres"]
