"""op.<name>: every op, and the functions written with them, under one name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.algebra.solvers.names import *
from tessera.core.errors import OperandError, located
from tessera.lang import random as random
from tessera.lang.collective import *
from tessera.lang.funm import funm as funm
from tessera.lang.funm import singular_map as singular_map
from tessera.lang.numpy_protocol import set_ops as _set_ops
from tessera.ops.accumulate import *
from tessera.ops.activation import *
from tessera.ops.arrange import *
from tessera.ops.attention_grad import *
from tessera.ops.banded import *
from tessera.ops.batchnorm import *
from tessera.ops.callbacks import *
from tessera.ops.contraction import *
from tessera.ops.control import *
from tessera.ops.conv_transpose import *
from tessera.ops.convolution import *
from tessera.ops.creation import *
from tessera.ops.ctc import *
from tessera.ops.curves import *
from tessera.ops.dynamic_slice import *
from tessera.ops.elementwise import *
from tessera.ops.factor import *
from tessera.ops.fft import *
from tessera.ops.gather import *
from tessera.ops.grid_sample import *
from tessera.ops.indexing import *
from tessera.ops.linalg import *
from tessera.ops.loss import *
from tessera.ops.margins import *
from tessera.ops.matrix import *
from tessera.ops.matrix_function import *
from tessera.ops.neural import *
from tessera.ops.normalization import *
from tessera.ops.pooling import *
from tessera.ops.random import dropout as dropout
from tessera.ops.reduction import *
from tessera.ops.reinterpret import *
from tessera.ops.remat import barrier as barrier
from tessera.ops.remat import checkpoint_name as checkpoint_name
from tessera.ops.resize import *
from tessera.ops.sets import *
from tessera.ops.shape import *
from tessera.ops.softmax import *
from tessera.ops.solve import *
from tessera.ops.sorting import *
from tessera.ops.special import *
from tessera.ops.spectrum import *
from tessera.ops.stacking import *
from tessera.ops.state import *
from tessera.ops.statistics import *
from tessera.ops.windows import *

# After the ops: what is both looks at its argument; op.eye is an operator and ts.eye a tensor.
from tessera.algebra.names import *  # type: ignore[assignment]  # isort: skip
from tessera.lang.operators import *  # type: ignore[assignment]  # isort: skip


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


_set_ops(globals())  # np.mean(t) is op.mean(t)
