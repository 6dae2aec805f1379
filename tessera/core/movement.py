"""Movement towards what computes: a tensor is asked for before it is read."""

from __future__ import annotations

import numpy as np

from tessera.core.dtype import u8
from tessera.core.primitive import Definition
from tessera.core.types import TensorType

ASKED = TensorType(u8, ())  # what a request gives: a zero, which nobody reads

MOVEMENT = (
    Definition(
        "state_prefetch", lambda types, p: True, lambda types, p: [ASKED],
        lambda xs, p: [np.zeros((), np.uint8)],
    ),
)  # fmt: skip
