"""The functions of operators whose names no function of tensors has."""

from tessera.algebra.apply import adjoint, apply, todense
from tessera.algebra.check import check_flags
from tessera.algebra.claims import check_claims
from tessera.algebra.combinators.blocks import block, direct_sum
from tessera.algebra.combinators.functions import function_ as function
from tessera.algebra.combinators.inverse import (
    anticommutator,
    commutator,
    inverse,
    power,
    resolvent,
    skew,
    sym,
)
from tessera.algebra.combinators.linear import compose, plus, scale
from tessera.algebra.combinators.queries import logdet
from tessera.algebra.combinators.tensor import kronecker, kronsum, tensor
from tessera.algebra.constructors.banded import triangular, tridiagonal
from tessera.algebra.constructors.basic import dense, diag, zero
from tessera.algebra.constructors.circulant import circulant, toeplitz
from tessera.algebra.constructors.factored import low_rank, projector
from tessera.algebra.constructors.implicit import from_matvec, hessian, jacobian
from tessera.algebra.constructors.index import permutation, select
from tessera.algebra.constructors.sketch import sketch
from tessera.algebra.constructors.sparse import sparse
from tessera.algebra.constructors.stencil import divergence, gradient, laplacian, stencil
from tessera.algebra.descriptor import describe, undescribe

__all__ = [
    "adjoint", "anticommutator", "apply", "block", "check_claims", "check_flags", "circulant", "commutator",
    "compose",
    "dense", "describe", "diag", "direct_sum", "divergence", "from_matvec", "function", "gradient",
    "hessian", "inverse", "jacobian", "kronecker", "kronsum", "laplacian", "logdet", "low_rank",
    "permutation", "plus", "power", "projector", "resolvent", "scale", "select", "sketch", "skew",
    "sparse", "stencil", "sym", "tensor", "todense", "toeplitz", "triangular", "tridiagonal",
    "undescribe", "zero",
]  # fmt: skip
