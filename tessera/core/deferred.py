"""Functions of modules that are loaded at the first call.

A table of the compiler can name a function of every level, and a process that only loads an artefact imports
none of them: the modules below Graph IR take longer to import than a small program takes to load.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


class Deferred:
    """The function `module:name`; the module is imported when it is first called or asked for."""

    __slots__ = ("_module", "_name", "path")

    def __init__(self, path: str):
        self.path = path
        self._module: Any = None
        self._name = path.partition(":")[2]

    def function(self) -> Callable[..., Any]:
        """The function itself."""
        if self._module is None:
            self._module = importlib.import_module(self.path.partition(":")[0])
        found: Callable[..., Any] = getattr(self._module, self._name)
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function()(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Deferred({self.path!r})"
