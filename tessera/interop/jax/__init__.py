"""JAX: `ts.jax.wrap` gives JAX a function of ours, `ts.jax.import_function` gives us one of JAX.

The library is loaded at the first call of one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.core.counterparts import lacking
from tessera.core.deferred import Deferred
from tessera.core.modules import answer
from tessera.interop.jax.errors import JaxError as JaxError

wrap = Deferred("tessera.interop.jax.wrapped:wrap")
import_function = Deferred("tessera.interop.jax.imported:import_function")


if not TYPE_CHECKING:  # for type checkers a name that is lacking is an error

    def __getattr__(name: str) -> object:
        raise lacking("jax", name, ("import_function", "wrap"))


answer(__name__, "jax")
