"""Donated arguments: results take their memory, and whoever holds them loses them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.compile.executable import Executable
from tessera.core.holders import is_held_once
from tessera.core.source import warn_caller
from tessera.ir.graph.ir import Value, donate


def tell_kept(name: str, donated: Sequence[int], executable: Executable) -> None:
    """Warn where the target has no use for the memory of arguments."""
    if donated and type(executable) is Executable:
        warn_caller(
            f"{name}: donate acts on the targets cpu, cuda and hip; the target numpy keeps the arguments"
        )


def run_donating(entry: Any, tensors: Sequence[Value], data: Sequence[Any]) -> list[Any]:
    """Run, and take the donated arguments away from whoever holds them."""
    executable: Any = entry.executable
    if entry.checked:  # looking for an error needs what went in
        outs: list[Any] = entry.run(data)
    else:
        free = frozenset(i for i in entry.donated if _is_free(data[i]))
        outs = executable.run(data, free)
    for i in entry.donated:
        donate(tensors[i])
    return outs


def _is_free(x: Any) -> bool:
    """Whether one tensor alone holds an array: nobody else would see that it is written over."""
    # The tensor, the list of data, the parameter of this function, and the count hold it.
    if sys.getrefcount(x) > 4:
        return False
    if type(x) is not np.ndarray:  # an array of a device
        return bool(x.is_free())
    return is_held_once(x)
