"""A name in the text of a program that stands for a Python object of this process."""

from __future__ import annotations

import itertools
from typing import Any

_COUNT = itertools.count()


class Reference(str):
    """A string, unique in this process, that holds what it names; read back it is only a string."""

    __slots__ = ("target",)
    target: Any

    def __new__(cls, name: str, target: Any) -> Reference:
        made = super().__new__(cls, f"{name}.{next(_COUNT)}")
        made.target = target
        return made
