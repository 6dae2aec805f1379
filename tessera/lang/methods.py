"""Jitted methods: a compiled function whose first argument is an instance."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.lang.arguments import Call
from tessera.lang.lowered import Lowered
from tessera.lang.trace import Traced

if TYPE_CHECKING:  # which makes these
    from tessera.lang.jit import Jitted


class BoundMethod:
    """A jitted method bound to its instance, which must be a tree."""

    def __init__(self, f: Jitted, instance: Any):
        self._jitted, self._self = f, instance
        f._is_method = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._jitted(self._self, *args, **kwargs)

    def traced_call(self, *args: Any, **kwargs: Any) -> tuple[Traced, Call]:
        """The graph for the instance and these arguments before any pass, and the call taken apart."""
        return self._jitted.traced_call(self._self, *args, **kwargs)

    @property
    def function(self) -> Jitted:
        """The method itself, which its class has."""
        return self._jitted

    @property
    def name(self) -> str:
        """What the method is called."""
        return self._jitted.name

    @property
    def mode(self) -> str:
        """The numerics of a call."""
        return self._jitted.mode

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The method at every level of the compiler."""
        return self._jitted.lower(self._self, *args, **kwargs)

    def inspect(
        self, *args: Any, path: str | os.PathLike[str] | None = None, **kwargs: Any
    ) -> Path:
        """Write a page that shows the method at every level."""
        return self._jitted.inspect(self._self, *args, path=path, **kwargs)
