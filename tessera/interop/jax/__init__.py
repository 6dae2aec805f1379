"""JAX: `ts.jax.wrap` gives JAX a function of ours, `ts.jax.import_function` gives us one of JAX."""

from __future__ import annotations

from tessera.interop.jax.imported import Imported as Imported
from tessera.interop.jax.imported import JaxError as JaxError
from tessera.interop.jax.imported import import_function as import_function
from tessera.interop.jax.wrap import wrap as wrap
