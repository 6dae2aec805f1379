"""JAX: `ts.jax.wrap` gives JAX a function of ours, `ts.jax.import_function` gives us one of JAX.

The library is loaded at the first call of one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tessera.core.blame import blames_arguments
from tessera.core.counterparts import lacking
from tessera.core.deferred import Deferred
from tessera.core.modules import answer
from tessera.interop.jax.errors import JaxError as JaxError

if TYPE_CHECKING:
    from tessera.interop.jax.imported import Imported

__all__ = ["JaxError", "import_function", "wrap"]

_wrap = Deferred("tessera.interop.jax.wrapped:wrap")
_import_function = Deferred("tessera.interop.jax.imported:import_function")


@blames_arguments
def wrap(f: Callable[..., Any]) -> Callable[..., Any]:
    """f, a function of tensors in trees, as a function of JAX arrays for jax.jit, jax.grad and jax.vmap."""
    made: Callable[..., Any] = _wrap(f)
    return made


@blames_arguments
def import_function(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Imported:
    """f, a function of JAX, as a function of tensors for arguments like these, which jit, grad and vmap
    take.
    """
    made: Imported = _import_function(f, *args, **kwargs)
    return made


if not TYPE_CHECKING:  # for type checkers a name that is lacking is an error

    def __getattr__(name: str) -> object:
        raise lacking("jax", name, __all__)


answer(__name__, "jax")
