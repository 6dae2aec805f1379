"""The public functions of solvers, spectra and diagnostics."""

from tessera.algebra.diagnostics import adjoint_test, is_unitary, spectral_radius
from tessera.algebra.solvers.choose import iterated as _iterated  # noqa: F401  enters itself for A.solve
from tessera.algebra.solvers.functions import apply_function
from tessera.algebra.solvers.krylov import arnoldi, lanczos
from tessera.algebra.solvers.least import lsmr
from tessera.algebra.solvers.linear import bicgstab, cg, chebyshev, gmres, minres
from tessera.algebra.solvers.precondition import block_jacobi, jacobi, nystrom
from tessera.algebra.solvers.stochastic import stochastic_logdet, stochastic_trace
from tessera.algebra.spectral import (
    pseudoinverse,
    reconstruct,
    spectral,
    spectral_filter,
    truncate,
)

__all__ = [
    "adjoint_test", "apply_function", "arnoldi", "bicgstab", "block_jacobi", "cg", "chebyshev", "gmres",
    "is_unitary", "jacobi", "lanczos", "lsmr", "minres", "nystrom", "pseudoinverse", "reconstruct",
    "spectral", "spectral_filter", "spectral_radius", "stochastic_logdet", "stochastic_trace",
    "truncate",
]  # fmt: skip
