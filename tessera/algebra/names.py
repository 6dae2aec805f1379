"""The functions of operators whose names no function of tensors has."""

from tessera.algebra.apply import adjoint, apply, todense
from tessera.algebra.combinators.linear import compose, plus, scale
from tessera.algebra.combinators.queries import logdet
from tessera.algebra.combinators.tensor import kronecker, tensor
from tessera.algebra.constructors.basic import dense, diag, zero
from tessera.algebra.constructors.factored import low_rank

__all__ = [
    "adjoint", "apply", "compose", "dense", "diag", "kronecker", "logdet", "low_rank", "plus", "scale",
    "tensor", "todense", "zero",
]  # fmt: skip
