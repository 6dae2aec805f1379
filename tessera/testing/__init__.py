"""Testing: checks that a user's own ops, kernels and models can be held to."""

from tessera.core.modules import answer
from tessera.testing.close import CheckFailed as CheckFailed
from tessera.testing.close import assert_close as assert_close
from tessera.testing.close import assert_same_bits as assert_same_bits
from tessera.testing.close import tolerance as tolerance
from tessera.testing.golden import golden as golden
from tessera.testing.gradients import adjoint_check as adjoint_check
from tessera.testing.gradients import gradcheck as gradcheck
from tessera.testing.invariants import Invariance as Invariance
from tessera.testing.invariants import invariant as invariant
from tessera.testing.mutate import Mutant as Mutant
from tessera.testing.mutate import Mutations as Mutations
from tessera.testing.mutate import mutate as mutate
from tessera.testing.programs import random_programs as random_programs

__all__ = [
    "CheckFailed", "Invariance", "Mutant", "Mutations", "adjoint_check", "assert_close", "assert_same_bits",
    "golden", "gradcheck", "invariant", "mutate", "random_programs", "tolerance",
]  # fmt: skip


answer(__name__, "testing")
