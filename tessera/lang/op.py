"""op.<name>: every op, and the functions written with them, under one name.

Each module of op_modules.py lists its public names in `__all__` (an op's record enters itself there).
op.pyi, which tools/stubs.py writes, has all of them with their signatures for editors and type checkers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.core.counterparts import lacking as _lacking
from tessera.core.errors import OperandError as _OperandError
from tessera.core.errors import located as _located
from tessera.lang import funm as _functions_of_matrices
from tessera.lang import random as random
from tessera.lang.habits import know_functions as _know_functions
from tessera.lang.names.aliases import ALIASES as _ALIASES
from tessera.lang.numpy_protocol import OPS as _OPS
from tessera.lang.op_modules import MODULES as _MODULES
from tessera.ops.random import dropout as dropout
from tessera.ops.remat import barrier as barrier
from tessera.ops.remat import checkpoint_name as checkpoint_name


def pipeline(steps: Sequence[Any]) -> Any:
    """The first step, a value or a function of none, passed through the functions that follow."""
    if not steps:
        raise _located(_OperandError("pipeline: got no steps"))
    head, *rest = steps
    x: Any = head() if callable(head) else head
    for i, f in enumerate(rest, 1):
        if not callable(f):
            raise _located(
                _OperandError(f"pipeline: step {i} is {type(f).__name__}, expected a function")
            )
        x = f(x)
    return x


__all__ = ["barrier", "checkpoint_name", "dropout", "pipeline", "random"]
_FOUND = {name: getattr(m, name) for m in _MODULES for name in m.__all__}
_FOUND |= {"funm": _functions_of_matrices.funm, "singular_map": _functions_of_matrices.singular_map}
_FOUND |= {other: _FOUND[ours] for other, ours in _ALIASES.items()}
globals().update(_FOUND)
_OPS.provide(_FOUND)  # np.mean(t) is op.mean(t)
__all__ += [name for name in _FOUND if name not in __all__]
_know_functions(name for name, f in _FOUND.items() if callable(f))


_MAKERS = ("asarray", "tensor", "from_dlpack", "key", "jit", "grad", "vmap")


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    raise _lacking("op", name, __dir__(), {"ts": _MAKERS})
