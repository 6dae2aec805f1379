"""Imports of names without a file: `import tessera.op` finds the attribute, others say what to write.

`ts.op` and `ts.optim` are modules elsewhere in the package, and a name of another library has a counterpart.
Python asks this finder last, and only about modules that it has not found.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from tessera.core.errors import NoAttributeError


class AttributeFinder(MetaPathFinder):
    """Finds modules of a package that are attributes of it."""

    def __init__(self, package: str):
        self._prefix = f"{package}."

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A module that is an attribute, or None; raises ModuleNotFoundError for what has a counterpart."""
        parent, _, name = fullname.rpartition(".")
        there = sys.modules.get(parent)
        if not fullname.startswith(self._prefix) or there is None or name.startswith("_"):
            return None
        try:
            value = getattr(there, name)
        except NoAttributeError as e:
            if ";" not in e.message:
                return None
            said = e.message
        except AttributeError:
            return None
        else:
            if isinstance(value, ModuleType):
                return ModuleSpec(fullname, _AttributeLoader(value))
            said = f"{fullname} is no module; write from {parent} import {name}"
        raise ModuleNotFoundError(said)


class _AttributeLoader(Loader):
    """Gives a module that is there already."""

    def __init__(self, module: ModuleType):
        self._module = module

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = self._module
