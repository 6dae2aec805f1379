"""JAX: `ts.jax.wrap` gives JAX a function of ours, `ts.jax.import_function` gives us one of JAX.

The library is loaded with the first of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tessera.core.counterparts import lacking
from tessera.core.modules import answer
from tessera.interop.jax.errors import JaxError as JaxError

__all__ = ["JaxError", "import_function", "wrap"]

if TYPE_CHECKING:
    from tessera.interop.jax.imported import import_function as import_function
    from tessera.interop.jax.wrapped import wrap as wrap
else:
    _MODULES = {"import_function": "imported", "wrap": "wrapped"}

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise lacking("jax", name, __all__)
        found = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = found
        return found


answer(__name__, "jax")
