"""op.<name>: every op, and the functions written with them, under one name.

Each module below lists its public names in `__all__` (an op's record enters itself there). op.pyi, which tools/stubs.py
writes, has all of them with their signatures for editors and type checkers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.algebra import names as operators_of_algebra
from tessera.algebra.solvers import names as solvers
from tessera.core.counterparts import lacking
from tessera.core.errors import OperandError, located
from tessera.lang import collective, funm, operators
from tessera.lang import random as random
from tessera.lang.names import bessel, grids, joining, numeric, polynomials, special, statistics
from tessera.lang.names import neural as neural_names
from tessera.lang.names.aliases import ALIASES
from tessera.lang.numpy_protocol import OPS
from tessera.ops import (
    accumulate,
    activation,
    arrange,
    attention_grad,
    banded,
    batchnorm,
    callbacks,
    contraction,
    control,
    conv_transpose,
    convolution,
    creation,
    ctc,
    dynamic_slice,
    elementwise,
    factor,
    fft,
    gather,
    grid_sample,
    indexing,
    linalg,
    loss,
    margins,
    matrix,
    matrix_function,
    neural,
    normalization,
    pooling,
    reduction,
    reinterpret,
    resize,
    sets,
    shape,
    softmax,
    solve,
    sorting,
    spectrum,
    state,
    windows,
)
from tessera.ops.random import dropout as dropout
from tessera.ops.remat import barrier as barrier
from tessera.ops.remat import checkpoint_name as checkpoint_name

# Later modules win: what is both an op and an operator looks at its argument; op.eye is an operator and ts.eye a tensor.
_MODULES = (
    solvers,
    collective,
    joining,
    numeric,
    polynomials,
    statistics,
    grids,
    special,
    bessel,
    neural_names,
    accumulate,
    activation,
    arrange,
    attention_grad,
    banded,
    batchnorm,
    callbacks,
    contraction,
    control,
    conv_transpose,
    convolution,
    creation,
    ctc,
    dynamic_slice,
    elementwise,
    factor,
    fft,
    gather,
    grid_sample,
    indexing,
    linalg,
    loss,
    margins,
    matrix,
    matrix_function,
    neural,
    normalization,
    pooling,
    reduction,
    reinterpret,
    resize,
    sets,
    shape,
    softmax,
    solve,
    sorting,
    spectrum,
    state,
    windows,
    operators_of_algebra,
    operators,
)


def pipeline(steps: Sequence[Any]) -> Any:
    """The first step, a value or a function of none, passed through the functions that follow."""
    if not steps:
        raise located(OperandError("pipeline: got no steps"))
    head, *rest = steps
    x: Any = head() if callable(head) else head
    for i, f in enumerate(rest, 1):
        if not callable(f):
            raise located(
                OperandError(f"pipeline: step {i} is {type(f).__name__}, expected a function")
            )
        x = f(x)
    return x


__all__ = ["barrier", "checkpoint_name", "dropout", "pipeline", "random"]
_FOUND = {name: getattr(m, name) for m in _MODULES for name in m.__all__}
_FOUND |= {"funm": funm.funm, "singular_map": funm.singular_map}
_FOUND |= {other: _FOUND[ours] for other, ours in ALIASES.items()}
globals().update(_FOUND)
OPS.provide(_FOUND)  # np.mean(t) is op.mean(t)
__all__ += [name for name in _FOUND if name not in __all__]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    raise lacking("op", name, __dir__())
