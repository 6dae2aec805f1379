"""Modules that have the name of a function elsewhere: calling one says what to write."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from tessera.core.errors import OperandError, located


class _Called(ModuleType):
    """A module that is called as if it were a function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise located(OperandError(self.__dict__["_when_called"]))


def refuse_calls(module: str, text: str) -> None:
    """Have a call of a module raise an error with this text."""
    found = sys.modules[module]
    found.__dict__["_when_called"] = text
    found.__class__ = _Called
