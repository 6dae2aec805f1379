"""The package torch, loaded when it is first asked for; the only file that imports it."""

from __future__ import annotations

import importlib
import os
import sys
from collections import Counter
from functools import cache
from typing import Any

from tessera.core.errors import OperandError
from tessera.core.source import pass_over


@cache
def torch() -> Any:
    """The package torch, with the parts of it that exchange uses."""
    try:
        import torch as package
    except ImportError as e:
        if e.name != "torch":
            raise
        raise OperandError(
            "torch: exchange with PyTorch needs the package torch; pip install 'tessera[torch]'"
        ) from None
    pass_over(os.path.dirname(package.__file__))
    return package


def part(name: str) -> Any:
    """A part of torch that is not loaded with it, as in "export"."""
    return importlib.import_module(f"{torch().__name__}.{name}")


def decompositions(keep: frozenset[str], add: tuple[str, ...]) -> dict[Any, Any]:
    """The decompositions to core ATen, without those of some ops and of random ones, and with those of
    others.
    """
    t, decomp = torch(), part("_decomp")
    table = {
        k: f
        for k, f in decomp.core_aten_decompositions().items()
        if str(k) not in keep and not is_random(k)
    }
    more = [getattr(t.ops.aten, name) for name in add]
    return {**table, **decomp.get_decompositions(more)}


def is_random(target: Any) -> bool:
    """Whether an op draws random numbers."""
    return torch().Tag.nondeterministic_seeded in getattr(target, "tags", ())


def not_traced() -> Counter[str]:
    """What TorchDynamo could not trace and left to Python whole, by reason, since the process began."""
    utils = sys.modules.get("torch._dynamo.utils")
    return Counter() if utils is None else Counter(utils.counters["unimplemented"])
