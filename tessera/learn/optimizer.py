"""What an optimiser is: a pair of functions on trees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Tree = Any
State = dict[str, Any]


@dataclass(frozen=True)
class Optimizer:
    """init(params) -> state;  update(grads, state, params) -> (params, state)."""

    init: Callable[[Tree], State]
    update: Callable[[Tree, State, Tree], tuple[Tree, State]]
