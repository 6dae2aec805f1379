"""The library jax, which only this file imports."""

from __future__ import annotations

import os

from tessera.core.errors import OperandError
from tessera.core.source import pass_over

try:
    import jax
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir
except ImportError:
    raise OperandError(
        "jax: calling and importing functions of JAX needs the package jax; pip install 'tessera[jax]'"
    ) from None

pass_over(os.path.dirname(jax.__file__))

__all__ = ["Primitive", "ad", "batching", "jax", "mlir"]
