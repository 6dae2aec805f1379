"""Memory that arguments and results of a jitted call may share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core import tree
from tessera.core.device import ANYWHERE
from tessera.ir.graph.ir import Value, holding
from tessera.lang.arguments import Call


def apart(result: Any, c: Call) -> Any:
    """Results with memory of their own: arrays among the arguments may be written to later."""
    lent = [
        v.data for v in c.tensors if v.device is ANYWHERE and type(v.data) is np.ndarray and v.ndim
    ]
    if not lent:
        return result
    if isinstance(result, Value):
        return _owned(result, lent)
    leaves, structure = tree.flatten(result)
    return tree.unflatten(structure, [_owned(v, lent) for v in leaves])


def _owned(v: Value, lent: Sequence[np.ndarray[Any, Any]]) -> Value:
    if not isinstance(v.data, np.ndarray):
        return v
    if v.data.base is None and all(v.data is not x for x in lent):
        return v
    shared = any(np.may_share_memory(v.data, x) for x in lent)
    return holding(v.type, np.array(v.data), v.device) if shared else v


def is_free(x: Any) -> bool:
    """Whether one tensor alone holds an array: nobody else would see that it is written over."""
    # The tensor, the list of data, the parameter of this function, and the count hold it.
    if sys.getrefcount(x) > 4:
        return False
    if type(x) is not np.ndarray:  # an array of a device
        return bool(x.is_free())
    base = x.base
    if not x.flags.writeable:
        return False
    while type(base) is np.ndarray:
        if sys.getrefcount(base) > 3:  # the array on it, this name, and the count
            return False
        base = base.base
    return base is None
