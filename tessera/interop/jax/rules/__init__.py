"""Primitives of JAX as ops, a file for each family."""

from tessera.interop.jax.rules import algebra as algebra
from tessera.interop.jax.rules import elementwise as elementwise
from tessera.interop.jax.rules import folds as folds
from tessera.interop.jax.rules import places as places
from tessera.interop.jax.rules import random as random
from tessera.interop.jax.rules import shape as shape
from tessera.interop.jax.rules.table import RULES as RULES
