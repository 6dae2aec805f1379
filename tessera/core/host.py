"""SciPy, imported when a host function first needs it so that `import tessera` stays light."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any


@cache
def scipy(name: str) -> Any:
    """The submodule scipy.<name>."""
    return importlib.import_module(f"scipy.{name}")


def special(name: str) -> Any:
    """A function of scipy.special that is looked up at its first call."""

    def call(*xs: Any) -> Any:
        return getattr(scipy("special"), name)(*xs)

    call.__name__ = name
    return call
